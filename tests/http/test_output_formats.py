"""Each format of server/api/output_formats.c through the three APIs, with the chat template of its family: a text as such a model
writes it, which the model of random weights is made to write, and calls that are demanded.  The families' marks are special
tokens of the vocabulary, as they are in their tokenizers."""
import json
import shutil

import openai
import pytest
import requests
from conftest import ROOT

TEMPLATES = ROOT / "tests/fixtures/output_formats"
QWEN = ROOT / "tests/fixtures/templates/Qwen-Qwen3-0.6B.jinja"


def tool(name, properties, required):
    return {"name": name, "description": "what it does", "parameters": {"type": "object", "properties": properties, "required": required,
                                                                       "additionalProperties": False}}


FUNCTIONS = [tool("f", {"n": {"type": "integer", "enum": [1, 22]}, "s": {"enum": ["a b", "c"]}, "on": {"type": "boolean"}}, ["n", "s"]),
             tool("g", {}, [])]
TOOLS = [{"type": "function", "function": f} for f in FUNCTIONS]
F, G = ("f", {"n": 1, "s": "a b"}), ("g", {})
OBJECTS = '{"name": "f", "arguments": {"n": 1, "s": "a b"}}, {"name": "g", "arguments": {}}'


def ds(words):
    return f"<｜tool▁{words.replace(' ', '▁')}｜>"


# name -> template, special tokens, what the model writes, thoughts, text, calls
FORMATS = {
    "hermes": (QWEN, [], '<think>\nHm.\n</think>\n\nYes.\n<tool_call>\n{"name": "f", "arguments": {"n": 1, "s": "a b"}}\n</tool_call>', "Hm.", "Yes.", [F]),
    "qwen3_coder": ("Qwen3-Coder", [], "Yes.\n<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n<parameter=s>\na b\n</parameter>\n</function>\n"
                    "</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>", "", "Yes.", [F, G]),
    "harmony": ("openai-gpt-oss-120b", ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"],
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Yes.<|end|><|start|>assistant"
                '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"n": 1, "s": "a b"}', "Hm.", "Yes.", [F]),
    "mistral": ("mistralai-Mistral-Nemo-Instruct-2407", ["[TOOL_CALLS]", "[INST]", "[/INST]"], f"Yes.[TOOL_CALLS][{OBJECTS}]", "", "Yes.", [F, G]),
    "mistral [ARGS]": ("mistralai-Ministral-3-14B-Reasoning-2512", ["[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"],
                       '[THINK]Hm.[/THINK]Yes.[TOOL_CALLS]f[ARGS]{"n": 1, "s": "a b"}[TOOL_CALLS]g[ARGS]{}', "Hm.", "Yes.", [F, G]),
    "deepseek_v3": ("deepseek-v3", [], "Yes." + ds("calls begin") + ds("call begin") + "function" + ds("sep") + 'f\n```json\n{"n": 1, "s": "a b"}\n```'
                    + ds("call end") + "\n" + ds("call begin") + "function" + ds("sep") + "g\n```json\n{}\n```" + ds("call end") + ds("calls end"),
                    "", "Yes.", [F, G]),
    "deepseek_v31": ("deepseek-ai-DeepSeek-V3.1", [], "Yes." + ds("calls begin") + ds("call begin") + "f" + ds("sep") + '{"n": 1, "s": "a b"}' + ds("call end")
                     + ds("call begin") + "g" + ds("sep") + "{}" + ds("call end") + ds("calls end"), "", "Yes.", [F, G]),
    "granite": ("ibm-granite-granite-3.3-2B-Instruct", ["<|tool_call|>"], f"<think>Hm.</think><|tool_call|>[{OBJECTS}]", "Hm.", "", [F, G]),
    "phi4_mini": ("phi-4-mini", [], f"functools[{OBJECTS}]", "", "", [F, G]),
    "llama4_pythonic": ("llama-4-pythonic", ["<|python_start|>", "<|python_end|>"], '[f(n=1, s="a b"), g()]', "", "", [F, G]),
    "pythonic": ("gemma-3-pythonic", [], "[f(n=1, s='a b'), g()]", "", "", [F, G]),
    "gemma4": ("google-gemma-4-31B-it", ["<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"],
               '<|channel>thought\nHm.\n<channel|>Yes.<|tool_call>call:f{n:1,s:<|"|>a b<|"|>}<tool_call|><|tool_call>call:g{}<tool_call|>', "Hm.", "Yes.", [F, G]),
    "functiongemma": ("functiongemma", ["<start_function_call>", "<end_function_call>", "<escape>"],
                      "<start_function_call>call:f{n:1,s:<escape>a b<escape>}<end_function_call><start_function_call>call:g{}<end_function_call>",
                      "", "", [F, G]),
}


