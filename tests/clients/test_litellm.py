"""litellm: chats, streams, calls, embeddings, texts, and which of its exceptions a refusal becomes."""
import asyncio
import gc
import json

import pytest
from client_rig import QWEN, call_text, make_talker, package, start, talker  # noqa: F401
from keys import new_key

litellm = package("litellm")
litellm.telemetry = False

ASK = [{"role": "user", "content": "How is the weather?"}]
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "tells the weather",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Oslo"]}}, "required": ["city"], "additionalProperties": False}}}
PROVIDERS = ["openai", "hosted_vllm"]


def streamed_by(call, **fields):
    """All pieces.  litellm does not close the answers of its streams, and httpcore 1.0.9 takes its pool's lock twice when
    the collector closes one for it within another request: closed here."""
    pieces = list(call(stream=True, **fields))
    gc.collect()
    return pieces


@pytest.fixture(params=PROVIDERS)
def to(talker, request):  # noqa: F811
    return {"model": f"{request.param}/talker", "api_base": talker.url + "/v1", "api_key": "none", "num_retries": 0, "timeout": 60}


def test_completion(to):
    got = litellm.completion(messages=ASK, max_tokens=8, temperature=0, n=2, **to)
    assert len(got.choices) == 2 and got.choices[0].finish_reason == "length" and got.usage.completion_tokens == 16
    text = got.choices[0].message.content
    chunks = streamed_by(litellm.completion, messages=ASK, max_tokens=8, temperature=0, stream_options={"include_usage": True}, **to)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text and chunks[-1].usage.completion_tokens == 8
    rebuilt = litellm.stream_chunk_builder(chunks, messages=ASK)
    assert rebuilt.choices[0].message.content == text and rebuilt.choices[0].finish_reason == "length"


@pytest.mark.parametrize("how", ["required", "named", "automatic"])
def test_tools(to, how):
    fields = {"messages": ASK, "tools": [WEATHER], "max_tokens": 200, "temperature": 1, "seed": 1, **to}
    if how == "automatic":
        fields.update(tool_choice="auto", extra_body={"structured_outputs": {"choice": ["Well.\n" + call_text("get_weather", '{"city": "Oslo"}')]}})
    else:
        fields["tool_choice"] = "required" if how == "required" else {"type": "function", "function": {"name": "get_weather"}}
        fields["parallel_tool_calls"] = False
    message = litellm.completion(**fields).choices[0].message
    [call] = message.tool_calls
    assert call.function.name == "get_weather" and json.loads(call.function.arguments)["city"] in ("Paris", "Oslo")
    chunks = streamed_by(litellm.completion, **fields)
    streamed = litellm.stream_chunk_builder(chunks, messages=ASK).choices[0].message
    [again] = streamed.tool_calls
    assert (again.function.name, again.function.arguments) == (call.function.name, call.function.arguments)
    assert (streamed.content or "") == (message.content or "") == ("Well." if how == "automatic" else "")
    history = [*ASK, message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "Rain."}]
    assert litellm.completion(**{**fields, "messages": history, "tool_choice": "none", "max_tokens": 4}).choices[0].message.content


def test_responses(talker):  # noqa: F811
    to = {"model": "openai/talker", "api_base": talker.url + "/v1", "api_key": "none"}
    tool = {"type": "function", **WEATHER["function"]}
    says = {"extra_body": {"structured_outputs": {"choice": ["Well.\n" + call_text("get_weather", '{"city": "Oslo"}')]}}}
    got = litellm.responses(input="How is the weather?", tools=[tool], **says, **to)
    assert got.output[0].content[0].text == "Well." and (got.output[1].name, got.output[1].arguments) == ("get_weather", '{"city": "Oslo"}')
    events = streamed_by(litellm.responses, input="How is the weather?", tools=[tool], **says, **to)
    assert events[-1].type == "response.completed" and events[-1].response.output[1].arguments == '{"city": "Oslo"}'


