"""Eight CPU devices for every test, set before anything imports jax; a user's own settings win."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()

import jax  # noqa: E402
import pytest  # noqa: E402


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """With `-n`, keeps a group of tests in one process: servers are started once, and two would share two cores."""
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist = "loadgroup"


def pytest_collection_modifyitems(items):
    """Tests of a file stay together, as most share compiled programs, unless they named another group."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture
def x64():
    """Runs one test in float64."""
    with jax.enable_x64(True):
        yield
