"""Real and fake SGLang servers as fixtures.

A real one is started where `launch/sglang_cpu.sh install` was run (RLZERO_SGLANG_HOME, or its place in the user's
cache). RLZERO_SGLANG_URL names a server that is there already and serves the demo model: it is used by the tests that
leave a server as they found it; those that kill one start their own. Without either, the tests of real servers skip.
"""

import os
import pathlib

import pytest
import real_server
from fake_server import FakeServer
from fault_proxy import FaultProxy

_HERE = pathlib.Path(__file__).parent
_REAL = {"sglang_server", "make_server"}  # other fixtures need one of them


def pytest_collection_modifyitems(items):
    for item in items:
        if _HERE in item.path.parents and _REAL & set(item.fixturenames):
            item.add_marker(pytest.mark.sglang)


@pytest.fixture(scope="session")
def make_server(tmp_path_factory):
    """`make_server(*arguments, model=, port=, environment=)` starts a real server, `.router(*urls)` a router.

    See real_server.Servers.
    """
    environment = real_server.home()
    if environment is None:
        pytest.skip("no SGLang server is installed: launch/sglang_cpu.sh install")
    servers = real_server.Servers(environment, tmp_path_factory.mktemp("servers"))
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def sglang_server(request):
    """A real server with the demo model, in whatever state other tests left it; not to be killed or frozen."""
    if url := os.environ.get("RLZERO_SGLANG_URL"):
        return real_server.RealServer(url.rstrip("/"))
    return request.getfixturevalue("make_server")()


@pytest.fixture
def fresh_server(sglang_server):
    """`sglang_server`, with its first weights and an empty cache."""
    sglang_server.reset()
    yield sglang_server
    sglang_server.reset()


@pytest.fixture
def real_proxy(fresh_server):
    """A proxy that injects faults, in front of `fresh_server`."""
    with FaultProxy(fresh_server.url) as proxy:
        yield proxy


@pytest.fixture
def fake_server():
    """A server without SGLang, as large as the demo model."""
    with FakeServer() as server:
        yield server


@pytest.fixture
def fake_proxy(fake_server):
    """A proxy that injects faults, in front of `fake_server`."""
    with FaultProxy(fake_server.url) as proxy:
        yield proxy
