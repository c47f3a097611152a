"""/v1/messages and /v1/messages/count_tokens on the wire; tests/clients has the anthropic package."""
import itertools
import json

import pytest
import requests
from conftest import MODEL
from keys import new_key

TEMPLATE = """{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}
{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }})
{% endfor %}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}{# <tool_call> #}"""
USER = {"role": "user", "content": "Tell me a story."}
TOOL = {"name": "now", "description": "The time.", "input_schema": {"type": "object", "properties": {"zone": {"enum": ["utc"]}}, "required": ["zone"]}}
CALL = '<tool_call>\n{"name": "now", "arguments": {"zone": "utc"}}\n</tool_call>'


@pytest.fixture(scope="module")
def speaker(start, tmp_path_factory):
    file = tmp_path_factory.mktemp("messages") / "template.jinja"
    file.write_text(TEMPLATE)
    with start("--chat-template", file) as s:
        yield s
        assert s.process.poll() is None, s.log()[-4000:]
        s.wait_idle()


def body(*messages, says=None, **kw):
    """says: what the model is made to write"""
    forced = {"structured_outputs": {"choice": [says]}} if says else {}
    return {"model": MODEL.name, "max_tokens": 200, "messages": list(messages or (USER,)), **forced, **kw}


def ask(server, *messages, status=200, path="/v1/messages?beta=true", **kw):
    got = server.post(path, body(*messages, **kw))
    assert got.status_code == status, got.text
    return got.json()


def events(server, *messages, **kw):
    """The events' names and data; checks that each frame has both."""
    got = server.post("/v1/messages", body(*messages, stream=True, **kw))
    assert got.status_code == 200 and got.headers["Content-Type"] == "text/event-stream", got.text
    for frame in got.text.removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        data = json.loads(data.removeprefix("data: "))
        assert name == "event: " + data["type"]
        yield data


def gather(stream):
    """The message that a stream tells, as a client puts it together; each block is closed before the next begins."""
    message, opened = None, None
    for e in stream:
        kind = e["type"]
        if kind == "message_start":
            assert message is None
            message = e["message"]
        elif kind == "content_block_start":
            assert opened is None and e["index"] == len(message["content"])
            opened = {**e["content_block"], "partial": ""}
        elif kind == "content_block_delta":
            assert e["index"] == len(message["content"])
            delta = e["delta"]
            field = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature", "input_json_delta": "partial_json"}[delta["type"]]
            opened["partial" if field == "partial_json" else field] += delta[field]
        elif kind == "content_block_stop":
            partial = opened.pop("partial")
            message["content"].append({**opened, **({"input": json.loads(partial)} if partial else {})})
            opened = None
        elif kind == "message_delta":
            message.update(e["delta"])
            message["usage"] = e["usage"]
        else:
            assert kind in ("ping", "message_stop")
    assert opened is None and kind == "message_stop"
    return message


def without_ids(blocks):
    return [{k: v for k, v in b.items() if k != "id"} for b in blocks]


def test_the_text_is_that_of_a_chat(speaker):
    given = {"temperature": 0.8, "seed": 5, "top_p": 0.9, "top_k": 40, "max_tokens": 12}
    got = ask(speaker, system="Be kind.", **given)
    chat = speaker.post("/v1/chat/completions", {"messages": [{"role": "system", "content": "Be kind."}, USER], **given}).json()
    usage, text = got["usage"], chat["choices"][0]["message"]["content"].removeprefix(" ")
    assert got["content"][0]["type"] == "text" and got["content"][0]["text"].removeprefix(" ") == text and len(got["content"]) == 1
    assert (got["type"], got["role"], got["model"], got["stop_reason"], got["stop_sequence"]) == ("message", "assistant", MODEL.name, "max_tokens", None)
    assert got["id"].startswith("msg_") and usage["output_tokens"] == 12
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == chat["usage"]["prompt_tokens"]
    streamed = gather(events(speaker, system="Be kind.", **given))
    assert streamed["content"] == got["content"] and streamed["stop_reason"] == "max_tokens" and streamed["usage"]["output_tokens"] == 12