@pytest.fixture(scope="module", params=FORMATS)
def case(start, request, tmp_path_factory):
    template, special, *rest = FORMATS[request.param]
    folder = tmp_path_factory.mktemp("models") / "family"
    shutil.copytree(ROOT / "tests/fixtures/models/qwen2", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    first = len(tokenizer["model"]["vocab"])
    assert first + len(special) <= config["vocab_size"]
    tokenizer["added_tokens"] += [{"id": first + i, "content": mark, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
                                  for i, mark in enumerate(special)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    path = template if template is QWEN else TEMPLATES / f"{template}.jinja"
    with start("--chat-template", path, model=folder) as s:
        yield s, special, *rest


def pairs(calls):
    return [(name, json.loads(arguments)) for name, arguments in calls]


def forced(text):
    return {"structured_outputs": {"choice": [text]}}


def client_of(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=100)


# ---- the three APIs, whole and streamed ------------------------------------------------------------------------------

def chat(server, **kw):
    """-> two of (thoughts, text, calls, why it ended)"""
    fields = {"model": "family", "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, "temperature": 1, "max_tokens": 600, **kw}
    create = client_of(server).chat.completions.create
    choice = create(**fields).choices[0]
    calls = [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or []]
    yield getattr(choice.message, "reasoning_content", ""), choice.message.content or "", pairs(calls), choice.finish_reason
    thoughts, text, calls, finish = "", "", [], None
    for chunk in create(stream=True, **fields):
        delta = chunk.choices[0].delta
        thoughts += getattr(delta, "reasoning_content", None) or ""
        text += delta.content or ""
        finish = chunk.choices[0].finish_reason or finish
        assert len(delta.tool_calls or []) <= 1
        for call in delta.tool_calls or []:
            if call.id:
                assert call.index == len(calls)
                calls.append([call.function.name, ""])
            calls[call.index][1] += call.function.arguments
    yield thoughts, text, pairs(calls), finish


def blocks(blocks, reason):
    kinds = [b["type"] for b in blocks]
    assert kinds == sorted(kinds, key=["thinking", "text", "tool_use"].index)
    joined = {kind: "".join(b[kind] for b in blocks if b["type"] == kind) for kind in ("thinking", "text")}
    return joined["thinking"], joined["text"], [(b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"], reason


def events_of(answer):
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.content.decode().split("\n") if line.startswith("data: ")]


def messages(server, **kw):
    body = {"model": "family", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 600, **kw,
            "tools": [{"name": f["name"], "description": "d", "input_schema": f["parameters"]} for f in FUNCTIONS]}
    got = requests.post(server.url + "/v1/messages", json=body, timeout=100).json()
    yield blocks(got["content"], got["stop_reason"])
    made, reason = [], None
    for event in events_of(requests.post(server.url + "/v1/messages", json={**body, "stream": True}, timeout=100)):
        if event["type"] == "content_block_start":
            assert event["index"] == len(made)
            made.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            field = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "json"}.get(delta["type"])
            if field:
                made[event["index"]][field] += delta["partial_json" if field == "json" else field]
        elif event["type"] == "message_delta":
            reason = event["delta"]["stop_reason"]
    yield blocks([{**b, "input": json.loads(b["json"])} if b["type"] == "tool_use" else b for b in made], reason)


def items(response):
    output = response["output"]
    text = {kind: "".join(part["text"] for i in output if i["type"] == kind for part in i["content"]) for kind in ("reasoning", "message")}
    return text["reasoning"], text["message"], pairs([(i["name"], i["arguments"]) for i in output if i["type"] == "function_call"]), response["status"]


def responses(server, **kw):
    body = {"model": "family", "input": "Hi", "max_output_tokens": 600, **kw, "tools": [{"type": "function", **f} for f in FUNCTIONS]}
    yield items(requests.post(server.url + "/v1/responses", json=body, timeout=100).json())
    events = events_of(requests.post(server.url + "/v1/responses", json={**body, "stream": True}, timeout=100))
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    yield items(events[-1]["response"])


def test_what_the_model_writes(case):
    server, _, text, thoughts, content, calls = case
    for api, end in ((chat, "tool_calls"), (messages, "tool_use"), (responses, "completed")):
        for got in api(server, **({"extra_body": forced(text)} if api is chat else forced(text))):
            assert got == (thoughts, content, calls, end), api.__name__


def test_without_tools_nothing_is_a_call(case):
    server, _, text, thoughts, *_ = case
    body = {"model": "family", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 600, **forced(text)}
    message = requests.post(server.url + "/v1/chat/completions", json={**body, "tools": TOOLS, "tool_choice": "none"}, timeout=100).json()["choices"][0]["message"]
    assert "tool_calls" not in message and message.get("reasoning_content", "") == thoughts and "a b" in message["content"]


def check_calls(calls, most):
    assert 1 <= len(calls) <= most
    for name, arguments in calls:
        if name == "f":
            assert arguments.keys() >= {"n", "s"} and arguments["n"] in (1, 22) and arguments["s"] in ("a b", "c"), arguments
            assert isinstance(arguments.get("on", True), bool) and arguments.keys() <= {"n", "s", "on"}
        else:
            assert (name, arguments) == G


def test_demanded_calls(case):
    """In the format's own form: where its marks are special tokens, these are what is generated."""
    server, special, text, *_ = case
    several = "<|call|>" in special  # which ends a turn
    for seed in range(12):
        whole, streamed = chat(server, tool_choice="required", seed=seed, max_tokens=1500)
        assert whole == streamed and whole[:2] == ("", "") and whole[3] == "tool_calls"
        check_calls(whole[2], 16)
        several = several or len(whole[2]) > 1
        if several and seed:
            break
    assert several
    one, _ = chat(server, tool_choice={"type": "function", "function": {"name": "f"}}, seed=1)
    check_calls(one[2], 1)
    answer = client_of(server).chat.completions.create(model="family", messages=[{"role": "user", "content": "Hi"}], tools=TOOLS, logprobs=True, seed=1, max_tokens=600,
                                                       tool_choice="required", parallel_tool_calls=False)
    tokens = [t.token for t in answer.choices[0].logprobs.content]
    marks = [m for m in special if m in "".join(tokens)]
    assert all(m in tokens for m in marks) and (bool(marks) or not any(m in text for m in special) or "THINK" in "".join(special))


def test_offered_calls(case):
    """A custom tool's format is kept to where the model calls of itself, too: here it is made to like the mark of calls."""
    server, special, *_ = case
    marks = [m for m in special if m in ("[TOOL_CALLS]", "<|tool_call|>", "<|tool_call>", "<start_function_call>")]
    if not marks:
        pytest.skip("no single special token begins the format's calls")
    (mark,) = requests.post(server.url + "/tokenize", json={"prompt": marks[0], "add_special_tokens": False}, timeout=100).json()["tokens"]
    patch = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "regex", "definition": "ab|cd"}}
    made = []
    for seed in range(12):
        body = {"model": "family", "input": "Hi", "tools": [patch], "logit_bias": {str(mark): 100}, "seed": seed, "max_output_tokens": 400}
        output = requests.post(server.url + "/v1/responses", json=body, timeout=100).json()["output"]
        made += [i["input"] for i in output if i["type"] == "custom_tool_call" and i["status"] == "completed"]
        if len(made) > 2:
            break
    assert made and set(made) <= {"ab", "cd"}, made


def test_history(case):
    """Thoughts, calls and results go back to the template."""
    server, *_ = case
    client = client_of(server)
    call = {"type": "function", "id": "call_0123456789abcdefghijklmn", "function": {"name": "f", "arguments": '{"n": 22, "s": "c"}'}}
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call]},
             {"role": "tool", "tool_call_id": call["id"], "content": "15"}]
    lengths = [client.chat.completions.create(model="family", messages=turns[:n], tools=TOOLS, max_tokens=1).usage.prompt_tokens for n in (1, 3)]
    assert lengths[1] > lengths[0]


