"""Shapes of published models by name, so that a run can be planned before anything is downloaded.

The numbers are those of each model's config.json; training reads that file itself and never looks here.
"""

from rlzero.models.transformer import ModelConfig, RopeScaling


def _qwen2(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, vocab: int, **other) -> ModelConfig:
    return ModelConfig(vocab, hidden, intermediate, layers, heads, kv_heads, head_dim=hidden // heads, qkv_bias=True,
                       **other)


def _qwen3(hidden: int, intermediate: int, layers: int, heads: int) -> ModelConfig:
    return ModelConfig(151_936, hidden, intermediate, layers, heads, num_kv_heads=8, head_dim=128, rope_theta=1e6,
                       max_position_embeddings=40_960, tie_embeddings=True, qk_norm=True)


def _llama3(hidden: int, intermediate: int, layers: int, heads: int, *, factor: float, tied: bool) -> ModelConfig:
    return ModelConfig(128_256, hidden, intermediate, layers, heads, num_kv_heads=8, head_dim=128, rope_theta=5e5,
                       rope_scaling=RopeScaling(factor, 1.0, 4.0, 8192), norm_eps=1e-5,
                       max_position_embeddings=131_072, tie_embeddings=tied)


SHAPES = {
    "Qwen2.5-32B": _qwen2(5120, 27_648, 64, 40, 8, 152_064, rope_theta=1e6, norm_eps=1e-5,
                          max_position_embeddings=131_072, tie_embeddings=False),
    "Qwen2.5-7B": _qwen2(3584, 18_944, 28, 28, 4, 152_064, rope_theta=1e6, max_position_embeddings=131_072,
                         tie_embeddings=False),
    "Qwen2.5-Math-7B": _qwen2(3584, 18_944, 28, 28, 4, 152_064, rope_theta=1e4, max_position_embeddings=4096,
                              tie_embeddings=False),
    "Qwen2.5-Math-1.5B": _qwen2(1536, 8960, 28, 12, 2, 151_936, rope_theta=1e4, max_position_embeddings=4096,
                                tie_embeddings=True),
    "Qwen3-0.6B": _qwen3(1024, 3072, 28, 16),
    "Qwen3-1.7B": _qwen3(2048, 6144, 28, 16),
    "Llama-3.1-8B": _llama3(4096, 14_336, 32, 32, factor=8.0, tied=False),
    "Llama-3.2-3B": _llama3(3072, 8192, 28, 24, factor=32.0, tied=True),
    "DeepSeek-Math-7B": ModelConfig(102_400, 4096, 11_008, 30, 32, num_kv_heads=32, head_dim=128, rope_theta=1e4,
                                    max_position_embeddings=4096, tie_embeddings=False),
    "SmolLM2-135M": ModelConfig(49_152, 576, 1536, 30, 9, num_kv_heads=3, head_dim=64, rope_theta=1e5, norm_eps=1e-5,
                                max_position_embeddings=8192, tie_embeddings=True),
}


def shape(name: str) -> ModelConfig:
    """The shape of a published model.

    Raises:
      ValueError: the name is none of `SHAPES`.
    """
    if name not in SHAPES:
        raise ValueError(f"there is no model shape {name!r}; known are {', '.join(SHAPES)}")
    return SHAPES[name]