def test_stop_sequences_and_blocks(speaker):
    got = ask(speaker, says="One and two.", stop_sequences=["nothing", " two"])
    assert got["content"] == [{"type": "text", "text": "One and"}] and (got["stop_reason"], got["stop_sequence"]) == ("stop_sequence", " two")
    says = f"<think>\nHm.\n</think>\n\nI look.\n{CALL}\n{CALL}"
    call = {"type": "tool_use", "name": "now", "input": {"zone": "utc"}}
    blocks = [{"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "I look."}, call, call]
    for extra, expected in (({}, blocks), ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, blocks[:3])):
        whole, streamed = ask(speaker, says=says, tools=[TOOL], **extra), gather(events(speaker, says=says, tools=[TOOL], **extra))
        assert without_ids(whole["content"]) == expected == without_ids(streamed["content"])
        assert whole["stop_reason"] == streamed["stop_reason"] == "tool_use"
        ids = [b["id"] for b in whole["content"] if "id" in b]
        assert len(set(ids)) == len(ids) and all(i.startswith("toolu_") for i in ids)
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "now"}):
        whole, streamed = ask(speaker, tools=[TOOL], tool_choice=choice, seed=1), gather(events(speaker, tools=[TOOL], tool_choice=choice, seed=1))
        assert without_ids(whole["content"]) == [call] == without_ids(streamed["content"]) and whole["stop_reason"] == "tool_use"
    none = ask(speaker, says=CALL, tools=[TOOL], tool_choice={"type": "none"})
    assert none["content"] == [{"type": "text", "text": CALL}] and none["stop_reason"] == "end_turn"


def test_json_schema(speaker):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    got = ask(speaker, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert json.loads(got["content"][0]["text"])["n"] in (1, 2)


def test_count_tokens(speaker):
    for messages, extra in (([USER], {}), ([USER], {"system": "Be kind.", "tools": [TOOL]}), ([USER, {"role": "assistant", "content": "Well"}], {})):
        usage = ask(speaker, *messages, says="x", **extra)["usage"]
        counted = ask(speaker, *messages, path="/v1/messages/count_tokens?beta=true", **extra)
        assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    many = {"role": "user", "content": "word " * 2000}
    assert ask(speaker, many, path="/v1/messages/count_tokens")["input_tokens"] > 2000
    assert "prompt is too long: " in ask(speaker, many, status=400)["error"]["message"]


def claude_code(turn, *more):
    """A request as Claude Code makes it: the billing line differs each time, and there are fields of all kinds."""
    return {
        "model": MODEL.name, "max_tokens": 32000, "stream": True, "temperature": 1,
        "system": [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.154.{turn}; cc_entrypoint=cli; cch={turn:05x};"},
                   {"type": "text", "text": "You are Claude Code, Anthropic's official CLI for Claude.", "cache_control": {"type": "ephemeral"}},
                   {"type": "text", "text": "You are an agent that edits files. " * 3, "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "<system-reminder>\nToday is Tuesday.\n</system-reminder>\n"},
                                                  {"type": "text", "text": "What time is it?", "cache_control": {"type": "ephemeral"}}]}, *more],
        "tools": [{**TOOL, "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", **TOOL["input_schema"]}, "defer_loading": False}],
        "tool_choice": {"type": "auto"}, "metadata": {"user_id": "user_x_account__session_y"},
        "thinking": {"type": "adaptive"}, "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"}, "service_tier": "auto", "speed": "standard"}


def test_a_task_of_claude_code(speaker):
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14", "x-api-key": "none"}

    def turn(n, says, *more):
        got = speaker.post("/v1/messages?beta=true", {**claude_code(n, *more), "structured_outputs": {"choice": [says]}}, headers=headers)
        assert got.status_code == 200, got.text
        return gather(json.loads(f.split("\ndata: ")[1]) for f in got.text.removesuffix("\n\n").split("\n\n"))

    first = turn(1, "I look.\n" + CALL)
    call = first["content"][1]
    assert first["usage"]["cache_read_input_tokens"] == 0 and first["stop_reason"] == "tool_use" and call["input"] == {"zone": "utc"}
    result = {"role": "user", "content": [{"tool_use_id": call["id"], "type": "tool_result", "content": [{"type": "text", "text": "Noon."}]},
                                          {"type": "text", "text": "<system-reminder>Be brief.</system-reminder>"}]}
    second = turn(2, "It is noon.", {"role": "assistant", "content": first["content"]}, result, {"role": "ctx", "content": "A file has changed."})
    assert second["content"] == [{"type": "text", "text": "It is noon."}] and second["stop_reason"] == "end_turn"
    known = first["usage"]["input_tokens"]
    assert second["usage"]["cache_read_input_tokens"] >= known - 16 > 0, "the first turn's prompt is in the cache, but for the last page"


