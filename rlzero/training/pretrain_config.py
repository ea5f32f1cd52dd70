"""What a pretraining run is: every setting of `rlzero.pretrain`, with its unit or its reason."""

import dataclasses
import glob
import math
import os

from rlzero.data.tasks.arithmetic_tokenizer import ID
from rlzero.models import attention, huggingface
from rlzero.training import sections, validation
from rlzero.training.sections import setting


@dataclasses.dataclass
class PretrainModelSection:
    """Which model goes on learning, or the shape of a new one."""

    # A model directory, "demo" for the model inside the package, or empty for a new Llama of the shape below.
    path: str = ""
    # Of activations and matrix products; weights and optimizer moments are float32.
    dtype: str = setting("float32", choices=("float32", "bfloat16"))
    # Keep no activations of a layer but recompute them in the backward pass: less memory for a third more compute.
    remat: bool = False
    # See `rlzero.models.attention`: xla holds all scores of a row, blockwise never does.
    attention: str = setting("xla", choices=attention.IMPLEMENTATIONS)
    # For a new model: the directory whose tokenizer it takes; empty for that of the arithmetic task.
    tokenizer: str = ""
    # Shape of a new model. Its vocabulary is that of the tokenizer; input and output embeddings are one matrix.
    num_layers: int = setting(2, "[1, inf)")
    hidden_size: int = setting(96, "[2, inf)")
    intermediate_size: int = setting(256, "[1, inf)")
    num_heads: int = setting(4, "[1, inf)")
    num_kv_heads: int = setting(4, "[1, inf)")
    max_position_embeddings: int = setting(128, "[1, inf)")


@dataclasses.dataclass
class CorpusSection:
    """Where documents come from."""

    # "arithmetic" is generated; "texts" reads the files below.
    corpus: str = setting("arithmetic", choices=("arithmetic", "texts"))
    # Patterns of .jsonl, .json or .parquet files or directories of `datasets`, with commas between them; a document
    # a row.
    files: str = ""
    # Likewise, for the held-out loss; empty reports none. The generated corpus holds questions out by itself.
    held_out_files: str = ""
    # Name of the text in a row; several with commas between them, such as problem,solution, are joined by line breaks.
    field: str = "text"
    # Times to go through the texts, if that comes before `steps`; 0 goes on until then.
    epochs: int = setting(0, "[0, inf)")


@dataclasses.dataclass
class PretrainOptimizerSection(sections.OptimizerSection):
    """AdamW, warmed up and then let down by a cosine. Steps are optimizer updates."""

    learning_rate: float = setting(3e-4, "(0, 1]")
    warmup_steps: int = setting(100, "[0, inf)")
    schedule: str = setting("cosine", choices=("constant", "cosine"))
    beta2: float = setting(0.95, "[0, 1)")
    weight_decay: float = setting(0.1, "[0, inf)")


@dataclasses.dataclass
class PretrainConfig:
    """A pretraining run."""

    # Root of the initial weights and of the order of documents.
    seed: int = setting(0, "[0, 4294967296)")
    # Optimizer updates, at most: fewer where `data.epochs` ends the texts first.
    steps: int = setting(1000, "[1, inf)")
    # Rows of packed documents in an update.
    batch_size: int = setting(64, "[1, inf)")
    # Rows in memory at a time; 0 takes the whole batch. Changes memory and speed, never the gradient.
    micro_batch_size: int = setting(0, "[0, inf)")
    # Tokens in a row.
    sequence_length: int = setting(64, "[2, inf)")
    # Updates between printed lines.
    log_every_steps: int = setting(50, "[1, inf)")
    # Updates between looks at the held-out loss, which is also taken at the end; 0 looks at the end only.
    evaluate_every_steps: int = setting(0, "[0, inf)")
    # Batches of held-out documents, the same ones each time.
    evaluation_batches: int = setting(8, "[1, inf)")
    model: PretrainModelSection = dataclasses.field(default_factory=PretrainModelSection)
    data: CorpusSection = dataclasses.field(default_factory=CorpusSection)
    mesh: sections.MeshSection = dataclasses.field(default_factory=lambda: sections.MeshSection(data=1))
    optimizer: PretrainOptimizerSection = dataclasses.field(default_factory=PretrainOptimizerSection)


