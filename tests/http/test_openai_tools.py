"""Tools through /v1/chat/completions with the openai package.  The models have random weights, so what they write is forced:
tool_choice forces a call of any kind, and structured_outputs.choice a text, for the parser to find calls in."""
import json
import re
import shutil
from collections import Counter
from typing import Literal

import openai
import pydantic
import pytest
from conftest import ROOT

TEMPLATES = ROOT / "tests/fixtures/templates"
QWEN, LLAMA = "Qwen-Qwen2.5-7B-Instruct", "meta-llama-Llama-3.1-8B-Instruct"


def tool(name, properties, description="what it does"):
    parameters = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


CITIES, UNITS = ["Paris", "Oslo", "Zürich"], ["c", "f"]
WEATHER = tool("get_weather", {"city": {"enum": CITIES}, "unit": {"enum": UNITS}, "days": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2}})
TIME = tool("get_time", {})
TOOLS = [WEATHER, TIME]
ASK = [{"role": "user", "content": "How is the weather?"}]


def check_call(call):
    assert call.type == "function" and call.id.startswith("call_") and len(call.id) == 29
    arguments = json.loads(call.function.arguments)
    if call.function.name == "get_time":
        assert arguments == {}
    else:
        assert call.function.name == "get_weather" and set(arguments) == {"city", "unit", "days"}
        assert arguments["city"] in CITIES and arguments["unit"] in UNITS and set(arguments["days"]) <= {1, 2} and len(arguments["days"]) <= 2


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The qwen2 fixture with room for a page with tools: a token is about a byte."""
    folder = tmp_path_factory.mktemp("models") / "tools"
    shutil.copytree(ROOT / "tests/fixtures/models/qwen2", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    return folder


class Api:
    def __init__(self, server, template):
        self.client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300)
        self.template = template

    def create(self, messages=ASK, **kw):
        kw = {"tools": TOOLS, "temperature": 1, "seed": 1, "max_completion_tokens": 400, **kw}
        if "structured_outputs" not in kw.get("extra_body", {}):
            kw.setdefault("parallel_tool_calls", False)  # a model of random weights takes all the calls that it may
        return self.client.chat.completions.create(model="tools", messages=messages, **kw)

    def stream(self, **kw):
        """-> (content, calls as dicts, finish_reason) put together from the deltas"""
        content, calls, finish = "", [], None
        for chunk in self.create(stream=True, **kw):
            choice = chunk.choices[0]
            finish = choice.finish_reason or finish
            content += choice.delta.content or ""
            for delta in choice.delta.tool_calls or []:
                assert len(choice.delta.tool_calls) == 1  # clients append the first chunk's entries, or read one per chunk
                if delta.id:
                    assert delta.index == len(calls) and delta.type == "function" and delta.function.arguments.startswith("{")
                    calls.append({"id": delta.id, "name": delta.function.name, "arguments": delta.function.arguments})
                else:
                    assert delta.index == len(calls) - 1 and delta.function.name is None and delta.function.arguments
                    calls[-1]["arguments"] += delta.function.arguments
        return content, calls, finish

    def forced(self, text, **kw):
        """The model must write this text."""
        return {"tool_choice": "auto", "extra_body": {"structured_outputs": {"choice": [text]}}, **kw}


@pytest.fixture(scope="module", params=[QWEN, LLAMA])
def api(start, model, request):
    with start("--chat-template", TEMPLATES / f"{request.param}.jinja", model=model) as s:
        yield Api(s, request.param)


# ---- a call is demanded ----------------------------------------------------------------------------------------------

def test_required(api):
    answer = api.create(tool_choice="required", n=4)
    ids = set()
    for choice in answer.choices:
        assert choice.finish_reason == "tool_calls" and choice.message.content is None and len(choice.message.tool_calls) == 1
        check_call(choice.message.tool_calls[0])
        ids.add(choice.message.tool_calls[0].id)
    assert len(ids) == 4
    assert len({c.message.tool_calls[0].function.arguments for c in answer.choices}) > 1


def test_required_beside_a_response_format(api):
    """The format is for messages, and there is none."""
    answer = api.create(tool_choice="required", response_format={"type": "json_object"})
    check_call(answer.choices[0].message.tool_calls[0])


@pytest.mark.parametrize("seed", [1, 2])
def test_stream_says_what_the_whole_says(api, seed):
    whole = api.create(tool_choice="required", seed=seed).choices[0]
    content, calls, finish = api.stream(tool_choice="required", seed=seed)
    assert content == "" and finish == "tool_calls" == whole.finish_reason
    function = whole.message.tool_calls[0].function
    assert [(c["name"], c["arguments"]) for c in calls] == [(function.name, function.arguments)]


def test_several(api):
    """Where parallel calls are allowed, as they are by default, a demanded call may be several."""
    seen = set()
    for seed in range(4):
        fields = {"tool_choice": "required", "parallel_tool_calls": True, "seed": seed, "max_completion_tokens": 1500}
        choice = api.create(**fields).choices[0]
        calls = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls" and choice.message.content is None and 1 <= len(calls) <= 16
        for call in calls:
            check_call(call)
        content, deltas, finish = api.stream(**fields)
        assert (content, finish) == ("", "tool_calls")
        assert [(c["name"], c["arguments"]) for c in deltas] == [(c.function.name, c.function.arguments) for c in calls]
        seen.add(len(calls))
    assert max(seen) > 1


@pytest.mark.parametrize("name", ["get_weather", "get_time"])
def test_named(api, name):
    choice = api.create(tool_choice={"type": "function", "function": {"name": name}}).choices[0]
    assert choice.finish_reason == "stop"  # as OpenAI has it where the call was the caller's choice
    assert [c.function.name for c in choice.message.tool_calls] == [name]
    check_call(choice.message.tool_calls[0])


def test_named_by_its_name_alone(api):
    """As TGI has it."""
    choice = api.create(tool_choice="get_time").choices[0]
    assert [c.function.name for c in choice.message.tool_calls] == ["get_time"] and choice.finish_reason == "stop"


def allowed(mode, *names):
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [{"type": "function", "function": {"name": n}} for n in names]}}


def test_allowed_tools(api):
    """Only these are called, and only these does the model read of."""
    answer = api.create(tool_choice=allowed("required", "get_time"), n=4)
    assert [c.message.tool_calls[0].function.name for c in answer.choices] == ["get_time"] * 4
    assert answer.usage.prompt_tokens == api.create(tool_choice="required", tools=[TIME]).usage.prompt_tokens
    both = api.create(tool_choice=allowed("required", "get_time", "get_weather"), n=8)
    assert {c.message.tool_calls[0].function.name for c in both.choices} == {"get_time", "get_weather"}
    text = llama("get_weather", ARGUMENTS) if api.template == LLAMA else hermes("get_weather", ARGUMENTS)
    choice = api.create(**api.forced(text, tool_choice=allowed("auto", "get_weather"))).choices[0]
    assert [c.function.name for c in choice.message.tool_calls] == ["get_weather"]


@pytest.mark.parametrize("choice, says", [
    (allowed("required", "get_tide"), "tools[0]: there is no tool"),
    (allowed("required", "get_time", "get_tide"), "tools[1]: there is no tool"),
    (allowed("never", "get_time"), "mode: expected"),
    (allowed("auto"), "expected a list"),
    ({"type": "allowed_tools"}, "mode: expected"),
    ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["get_time"]}}, "tools[0]: expected"),
    ({"type": "custom", "function": {"name": "get_time"}}, "expected"),
    ("get_tide", "no tool is named"),
])
def test_refused_choices(api, choice, says):
    with pytest.raises(openai.BadRequestError, match=re.escape(says)) as e:
        api.create(tool_choice=choice)
    assert e.value.param == "tool_choice"


def test_results_go_back(api):
    first = api.create(tool_choice="required", tools=[TIME]).choices[0].message
    call = first.tool_calls[0]
    messages = [*ASK, first, {"role": "tool", "tool_call_id": call.id, "content": "{\"time\": \"noon\"}"}]
    answer = api.create(messages, max_completion_tokens=5)
    plain = api.create([*ASK, {"role": "assistant", "content": ""}], max_completion_tokens=5)
    assert answer.usage.prompt_tokens > plain.usage.prompt_tokens
    assert answer.choices[0].finish_reason in ("length", "stop")


# ---- what the model writes of itself ---------------------------------------------------------------------------------

def hermes(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def llama(name, arguments):
    return f'{{"name": "{name}", "parameters": {arguments}}}'


ARGUMENTS = '{"city": "Zürich", "unit": "c"}'


def written(template):
    """-> [(text, content, calls)]"""
    if template == QWEN:
        return [("I look.\n" + hermes("get_weather", ARGUMENTS) + "\n" + hermes("get_time", "{}"), "I look.", [("get_weather", ARGUMENTS), ("get_time", "{}")]),
                (hermes("unknown", "{}"), "", [("unknown", "{}")]),
                ("no call: " + hermes("get_time", "{'a': 1}")[:-1], None, []),
                (llama("get_time", "{}"), None, [])]
    return [(llama("get_weather", ARGUMENTS) + "; " + llama("get_time", "{}"), "", [("get_weather", ARGUMENTS), ("get_time", "{}")]),
            (llama("Ada", "{}"), None, []),
            ("Well: " + llama("get_time", "{}"), None, [])]


def test_calls_are_found(api):
    for text, content, calls in written(api.template):
        content = text if content is None else content
        finish = "tool_calls" if calls else "stop"
        choice = api.create(**api.forced(text)).choices[0]
        assert (choice.message.content or "") == content and choice.finish_reason == finish
        assert [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or []] == calls
        streamed, deltas, finished = api.stream(**api.forced(text))
        if "'a'" not in text:  # a stream has begun to hand out the call that breaks
            assert (streamed, [(c["name"], c["arguments"]) for c in deltas], finished) == (content, calls, finish)


def test_tool_choice_none(api):
    text = hermes("get_time", "{}") if api.template == QWEN else llama("get_time", "{}")
    choice = api.create(**api.forced(text, tool_choice="none")).choices[0]
    assert choice.message.content == text and not choice.message.tool_calls and choice.finish_reason == "stop"


@pytest.fixture(scope="module")
def thinking_template(tmp_path_factory):
    """One whose prompts end with <think>."""
    path = tmp_path_factory.mktemp("templates") / "t.jinja"
    source = (TEMPLATES / f"{QWEN}.jinja").read_text()
    assert source.count("'<|im_start|>assistant\\n' }}") == 1
    path.write_text(source.replace("'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant\\n<think>\\n' }}"))
    return path


@pytest.fixture(scope="module")
def thinker(start, model, thinking_template):
    with start("--chat-template", thinking_template, "--speculate", "off", model=model) as s:
        yield Api(s, QWEN)


def budget(tokens, **extra):
    return {"extra_body": {"thinking_token_budget": tokens, **extra}}


def test_calls_behind_thoughts(thinker):
    """What is demanded comes behind the thoughts, which end when their budget is used up."""
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        answer = thinker.create(tool_choice=choice, **budget(7))
        message = answer.choices[0].message
        check_call(message.tool_calls[0])
        assert message.content is None and message.reasoning_content and "</think>" not in message.reasoning_content
        assert answer.usage.completion_tokens_details.reasoning_tokens == 7
    text = hermes("get_weather", ARGUMENTS)
    message = thinker.create(tool_choice="auto", **budget(0, structured_outputs={"choice": [text]})).choices[0].message
    assert [c.function.name for c in message.tool_calls] == ["get_weather"] and not hasattr(message, "reasoning_content")


def test_budget_of_thoughts(thinker):
    """The same text for any batch, streamed or not; and thoughts alone where they take all the tokens."""
    def ask(tokens, **kw):
        return thinker.create(tools=openai.omit, max_completion_tokens=40, **budget(tokens), **kw)
    alone = ask(11).choices[0].message
    assert alone.reasoning_content and alone.content
    together = ask(11, n=4)
    assert together.usage.completion_tokens_details.reasoning_tokens == 44
    assert (together.choices[0].message.reasoning_content, together.choices[0].message.content) == (alone.reasoning_content, alone.content)
    thoughts = content = ""
    for chunk in ask(11, stream=True):
        delta = chunk.choices[0].delta
        thoughts += getattr(delta, "reasoning_content", None) or ""
        content += delta.content or ""
    assert (thoughts, content) == (alone.reasoning_content, alone.content)
    endless = ask(-1).choices[0]
    assert endless.message.reasoning_content.startswith(alone.reasoning_content) and not endless.message.content
    hidden = thinker.create(tools=openai.omit, max_completion_tokens=40, **budget(11, include_reasoning=False)).choices[0].message
    assert hidden.content == alone.content and not hasattr(hidden, "reasoning_content")


def test_budgets_with_speculation(thinker, start, model, thinking_template):
    """Candidates behind the end of the thoughts, or of their budget, change nothing.  The bias makes texts that repeat a token."""
    def texts(api):
        for tokens in (0, 1, 2, 5, 9, 14, 30):
            for extra in ({}, {"response_format": {"type": "json_object"}}):
                fields = {"tools": openai.omit, "max_completion_tokens": 60, "temperature": 0, "logit_bias": {"100": 8} if tokens > 2 else {}, **extra}
                answer = api.create(**fields, **budget(tokens, repetition_penalty=1 if tokens % 2 else 1.1))
                message = answer.choices[0].message
                yield getattr(message, "reasoning_content", None), message.content, answer.usage.completion_tokens_details
    with start("--chat-template", thinking_template, "--speculate", "on", model=model) as s:
        assert list(texts(Api(s, QWEN))) == list(texts(thinker))
        assert s.metric("tandem_speculated_tokens_accepted_total", source="ngram") > 0


def test_json_behind_thoughts(thinker):
    fields = {"tools": openai.omit, "response_format": {"type": "json_object"}, "max_completion_tokens": 300}
    message = thinker.create(**fields, **budget(5)).choices[0].message
    assert message.reasoning_content and (not message.content or message.content.startswith("{"))


# ---- the openai package's own helper for streams ---------------------------------------------------------------------

class Weather(pydantic.BaseModel):
    city: Literal["Paris", "Oslo", "Zürich"]
    unit: Literal["c", "f"]


class Time(pydantic.BaseModel):
    zone: Literal["UTC", "CET"]


HELPED = [openai.pydantic_function_tool(Weather, name="get_weather"), openai.pydantic_function_tool(Time, name="get_time")]


def helped(api, **kw):
    """-> (the calls as the helper parsed them, how many times it told of arguments for each)"""
    fields = {"tools": HELPED, "temperature": 1, "seed": 1, "max_completion_tokens": 400, "parallel_tool_calls": "extra_body" in kw, **kw}
    deltas, done = Counter(), []
    with api.client.chat.completions.stream(model="tools", messages=ASK, **fields) as stream:
        for event in stream:
            if event.type == "chunk":
                assert len(event.chunk.choices[0].delta.tool_calls or []) <= 1
            elif event.type == "tool_calls.function.arguments.delta":
                deltas[event.index] += 1
            elif event.type == "tool_calls.function.arguments.done":
                done.append((event.index, event.name, event.parsed_arguments))
        message = stream.get_final_completion().choices[0].message
    calls = [c.function.parsed_arguments for c in message.tool_calls]
    assert done == [(i, c.function.name, c.function.parsed_arguments) for i, c in enumerate(message.tool_calls)]
    return calls, deltas


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}], ids=["required", "named"])
def test_stream_helper(api, choice):
    (call,), deltas = helped(api, tool_choice=choice)
    assert isinstance(call, Weather | Time) and deltas[0] > 1
    assert choice == "required" or isinstance(call, Weather)


def test_stream_helper_automatic(api):
    """Two calls that the model writes of itself."""
    weather, time = ("get_weather", '{"city": "Oslo", "unit": "f"}'), ("get_time", '{"zone": "CET"}')
    texts = {QWEN: "I look.\n" + hermes(*weather) + "\n" + hermes(*time), LLAMA: llama(*weather) + "; " + llama(*time)}
    calls, deltas = helped(api, **api.forced(texts[api.template]))
    assert calls == [Weather(city="Oslo", unit="f"), Time(zone="CET")] and min(deltas[0], deltas[1]) > 0


# ---- mistakes --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("fields, says, param", [
    ({"tool_choice": "required", "extra_body": {"structured_outputs": {"choice": ["a"]}}}, "tool_choice", "tool_choice"),
    ({"tool_choice": "required", "tools": [tool("f", {"x": {"type": "no_such_type"}})]}, "`type`", "tools"),
    ({"tool_choice": "required", "tools": [tool("f", {"x": {"enum": ["x" * 140000]}})]}, "", "tools"),
    ({"tools": [tool(f"f{i}", {}) for i in range(513)]}, "at most 512", "tools"),
])
def test_mistakes(api, fields, says, param):
    with pytest.raises(openai.BadRequestError) as e:
        api.create(**fields)
    assert says in str(e.value) and e.value.param == param


# ---- references in parameters ----------------------------------------------------------------------------------------

def with_parameters(name, **parameters):
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", **parameters}}}


def arguments_of(api, tools, **kw):
    call = api.create(**{"tools": tools, "tool_choice": "required", **kw}).choices[0].message.tool_calls[0]
    return call.function.name, json.loads(call.function.arguments)


def test_references_stay_within_their_tool(api):
    """Both define x, each its own; "#" is the parameters, and "$ref" may be the name of a property or a value."""
    def of(name, value):
        return with_parameters(name, properties={"x": {"$ref": "#/$defs/x"}, "y": {"$ref": "#/properties/x"}, "$ref": {"const": {"$ref": "#/x"}}},
                               required=["x", "y", "$ref"], additionalProperties=False, **{"$defs": {"x": {"const": value}}})
    tools = [of("f", 1), of("g", 2)]
    choices = ["required", *({"type": "function", "function": {"name": name}} for name in "fg")]
    for choice, order in [(c, o) for c in choices for o in (tools, tools[::-1])]:
        name, arguments = arguments_of(api, order, tool_choice=choice)
        value = 1 if name == "f" else 2
        assert arguments == {"x": value, "y": value, "$ref": {"$ref": "#/x"}}


def test_recursive_parameters(api):
    tools = [with_parameters("f", properties={"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, required=["next"], additionalProperties=False)]
    _, arguments = arguments_of(api, tools)
    while arguments:
        assert set(arguments) == {"next"}
        arguments = arguments["next"]


def test_definitions_that_took_forever(api):
    if api.template == LLAMA:
        pytest.skip("its template indents schemas: more tokens than the model takes")
    deep = {"type": "null"}
    for _ in range(25):
        deep = {"properties": {"a": deep}}
    tools = [with_parameters(name, additionalProperties=False, **{"$defs": {"x": deep}}) for name in "fg"]
    assert arguments_of(api, tools)[1] == {}
    crooked = with_parameters("h", additionalProperties=False, **{"$defs": [1]})
    assert arguments_of(api, [tools[0], crooked])[1] == {}
    with pytest.raises(openai.BadRequestError) as e:
        many = {f"d{i}": True for i in range(50000)}
        arguments_of(api, [with_parameters(name, additionalProperties=False, **{"$defs": many}) for name in "fg"])
    assert e.value.param == "tools"
