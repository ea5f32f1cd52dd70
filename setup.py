"""Packaging of rlzero.

Lower bounds are releases of the time of jax 0.10; upper bounds stop before the next series, which may break names.
"""

import pathlib
import re

import setuptools

_HERE = pathlib.Path(__file__).parent
_GGUF = ["gguf>=0.17,<0.20"]  # launch/smollm2.py
_MATH = ["math-verify>=0.8,<0.10"]  # reward.mode=math, where exact arithmetic of our own does not decide
_GYM = ["reasoning-gym>=0.1.25,<0.2"]  # generated tasks; a dependency of it is compiled when it is installed
_PLOT = ["matplotlib>=3.8,<4"]  # the picture of evaluate --study
_DATA = ["pyarrow>=17,<27"]  # problem sets in Parquet and Arrow files


def _version() -> str:
    """The version without importing the package, which may not be installable yet."""
    text = (_HERE / "rlzero" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE).group(1)


def _long_description() -> str:
    readme = _HERE / "README.md"
    return readme.read_text(encoding="utf-8") if readme.exists() else ""


setuptools.setup(
    name="rlzero",
    version=_version(),
    description="Reinforcement learning of reasoning language models on verifiable rewards, in pure JAX",
    long_description=_long_description(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.14",
    packages=setuptools.find_packages(include=["rlzero", "rlzero.*"]),
    package_data={"rlzero": ["demo_model/*"]},
    install_requires=[
        "absl-py>=2.1,<3",
        "aiohttp>=3.11,<4",
        "flax>=0.12.4,<0.13",
        "grain>=0.2.15,<0.3",
        "jax>=0.10,<0.13",
        "jinja2>=3.1,<4",  # chat templates
        "ml_collections>=1.0,<2",
        "ml_dtypes>=0.5,<1",
        "numpy>=2.0,<3",
        "optax>=0.2.6,<0.3",
        "orbax-checkpoint>=0.12,<0.13",
        "safetensors>=0.5,<1",
        "tensorboardX>=2.6.2,<3",
        "tokenizers>=0.22,<0.25",
        "tqdm>=4.66,<5",
        "transformers>=5,<6",
    ],
    extras_require={
        "test": ["pytest>=8,<10", "pytest-xdist>=3.5,<4", *_GGUF, *_DATA, *_MATH, *_PLOT],
        "data": _DATA,
        "gguf": _GGUF,
        "gym": _GYM,
        "math": _MATH,
        "plot": _PLOT,
        "cuda": ["jax[cuda12]>=0.10,<0.13"],
        "tpu": ["jax[tpu]>=0.10,<0.13"],
        "sync": ["torch>=2.6,<3"],  # the child process of --config.sync.method=distributed alone
        "notebooks": ["jupyterlab>=4,<5", *_PLOT, "tensorboard>=2.17,<3"],
    },
    classifiers=[
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
    ],
)
