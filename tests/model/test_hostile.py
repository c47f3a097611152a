"""A bad model directory is one clear line and exit status 1: never a crash, a hang, or silence."""
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
TANDEM = Path(os.environ.get("TANDEM_BUILD_DIR", TESTS.parent / "build")) / "server" / "tandem"
SECONDS = 10

spec = importlib.util.spec_from_file_location("make_hostile", TESTS / "fixtures" / "hostile" / "make_hostile.py")
hostile = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hostile)

pytestmark = pytest.mark.smoke


def generate(directory):
    command = [TANDEM, "generate", "--model", directory, "--prompt", "x", "--max-new-tokens", "1"]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS)


@pytest.mark.parametrize("base", sorted({case.base for case in hostile.CASES.values()}))
def test_unspoilt(base):
    """The bases themselves work, so that what follows fails for its own reason."""
    done = generate(hostile.MODELS / base)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("name", hostile.CASES)
def test_refused(name, tmp_path):
    directory = tmp_path / "bad"
    hostile.make(name, directory)
    done = generate(directory)
    shutil.rmtree(directory)
    message = done.stderr.decode(errors="replace")
    assert done.returncode == 1, f"exit status {done.returncode}: {message}"
    assert len(message.splitlines()) == 1, message
    assert message.startswith("tandem:"), message
    assert len(message) < 1000, message
    assert re.search(hostile.CASES[name].names, message.replace(str(directory), "")), message
