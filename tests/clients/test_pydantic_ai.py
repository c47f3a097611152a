"""pydantic-ai: an agent that calls tools until it answers, with output by calls and by a schema, whole and streamed; by chats,
responses and messages."""
import asyncio
from typing import Literal

import pytest
from client_rig import call_text, package, start, talker  # noqa: F401
from pydantic import BaseModel, Field

pydantic_ai = package("pydantic_ai")
from pydantic_ai.models.anthropic import AnthropicModel  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # noqa: E402
from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: E402
from pydantic_ai.usage import UsageLimits  # noqa: E402

LIMITS = UsageLimits(request_limit=5)


class Report(BaseModel):
    city: Literal["Paris", "Oslo"]
    degrees: int = Field(ge=1, le=9)


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel, AnthropicModel])
def model(talker, request):  # noqa: F811
    if request.param is AnthropicModel:
        return AnthropicModel("talker", provider=AnthropicProvider(base_url=talker.url, api_key="none"))
    return request.param("talker", provider=OpenAIProvider(base_url=talker.url + "/v1", api_key="none"))


def make_agent(model, output_type, **settings):
    settings = {"temperature": 1, "max_tokens": 300, "seed": 1, "parallel_tool_calls": False, **settings}
    agent = pydantic_ai.Agent(model, output_type=output_type, model_settings=settings, system_prompt="Use the tool.")
    cities = []

    async def while_new(ctx, definition):
        return definition if len(cities) < 2 else None  # the third turn can only answer

    @agent.tool_plain(prepare=while_new)
    def get_weather(city: Literal["Paris", "Oslo"]) -> str:
        """Tells the weather of a city."""
        cities.append(city)
        return "Rain."
    return agent, cities


def parts(result, kind):
    return [p for m in result.all_messages() for p in m.parts if p.part_kind == kind]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_output_by_a_call(model, seed):
    """Each turn demands a call: of the tool, or of the output."""
    agent, cities = make_agent(model, Report, seed=seed)
    result = agent.run_sync("How is the weather?", usage_limits=LIMITS)
    assert isinstance(result.output, Report) and 1 <= result.output.degrees <= 9
    calls = parts(result, "tool-call")
    assert calls[-1].tool_name == "final_result" and len(cities) == sum(c.tool_name == "get_weather" for c in calls)
    assert result.usage.requests == len([m for m in result.all_messages() if m.kind == "response"])


def test_output_by_a_schema(model):
    if isinstance(model, AnthropicModel):
        pytest.skip("pydantic-ai asks only models that it knows")
    agent = pydantic_ai.Agent(model, output_type=pydantic_ai.NativeOutput(Report), model_settings={"temperature": 1, "max_tokens": 200, "seed": 1})
    assert isinstance(agent.run_sync("How is the weather?", usage_limits=LIMITS).output, Report)


def saying(text):
    return {"extra_body": {"structured_outputs": {"choice": [text]}}}


def test_a_tool_and_then_a_text(model):
    """The call is the model's own choice; its result goes back, and the next answer is text."""
    call, answer = saying("Let me see." + call_text("get_weather", '{"city": "Oslo"}')), saying("It rains.")
    agent, cities = make_agent(model, str)
    first = agent.run_sync("How is the weather?", model_settings=lambda ctx: call if ctx.run_step == 1 else answer, usage_limits=LIMITS)
    assert cities == ["Oslo"] and [p.content for p in parts(first, "tool-return")] == ["Rain."] and first.output == "It rains."
    again = agent.run_sync("And tomorrow?", message_history=first.all_messages(), model_settings={"max_tokens": 8}, usage_limits=LIMITS)
    assert cities == ["Oslo"] and again.output


@pytest.mark.parametrize("seed", [1, 2])
def test_streamed(model, seed):
    agent, cities = make_agent(model, Report, seed=seed)

    async def run():
        async with agent.run_stream("How is the weather?", usage_limits=LIMITS) as stream:
            partial = [r async for r in stream.stream_output(debounce_by=None)]
            return stream, partial
    stream, partial = asyncio.run(run())
    calls = parts(stream, "tool-call")
    assert calls[-1].tool_name == "final_result" and isinstance(partial[-1], Report)
    assert len(cities) == sum(c.tool_name == "get_weather" for c in calls)


def test_streamed_text(model):
    agent = pydantic_ai.Agent(model, model_settings={"temperature": 0, "max_tokens": 12})
    whole = agent.run_sync("Hello").output

    async def run():
        async with agent.run_stream("Hello") as stream:
            return [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    assert "".join(asyncio.run(run())) == whole
