"""Eight CPU devices for every test, set before anything imports jax; a user's own settings win."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()

import jax  # noqa: E402
import pytest  # noqa: E402


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `-n`, hands out tests in groups instead of one by one, unless `--dist` says how.

    Tests of a file share compiled programs, so they stay in one process. So do all of sglang/, which share a real
    server. Those of programs, here in this directory, start processes of their own: they come last and fill the gaps.
    """
    if config.option.dist != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            folder, _, file = nodeid.partition("::")[0].rpartition("/")
            return {"tests": nodeid, "tests/sglang": folder}.get(folder, f"{folder}/{file}")

    return Groups(config, log)


@pytest.fixture
def x64():
    """Runs one test in float64."""
    with jax.enable_x64(True):
        yield
