"""/v1/chat/completions: with the openai package, huggingface_hub and langchain-openai, on Qwen's chat template."""
import contextlib
import json

import openai
import pytest
from conftest import MODEL, ROOT
from huggingface_hub import InferenceClient
from langchain_openai import ChatOpenAI
from openai_tools import client_of, sse_chunks

QWEN = ROOT / "tests/fixtures/templates/Qwen-Qwen2.5-7B-Instruct.jinja"
SYSTEM = {"role": "system", "content": "Be kind."}
USER = {"role": "user", "content": "Tell me a story."}
PAGE = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n"
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "properties": {"a": {"enum": [1, 20, 300]}, "b": {"type": "boolean"}}, "required": ["a", "b"], "additionalProperties": False}}}
OTHER = {"type": "function", "function": {"name": "now"}}
VLLM = {"structured_outputs", "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "top_k", "min_tokens", "ignore_eos",
        "stop_token_ids", "include_stop_str_in_output"}


# The demo model has room for 512 tokens; what the real templates say about tools takes most of it.
SHORT = """{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}assistant: {# FORMAT #}"""
FORMATS = {"hermes": "<tool_call>", "llama": "<|python_tag|>"}


@pytest.fixture(scope="module")
def chatty(start):
    with start("--chat-template", QWEN) as s:
        yield s


@pytest.fixture(scope="module")
def tooled(start, tmp_path_factory):
    """tooled(format) -> a server whose template writes calls so."""
    folder, servers = tmp_path_factory.mktemp("templates"), {}
    with contextlib.ExitStack() as stack:
        def get(name):
            if name not in servers:
                (folder / name).write_text(SHORT.replace("FORMAT", FORMATS[name]))
                servers[name] = stack.enter_context(start("--chat-template", folder / name))
            return servers[name]
        yield get


@pytest.fixture
def server(chatty):
    yield chatty
    assert chatty.process.poll() is None, chatty.log()[-4000:]
    chatty.wait_idle()


@pytest.fixture
def client(server):
    return client_of(server)


@pytest.fixture
def hermes(tooled):
    return client_of(tooled("hermes"))


def chat(client, *messages, **kw):
    kw = {"model": MODEL.name, "max_tokens": 8, "temperature": 0, **kw}
    extra = {k: kw.pop(k) for k in list(kw) if k in VLLM}
    return client.chat.completions.create(messages=list(messages or (SYSTEM, USER)), extra_body=extra, **kw)


def page(client, text, **kw):
    """What the model says to a rendered page."""
    got = client.completions.create(model=MODEL.name, prompt=text, **{"max_tokens": 8, "temperature": 0, **kw},
                                    extra_body={"add_special_tokens": False})
    return got.choices[0].text


def collect(stream, index=0):
    """(role, content, [(id, name, arguments)], finish_reason) of one choice of a stream."""
    role, content, calls, finish = None, "", {}, None
    for chunk in stream:
        for c in chunk.choices:
            if c.index != index:
                continue
            assert finish is None, "a chunk behind finish_reason"
            role = role or c.delta.role
            content += c.delta.content or ""
            for call in c.delta.tool_calls or []:
                if call.id:
                    assert call.index == len(calls) and call.type == "function"
                    calls[call.index] = [call.id, call.function.name, ""]
                calls[call.index][2] += call.function.arguments or ""
            finish = c.finish_reason
    return role, content, [tuple(c) for c in calls.values()], finish


# ---- the page --------------------------------------------------------------------------------------------------------

@pytest.mark.smoke
def test_shape_and_text(client):
    got = chat(client)
    assert got.id.startswith("chatcmpl-") and got.object == "chat.completion" and got.model == MODEL.name
    [choice] = got.choices
    assert choice.message.role == "assistant" and choice.message.tool_calls is None and choice.message.refusal is None
    assert choice.finish_reason == "length" and choice.logprobs is None
    assert choice.message.content == page(client, PAGE)
    assert got.usage.completion_tokens == 8 and got.usage.total_tokens == got.usage.prompt_tokens + 8
    assert got.usage.prompt_tokens_details.cached_tokens >= 0