def validate(config: PretrainConfig) -> None:
    """Checks a config before any device work.

    Raises:
      ValueError: one line for each thing that is wrong.
    """
    problems = validation.field_problems(config) or _missing_directories(config.model)
    if not problems:
        problems = _model_problems(config) | _data_problems(config.data)
    if not problems and config.data.corpus == "arithmetic":
        problems = _tokenizer_problems(config.model)
    validation.raise_problems(problems or _row_problems(config))


def files_of(patterns: str) -> list[str]:
    """The files and directories that comma-separated patterns stand for, each once, in order of their names."""
    return sorted({path for pattern in _patterns(patterns) for path in glob.glob(pattern)})


def _patterns(text: str) -> list[str]:
    return [pattern.strip() for pattern in text.split(",") if pattern.strip()]


def _missing_directories(model: PretrainModelSection) -> dict[str, str]:
    problems = {}
    for name, path in (("path", model.path), ("tokenizer", model.tokenizer)):
        directory = huggingface.DEMO_MODEL if path == "demo" else path
        if path and not os.path.isfile(os.path.join(directory, "config.json")):
            problems[f"model.{name}"] = (
                f"--config.model.{name}={path}: there is no model directory with a config.json; give one, or "
                f"--config.model.{name}=demo for the model inside the package."
            )
    return problems


def _row_problems(config: PretrainConfig) -> dict[str, str]:
    rows = config.micro_batch_size or config.batch_size
    if config.batch_size % rows:
        return {"micro_batch_size": (
            f"--config.micro_batch_size={rows}: expected a divisor of the batch_size {config.batch_size}, for example "
            f"--config.micro_batch_size={config.batch_size}."
        )}
    devices = max(1, config.mesh.data) * config.mesh.fsdp
    if rows % devices:
        name = "micro_batch_size" if config.micro_batch_size else "batch_size"
        return {name: (
            f"--config.{name}={rows}: expected a multiple of the {devices} devices of the mesh that share these rows, "
            f"for example --config.{name}={math.ceil(rows / devices) * devices}."
        )}
    return {}


def _model_problems(config: PretrainConfig) -> dict[str, str]:
    model, problems = config.model, {}
    context = model.max_position_embeddings
    if model.path:
        context = huggingface.read_config(model.path).max_position_embeddings
    elif model.num_heads % model.num_kv_heads:
        problems["model.num_kv_heads"] = (
            f"--config.model.num_kv_heads={model.num_kv_heads}: expected a divisor of num_heads {model.num_heads}, "
            f"for example --config.model.num_kv_heads={model.num_heads}."
        )
    elif model.hidden_size % (2 * model.num_heads):
        problems["model.hidden_size"] = (
            f"--config.model.hidden_size={model.hidden_size}: expected a multiple of twice the num_heads "
            f"{model.num_heads}, for example --config.model.hidden_size={24 * model.num_heads}."
        )
    if config.sequence_length > context:
        problems["sequence_length"] = (
            f"--config.sequence_length={config.sequence_length}: expected at most the model's context of {context} "
            f"tokens, for example --config.sequence_length={context}."
        )
    return problems


def _data_problems(data: CorpusSection) -> dict[str, str]:
    problems = {}
    if (data.corpus == "texts") != bool(data.files):
        problems["data.files"] = (
            f"--config.data.files={data.files}: files and the corpus texts go together, got the corpus {data.corpus}; "
            "for example --config.data.corpus=texts --config.data.files=texts/*.jsonl."
        )
    if data.epochs and data.corpus == "arithmetic":
        problems["data.epochs"] = (
            f"--config.data.epochs={data.epochs}: generated arithmetic has no end; use --config.data.epochs=0 and "
            "--config.steps."
        )
    for name in ("files", "held_out_files"):
        for pattern in _patterns(getattr(data, name)):
            if not glob.glob(pattern):
                sentence = f"--config.data.{name}={pattern}: there is no such file; check the path."
                problems.setdefault(f"data.{name}", sentence)
    return problems


def _tokenizer_problems(model: PretrainModelSection) -> dict[str, str]:
    path = model.path or model.tokenizer
    if not path or huggingface.load_tokenizer(path).get_vocab() == ID:
        return {}
    return {
        "data.corpus": f"--config.data.corpus=arithmetic: generated arithmetic is written in the tokens of the demo "
        f"model, which are not those of {path}; give texts, for example --config.data.corpus=texts "
        "--config.data.files=texts/*.jsonl."
    }