def test_messages(talker):  # noqa: F811
    """As the provider anthropic, which converts chats into messages, and by litellm's own messages."""
    to = {"model": "anthropic/talker", "api_base": talker.url, "api_key": "none", "max_tokens": 200}
    says = {"structured_outputs": {"choice": ["Well.\n" + call_text("get_weather", '{"city": "Oslo"}')]}}
    message = litellm.completion(messages=ASK, tools=[WEATHER], **says, **to).choices[0].message
    [call] = message.tool_calls
    assert message.content == "Well." and (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})
    chunks = streamed_by(litellm.completion, messages=ASK, tools=[WEATHER], **says, **to)
    [again] = litellm.stream_chunk_builder(chunks, messages=ASK).choices[0].message.tool_calls
    assert (again.function.name, json.loads(again.function.arguments)) == ("get_weather", {"city": "Oslo"})
    history = [*ASK, message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "Rain."}]
    after = litellm.completion(messages=history, tools=[WEATHER], structured_outputs={"choice": ["It rains."]}, **to)
    assert after.choices[0].message.content == "It rains." and after.choices[0].finish_reason == "stop"
    tool = {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}
    got = asyncio.run(litellm.anthropic.messages.acreate(messages=ASK, tools=[tool], tool_choice={"type": "any", "disable_parallel_tool_use": True}, **to))
    assert got["content"][0]["input"]["city"] in ("Paris", "Oslo") and got["stop_reason"] == "tool_use"
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=ASK, **{**to, "model": "anthropic/nobody"})


def test_structured_output(to):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    got = litellm.completion(messages=ASK, response_format=wanted, max_tokens=60, **to)
    assert set(json.loads(got.choices[0].message.content)) == {"ok"}


def test_embeddings(to):
    got = litellm.embedding(input=["one", "two"], **to)
    assert [d["index"] for d in got.data] == [0, 1] and got.usage.prompt_tokens > 0
    assert len(got.data[0]["embedding"]) == len(got.data[1]["embedding"]) == 48
    assert litellm.embedding(input=["one"], dimensions=8, allowed_openai_params=["dimensions"], **to).data[0]["embedding"] != got.data[0]["embedding"]


def test_text_completion(to):
    to = {**to, "model": to["model"].replace("openai/", "text-completion-openai/")}
    got = litellm.text_completion(prompt="Once", max_tokens=8, temperature=0, logprobs=1, **to)
    assert got.choices[0].finish_reason == "length" and got.usage.completion_tokens == 8
    pieces = streamed_by(litellm.text_completion, prompt="Once", max_tokens=8, temperature=0, **to)
    assert "".join(p.choices[0].text or "" for p in pieces if p.choices) == got.choices[0].text


@pytest.mark.parametrize("error, change", [
    ("NotFoundError", {"model": "nobody"}),
    ("BadRequestError", {"temperature": -1}),
    ("ContextWindowExceededError", {"messages": [{"role": "user", "content": "word " * 5000}]}),
    ("ContextWindowExceededError", {"max_tokens": 100000}),
])
def test_errors(to, error, change):
    provider = to["model"].split("/")[0]
    change = {k: f"{provider}/{v}" if k == "model" else v for k, v in change.items()}
    with pytest.raises(getattr(litellm, error)) as e:
        litellm.completion(**{"messages": ASK, "max_tokens": 4, **to, **change})
    assert e.value.status_code == (404 if error == "NotFoundError" else 400)
    with pytest.raises(getattr(litellm, error)):
        for _ in litellm.completion(**{"messages": ASK, "max_tokens": 4, "stream": True, **to, **change}):
            pass


def test_keys(start, tmp_path):  # noqa: F811
    """A key that is wrong, and one that has used up its requests."""
    file = tmp_path / "keys"
    key = new_key(file, "a-user", "user", "--requests-per-minute", "1")
    with start("--api-keys", file, "--chat-template", QWEN, "--threads", "2", model=make_talker(tmp_path), key=key) as s:
        to = {"model": "openai/talker", "api_base": s.url + "/v1", "num_retries": 0, "max_retries": 0, "messages": ASK, "max_tokens": 2}
        with pytest.raises(litellm.AuthenticationError):
            litellm.completion(api_key="tdm_" + "0" * 43, **to)
        outcomes = []
        for _ in range(3):
            try:
                outcomes.append(litellm.completion(api_key=key, **to).choices[0].finish_reason)
            except litellm.RateLimitError as e:
                outcomes.append(e.status_code)
        assert outcomes[0] == "length" and outcomes[-1] == 429
