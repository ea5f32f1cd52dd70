"""Reads the golden numbers, which were computed in float64 NumPy from the papers."""

import json
import pathlib

import numpy as np

_FOLDER = pathlib.Path(__file__).parents[1] / "goldens"


def read_json(name: str):
    return json.loads((_FOLDER / name).read_text(encoding="utf-8"))


def read_lines(name: str) -> list[dict]:
    return [json.loads(line) for line in (_FOLDER / name).read_text(encoding="utf-8").splitlines()]


def read_arrays(name: str) -> dict[str, np.ndarray]:
    with np.load(_FOLDER / name) as arrays:
        return dict(arrays)
