"""The C chat templates against what transformers and jinja2 made of the same (expected.json.xz, make_fixtures.py).

    TANDEM_BUILD_DIR=build python -m pytest tests/template
"""
import json
import lzma
import re

import pytest

from conversations import CONVERSATIONS
from language import CASES, VARIABLES
from tool import FIXTURES, Refused, Tool

EXPECTED = json.loads(lzma.decompress((FIXTURES / "expected.json.xz").read_bytes()))
TEMPLATES = {path.stem: path.read_text() for path in sorted(FIXTURES.glob("*.jinja"))}
TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}


@pytest.fixture(scope="module")
def tool():
    t = Tool()
    yield t
    t.close()


def compare(tool, expected, **request):
    try:
        text = tool.render(**request)[0].decode()
    except Refused as e:
        assert "error" in expected, f"refused: {e}; expected {expected['text']!a}"
        if expected["raised"]:
            assert str(e) == f"chat template: {expected['error']}"
        return
    assert "text" in expected, f"printed {text!a}; expected the error {expected['error']!a}"
    assert text == expected["text"]


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_conversation(tool, template, conversation):
    messages, options = CONVERSATIONS[conversation]
    for prompt in (False, True):
        compare(tool, EXPECTED["templates"][template][conversation][prompt], template=TEMPLATES[template], messages=messages,
                tools=options.get("tools"), extra=TOKENS | options.get("extra", {}), prompt=prompt)


@pytest.mark.parametrize("source", CASES)
def test_language(tool, source):
    compare(tool, EXPECTED["language"][source], template=source, messages=[], extra=VARIABLES)
