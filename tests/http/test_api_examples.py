"""The lines of docs/api.md do what the page says: each is run as it stands there, against the daemon it names."""
import json

import pytest
from conftest import DEMO, ROOT
from page_examples import blocks, commands, shell

PAGE = (ROOT / "docs/api.md").read_text()


@pytest.fixture(scope="module")
def daemon(start):
    with start("--adapter-dir", ROOT / "models", "--chat-template", "plain", "--threads", "2", model=DEMO) as s:
        yield s


def test_every_line(daemon):
    job = None
    for line in commands(PAGE):
        assert line.startswith("curl "), line
        got = shell(daemon, line.replace("/JOB", f"/{job}"), "--fail-with-body")
        assert got.returncode == 0, f"{line}\n{got.stdout}{got.stderr}"
        if "/train -d" in line:
            job = json.loads(got.stdout)["id"]
        if "_stream" in line or "stream=1" in line or '"stream":true' in line:
            assert got.stdout.count("data: ") >= 5, got.stdout
    assert job and len(commands(PAGE)) > 20


def test_what_the_page_shows(daemon):
    shown = [part for block in blocks(PAGE, "console") for part in block.split("$ ")[1:]]
    assert len(shown) >= 2
    for part in shown:
        line, _, answer = part.partition("\n")
        assert shell(daemon, line).stdout.strip() == answer.strip()
