"""The openai package's helpers for streams of calls, in the version that the other clients here want."""
from typing import Literal

import openai
import pytest
from client_rig import call_text, package, start, talker  # noqa: F401

pydantic = package("pydantic")

ASK = [{"role": "user", "content": "How is the weather?"}]


class Weather(pydantic.BaseModel):
    city: Literal["Paris", "Oslo"]
    days: list[Literal[1, 2]] = pydantic.Field(max_length=2)


TOOL = openai.pydantic_function_tool(Weather, name="get_weather")
TWO = call_text("get_weather", '{"city": "Oslo", "days": [1]}') + "\n" + call_text("get_weather", '{"city": "Paris", "days": []}')


@pytest.mark.parametrize("how, choice, text", [
    ("required", "required", None),
    ("named", {"type": "function", "function": {"name": "get_weather"}}, None),
    ("named by its name alone", "get_weather", None),
    ("allowed", {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}}, None),
    ("automatic", "auto", "Let me see.\n" + TWO),
], ids=lambda v: v if isinstance(v, str) and v.isascii() and "\n" not in v else "")
def test_stream_helper(talker, how, choice, text):  # noqa: F811
    client = openai.OpenAI(base_url=talker.url + "/v1", api_key="none", max_retries=0, timeout=300)
    extra = {"extra_body": {"structured_outputs": {"choice": [text]}}} if text else {}
    done = []
    with client.chat.completions.stream(model="talker", messages=ASK, tools=[TOOL], tool_choice=choice, max_completion_tokens=300, temperature=1,
                                        seed=1, **extra) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.done":
                done.append(event.parsed_arguments)
        message = stream.get_final_completion().choices[0].message
    calls = [c.function.parsed_arguments for c in message.tool_calls]
    assert calls == done and all(isinstance(c, Weather) for c in calls)
    if text:
        assert message.content == "Let me see." and calls == [Weather(city="Oslo", days=[1]), Weather(city="Paris", days=[])]
    else:
        assert len(calls) == 1 and not message.content


def test_responses_stream_and_parse(talker):  # noqa: F811
    client = openai.OpenAI(base_url=talker.url + "/v1", api_key="none", max_retries=0, timeout=60)
    fields = {"model": "talker", "input": ASK, "tools": [TOOL], "max_output_tokens": 300}
    says = {"extra_body": {"structured_outputs": {"choice": ["Let me see.\n" + TWO]}}}
    with client.responses.stream(**fields, **says) as stream:
        arguments = [e.arguments for e in stream if e.type == "response.function_call_arguments.done"]
        streamed = stream.get_final_response()
    parsed = client.responses.parse(**fields, **says)
    for got in (streamed, parsed):
        calls = [i for i in got.output if i.type == "function_call"]
        assert got.output_text == "Let me see." and [c.arguments for c in calls] == arguments
        assert [c.parsed_arguments for c in calls] == [Weather(city="Oslo", days=[1]), Weather(city="Paris", days=[])]
    results = [{"type": "function_call_output", "call_id": c.call_id, "output": "Rain."} for c in parsed.output if c.type == "function_call"]
    history = [*ASK, *(i.model_dump(exclude={"parsed_arguments"}, exclude_none=True) for i in parsed.output), *results]
    flat = [{"type": "function", **TOOL["function"]}]
    after = client.responses.create(**{**fields, "input": history, "tools": flat}, extra_body={"structured_outputs": {"choice": ["It rains."]}})
    assert after.output_text == "It rains." and after.usage.input_tokens_details.cached_tokens > 400
    named = client.responses.parse(**fields, tool_choice={"type": "function", "name": "get_weather"}, extra_body={"seed": 1})
    assert isinstance(named.output[0].parsed_arguments, Weather)
