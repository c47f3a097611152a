"""What the tests of Tinker's client share (docs/tinker.md)."""
import os

import pytest
from client_rig import package, start  # noqa: F401

os.environ.update(TINKER_TELEMETRY="0", TINKER_API_KEY="tml-any")
tinker = package("tinker")
types = tinker.types
PATIENCE = 300


@pytest.fixture(scope="module")
def server(start):  # noqa: F811
    with start("--served-model-name", "demo", "--threads", "2") as s:
        yield s
        s.wait_idle()


@pytest.fixture(scope="module")
def service(server):
    client = tinker.ServiceClient(base_url=server.url)
    yield client
    client.holder.close()


def settled(made):
    """What a call gives at last: newer versions make futures of what older ones gave at once."""
    while hasattr(made, "result"):
        made = made.result(timeout=PATIENCE)
    return made


def encode(server, text):
    return [t["id"] for t in server.post("/tokenize", {"inputs": text}).json()]
