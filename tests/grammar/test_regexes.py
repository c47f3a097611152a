"""Regular expressions of grammars against Python's re.

    TANDEM_BUILD_DIR=build python -m pytest tests/grammar
"""
import json
import pathlib
import re
import warnings

import pytest

from grammar_client import Refused, Tool
from random_regex import Maker
from regexes import PATTERNS, REFUSED, TEXTS

pytestmark = pytest.mark.smoke
HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def tool():
    t = Tool()
    yield t
    t.close()


def same(tool, pattern, texts, what):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        expected = [re.fullmatch(pattern, t) is not None for t in texts]
    got = tool.matches(pattern, texts)
    wrong = [(t, e) for t, e, g in zip(texts, expected, got) if e != g]
    assert not wrong, f"{what} {pattern!a}: re.fullmatch says {wrong[0][1]} of {wrong[0][0]!a}"
    return sum(expected)


def test_patterns(tool):
    texts = [t for t in TEXTS if "\x00" not in t]
    for pattern in PATTERNS:
        same(tool, pattern, texts, "pattern")


@pytest.mark.parametrize("pattern", REFUSED)
def test_refused(tool, pattern):
    with pytest.raises(Refused, match=re.escape(REFUSED[pattern])):
        tool.matches(pattern, ["a"])


def test_committed_table():
    """The table that the C unit test reads says what re says."""
    rows = [json.loads(line) for line in (HERE / "regexes.jsonl").read_text().splitlines()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        wrong = [row for row in rows if len(row) == 3 and (re.fullmatch(row[0], row[1]) is not None) != row[2]]
    assert not wrong and len(rows) > 1000


def test_random_regexes(tool):
    matched = 0
    for seed in range(300):
        m = Maker(seed)
        pattern, draw = m.make(4)
        texts = [draw() for _ in range(12)]
        texts += [m.broken(t) for t in texts] + [m.broken(m.broken(t)) for t in texts]
        matched += same(tool, pattern, texts, f"seed {seed}")
    assert matched > 3000


def test_every_character_of_a_category(tool):
    """\\d, \\w and \\s on the whole of Unicode; a character whose kind changed between Unicode versions is let pass."""
    import unicodedata
    chars = [chr(c) for c in range(1, 0x110000) if not 0xd800 <= c <= 0xdfff and unicodedata.category(chr(c)) != "Cn"]
    for pattern in ("\\d", "\\w", "\\s", "(?i)[k-s]", "(?i)[^é-ü]"):
        wrong = []
        for i in range(0, len(chars), 20000):
            part = chars[i:i + 20000]
            for c, got in zip(part, tool.matches(pattern, part)):
                if got != (re.fullmatch(pattern, c) is not None):
                    wrong.append(c)
        assert len(wrong) <= 16, f"{pattern}: {len(wrong)} characters differ, such as {wrong[:20]!a}"
