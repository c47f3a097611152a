"""The newest anthropic package; tests/clients has what others build on the version before."""
import json

import pytest
from scripted import FLAGS, Scripted, call_text, events_of, make_agents_model

anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed: tests/requirements.txt")
pydantic = pytest.importorskip("pydantic")

ASK = [{"role": "user", "content": "How is the weather?"}]
TOOL = {"name": "get_weather", "description": "The weather of a city.", "strict": True, "input_schema": {
    "type": "object", "properties": {"city": {"enum": ["Oslo", "Paris"]}}, "required": ["city"], "additionalProperties": False}}
CALL = call_text("get_weather", {"city": "Oslo"})


@pytest.fixture(scope="module")
def daemon(start, tmp_path_factory):
    with start(*FLAGS, model=make_agents_model(tmp_path_factory.mktemp("models"))) as s:
        yield s
        s.wait_idle()


@pytest.fixture
def client(daemon):
    return anthropic.Anthropic(base_url=daemon.url, api_key="none", max_retries=0, timeout=60)


def says(text):
    return {"extra_body": {"structured_outputs": {"choice": [text]}}}


def seen(message):
    fields = {"text": lambda b: b.text, "thinking": lambda b: b.thinking, "tool_use": lambda b: (b.name, b.input)}
    return [(b.type, fields[b.type](b)) for b in message.content]


@pytest.mark.parametrize("beta", [False, True], ids=["messages", "beta.messages"])
def test_a_turn_with_a_tool(client, beta):
    messages = client.beta.messages if beta else client.messages
    fields = {"model": "claude", "max_tokens": 300, "messages": ASK, "tools": [TOOL], **says("<think>\nA tool knows.\n</think>\n\nLet me see.\n" + CALL)}
    whole = messages.create(**fields)
    assert seen(whole) == [("thinking", "A tool knows."), ("text", "Let me see."), ("tool_use", ("get_weather", {"city": "Oslo"}))]
    with messages.stream(**fields) as stream:
        kinds = [e.type for e in stream]
        streamed = stream.get_final_message()
    assert seen(streamed) == seen(whole) and kinds.index("content_block_stop") < kinds.index("text") and streamed.usage.output_tokens == whole.usage.output_tokens
    result = {"type": "tool_result", "tool_use_id": whole.content[2].id, "content": "Rain."}
    history = [*ASK, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    after = messages.create(**{**fields, "messages": history, **says("It rains.")})
    assert seen(after) == [("text", "It rains.")] and after.stop_reason == "end_turn" and after.usage.cache_read_input_tokens > 200
    counted = messages.count_tokens(model="claude", messages=history, tools=[TOOL]).input_tokens
    assert counted == after.usage.input_tokens + after.usage.cache_read_input_tokens


def test_tool_runner(daemon):
    """The package's own loop, until there is no call.  It would have the server keep the conversation, and does without when that is refused."""
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather.

        Args:
            city: its name
        """
        asked.append(city)
        return "Rain."

    with Scripted(daemon, ["Let me see.\n" + CALL, CALL.replace("Oslo", "Paris"), "It rains."]) as proxy:
        client = anthropic.Anthropic(base_url=proxy.url, api_key="none", max_retries=0, timeout=60)
        last = client.beta.messages.tool_runner(model="claude", max_tokens=300, messages=ASK, tools=[get_weather]).until_done()
    assert asked == ["Oslo", "Paris"] and seen(last) == [("text", "It rains.")]
    assert [(one["status"], "thread" in one["body"]) for one in proxy.seen] == [(400, True), (200, False), (200, False), (200, False)]


def test_structured_output(client):
    class Weather(pydantic.BaseModel):
        rain: bool
        sun: bool | None
    fields = {"model": "claude", "max_tokens": 2000, "messages": ASK}
    assert isinstance(client.messages.parse(output_format=Weather, **fields).parsed_output, Weather)
    with client.messages.stream(output_format=Weather, **fields) as stream:
        assert isinstance(stream.get_final_message().parsed_output, Weather)


def test_errors(client, daemon):
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long") as refused:
        client.messages.create(model="claude", max_tokens=5, messages=[{"role": "user", "content": "\u03a9" * 140000}])
    assert refused.value.body["type"] == "error" and refused.value.body["error"]["type"] == "invalid_request_error" and refused.value.request_id
    raw = daemon.post("/v1/messages?beta=true", {"model": "claude", "max_tokens": 5, "messages": ASK, "stream": True}, headers={"x-api-key": "none"})
    assert [e["type"] for e in events_of(raw.content.decode())][:2] == ["message_start", "ping"] and json.dumps("[DONE]") not in raw.text
