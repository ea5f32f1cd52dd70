"""The config file that stands for a saved `config.json`: `--config=WORKDIR/config.json` is read through it."""

from rlzero.training import config


def get_config(path: str) -> config.Config:
    """The settings that a run saved."""
    return config.load(path)
