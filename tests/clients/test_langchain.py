"""langchain: chats, streams, calls, structured output; by chats, responses and messages."""
from typing import Literal

import pytest
from client_rig import call_text, package, start, talker  # noqa: F401
from pydantic import BaseModel

openai_models = package("langchain_openai")
anthropic_models = package("langchain_anthropic")
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage  # noqa: E402
from langchain_core.tools import tool  # noqa: E402

ASK = [SystemMessage("Be brief."), HumanMessage("How is the weather?")]


@tool
def get_weather(city: Literal["Paris", "Oslo"]) -> str:
    """Tells the weather of a city."""
    return f"Rain in {city}."


class Report(BaseModel):
    city: Literal["Paris", "Oslo"]
    wet: bool


@pytest.fixture(params=["chat", "responses", "messages"])
def make(talker, request):  # noqa: F811
    def new(says=None, **kw):
        """A model that says this."""
        fields = {"model": "talker", "api_key": "none", "max_retries": 0, "timeout": 60, "max_tokens": 200, **kw}
        extra = {"structured_outputs": {"choice": [says]}} if says else {}
        if request.param == "messages":
            return anthropic_models.ChatAnthropic(base_url=talker.url, model_kwargs={"extra_body": extra}, **fields)
        return openai_models.ChatOpenAI(base_url=talker.url + "/v1", extra_body=extra, stream_usage=True, use_responses_api=request.param == "responses", **fields)
    return new


def whole(pieces):
    total = None
    for piece in pieces:
        total = piece if total is None else total + piece
    return total


def test_text(make):
    llm = make("It rains.")
    got = llm.invoke(ASK)
    pieces = list(llm.stream(ASK))
    assert got.text == whole(pieces).text == "It rains." and len(pieces) > 1
    assert got.usage_metadata["output_tokens"] == whole(pieces).usage_metadata["output_tokens"] > 0


def test_a_tool_and_its_result(make):
    says = "Let me see.\n" + call_text("get_weather", '{"city": "Oslo"}') + "\n" + call_text("get_weather", '{"city": "Paris"}')
    llm = make(says).bind_tools([get_weather])
    got, streamed = llm.invoke(ASK), whole(llm.stream(ASK))
    for message in (got, streamed):
        assert [(c["name"], c["args"]) for c in message.tool_calls] == [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Paris"})]
        assert message.text.strip() == "Let me see."
    results = [ToolMessage(get_weather.invoke(c["args"]), tool_call_id=c["id"]) for c in got.tool_calls]
    after = make("It rains.").bind_tools([get_weather]).invoke([*ASK, AIMessage(got.content, tool_calls=got.tool_calls), *results])
    assert after.text == "It rains." and not after.tool_calls
    again = make("It rains.").bind_tools([get_weather]).invoke([*ASK, got, *results])
    assert again.text == "It rains.", "the message as it came"


def test_a_demanded_call(make):
    llm = make().bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False)
    [call] = llm.invoke(ASK).tool_calls
    assert call["name"] == "get_weather" and call["args"]["city"] in ("Paris", "Oslo")


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_structured_output(make, method):
    assert isinstance(make().with_structured_output(Report, method=method).invoke(ASK), Report)