def test_messages_that_mean_the_same(client):
    text = chat(client).choices[0].message.content
    parts = {"role": "user", "content": [{"type": "text", "text": "Tell me a"}, {"type": "text", "text": "story."}]}
    assert chat(client, {**SYSTEM, "role": "developer"}, USER).choices[0].message.content == text
    assert chat(client, SYSTEM, {**USER, "content": [{"type": "text", "text": USER["content"]}]}).choices[0].message.content == text
    assert chat(client, SYSTEM, parts).choices[0].message.content == \
        chat(client, SYSTEM, {**USER, "content": "Tell me a\nstory."}).choices[0].message.content


def test_continuing(client):
    start = {"role": "assistant", "content": "Once upon a"}
    text = page(client, PAGE + "Once upon a")
    assert chat(client, SYSTEM, USER, start, continue_final_message=True).choices[0].message.content == text
    assert chat(client, SYSTEM, USER, start, continue_final_message=True, add_generation_prompt=False).choices[0].message.content == text
    with pytest.raises(openai.BadRequestError):
        chat(client, SYSTEM, USER, start, continue_final_message=True, add_generation_prompt=True)
    bare = PAGE.removesuffix("<|im_start|>assistant\n")
    assert chat(client, add_generation_prompt=False).choices[0].message.content == page(client, bare)


def test_tool_results_in_the_history(client):
    call = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": true}'}}]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "7"}
    expected = (PAGE + '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": true}}\n</tool_call><|im_end|>\n'
                '<|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>\n<|im_start|>assistant\n')
    assert chat(client, SYSTEM, USER, call, result).choices[0].message.content == page(client, expected)
    broken = json.loads(json.dumps(call).replace("true}", "tru}"))
    assert chat(client, SYSTEM, USER, broken, result).choices[0].message.content


def test_template_arguments(start, tmp_path):
    file = tmp_path / "t.jinja"
    file.write_text("{{ bos_token }}{% if loud %}LOUD {% endif %}{{ messages[-1].content }}{{ raise_exception('no') if no }}")
    with start("--chat-template", file) as s:
        client = client_of(s)
        assert chat(client).choices[0].message.content == page(client, "<|endoftext|>" + USER["content"])
        assert chat(client, chat_template_kwargs={"loud": True}).choices[0].message.content == \
            page(client, "<|endoftext|>LOUD " + USER["content"])
        with pytest.raises(openai.BadRequestError) as e:
            chat(client, chat_template_kwargs={"no": 1})
        assert "no" in e.value.message and e.value.param == "messages"


def test_without_a_template(start, shared):
    with pytest.raises(openai.BadRequestError) as e:
        chat(client_of(shared))
    assert "--chat-template" in e.value.message and e.value.code == "no_chat_template"
    with start("--chat-template", "plain") as s:
        plain = client_of(s)
        got = plain.chat.completions.create(model="dummy", messages=[SYSTEM, USER], max_tokens=8, temperature=0)
        assert got.choices[0].message.content == \
            s.generate("system: Be kind.\nuser: Tell me a story.\nassistant:", max_new_tokens=8)["generated_text"]


def test_a_template_that_is_none(run, tmp_path):
    bad = tmp_path / "bad.jinja"
    bad.write_text("{% if %}")
    for name in (bad, tmp_path / "missing.jinja"):
        got = run("serve", "--model", MODEL, "--port", "0", "--chat-template", name)
        assert got.returncode == 1 and b"--chat-template" in got.stderr


# ---- streams ---------------------------------------------------------------------------------------------------------

