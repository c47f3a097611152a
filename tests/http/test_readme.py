"""The README's commands, and the Python of docs/routes.md, do what they say, run against the demo model; the commands of
every page are such as a shell and tandem take."""
import json
import re
import shlex
import subprocess

import pytest
from conftest import BINARY, DEMO, ROOT
from page_examples import blocks, commands, shell

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = PAGES[0].read_text()


def curls(text):
    return [line for line in commands(text) if line.startswith("curl ")]


@pytest.fixture(scope="module")
def daemon(start):
    with start("--adapter-dir", ROOT / "models", "--chat-template", "plain", "--threads", "2", model=DEMO) as s:
        yield s


def test_curl(daemon):
    job = None
    lines = [line for line in curls(README) if "localhost:8080" in line]
    for line in lines:
        got = shell(daemon, line.replace("/JOB/", f"/{job}/"), "--fail-with-body")
        assert got.returncode == 0, f"{line}\n{got.stdout}{got.stderr}"
        if "/train -d" in line:
            job = json.loads(got.stdout)["id"]
        if "stream" in line:
            assert got.stdout.count("data: ") >= 5, got.stdout
    assert job and len(lines) >= 6


def test_what_it_shows(daemon):
    shown = [part for block in blocks(README, "console") for part in block.split("$ ")[1:]]
    assert shown
    for part in shown:
        line, _, answer = part.partition("\n")
        while line.count("'") % 2:  # goes on in the next line
            more, _, answer = answer.partition("\n")
            line += "\n" + more
        assert shell(daemon, line).stdout.strip() == answer.strip()


PROGRAMS = {f"{page}-{i}": text for page in ("README.md", "docs/routes.md")
            for i, text in enumerate(blocks((ROOT / page).read_text(), "python"))}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_python(daemon, capsys, program):
    names = {}
    exec(program.replace("127.0.0.1:8080", f"127.0.0.1:{daemon.port}"), names)
    if "print(" in program:
        assert len(capsys.readouterr().out) > 40
    names["client"].close() if hasattr(names["client"], "close") else None


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_urls_are_quoted(page):
    """zsh takes a bare ? for a pattern, and every shell a bare & for the end of the command."""
    for line in curls(page.read_text()):
        bare = re.sub(r"'[^']*'|\"[^\"]*\"|(?<=\s)#.*", "", line)
        assert not re.search(r"[?*&\[]", bare.replace("&&", "")), line


def tandem_lines(text):
    """Every `tandem COMMAND ...` as words: what stands in brackets is optional, so it is given."""
    for line in commands(text):
        found = re.search(r"(?:^|\$\()tandem ((?:serve|chat|generate|tokenize|perplexity|eval|train|quantize|bench|health|key) .*)", line)
        if not found:
            continue
        words = shlex.split(re.sub(r"(?<!\")\.\.\.|[][]", "", found.group(1).split(")")[0]), comments=True)
        end = next((i for i, word in enumerate(words) if word in ("&&", "|", ";")), len(words))
        yield words[:end]


@pytest.mark.parametrize("page", [p for p in PAGES if list(tandem_lines(p.read_text()))], ids=lambda p: p.name)
def test_tandem_has_the_options(page):
    """The options before --help are looked at before the help is shown."""
    for words in tandem_lines(page.read_text()):
        got = subprocess.run([BINARY, *words, "--help"], capture_output=True, text=True, timeout=300, cwd=ROOT)
        assert got.returncode == 0 and got.stdout.startswith("usage: tandem"), f"{words}\n{got.stderr}"
