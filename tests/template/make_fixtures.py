"""Writes ../fixtures/templates/expected.json.xz, what transformers makes of conversations.py and language.py, calls.json.xz,
what it makes of calls.py, and the fuzzer's seeds.

    python tests/template/make_fixtures.py        (needs transformers >= 5.0 and jinja2)

Templates are rendered by transformers' own render_jinja_template, so its environment (ImmutableSandboxedEnvironment,
trim_blocks, lstrip_blocks, loop controls, its tojson and raise_exception) is the reference. An expected failure is
stored as {"error": message}; "raised" says that raise_exception was called, so that the message must be the same.

calls.json.xz: texts by template, conversation, variant and prompt; and, of tokenizers loaded from directories, by
directory, without and with tools, null where transformers finds no template.
"""
import json
import lzma
import pathlib
import tempfile

import jinja2
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

import calls
from conversations import CONVERSATIONS, TOOLS, user
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


def write_json(name, value):
    (FIXTURES / name).write_bytes(lzma.compress(json.dumps(value, ensure_ascii=False, sort_keys=True).encode(), preset=9))


def call_text(tokenizer, source, messages, tools, prompt, keywords):
    """apply_chat_template itself drops members that are none since transformers 5, so that a template which tests
    `content is none` never sees one; the function that it renders with does not."""
    text = render_jinja_template(conversations=[messages], tools=tools, chat_template=source, add_generation_prompt=prompt,
                                 **TOKENS, **keywords)[0][0]
    if all(m["content"] is not None for m in messages):
        assert text == tokenizer.apply_chat_template(messages, tools=tools, chat_template=source, add_generation_prompt=prompt,
                                                     tokenize=False, **keywords)
    return text


def calls_expected(tokenizer):
    return {name: {conversation: {variant: [
        call_text(tokenizer, source, calls.handed_over(messages, variant, form), tools, prompt, keywords) for prompt in (False, True)]
        for variant in calls.VARIANTS}
        for conversation, (messages, tools, keywords) in calls.CONVERSATIONS.items()}
        for name, (*form, source) in calls.TEMPLATES.items()}


def directory_expected(tokenizer, files):
    def page(loaded, tools):
        try:
            return loaded.apply_chat_template([user("u")], tools=tools, tokenize=False)
        except ValueError:  # no template of that name
            return None
    with tempfile.TemporaryDirectory() as directory:
        tokenizer.save_pretrained(directory)
        calls.write_directory(pathlib.Path(directory), files)
        loaded = PreTrainedTokenizerFast.from_pretrained(directory)
    return [page(loaded, None), page(loaded, TOOLS)]


def write_calls():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>")), **TOKENS)
    expected = {"templates": calls_expected(tokenizer),
                "directories": {name: directory_expected(tokenizer, files) for name, files in calls.DIRECTORIES.items()}}
    write_json("calls.json.xz", expected)


def main():
    write_seeds()
    write_calls()
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
    write_json("expected.json.xz", expected)
    good = sum("text" in r for t in expected["templates"].values() for pair in t.values() for r in pair)
    print(f"{len(expected['templates'])} templates x {len(CONVERSATIONS)} conversations, {good} texts; "
          f"{len(CASES)} cases of the language, {sum('error' in c for c in expected['language'].values())} errors")


if __name__ == "__main__":
    main()
