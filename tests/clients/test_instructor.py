"""instructor: structured output by calls and by JSON, whole and partial; by chats, responses and messages."""
from typing import Literal

import openai
import pytest
import requests
from client_rig import package, start, talker  # noqa: F401
from pydantic import BaseModel, Field

instructor = package("instructor")

ASK = [{"role": "user", "content": "Who is it?"}]


class Person(BaseModel):
    name: Literal["Tom", "Anna"]
    age: int = Field(ge=1, le=9)
    pets: list[Literal["cat", "dog"]] = Field(max_length=3)


class Anything(BaseModel, extra="allow"):
    """What any JSON object is."""
    name: object = None


def client_of(server, mode):
    return instructor.from_openai(openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300), mode=mode)


@pytest.fixture(params=["TOOLS", "JSON_SCHEMA"])
def client(talker, request):  # noqa: F811
    return client_of(talker, instructor.Mode[request.param])


def ask(**kw):
    return {"model": "talker", "messages": ASK, "response_model": Person, "max_tokens": 200, "temperature": 1, "max_retries": 0, **kw}


@pytest.mark.parametrize("seed", range(3))
def test_create(client, seed):
    got = client.chat.completions.create(**ask(seed=seed))
    assert isinstance(got, Person) and 1 <= got.age <= 9 and len(got.pets) <= 3  # else it had raised


def test_partial(client):
    pieces = list(client.chat.completions.create_partial(**ask(seed=1)))
    whole = Person.model_validate(pieces[-1].model_dump())
    assert len(pieces) > 1 and all(whole.name.startswith(p.name or "") and p.age in (None, whole.age) for p in pieces)


def test_any_json(talker):  # noqa: F811
    """Mode.JSON asks for an object and puts the schema into the prompt: what a model with random weights does not heed."""
    [brace] = requests.post(talker.url + "/tokenize", json={"prompt": "}", "add_special_tokens": False}, timeout=300).json()["tokens"]
    fields = ask(response_model=Anything, logit_bias={str(brace): 10})  # that it ends
    client = client_of(talker, instructor.Mode.JSON)
    whole = client.chat.completions.create(**fields, seed=1)
    assert isinstance(whole, Anything)
    assert list(client.chat.completions.create_partial(**fields, seed=1))[-1].model_dump() == whole.model_dump()


# ---- the other routes ------------------------------------------------------------------------------------------------

def check_partial(pieces):
    whole = Person.model_validate(pieces[-1].model_dump())
    assert len(pieces) > 1 and all(whole.name.startswith(p.name or "") and p.age in (None, whole.age) for p in pieces)


def test_responses(talker):  # noqa: F811
    client = client_of(talker, instructor.Mode.RESPONSES_TOOLS)
    fields = {"model": "talker", "input": "Who is it?", "response_model": Person, "max_output_tokens": 200, "max_retries": 0}
    assert isinstance(client.responses.create(**fields), Person)
    check_partial(list(client.responses.create_partial(**fields)))


@pytest.mark.parametrize("mode", ["TOOLS", "JSON"])
def test_messages(talker, mode):  # noqa: F811
    anthropic = package("anthropic")
    client = instructor.from_anthropic(anthropic.Anthropic(base_url=talker.url, api_key="none", max_retries=0), mode=instructor.Mode[mode])
    fields = {"model": "talker", "messages": ASK, "response_model": Person, "max_tokens": 200, "max_retries": 0}
    if mode == "JSON":  # it puts the schema into the prompt: what a model with random weights does not heed
        fields["extra_body"] = {"structured_outputs": {"json": Person.model_json_schema()}}
    assert isinstance(client.chat.completions.create(**fields), Person)
    check_partial(list(client.chat.completions.create_partial(**fields)))
