"""The lines of docs/api.md do what the page says: each is run as it stands there, against the daemon it names."""
import json
import re
import subprocess

import pytest
from conftest import DEMO, ROOT

PAGE = (ROOT / "docs/api.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


def commands():
    """The lines of the page's sh blocks, those that go on in the next one joined."""
    out = []
    for block in blocks("sh"):
        for line in block.splitlines():
            if out and (out[-1].endswith("\\") or out[-1].count("'") % 2):
                out[-1] = out[-1].removesuffix("\\") + line
            else:
                out.append(line)
    return out


@pytest.fixture(scope="module")
def daemon(start):
    with start("--adapter-dir", ROOT / "models", "--chat-template", "plain", "--threads", "2", model=DEMO) as s:
        yield s


def shell(daemon, line, *flags):
    """The command, with the daemon's address for the page's."""
    line = line.replace("localhost:8080", f"127.0.0.1:{daemon.port}").replace("curl ", f"curl -sS {' '.join(flags)} ", 1)
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=100, cwd=ROOT)


def test_every_line(daemon):
    job = None
    for line in commands():
        assert line.startswith("curl "), line
        got = shell(daemon, line.replace("/JOB", f"/{job}"), "--fail-with-body")
        assert got.returncode == 0, f"{line}\n{got.stdout}{got.stderr}"
        if "/train -d" in line:
            job = json.loads(got.stdout)["id"]
        if "_stream" in line or "stream=1" in line or '"stream":true' in line:
            assert got.stdout.count("data: ") >= 5, got.stdout
    assert job and len(commands()) > 20


def test_what_the_page_shows(daemon):
    shown = [part for block in blocks("console") for part in block.split("$ ")[1:]]
    assert len(shown) >= 2
    for part in shown:
        line, _, answer = part.partition("\n")
        assert shell(daemon, line).stdout.strip() == answer.strip()