def test_a_tool_that_is_found(speaker):
    """A deferred tool is not shown before a search finds it, and then where it is found: what comes before stays in the cache."""
    def result(*blocks):
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": list(blocks)}]}

    def count(*messages, tools):
        return ask(speaker, *messages, tools=tools, path="/v1/messages/count_tokens")["input_tokens"]

    asked = {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "now", "input": {"zone": "utc"}}]}
    late = {**TOOL, "name": "later", "defer_loading": True}
    found, history = {"type": "tool_reference", "tool_name": "later"}, [USER, asked]
    assert count(USER, tools=[TOOL, late]) == count(USER, tools=[TOOL]) < count(USER, tools=[TOOL, {**late, "defer_loading": False}])
    assert count(*history, result(found), tools=[TOOL, late]) > count(*history, result(found), tools=[TOOL]) + 30
    before = ask(speaker, says="x", tools=[TOOL], system="Be kind. " * 20)["usage"]
    known = before["input_tokens"] + before["cache_read_input_tokens"]
    after = ask(speaker, *history, result(found), says=CALL.replace("now", "later"), tools=[TOOL, late], system="Be kind. " * 20)
    assert after["usage"]["cache_read_input_tokens"] >= known - 32 > 0 and after["content"][0]["name"] == "later"
    ask(speaker, *history, result({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}), says="x", tools=[TOOL])
    only = ask(speaker, tools=[TOOL, late], tool_choice={"type": "any"}, seed=2)
    assert {b["name"] for b in only["content"]} == {"now"}  # maybe several calls, all of the tool that is shown


@pytest.mark.parametrize("change, status, kind, text", [
    ({"model": "other"}, 404, "not_found_error", "`other` does not exist"),
    ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens: the field is missing"),
    ({"max_tokens": 0}, 400, "invalid_request_error", "`max_tokens` must be at least 1"),
    ({"stop_sequences": [""]}, 400, "invalid_request_error", "`stop_sequences` texts must have"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64"}}]}]}, 400, "invalid_request_error", '"image" is not supported'),
    ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "`tool_choice` is only allowed when `tools` are given"),
    ({"output_config": {"format": {"type": "json_schema", "schema": 5}}}, 400, "invalid_request_error", "output_config.format"),
])
def test_what_is_refused(speaker, change, status, kind, text):
    got = ask(speaker, status=status, **change)
    assert got["type"] == "error" and got["error"]["type"] == kind and text in got["error"]["message"]


def test_a_thread_is_refused_as_the_packages_know_it(speaker):
    """They go on without it: with all messages in each request."""
    got = ask(speaker, status=400, thread={"type": "continue", "previous_message_id": "msg_1"})
    assert got["error"]["details"]["error_code"] == "thread_unsupported_request" and got["error"]["type"] == "invalid_request_error"


def test_keys_and_limits(start, tmp_path):
    """Errors that come from elsewhere than the handler have the same form."""
    keys = tmp_path / "keys"
    good, busy = new_key(keys, "good"), new_key(keys, "busy", "user", "--requests-per-minute", "1")
    with start("--chat-template", "plain", "--api-keys", keys, "--max-body-size", "64K") as s:
        def post(key, content="a", path="/v1/messages", method="post"):
            got = getattr(requests, method)(s.url + path, json=body({"role": "user", "content": content}, max_tokens=2), headers={"x-api-key": key}, timeout=300)
            assert got.status_code == 200 or got.json()["type"] == "error"
            return got.status_code, got.json().get("error", {}).get("type")
        assert post(good) == (200, None) and post(good, path="/v1/messages/count_tokens") == (200, None)
        assert post("wrong") == (401, "authentication_error") and post("wrong", path="/v1/messages/count_tokens") == (401, "authentication_error")
        assert post(good, "a" * 70000) == (413, "request_too_large")
        assert post(good, method="get") == (405, "invalid_request_error") and post(good, path="/v1/messages/nothing") == (404, "not_found_error")
        assert post(busy) == (200, None) and post(busy) == (429, "rate_limit_error")
        shown = s.get("/metrics", headers={"x-api-key": good}).text
        assert 'tandem_requests_total{route="/v1/messages",status="200"} 2' in shown
        assert 'tandem_requests_total{route="/v1/messages/count_tokens",status="200"} 1' in shown


def test_a_stream_that_waits(start):
    """It begins at once and is kept open by pings."""
    long = {"inputs": "Once", "parameters": {"max_new_tokens": 480, "ignore_eos": True}}
    with start("--max-seqs", 1, "--sse-keepalive", 0.1, "--device", "ref", "--chat-template", "plain") as s:
        ahead = [requests.post(s.url + "/generate_stream", json=long, stream=True, timeout=300) for _ in range(12)]
        waits = requests.post(s.url + "/v1/messages", json=body(stream=True), stream=True, timeout=300)
        names = [line for line in itertools.islice(waits.iter_lines(), 9) if line.startswith(b"event: ")]
        for one in (*ahead, waits):
            one.close()
    assert names == [b"event: message_start", b"event: ping", b"event: ping"]