@pytest.mark.smoke
def test_stream(client):
    kw = dict(max_tokens=24, temperature=0.9, seed=2)
    whole = chat(client, **kw)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}, **kw))
    first = chunks[0].choices[0].delta
    assert (first.role, first.content) == ("assistant", "") and all(c.object == "chat.completion.chunk" for c in chunks)
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason and chunks[-2].choices[0].delta.content is None
    assert collect(chunks) == ("assistant", whole.choices[0].message.content, [], whole.choices[0].finish_reason)
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_stream_of_choices(client):
    kw = dict(max_tokens=10, temperature=1, seed=2, n=3)
    whole = chat(client, **kw)
    chunks = list(chat(client, stream=True, **kw))
    for i, choice in enumerate(whole.choices):
        assert choice.index == i and collect(chunks, i)[:2] == ("assistant", choice.message.content)
    assert len({c.message.content for c in whole.choices}) == 3


def test_raw_stream(server):
    answer = server.post("/v1/chat/completions", {"messages": [USER], "max_tokens": 3, "stream": True})
    chunks = sse_chunks(answer)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length", "stop_reason": None}
    assert all("usage" not in c for c in chunks)


@pytest.mark.parametrize("stream", [False, True])
def test_stop(client, stream):
    whole = chat(client, max_tokens=24).choices[0].message.content
    stop = whole[6:15]
    got = chat(client, max_tokens=24, stop=[stop], stream=stream)
    text, finish = collect(got)[1::2] if stream else (got.choices[0].message.content, got.choices[0].finish_reason)
    assert (text, finish) == (whole[:whole.index(stop)], "stop")


# ---- log-probabilities and lengths -----------------------------------------------------------------------------------

