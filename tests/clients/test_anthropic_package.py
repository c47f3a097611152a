"""The anthropic package: whole answers and streams, tools, structured output, count_tokens, errors."""
import json

import pytest
from client_rig import call_text, package, start, talker  # noqa: F401

anthropic = package("anthropic")
pydantic = package("pydantic")

ASK = [{"role": "user", "content": "How is the weather?"}]
TOOL = {"name": "get_weather", "description": "The weather of a city.", "input_schema": {
    "type": "object", "properties": {"city": {"enum": ["Oslo", "Paris"]}, "days": {"enum": [1, 2]}}, "required": ["city", "days"]}}
TWO = call_text("get_weather", '{"city": "Oslo", "days": 1}') + "\n" + call_text("get_weather", '{"city": "Paris", "days": 2}')


@pytest.fixture
def client(talker):  # noqa: F811
    return anthropic.Anthropic(base_url=talker.url, api_key="none", max_retries=0, timeout=300)


def says(text):
    return {"extra_body": {"structured_outputs": {"choice": [text]}}}


def seen(blocks):
    """What the blocks say, without ids."""
    fields = {"text": lambda b: b.text, "thinking": lambda b: b.thinking, "tool_use": lambda b: (b.name, b.input)}
    return [(b.type, fields[b.type](b)) for b in blocks]


def both(client, **kw):
    """The whole answer, after checking that the stream says the same."""
    kw = {"model": "talker", "max_tokens": 300, "messages": ASK, **kw}
    whole = client.messages.create(**kw)
    with client.messages.stream(**kw) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    assert seen(streamed.content) == seen(whole.content) and text == "".join(b.text for b in whole.content if b.type == "text")
    assert (streamed.stop_reason, streamed.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    return whole


def test_text(client):
    got = both(client, system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}], stop_sequences=["##"], **says("Fine.## More"))
    assert seen(got.content) == [("text", "Fine.")] and (got.stop_reason, got.stop_sequence) == ("stop_sequence", "##")
    again = client.messages.create(model="talker", max_tokens=1, messages=ASK, system="Be kind.")
    counted = client.messages.count_tokens(model="talker", messages=ASK, system="Be kind.").input_tokens
    assert again.stop_reason == "max_tokens" and again.usage.cache_read_input_tokens > 0
    assert counted == again.usage.input_tokens + again.usage.cache_read_input_tokens
    assert client.beta.messages.count_tokens(model="talker", messages=ASK, system="Be kind.").input_tokens == counted


def test_tools_and_their_results(client):
    got = both(client, tools=[TOOL], **says("<think>\nA tool knows.\n</think>\n\nLet me see.\n" + TWO))
    assert got.stop_reason == "tool_use"
    assert seen(got.content) == [("thinking", "A tool knows."), ("text", "Let me see."), ("tool_use", ("get_weather", {"city": "Oslo", "days": 1})),
                                 ("tool_use", ("get_weather", {"city": "Paris", "days": 2}))]
    results = [{"type": "tool_result", "tool_use_id": got.content[2].id, "content": "Rain."},
               {"type": "tool_result", "tool_use_id": got.content[3].id, "is_error": True, "content": [{"type": "text", "text": "No such city."}]}]
    after = client.messages.create(model="talker", max_tokens=50, tools=[TOOL], **says("It rains."),
                                   messages=[*ASK, {"role": "assistant", "content": got.content}, {"role": "user", "content": results}])
    assert seen(after.content) == [("text", "It rains.")] and after.stop_reason == "end_turn" and after.usage.cache_read_input_tokens > 400


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}, {"type": "any", "disable_parallel_tool_use": True}], ids=str)
def test_a_tool_is_demanded(client, choice):
    got = both(client, tools=[TOOL], tool_choice=choice, extra_body={"seed": 3})
    (call,) = got.content
    assert got.stop_reason == "tool_use" and call.type == "tool_use" and call.input["city"] in ("Oslo", "Paris") and call.input["days"] in (1, 2)


def test_tool_runner(client):
    """The package's own loop: it calls the function and sends the result, until there is no call."""
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather.

        Args:
            city: its name
        """
        asked.append(city)
        return "Rain."

    # The tool's result makes the page longer; the same text is demanded of both turns, so one turn is enough.
    runner = client.beta.messages.tool_runner(model="talker", max_tokens=300, messages=ASK, tools=[get_weather], max_iterations=1,
                                              **says(call_text("get_weather", '{"city": "Oslo"}')))
    last = runner.until_done()
    assert last.stop_reason == "tool_use" and last.content[0].input == {"city": "Oslo"}
    runner.generate_tool_call_response()
    assert asked and set(asked) == {"Oslo"}


def test_structured_output(client):
    schema = {"type": "object", "properties": {"days": {"enum": [1, 2]}}, "required": ["days"], "additionalProperties": False}
    got = both(client, output_config={"format": {"type": "json_schema", "schema": schema}}, extra_body={"seed": 4})
    assert json.loads(got.content[0].text)["days"] in (1, 2)


def test_a_model_of_pydantic(client):
    class Weather(pydantic.BaseModel):
        rain: bool
    got = client.messages.parse(model="talker", max_tokens=100, messages=ASK, output_format=Weather)
    assert isinstance(got.parsed_output, Weather)


def test_errors(client):
    with pytest.raises(anthropic.NotFoundError, match="`nobody` does not exist"):
        client.messages.create(model="nobody", max_tokens=5, messages=ASK)
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    with pytest.raises(anthropic.BadRequestError, match="image") as refused:
        client.messages.create(model="talker", max_tokens=5, messages=[{"role": "user", "content": [image]}])
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(model="talker", max_tokens=5, messages=[{"role": "user", "content": "a " * 9000}])
