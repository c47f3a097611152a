"""What the tests of other people's clients share: the daemon, a model that can be asked for calls, and no way out of this machine.

The packages are those of tests/requirements-clients.txt; a test whose package is missing is skipped.  Import this before them: it
sets what they read from the environment."""
import json
import os
import shutil
import socket
import sys
from pathlib import Path

import pytest

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", DO_NOT_TRACK="1", TOKENIZERS_PARALLELISM="false",
                  LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_LOG="ERROR", TRANSFORMERS_VERBOSITY="error")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))
from conftest import BINARY, DEMO, MODEL, ROOT, start  # noqa: E402, F401

QWEN = ROOT / "tests/fixtures/templates/Qwen-Qwen2.5-7B-Instruct.jinja"
NEEDS_DEMO = pytest.mark.skipif(MODEL != DEMO, reason="the demo model is not here")
look_up = socket.getaddrinfo


def only_loopback(host, *args, **kw):
    name = host.decode() if isinstance(host, bytes) else host or "localhost"
    if not name.startswith("127.") and name not in ("localhost", "::1"):
        raise socket.gaierror(f"tests/clients: {name} is not this machine")
    return look_up(host, *args, **kw)


socket.getaddrinfo = only_loopback


def package(name):
    """The module; skips the tests of the calling module where it is not installed."""
    return pytest.importorskip(name, reason=f"{name} is not installed: tests/requirements-clients.txt", exc_type=ImportError)


def make_talker(folder):
    """The qwen2 fixture with room for pages of tools: a token is about a byte, and the weights are random."""
    model = folder / "talker"
    shutil.copytree(ROOT / "tests/fixtures/models/qwen2", model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    return model


@pytest.fixture(scope="module")
def talker(start, tmp_path_factory):  # noqa: F811
    """A daemon with Qwen's chat template; what it writes means nothing, so tests constrain it."""
    with start("--chat-template", QWEN, "--served-model-name", "talker", "--kv-cache-bytes", "64M", "--threads", "2",
               model=make_talker(tmp_path_factory.mktemp("models"))) as s:
        yield s
        s.wait_idle()


def call_text(name, arguments):
    """A call as the template teaches the model to write it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