@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(client, stream):
    got = chat(client, logprobs=True, top_logprobs=3, stream=stream)
    chunks = list(got) if stream else [got]
    entries = [e for c in chunks for choice in c.choices if choice.logprobs for e in choice.logprobs.content]
    assert len(entries) == 8
    text = chat(client).choices[0].message.content
    assert b"".join(bytes(e.bytes) for e in entries).decode() == text == "".join(e.token for e in entries)
    for e in entries:
        assert len(e.top_logprobs) == 3 and (e.top_logprobs[0].token, e.top_logprobs[0].logprob) == (e.token, e.logprob)
        assert [t.logprob for t in e.top_logprobs] == sorted((t.logprob for t in e.top_logprobs), reverse=True)
    assert chat(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_lengths(client, server):
    assert chat(client, max_tokens=openai.NOT_GIVEN, max_completion_tokens=5).usage.completion_tokens == 5
    long = chat(client, max_tokens=openai.NOT_GIVEN, ignore_eos=True)
    assert long.usage.total_tokens == server.get("/info").json()["max_total_tokens"] and long.choices[0].finish_reason == "length"
    with pytest.raises(openai.BadRequestError) as e:
        chat(client, SYSTEM, {**USER, "content": "word " * 2000})
    assert e.value.code == "context_length_exceeded" and e.value.param == "messages"


# ---- errors ----------------------------------------------------------------------------------------------------------

IMAGE = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]
BAD = [
    ({"messages": None}, "messages", "missing"),
    ({"messages": []}, "messages", "empty"),
    ({"messages": "hi"}, "messages", "array"),
    ({"messages": ["hi"]}, "messages", "messages[0]"),
    ({"messages": [{"content": "hi"}]}, "messages", "messages[0].role"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages", "messages[0].content"),
    ({"messages": [{"role": "user", "content": IMAGE}]}, "messages", "image_url"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages", "messages[0].content[0].text"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages", "function.name"),
    ({"tools": []}, "tools", "empty"),
    ({"tools": {}}, "tools", "array"),
    ({"tools": [{"type": "web_search"}]}, "tools", "function"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools", "name"),
    ({"tool_choice": "required"}, "tool_choice", "only allowed when"),
    ({"tools": [OTHER], "tool_choice": "maybe"}, "tool_choice", "expected"),
    ({"tools": [OTHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "no tool"),
    ({"tools": [OTHER], "tool_choice": {"type": "function"}}, "tool_choice", "expected"),
    ({"functions": [{"name": "f"}]}, "functions", "use `tools`"),
    ({"top_logprobs": 2}, "top_logprobs", "only allowed when"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "between"),
    ({"logprobs": 2}, "logprobs", "true or false"),
    ({"echo": True}, "echo", "not supported"),
    ({"modalities": ["text", "audio"]}, "modalities", "audio"),
    ({"chat_template": "{{ 1 }}"}, "chat_template", "--chat-template"),
    ({"chat_template_kwargs": 3}, "chat_template_kwargs", "object"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "at least 1"),
    ({"response_format": {"type": "yaml"}}, "response_format", "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "response_format"),
    ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "structured_outputs", "twice"),
]


@pytest.mark.parametrize("fields, param, part", BAD, ids=lambda v: str(v)[:50])
def test_bad_requests(server, fields, param, part):
    answer = server.post("/v1/chat/completions", {"messages": [USER], "max_tokens": 3, **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error" and part in error["message"]
    assert error["param"] == param


def test_what_is_ignored(server):
    off = {name: None for name in ("tools", "tool_choice", "parallel_tool_calls", "logprobs", "top_logprobs", "response_format", "stop", "audio",
                                   "max_completion_tokens", "n", "seed", "stream_options", "functions", "modalities", "chat_template")}
    more = {"user": "me", "store": False, "metadata": {"a": "b"}, "service_tier": "auto", "reasoning_effort": "low", "modalities": ["text"],
            "tool_choice": "none", "unknown": 1}
    for fields in (off, more):
        assert server.post("/v1/chat/completions", {"messages": [USER], "max_tokens": 2, **fields}).status_code == 200


# ---- tools -----------------------------------------------------------------------------------------------------------

def saying(text):
    """Makes the model say exactly this."""
    return {"structured_outputs": {"choice": [text]}, "max_tokens": 250}


CALLS = ('Let me see. <tool_call>\n{"name": "add", "arguments": {"a": 1, "b": true}}\n</tool_call>\n'
         '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')


@pytest.mark.smoke
@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_are_found(hermes, stream):
    got = chat(hermes, tools=[TOOL, OTHER], stream=stream, **saying(CALLS))
    if stream:
        role, content, calls, finish = collect(got)
    else:
        m, finish = got.choices[0].message, got.choices[0].finish_reason
        role, content, calls = m.role, m.content, [(c.id, c.function.name, c.function.arguments) for c in m.tool_calls]
    assert (role, content, finish) == ("assistant", "Let me see.", "tool_calls")
    assert [(name, json.loads(arguments)) for _, name, arguments in calls] == [("add", {"a": 1, "b": True}), ("now", {})]
    assert len({id for id, _, _ in calls}) == 2 and all(id.startswith("call_") for id, _, _ in calls)


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_at_a_time(hermes, stream):
    got = chat(hermes, tools=[TOOL, OTHER], parallel_tool_calls=False, stream=stream, **saying(CALLS))
    names = [c[1] for c in collect(got)[2]] if stream else [c.function.name for c in got.choices[0].message.tool_calls]
    assert names == ["add"]


def test_without_tools_a_call_is_text(hermes):
    assert chat(hermes, **saying(CALLS)).choices[0].message.content == CALLS
    assert chat(hermes, tools=[TOOL], tool_choice="none", **saying(CALLS)).choices[0].message.content == CALLS


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", "named"])
def test_demanded_calls(hermes, choice, stream):
    named = {"type": "function", "function": {"name": "add"}}
    for seed in range(3):
        got = chat(hermes, tools=[OTHER, TOOL] if choice == "named" else [TOOL], tool_choice=named if choice == "named" else choice,
                   max_tokens=150, temperature=1, seed=seed, stream=stream, parallel_tool_calls=False)
        if stream:
            _, content, [(_, name, arguments)], finish = collect(got)
        else:
            [call] = got.choices[0].message.tool_calls
            content, name, arguments, finish = got.choices[0].message.content, call.function.name, call.function.arguments, got.choices[0].finish_reason
        value = json.loads(arguments)
        assert name == "add" and set(value) == {"a", "b"} and isinstance(value["a"], int) and isinstance(value["b"], bool)
        assert not content and finish == ("stop" if choice == "named" else "tool_calls")


def test_llama_tools(tooled):
    client = client_of(tooled("llama"))
    text = '{"name": "add", "parameters": {"a": 1, "b": false}}'
    [call] = chat(client, tools=[TOOL], **saying(text)).choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1, "b": False})
    got = chat(client, tools=[TOOL], tool_choice="required", max_tokens=150, temperature=1, seed=1)
    assert got.choices[0].message.tool_calls[0].function.name == "add"


def test_a_call_may_be_demanded_of_any_model(start):
    with start("--chat-template", "plain") as s:  # which says nothing of tools
        got = chat(client_of(s), USER, tools=[OTHER], tool_choice="required", max_tokens=60)
    assert got.choices[0].message.tool_calls[0].function.name == "now"


# ---- response_format -------------------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"name": {"enum": ["Tom", "Anna"]}, "age": {"type": "integer", "minimum": 1, "maximum": 9}},
          "required": ["name", "age"], "additionalProperties": False}


def test_json_schema(client):
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    for seed in range(4):
        got = chat(client, response_format=wanted, max_tokens=60, temperature=1, seed=seed).choices[0]
        value = json.loads(got.message.content)
        assert got.finish_reason == "stop" and value["name"] in ("Tom", "Anna") and 1 <= value["age"] <= 9


def test_bad_schema(client):
    with pytest.raises(openai.BadRequestError) as e:
        chat(client, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "colour"}}})
    assert e.value.param == "response_format"


