"""/v1/responses: on the wire, with the openai package, and a task as Codex does it."""
import itertools
import json
import re

import openai
import pydantic
import pytest
import requests
from conftest import MODEL
from openai_tools import client_of

TEMPLATE = """{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}
{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }})
{% endfor %}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}{# <tool_call> #}"""
NOW = {"type": "function", "name": "now", "description": "The time.", "strict": True,
       "parameters": {"type": "object", "properties": {"zone": {"enum": ["utc"]}}, "required": ["zone"], "additionalProperties": False}}
DEFINITION = r"\*\*\* Begin Patch\n[+-][a-z ]{1,12}\n\*\*\* End Patch"
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": {"type": "grammar", "syntax": "regex", "definition": DEFINITION}}
SPACE = {"type": "namespace", "name": "mcp__files", "description": "Files.", "tools": [
    {"type": "function", "name": "read", "description": "Reads.", "parameters": {"type": "object", "properties": {"path": {"enum": ["a.txt"]}}, "required": ["path"]}}]}


def call(name, arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture(scope="module")
def speaker(start, tmp_path_factory):
    file = tmp_path_factory.mktemp("responses") / "template.jinja"
    file.write_text(TEMPLATE)
    with start("--chat-template", file) as s:
        yield s
        assert s.process.poll() is None, s.log()[-4000:]
        s.wait_idle()


def says(text):
    """What the model is made to write."""
    return {"structured_outputs": {"choice": [text]}}


def ask(server, input="Tell me a story.", status=200, **kw):
    got = server.post("/v1/responses", {"model": MODEL.name, "input": input, **kw})
    assert got.status_code == status, got.text
    return got.json()


def frames(text):
    """The events of a stream; each has its name twice, and they are numbered."""
    events = []
    for frame in text.removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == "event: " + events[-1]["type"] and events[-1]["sequence_number"] == len(events) - 1
    return events


def stream(server, input="Tell me a story.", **kw):
    got = server.post("/v1/responses", {"model": MODEL.name, "input": input, "stream": True, **kw})
    assert got.status_code == 200 and got.headers["Content-Type"] == "text/event-stream", got.text
    return frames(got.text)


def gather(events):
    """The response that a stream tells; its items, put together from what came before, are those of its last event."""
    assert [e["type"] for e in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0]["response"]["status"] == "in_progress" and events[0]["response"]["output"] == []
    items, opened = [], None
    for e in events[2:-1]:
        kind = e["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert opened is None and e["output_index"] == len(items)
            opened = {"id": e["item"]["id"], "type": e["item"]["type"], "text": ""}
            assert not (e["item"].get("content") or e["item"].get("arguments") or e["item"].get("input"))
        elif kind == "output_item.done":
            item = e["item"]
            whole = item["content"][0]["text"] if "content" in item else item.get("arguments", item.get("input"))
            assert (item["id"], item["type"], whole) == (opened["id"], opened["type"], opened["text"])
            items.append(item)
            opened = None
        else:
            assert e["item_id"] == opened["id"] and e["output_index"] == len(items)
            if kind.endswith(".delta"):
                opened["text"] += e["delta"]
            elif kind.endswith(".done") and "part" not in kind:
                assert e.get("text", e.get("arguments", e.get("input"))) == opened["text"]
    response = events[-1]["response"]
    assert opened is None and response["output"] == items and events[-1]["type"] == "response." + response["status"]
    return response


def seen(response):
    """What the items say, without ids."""
    def one(item):
        return (item["type"], *(item[k] for k in ("namespace", "name", "arguments", "input") if k in item), *(p["text"] for p in item.get("content") or []))
    return [one(item) for item in response["output"]]


def both(server, *args, **kw):
    whole, streamed = ask(server, *args, **kw), gather(stream(server, *args, **kw))
    assert seen(whole) == seen(streamed) and whole["status"] == streamed["status"]
    assert whole["usage"]["output_tokens"] == streamed["usage"]["output_tokens"] and whole["usage"]["output_tokens_details"] == streamed["usage"]["output_tokens_details"]
    return whole


def test_the_text_is_that_of_a_chat(speaker):
    given = {"temperature": 0.8, "seed": 5, "top_p": 0.9}
    got = both(speaker, instructions="Be kind.", max_output_tokens=12, metadata={"a": "b"}, **given)
    user = {"role": "user", "content": "Tell me a story."}
    chat = speaker.post("/v1/chat/completions", {"messages": [{"role": "system", "content": "Be kind."}, user], "max_tokens": 12, **given}).json()
    assert seen(got)[0][1].removeprefix(" ") == chat["choices"][0]["message"]["content"].removeprefix(" ")
    usage = got["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (chat["usage"]["prompt_tokens"], 12, chat["usage"]["total_tokens"])
    assert got["id"].startswith("resp_") and got["object"] == "response" and got["model"] == MODEL.name
    assert (got["status"], got["incomplete_details"], got["output"][0]["status"]) == ("incomplete", {"reason": "max_output_tokens"}, "incomplete")
    assert (got["instructions"], got["temperature"], got["max_output_tokens"], got["metadata"], got["store"]) == ("Be kind.", 0.8, 12, {"a": "b"}, False)
    items = [{"role": "developer", "content": "Be kind."}, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Tell me a story."}]}]
    assert seen(ask(speaker, items, max_output_tokens=12, **given)) == seen(got)
    assert ask(speaker, max_output_tokens=100000, **says("Hi."))["status"] == "completed"


def test_items(speaker):
    text = "<think>\nHm.\n</think>\n\nI look.\n" + call("now", {"zone": "utc"}) + "\n" + call("mcp__files__read", {"path": "a.txt"}) + "\n" + call("apply_patch", {"input": "a\n\"b\""})
    got = both(speaker, tools=[NOW, PATCH, SPACE], **says(text))
    assert seen(got) == [("reasoning", "Hm."), ("message", "I look."), ("function_call", "now", '{"zone": "utc"}'),
                         ("function_call", "mcp__files", "read", '{"path": "a.txt"}'), ("custom_tool_call", "apply_patch", 'a\n"b"')]
    assert got["status"] == "completed" and got["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    ids = [i["id"] for i in got["output"]]
    assert [i.split("_")[0] for i in ids] == ["rs", "msg", "fc", "fc", "ctc"] and len(set(ids)) == 5
    assert len({i["call_id"] for i in got["output"][2:]}) == 3 and "encrypted_content" not in got["output"][0]
    one = both(speaker, tools=[NOW, PATCH, SPACE], parallel_tool_calls=False, **says(text))
    assert len(one["output"]) == 3
    kept = both(speaker, include=["reasoning.encrypted_content"], **says("<think>Hm.</think>Well."))["output"][0]["encrypted_content"]
    prompts = []
    for thought in ({"encrypted_content": kept, "summary": []}, {"content": [{"type": "reasoning_text", "text": "Hm."}], "summary": []},
                    {"content": None, "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "of another server"}):
        items = [{"role": "user", "content": "A"}, {"type": "reasoning", "id": "rs_1", **thought}, {"role": "assistant", "content": "Well."}, {"role": "user", "content": "B"}]
        prompts.append(ask(speaker, items, **says("C"))["usage"]["input_tokens"])
    without = ask(speaker, [items[0], *items[2:]], **says("C"))["usage"]["input_tokens"]
    assert prompts[0] == prompts[1] == prompts[2] > without


@pytest.mark.parametrize("choice, expected", [
    ("required", None), ({"type": "function", "name": "now"}, "now"), ({"type": "function", "name": "read", "namespace": "mcp__files"}, "read"),
    ({"type": "custom", "name": "apply_patch"}, "apply_patch"), ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}, "now")], ids=str)
def test_a_call_is_demanded(speaker, choice, expected):
    got = both(speaker, tools=[NOW, PATCH, SPACE], tool_choice=choice, seed=3, max_output_tokens=200, parallel_tool_calls=False)
    (item,) = got["output"]
    assert item["type"].endswith("_call") and (expected is None or item["name"] == expected)
    if item["name"] == "apply_patch":
        assert re.fullmatch(DEFINITION, item["input"]), "what the format's expression allows"


LARK = """start: begin line~1..2 end
begin: "*** Begin Patch" LF
line: ("+" | "-") /[a-z "]{1,8}/ LF
end: "*** End Patch"
%import common.LF
"""


def test_formats_of_custom_tools(speaker):
    """A grammar of Lark's is kept to where a call is demanded, and where the model may call; one that cannot be is only told."""
    def tool(syntax, definition):
        return {**PATCH, "format": {"type": "grammar", "syntax": syntax, "definition": definition}}

    def constrained(*tools, **kw):
        names = ("tandem_constraint_compile_seconds_count", "tandem_constraint_cache_hits_total")
        before = sum(speaker.metric(n) for n in names)
        got = ask(speaker, tools=list(tools), max_output_tokens=8, seed=2, **kw)
        assert got["status"] in ("completed", "incomplete") and got["output"][0]["type"] == "message", "the text is the model's own"
        return sum(speaker.metric(n) for n in names) > before

    for seed in range(3):
        (item,) = both(speaker, tools=[NOW, tool("lark", LARK)], tool_choice={"type": "custom", "name": "apply_patch"}, seed=seed, max_output_tokens=400)["output"]
        assert re.fullmatch(r'\*\*\* Begin Patch\n([+-][a-z "]{1,8}\n){1,2}\*\*\* End Patch', item["input"])
    assert constrained(NOW, tool("lark", LARK)) and constrained(SPACE, PATCH)
    assert not constrained(NOW) and not constrained(tool("lark", LARK), tool_choice="none")
    for syntax, definition in (("lark", 'start: x "a"\n%ignore " "\nx: "b"'), ("lark", "start: start | "), ("regex", "(?=a)b"), ("other", "x")):
        assert not constrained(tool(syntax, definition))


def test_what_is_left_out(speaker):
    hosted = [{"type": "web_search"}, {"type": "local_shell"}, {"type": "image_generation", "output_format": "png"}]
    items = [{"role": "user", "content": "A"}, {"type": "web_search_call", "id": "ws_1", "status": "completed"}]
    got = ask(speaker, items, tools=[*hosted, NOW], metadata={"a": "b"}, **says("Hi."))
    assert got["metadata"] == {"a": "b", "skipped": "web_search_call,web_search,local_shell,image_generation"}
    assert "left out of a request: web_search_call,web_search" in speaker.log()
    seen_by_a_tool = [*items, {"type": "function_call", "call_id": "a", "name": "now", "arguments": "{}"}, {"type": "function_call_output", "call_id": "a", "output": [
        {"type": "input_text", "text": "See:"}, {"type": "input_image", "image_url": "data:image/png;base64,aaaa"}]}]
    assert ask(speaker, seen_by_a_tool, **says("Hi."))["status"] == "completed", "else no later request of the conversation would be answered"
    none = ask(speaker, tools=hosted, tool_choice="auto", parallel_tool_calls=True, **says(call("now", {})))
    assert seen(none) == [("message", call("now", {}))]


@pytest.mark.parametrize("change, status, param, text", [
    ({"model": "other"}, 404, "model", "`other` does not exist"),
    ({"input": None}, 400, "input", "input: the field is missing"),
    ({"input": []}, 400, "input", "there is no message in it"),
    ({"input": [{"role": "tool", "content": "a"}]}, 400, "input", "input[0].role: expected"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, 400, "input", "input[0]: an item_reference names"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, 400, "input", 'input[0].content: "input_image" is not supported'),
    ({"input": [{"type": "function_call_output", "output": "a"}]}, 400, "input", "input[0].call_id: expected a string"),
    ({"input": [{"type": "function_call", "call_id": "a", "name": "x" * 200, "arguments": "{}"}]}, 400, "input", "input[0].name: expected a name"),
    ({"previous_response_id": "resp_1"}, 400, "previous_response_id", "answers are not kept"),
    ({"conversation": "conv_1"}, 400, "conversation", "answers are not kept"),
    ({"background": True}, 400, "background", "cannot be fetched later"),
    ({"truncation": "auto"}, 400, "truncation", 'only "disabled"'),
    ({"include": ["message.output_text.logprobs"]}, 400, "include", "/v1/chat/completions has"),
    ({"max_output_tokens": 0}, 400, "max_output_tokens", "`max_output_tokens`"),
    ({"tools": [NOW, NOW]}, 400, "tools", "two are named now"),
    ({"tools": [{"type": "namespace", "name": "a"}]}, 400, "tools", "tools[0].tools: expected a list"),
    ({"tool_choice": "required"}, 400, "tool_choice", "`tool_choice` is only allowed when `tools` are given"),
    ({"tool_choice": {"type": "web_search"}}, 400, "tool_choice", "tool_choice: expected"),
    ({"text": {"format": {"type": "json_schema", "schema": 5}}}, 400, "text.format", "text.format"),
    ({"text": {"format": {"type": "xml"}}}, 400, "text", "text.format: expected"),
    ({"input": "word " * 2000}, 400, "input", "maximum context length"),
], ids=lambda v: str(v)[:40])
def test_what_is_refused(speaker, change, status, param, text):
    got = ask(speaker, status=status, **{"input": "A", **change})["error"]
    assert text in got["message"] and got["param"] == param


# ---- the openai package ----------------------------------------------------------------------------------------------

class Cat(pydantic.BaseModel):
    name: str
    age: int


def test_the_package(speaker):
    client = client_of(speaker)
    got = client.responses.create(model=MODEL.name, input="Hello", instructions="Be kind.", extra_body=says("Hi there."))
    assert got.output_text == "Hi there." and got.status == "completed" and got.usage.total_tokens == got.usage.input_tokens + got.usage.output_tokens
    parsed = client.responses.parse(model=MODEL.name, input="A cat", text_format=Cat, extra_body={"seed": 1}, max_output_tokens=200)
    assert isinstance(parsed.output_parsed, Cat)
    with client.responses.stream(model=MODEL.name, input="A cat", text_format=Cat, extra_body={"seed": 1}, max_output_tokens=200) as events:
        kinds = [e.type for e in events]
        assert events.get_final_response().output_parsed == parsed.output_parsed
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed" and "response.output_text.delta" in kinds
    tool = openai.pydantic_function_tool(Cat)["function"]
    with client.responses.stream(model=MODEL.name, input="A cat", tools=[{"type": "function", **tool}], tool_choice="required", extra_body={"seed": 1},
                                 max_output_tokens=200, parallel_tool_calls=False) as events:
        (made,) = [e.item for e in events if e.type == "response.output_item.done"]
    assert made.type == "function_call" and made.name == "Cat" and Cat.model_validate_json(made.arguments) and made.call_id.startswith("call_")
    with pytest.raises(openai.BadRequestError, match="answers are not kept"):
        client.responses.create(model=MODEL.name, input="Hello", previous_response_id="resp_1")


# ---- Codex -----------------------------------------------------------------------------------------------------------

def codex(history):
    """A request with the fields and tools that Codex sends."""
    shell = {"type": "function", "name": "shell", "description": "Runs a command.", "strict": False, "parameters": {
        "type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}, "workdir": {"type": "string"}}, "required": ["command"], "additionalProperties": False}}
    patch = {**PATCH, "format": {"type": "grammar", "syntax": "lark", "definition": 'start: begin_patch hunk+ end_patch\nbegin_patch: "*** Begin Patch" LF\n'}}
    return {"model": MODEL.name, "instructions": "You are Codex. " * 5, "input": history, "tools": [shell, patch, SPACE, {"type": "web_search", "external_web_access": False}],
            "tool_choice": "auto", "parallel_tool_calls": False, "reasoning": {"effort": "medium", "summary": "auto"}, "store": False, "stream": True,
            "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0199a213", "text": {"verbosity": "medium"}, "client_metadata": {"x": "y"}}


def test_a_task_of_codex(speaker, tmp_path):
    """Reads a file by an MCP tool, edits it with apply_patch, ends; what comes back goes into the history as Codex puts it there."""
    file = tmp_path / "a.txt"
    file.write_text("old\n")

    def read(item):
        assert (item["namespace"], json.loads(item["arguments"])) == ("mcp__files", {"path": "a.txt"})
        return {"type": "function_call_output", "call_id": item["call_id"], "output": [{"type": "input_text", "text": file.read_text()}]}

    def patch(item):
        lines = item["input"].split("\n")
        assert lines[0] == "*** Begin Patch" and lines[-1] == "*** End Patch"
        for line in lines[2:-1]:
            file.write_text(file.read_text().replace(line[1:], "") if line[0] == "-" else file.read_text().strip("\n") + line[1:] + "\n")
        return {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "Done."}

    script = ["<think>\nWhat is in it?\n</think>\n\n" + call("mcp__files__read", {"path": "a.txt"}),
              "I edit it.\n" + call("apply_patch", {"input": "*** Begin Patch\n*** Update File: a.txt\n-old\n+new\n*** End Patch"}), "It says new now."]
    tools = {"read": read, "apply_patch": patch}
    history = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>all</permissions>"}]},
               {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context>/tmp</environment_context>"}]},
               {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Make a.txt say new."}]}]
    cached = []
    for text in script:
        got = speaker.post("/v1/responses", {**codex(history), **says(text)}, headers={"originator": "codex_cli_rs", "session_id": "0199a213"})
        assert got.status_code == 200, got.text
        events = frames(got.text)
        done = events[-1]["response"]
        assert gather(events)["status"] == "completed" and done["usage"]["total_tokens"] > 0
        cached.append((done["usage"]["input_tokens_details"]["cached_tokens"], done["usage"]["input_tokens"]))
        outputs = []
        for item in (e["item"] for e in events if e["type"] == "response.output_item.done"):
            history.append({k: v for k, v in item.items() if k not in ("id", "status") and not (item["type"] == "reasoning" and k == "content")})
            outputs += [tools[item["name"]](item)] if item["type"].endswith("_call") else []
        history += outputs
        if outputs:  # Codex tells of a change in the middle
            history.append({"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>fewer</permissions>"}]})
    assert file.read_text() == "new\n" and history[-1]["content"][0]["text"] == "It says new now."
    assert all(now[0] >= before[1] - 16 for before, now in itertools.pairwise(cached)), "each turn finds the one before in the cache, but for the last page"


def test_a_stream_that_waits(start):
    """It is kept open by events that are numbered, too."""
    long = {"inputs": "Once", "parameters": {"max_new_tokens": 480, "ignore_eos": True}}
    with start("--max-seqs", 1, "--sse-keepalive", 0.1, "--device", "ref", "--chat-template", "plain") as s:
        ahead = [requests.post(s.url + "/generate_stream", json=long, stream=True, timeout=300) for _ in range(12)]
        waits = requests.post(s.url + "/v1/responses", json={"model": MODEL.name, "input": "A", "stream": True}, stream=True, timeout=300)
        data = [json.loads(line[6:]) for line in itertools.islice(waits.iter_lines(), 12) if line.startswith(b"data: ")]
        for one in (*ahead, waits):
            one.close()
    assert [(d["type"], d["sequence_number"]) for d in data] == [("response.created", 0), ("response.in_progress", 1), ("keepalive", 2), ("keepalive", 3)]
