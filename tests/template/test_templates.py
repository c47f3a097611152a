"""The C chat templates against what transformers and jinja2 made of the same (expected.json.xz and calls.json.xz,
made by make_fixtures.py).

    TANDEM_BUILD_DIR=build python -m pytest tests/template
"""
import json
import lzma
import re

import pytest

import calls
from conversations import CONVERSATIONS, TOOLS, user
from language import CASES, VARIABLES
from template_client import FIXTURES, Refused, Tool

pytestmark = pytest.mark.smoke

EXPECTED = json.loads(lzma.decompress((FIXTURES / "expected.json.xz").read_bytes()))
CALLS = json.loads(lzma.decompress((FIXTURES / "calls.json.xz").read_bytes()))
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


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_continue_final_message(tool, template, conversation):
    messages, options = CONVERSATIONS[conversation]
    compare(tool, EXPECTED["continued"][template][conversation], template=TEMPLATES[template], messages=messages,
            tools=options.get("tools"), extra=TOKENS | options.get("extra", {}), **{"continue": True})


@pytest.mark.parametrize("source", CASES)
def test_language(tool, source):
    compare(tool, EXPECTED["language"][source], template=source, messages=[], extra=VARIABLES)


@pytest.mark.parametrize("variant", calls.VARIANTS)
@pytest.mark.parametrize("template", calls.TEMPLATES)
def test_calls(tool, template, variant):
    """What a client of the API sends becomes what transformers makes of the form that the template needs."""
    for conversation, (messages, tools, keywords) in calls.CONVERSATIONS.items():
        for prompt in (False, True):
            text = tool.render(calls.TEMPLATES[template][-1], calls.sent(messages, variant), tools, TOKENS | keywords, prompt, adapt=True)[0]
            assert text.decode() == CALLS["templates"][template][conversation][variant][prompt], conversation


@pytest.mark.parametrize("name", calls.DIRECTORIES)
def test_directory(tool, tmp_path, name):
    """The template that transformers takes, without and with tools."""
    calls.write_directory(tmp_path, calls.DIRECTORIES[name])
    for tools, expected in zip((None, TOOLS), CALLS["directories"][name], strict=True):
        try:
            text = tool.ask(dir=str(tmp_path), messages=[user("u")], tools=tools)[0].decode()
        except Refused:
            text = None
        assert text == expected, "with tools" if tools else "without"


# How each family writes a turn of the assistant: the group is what it generates.  Only for conversations without
# such marks in their texts.
TURNS = {
    "HuggingFaceTB-SmolLM3-3B": r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)",
    "Qwen-Qwen2.5-7B-Instruct": r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)",
    "Qwen-Qwen3-0.6B": r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)",
    "google-gemma-2-2b-it": r"<start_of_turn>model\n(.*?<end_of_turn>)",
    "meta-llama-Llama-3.1-8B-Instruct": r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n(.*?<\|(?:eot|eom)_id\|>)",
    "microsoft-Phi-3.5-mini-instruct": r"<\|assistant\|>\n(.*?<\|end\|>)",
}
NO_THOUGHT = "<think>\n\n</think>\n"


def turns(template, conversation, page):
    """The generated parts of a page. Where the prompt holds an empty thought, that is not generated."""
    found = re.findall(TURNS[template], page, re.S)
    options = CONVERSATIONS[conversation][1].get("extra", {})
    if template.startswith("HuggingFaceTB") and "Reasoning Mode: /no_think" in page:
        found = [t.removeprefix(NO_THOUGHT) for t in found]
    if template.startswith("Qwen-Qwen3") and options.get("enable_thinking") is False:
        found = [t.removeprefix(NO_THOUGHT + "\n") for t in found]
    return found


RENDERED = [(t, c) for t in TEMPLATES for c in CONVERSATIONS if c != "marks in the text" and "text" in EXPECTED["templates"][t][c][0]]


@pytest.mark.parametrize("template, conversation", RENDERED)
def test_spans(tool, template, conversation):
    """Training learns the assistant's turns, all of them, with their ends, and nothing else."""
    messages, options = CONVERSATIONS[conversation]
    expected = EXPECTED["templates"][template][conversation][0]
    page, spans = tool.render(TEMPLATES[template], messages, options.get("tools"), TOKENS | options.get("extra", {}), spans=True)
    assert [page[a:b].decode() for a, b, _ in spans] == turns(template, conversation, expected["text"])
    assert [m for _, _, m in spans] == [i for i, m in enumerate(messages) if m.get("role") == "assistant"]