# ---- other clients ---------------------------------------------------------------------------------------------------

@pytest.mark.smoke
def test_hub_client(server, client, tooled):
    hub = InferenceClient(server.url)
    text = chat(client).choices[0].message.content
    got = hub.chat_completion([SYSTEM, USER], max_tokens=8, temperature=0)
    assert got.choices[0].message.content == text and got.usage.completion_tokens == 8
    pieces = list(hub.chat_completion([SYSTEM, USER], max_tokens=8, temperature=0, stream=True, logprobs=True, top_logprobs=1))
    assert "".join(p.choices[0].delta.content or "" for p in pieces) == text and pieces[-1].choices[0].finish_reason == "length"
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    assert set(json.loads(hub.chat_completion([USER], max_tokens=60, response_format=wanted).choices[0].message.content)) == {"name", "age"}
    hub = InferenceClient(tooled("hermes").url)
    got = hub.chat_completion([USER], max_tokens=150, tools=[TOOL], tool_choice="required", seed=1)
    assert got.choices[0].message.tool_calls[0].function.name == "add"


def test_langchain(server, client, tooled):
    model = ChatOpenAI(base_url=server.url + "/v1", api_key="none", model=MODEL.name, temperature=0, max_tokens=8, max_retries=0)
    messages = [("system", SYSTEM["content"]), ("user", USER["content"])]
    text = chat(client).choices[0].message.content
    got = model.invoke(messages)
    assert got.content == text and got.usage_metadata["output_tokens"] == 8
    assert "".join(c.content for c in model.stream(messages)) == text
    tools = ChatOpenAI(base_url=tooled("hermes").url + "/v1", api_key="none", model=MODEL.name, max_retries=0)
    call = tools.bind_tools([TOOL], tool_choice="add").invoke(messages, max_tokens=150)
    assert call.tool_calls[0]["name"] == "add" and set(call.tool_calls[0]["args"]) == {"a", "b"}
    person = model.with_structured_output({"title": "person", **SCHEMA}, method="json_schema").invoke(messages, max_tokens=60)
    assert person["name"] in ("Tom", "Anna")