def test_json_is_the_answer(case):
    server, *_ = case
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    message = client_of(server).chat.completions.create(model="family", messages=[{"role": "user", "content": "Hi"}], max_tokens=100,
                                                        response_format=format).choices[0].message
    assert json.loads(message.content)["a"] in (1, 2) and not hasattr(message, "reasoning_content")


def prompt_tokens(server, **fields):
    body = {"model": "family", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, **fields}
    return requests.post(server.url + "/v1/chat/completions", json=body, timeout=100).json()["usage"]["prompt_tokens"]


def test_effort(case, request):
    """As the template has it; gpt-oss knows three."""
    server, *_ = case
    name = request.node.callspec.params["case"]
    tokens = {e: prompt_tokens(server, reasoning_effort=e) for e in ("none", "minimal", "low", "medium", "high", "max")}
    if name == "harmony":
        assert tokens["none"] == tokens["minimal"] == tokens["low"] < tokens["medium"] and tokens["max"] == tokens["high"] < tokens["medium"]
        assert tokens["medium"] == prompt_tokens(server) and tokens["low"] == prompt_tokens(server, reasoning={"effort": "low"})
    elif name == "hermes":
        assert tokens["none"] > tokens["low"] == prompt_tokens(server)  # thoughts that are closed at once
        assert tokens["none"] == prompt_tokens(server, thinking={"type": "disabled"}) == prompt_tokens(server, reasoning={"enabled": False})
        assert tokens["low"] == prompt_tokens(server, reasoning_effort="none", chat_template_kwargs={"enable_thinking": True})


def test_refused(start):
    wrong = [({"reasoning_effort": "some"}, "`reasoning_effort` must be"), ({"thinking_token_budget": -2}, "thinking_token_budget"),
             ({"thinking": {"type": "enabled", "budget_tokens": "all"}}, "thinking.budget_tokens"), ({"reasoning": {"max_tokens": 1.5}}, "reasoning.max_tokens")]
    with start("--chat-template", "plain", model=ROOT / "tests/fixtures/models/qwen2") as s:
        for fields, says in wrong:
            body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, **fields}
            got = s.post("/v1/chat/completions", body)
            assert got.status_code == 400 and says in got.json()["error"]["message"], got.text
            if "thinking" in fields:
                got = s.post("/v1/messages", {"model": "qwen2", **body})
                assert got.status_code == 400 and says in got.json()["error"]["message"], got.text
