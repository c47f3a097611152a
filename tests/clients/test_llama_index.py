"""llama-index through OpenAILike: texts, chats, streams, calls and embeddings; by responses and messages, too."""
import json
from typing import Literal

import pytest
from client_rig import QWEN, call_text, make_talker, package, start, talker  # noqa: F401
from pydantic import BaseModel

llms = package("llama_index.llms.openai_like")
embeddings = package("llama_index.embeddings.openai_like")
from llama_index.core.llms import ChatMessage  # noqa: E402
from llama_index.core.tools import FunctionTool  # noqa: E402


def get_weather(city: Literal["Paris", "Oslo"]) -> str:
    """Tells the weather of a city."""
    return f"Rain in {city}."


@pytest.fixture
def make(talker):  # noqa: F811
    def new(**kw):
        fields = {"model": "talker", "api_base": talker.url + "/v1", "api_key": "none", "is_chat_model": True, "is_function_calling_model": True,
                  "context_window": 8192, "max_tokens": 12, "temperature": 0, "max_retries": 0, "timeout": 60}
        return llms.OpenAILike(**{**fields, **kw})
    return new


def test_complete(make):
    llm = make(is_chat_model=False)
    whole = llm.complete("Once upon a time").text
    pieces = list(llm.stream_complete("Once upon a time"))
    assert whole and pieces[-1].text == whole == "".join(p.delta for p in pieces)


def test_chat(make):
    llm, messages = make(), [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="Hello")]
    whole = llm.chat(messages).message.content
    pieces = list(llm.stream_chat(messages))
    assert whole and pieces[-1].message.content == whole == "".join(p.delta for p in pieces)


@pytest.mark.parametrize("required", [True, False], ids=["required", "automatic"])
def test_tools(make, required):
    tool = FunctionTool.from_defaults(get_weather)
    forced = {} if required else {"additional_kwargs": {"extra_body": {"structured_outputs": {"choice": [call_text("get_weather", '{"city": "Oslo"}')]}}}}
    llm = make(max_tokens=200, temperature=1, **forced)
    answer = llm.chat_with_tools([tool], user_msg="How is the weather?", tool_required=required, seed=1)
    [call] = llm.get_tool_calls_from_response(answer)
    assert call.tool_name == "get_weather" and str(tool.call(**call.tool_kwargs).content) in ("Rain in Paris.", "Rain in Oslo.")
    *_, last = llm.stream_chat_with_tools([tool], user_msg="How is the weather?", tool_required=required, seed=1)
    [streamed] = llm.get_tool_calls_from_response(last)
    assert (streamed.tool_name, streamed.tool_kwargs) == (call.tool_name, call.tool_kwargs)
    history = [ChatMessage(role="user", content="How is the weather?"), answer.message,
               ChatMessage(role="tool", content="Rain.", additional_kwargs={"tool_call_id": call.tool_id})]
    assert make().chat(history).message.content


def test_predict_and_call(make):
    answer = make(max_tokens=200, temperature=1).predict_and_call([FunctionTool.from_defaults(get_weather)], "How is the weather?",
                                                                 tool_required=True)
    assert str(answer) in ("Rain in Paris.", "Rain in Oslo.")


class Report(BaseModel):
    city: Literal["Paris", "Oslo"]
    wet: bool


def test_structured_output(make):
    assert isinstance(make(max_tokens=200, temperature=1).as_structured_llm(Report).complete("How is the weather?").raw, Report)
    text = call_text("Report", '{"city": "Oslo", "wet": true}')  # streams leave the call to the model
    llm = make(max_tokens=200, additional_kwargs={"extra_body": {"structured_outputs": {"choice": [text]}}}).as_structured_llm(Report)
    pieces = [p.raw.model_dump() for p in llm.stream_chat([ChatMessage(role="user", content="How is the weather?")])]
    assert len(pieces) > 1 and pieces[-1] == {"city": "Oslo", "wet": True}


def test_embeddings(talker):  # noqa: F811
    model = embeddings.OpenAILikeEmbedding(model_name="talker", api_base=talker.url + "/v1", api_key="none", embed_batch_size=2, max_retries=0)
    got = model.get_text_embedding_batch(["one", "two", "three"])
    assert len(got) == 3 and got[0] == pytest.approx(model.get_query_embedding("one"), abs=1e-6)
    assert json.dumps(got[1]) != json.dumps(got[0])


# ---- the other routes ------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def claude(start, tmp_path_factory):  # noqa: F811
    """llama-index knows which models of Anthropic's there are, so the daemon takes any name."""
    with start("--chat-template", QWEN, "--accept-any-model", "--kv-cache-bytes", "16M", "--threads", "2",
               model=make_talker(tmp_path_factory.mktemp("models"))) as s:
        yield s


@pytest.fixture(params=["responses", "messages"])
def other(request, claude):
    def new(says=None):
        body = {"extra_body": {"structured_outputs": {"choice": [says]}}} if says else {}
        if request.param == "responses":
            return package("llama_index.llms.openai").OpenAIResponses(model="gpt-4o", api_base=claude.url + "/v1", api_key="none", max_output_tokens=200,
                                                                      max_retries=0, additional_kwargs=body)
        return package("llama_index.llms.anthropic").Anthropic(model="claude-3-5-haiku-20241022", base_url=claude.url, api_key="none", max_tokens=200,
                                                               max_retries=0, additional_kwargs=body)
    return new


def test_chat_on_other_routes(other):
    messages = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="Hello")]
    llm = other("It rains.")
    pieces = list(llm.stream_chat(messages))
    assert llm.chat(messages).message.content == "It rains." == "".join(p.delta or "" for p in pieces) and len(pieces) > 1


def test_tools_on_other_routes(other):
    tool = FunctionTool.from_defaults(get_weather)
    llm = other("Let me see.\n" + call_text("get_weather", '{"city": "Oslo"}'))
    answer = llm.chat_with_tools([tool], user_msg="How is the weather?")
    [call] = llm.get_tool_calls_from_response(answer)
    assert (call.tool_name, call.tool_kwargs) == ("get_weather", {"city": "Oslo"})
    *_, last = llm.stream_chat_with_tools([tool], user_msg="How is the weather?")
    [streamed] = llm.get_tool_calls_from_response(last)
    assert (streamed.tool_name, streamed.tool_kwargs) == ("get_weather", {"city": "Oslo"})
    history = [ChatMessage(role="user", content="How is the weather?"), answer.message,
               ChatMessage(role="tool", content="Rain.", additional_kwargs={"tool_call_id": call.tool_id})]
    assert other("It rains.").chat(history).message.content == "It rains."
