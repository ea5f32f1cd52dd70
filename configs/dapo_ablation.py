"""The six rows of DAPO's ablation on Qwen2.5-32B: from naive GRPO, 30 points on AIME 2024 (avg@32), to DAPO, 50.

    python -m rlzero.train --config=configs/dapo_ablation.py:3 --workdir=runs/dapo_ablation_3
    python -m rlzero.train --config=configs/dapo_ablation.py:3,demo --workdir=runs/demo_ablation_3

The argument is the row; each has what the rows above it have. With `,demo` it runs on the small model of the package,
on a CPU, in minutes.

    row                             what changes                         published
    0   naive GRPO                                                          30
    1   + overlong filtering        truncated: wrong -> mask                36
    2   + clip-higher               clip_high: 0.2 -> 0.28                  38
    3   + soft overlong punishment  overlong_fraction: 0 -> 0.2             41
    4   + token-level loss          normalization: sequence -> token_mean   42
    5   + dynamic sampling          dynamic_sampling: false -> true         50

Source: arXiv 2503.14476, table 1. Everything but these columns is `dapo_qwen2_5_32b.py`, whose docstring says where its
numbers come from; row 5 is that recipe with overlong filtering on top, which the authors' README (verl, `recipe/dapo`)
says their best run does without. Section 2.3 drops the KL term, and no row of the table does so, so no row here has
one: that reading of "naive GRPO" is ours, and so is the budget of 20,480 tokens in every row. A cut response is wrong
in row 0, the "punitive reward" of section 3.4. From row 1 on it is not trained, but still counts in the mean of its
group; the soft penalty of row 3 therefore teaches through responses that end in the last 4,096 tokens. The table does
not say after how many steps each row was read: take the best of a run, or equal steps.
"""

import pathlib
import runpy

from rlzero.training.config import Config, algorithm_config

ROWS = (
    {},
    {"truncated": "mask"},
    {"clip_high": 0.28},
    {"overlong_fraction": 0.2},
    {"normalization": "token_mean"},
    {"dynamic_sampling": True},
)


def get_config(argument: str = "5") -> Config:
    row, *model = argument.split(",")
    if row not in map(str, range(len(ROWS))) or model not in ([], ["demo"]):
        raise ValueError(f"expected a row of the ablation, 0 to {len(ROWS) - 1}, with nothing or ,demo after it, such "
                         f"as dapo_ablation.py:3 or dapo_ablation.py:3,demo; got {argument!r}")
    config = _config_of("demo.py", "grpo") if model else _config_of("dapo_qwen2_5_32b.py")
    columns = {name: value for changes in ROWS[:int(row) + 1] for name, value in changes.items()}
    config.algorithm = algorithm_config("grpo", kl_placement="none", kl_coef=0.0, **columns)
    config.algorithm.name = f"dapo_ablation_{row}"
    config.reward.correct = 1.0
    config.reward.wrong = -1.0
    return config


def _config_of(file: str, *argument: str) -> Config:
    """The config of a file beside this one."""
    return runpy.run_path(str(pathlib.Path(__file__).with_name(file)))["get_config"](*argument)
