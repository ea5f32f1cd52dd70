"""Eight CPU devices for every test, set before anything imports jax; a user's own settings win."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()

import jax  # noqa: E402
import pytest  # noqa: E402


@pytest.fixture
def x64():
    """Runs one test in float64."""
    with jax.enable_x64(True):
        yield
