"""Writes ../fixtures/templates/expected.json.xz, what transformers makes of conversations.py and language.py, and the
fuzzer's seeds.

    python tests/template/make_fixtures.py        (needs transformers >= 5.0 and jinja2)

Templates are rendered by transformers' own render_jinja_template, so its environment (ImmutableSandboxedEnvironment,
trim_blocks, lstrip_blocks, loop controls, its tojson and raise_exception) is the reference. An expected failure is
stored as {"error": message}; "raised" says that raise_exception was called, so that the message must be the same.
"""
import json
import lzma
import pathlib

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

from conversations import CONVERSATIONS
from language import CASES, VARIABLES

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "templates"
SEEDS = FIXTURES.parent.parent / "fuzz" / "corpus" / "chat_template"
TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}


def attempt(**arguments):
    try:
        return {"text": render_jinja_template(**arguments)[0][0]}
    except Exception as e:  # whatever jinja2 or Python says
        return {"error": str(e), "raised": type(e) is jinja2.exceptions.TemplateError}


def render(template, messages, options, prompt, **more):
    return attempt(conversations=[messages], tools=options.get("tools"), chat_template=template,
                   add_generation_prompt=prompt, **more, **TOKENS, **options.get("extra", {}))


def write_seeds():
    """Starting points of the fuzzer: template, NUL, {"messages", "tools", "extra"}."""
    SEEDS.mkdir(parents=True, exist_ok=True)
    for path in sorted(FIXTURES.glob("*.jinja")):
        for i, name in enumerate(("several turns, system", "talk and tool call", "tools and thinking")):
            messages, options = CONVERSATIONS[name]
            request = {"messages": messages, "tools": options.get("tools"), "extra": TOKENS | {"prompt": i}}
            (SEEDS / f"{path.stem[:12]}-{i}").write_bytes(path.read_bytes() + b"\0" + json.dumps(request).encode())
    for i in range(0, len(CASES), 12):
        request = {"messages": [], "extra": VARIABLES}
        (SEEDS / f"language-{i // 12:02}").write_bytes("\n".join(CASES[i:i + 12]).encode() + b"\0" + json.dumps(request).encode())


def main():
    write_seeds()
    expected = {"templates": {}, "continued": {}, "language": {}}
    for path in sorted(FIXTURES.glob("*.jinja")):
        template = path.read_text()
        expected["templates"][path.stem] = {
            name: [render(template, messages, options, prompt) for prompt in (False, True)]
            for name, (messages, options) in CONVERSATIONS.items()}
        expected["continued"][path.stem] = {
            name: render(template, messages, options, False, continue_final_message=True)
            for name, (messages, options) in CONVERSATIONS.items()}
    for source in CASES:
        expected["language"][source] = attempt(conversations=[[]], chat_template=source, **VARIABLES)
    data = json.dumps(expected, ensure_ascii=False, sort_keys=True).encode()
    (FIXTURES / "expected.json.xz").write_bytes(lzma.compress(data, preset=9))
    good = sum("text" in r for t in expected["templates"].values() for pair in t.values() for r in pair)
    print(f"{len(expected['templates'])} templates x {len(CONVERSATIONS)} conversations, {good} texts; "
          f"{len(CASES)} cases of the language, {sum('error' in c for c in expected['language'].values())} errors")


if __name__ == "__main__":
    main()
