"""The kernels can be used without the rest of the package and without its dependencies."""

import subprocess
import sys

import rlzero.kernels as kernels


def test_kernels_load_nothing_but_jax():
    code = """
import sys, rlzero.kernels
heavy = {"flax", "optax", "orbax", "grain", "transformers", "absl", "ml_collections", "tensorboardX"}
ours = {name for name in sys.modules if name.startswith("rlzero.") and not name.startswith("rlzero.kernels")}
print(sorted(heavy & set(sys.modules)), sorted(ours))
"""
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output.strip() == "[] ['rlzero.algorithms']"


def test_everything_exported_exists():
    assert all(hasattr(kernels, name) for name in kernels.__all__)
