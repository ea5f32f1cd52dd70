"""What a checkpoint calls our parameters, and how they lie in it: one tensor a layer, matrices as [out, in].

The table works in both directions: `huggingface` reads files through `Stored`; what writes files or sends weights
elsewhere takes `NamedTensors`, which brings them to the host one at a time.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from rlzero.models.tensor_files import TensorFiles
from rlzero.models.transformer import ModelConfig, abstract_params

_TENSORS = {  # our name -> (checkpoint name, transposed)
    "embedding": ("model.embed_tokens.weight", False),
    "final_norm": ("model.norm.weight", False),
    "lm_head": ("lm_head.weight", True),
    "attention_norm": ("model.layers.{}.input_layernorm.weight", False),
    "query": ("model.layers.{}.self_attn.q_proj.weight", True),
    "key": ("model.layers.{}.self_attn.k_proj.weight", True),
    "value": ("model.layers.{}.self_attn.v_proj.weight", True),
    "output": ("model.layers.{}.self_attn.o_proj.weight", True),
    "query_bias": ("model.layers.{}.self_attn.q_proj.bias", False),
    "key_bias": ("model.layers.{}.self_attn.k_proj.bias", False),
    "value_bias": ("model.layers.{}.self_attn.v_proj.bias", False),
    "query_norm": ("model.layers.{}.self_attn.q_norm.weight", False),
    "key_norm": ("model.layers.{}.self_attn.k_norm.weight", False),
    "mlp_norm": ("model.layers.{}.post_attention_layernorm.weight", False),
    "gate": ("model.layers.{}.mlp.gate_proj.weight", True),
    "up": ("model.layers.{}.mlp.up_proj.weight", True),
    "down": ("model.layers.{}.mlp.down_proj.weight", True),
}


@dataclasses.dataclass(frozen=True)
class Stored:
    """How one parameter of ours lies in the checkpoint: a tensor, or one for each layer."""

    key: str
    spec: jax.ShapeDtypeStruct
    stacked: bool

    @property
    def names(self) -> list[str]:
        template = _TENSORS[self.key][0]
        return [template.format(i) for i in range(self.spec.shape[0])] if self.stacked else [template]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of each of the checkpoint's tensors."""
        shape = self.spec.shape[1:] if self.stacked else self.spec.shape
        return shape[::-1] if _TENSORS[self.key][1] else shape

    def read(self, files: TensorFiles, index: Sequence[slice]) -> np.ndarray:
        """The part `index` of the parameter, in its dtype; reads no more than that part, a tensor at a time."""
        block = np.empty([len(range(*s.indices(n))) for s, n in zip(index, self.spec.shape)], self.spec.dtype)
        if self.stacked:
            for layer, name in enumerate(self.names[index[0]]):
                block[layer] = self._part(files, name, index[1:])
        else:
            block[...] = self._part(files, self.names[0], index)
        return block

    def _part(self, files, name, index):
        transposed = _TENSORS[self.key][1]
        part = files.read(name, index[::-1] if transposed else index)
        return part.T if transposed else part


@dataclasses.dataclass(frozen=True)
class NamedTensors:
    """The parameters as a checkpoint has them, a tied head left out.

    Attributes:
      config: the model's shape.
      shapes: name -> shape, in the order in which they are stored.
      fetch: gives a tensor by name; brings one layer of one parameter to the host.
    """

    config: ModelConfig
    shapes: Mapping[str, tuple[int, ...]]
    fetch: Callable[[str], np.ndarray]


def named_tensors(params: Mapping, config: ModelConfig, dtype: np.typing.DTypeLike | None = None) -> NamedTensors:
    """The tensors of a checkpoint of `params`.

    Args:
      params: tree of `transformer.parameter_specs(config)`, on any devices of this process.
      config: the model's shape.
      dtype: that they are fetched in, cast where they lie; None for their own.

    Raises:
      ValueError: a parameter is missing, one too many, or of another shape than the config says; names it.
    """
    specs = abstract_params(config)
    _expect_same_shapes(params, specs)
    shapes, places = {}, {}
    for path, spec in jax.tree_util.tree_flatten_with_path(specs)[0]:
        stored = Stored(path[-1].key, spec, stacked=len(path) > 1)
        for layer, name in enumerate(stored.names):
            shapes[name], places[name] = stored.shape, (stored.key, layer if stored.stacked else None)

    def fetch(name):
        key, layer = places[name]
        tensor = params[key] if layer is None else params["layers"][key][layer]
        tensor = tensor.T if _TENSORS[key][1] else tensor
        return np.asarray(tensor if dtype is None else tensor.astype(dtype))

    return NamedTensors(config, shapes, fetch)


def _expect_same_shapes(params, specs):
    found, expected = ({jax.tree_util.keystr(path, simple=True, separator="."): tuple(leaf.shape)
                        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]} for tree in (params, specs))
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            raise ValueError(f"the parameters are not those of their config: expected {name} "
                             f"{expected.get(name, 'not to be there')}, got {found.get(name, 'none')}")
