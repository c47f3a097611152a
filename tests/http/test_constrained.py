"""Constrained output over HTTP: what a model writes at temperature 1 under random schemas and regular expressions is valid,
mistakes are 4xx, and nobody else waits.

TANDEM_CONSTRAINED=1 takes 1,000 schemas and 200 regular expressions instead of a part of them.
"""
import json
import os
import random
import re
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema
import pytest
import requests
from conftest import ROOT
from sse import stream, text_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "schema"))
from random_schemas import random_regex, random_schema  # noqa: E402

ALL = os.environ.get("TANDEM_CONSTRAINED") == "1"
CHECKER = jsonschema.FormatChecker(["date", "ipv4", "ipv6", "uuid"])
MOST = 440  # bytes of the longest document: the demo model has 512 positions
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
          "required": ["name", "age"]}


def constrained(server, grammar, prompt="JSON:", tokens=480, **more):
    parameters = {"grammar": grammar, "max_new_tokens": tokens, "do_sample": True, "temperature": 1.0, "details": True, **more}
    return server.post("/generate", {"inputs": prompt, "parameters": parameters})


def in_parallel(work, items, threads=12):
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


def valid(schema, text):
    """oneOf is taken as anyOf (docs/constrained.md)."""
    loosened = json.loads(json.dumps(schema).replace('"oneOf"', '"anyOf"'))
    assert jsonschema.Draft202012Validator(loosened, format_checker=CHECKER).is_valid(json.loads(text)), (schema, text)


def test_random_schemas(server):
    wanted = 1000 if ALL else 120

    def one(seed):
        schema, size = random_schema(random.Random(f"http {seed}"), bounded=True, most=MOST)
        answer = constrained(server, {"type": "json", "value": schema}, seed=seed)
        if answer.status_code == 422 and re.search("no text at all|no value is allowed|matches no string", answer.text):
            return None  # such a schema has no documents
        assert answer.status_code == 200, (schema, answer.text)
        body = answer.json()
        assert body["details"]["finish_reason"] == "eos_token", (schema, body)
        valid(schema, body["generated_text"])
        assert len(body["generated_text"].encode()) <= size
        return body["generated_text"]

    texts, seed = [], 0
    while len(texts) < wanted:
        batch = range(seed, seed + wanted - len(texts))
        texts += [t for t in in_parallel(one, batch) if t is not None]
        seed = batch[-1] + 1
    assert seed < 1.1 * wanted
    assert len(set(texts)) > 0.6 * wanted


def test_random_regexes(server):
    wanted = 200 if ALL else 60

    def one(seed):
        regex = random_regex(random.Random(f"regex {seed}"))
        answer = constrained(server, {"type": "regex", "value": regex}, seed=seed)
        if answer.status_code == 422 and "no text at all" in answer.text:
            return None
        assert answer.status_code == 200, (regex, answer.text)
        body = answer.json()
        assert body["details"]["finish_reason"] == "eos_token", (regex, body)
        assert re.fullmatch(regex, body["generated_text"]), (regex, body["generated_text"])
        return body["generated_text"]

    texts, seed = [], 0
    while len(texts) < wanted:
        batch = range(seed, seed + wanted - len(texts))
        texts += [t for t in in_parallel(one, batch) if t is not None]
        seed = batch[-1] + 1
    assert seed < 1.2 * wanted


@pytest.mark.smoke
def test_forms(server):
    for grammar in ({"type": "json", "value": PERSON}, {"type": "json", "value": json.dumps(PERSON)}, {"type": "json_schema", "value": {"name": "p", "schema": PERSON}}):
        body = constrained(server, grammar, seed=4).json()
        valid(PERSON, body["generated_text"])
        assert body["details"]["finish_reason"] == "eos_token"
    answer = server.generate(response_format={"type": "json_schema", "json_schema": {"schema": PERSON}}, max_new_tokens=100)
    valid(PERSON, answer["generated_text"])  # greedy
    assert server.generate(structured_outputs={"choice": ["yes", "no"]}, max_new_tokens=20)["generated_text"] in ("yes", "no")


@pytest.mark.smoke
def test_openai_routes(start):
    def ask(path, **more):
        return s.post(path, {"model": "tgi", "max_tokens": 200, "temperature": 1.0, "seed": 3, **more})
    chat = {"path": "/v1/chat/completions", "messages": [{"role": "user", "content": "Who?"}]}
    with start("--chat-template", "plain") as s:
        body = ask(**chat, response_format={"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}).json()
        valid(PERSON, body["choices"][0]["message"]["content"])
        assert body["choices"][0]["finish_reason"] == "stop"
        body = ask("/v1/completions", prompt="Yes or no? ", structured_outputs={"choice": ["yes", "no"]}).json()
        assert body["choices"][0]["text"] in ("yes", "no")
        body = ask("/v1/completions", prompt="Tel: ", structured_outputs={"regex": r"\d{3}-\d{4}"}).json()
        assert re.fullmatch(r"\d{3}-\d{4}", body["choices"][0]["text"])
        for answer in (ask(**chat, response_format={"type": "json_schema", "json_schema": {"schema": {"not": {}}}}), ask(**chat, response_format={"type": "xml"})):
            assert answer.status_code == 400
            assert "not supported" in answer.json()["error"]["message"], answer.text


@pytest.mark.smoke
def test_streaming(server):
    whole = constrained(server, {"type": "json", "value": PERSON}, seed=11).json()
    seen = stream(server, "JSON:", grammar={"type": "json", "value": PERSON}, max_new_tokens=480, do_sample=True, seed=11)
    text = "".join(e["token"]["text"] for e in seen if not e["token"]["special"])
    assert text == text_of(seen) == whole["generated_text"]
    valid(PERSON, text)


def test_recursive_schema(server):
    node = {"type": "object", "properties": {"v": {"type": "boolean"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}, "required": ["v"]}
    done = 0
    for seed in range(8):
        body = constrained(server, {"type": "json", "value": node}, seed=seed).json()
        if body["details"]["finish_reason"] == "eos_token":
            valid(node, body["generated_text"])
            done += 1
    assert done


def test_length_cuts(server):
    """max_new_tokens is kept; what there is, is the beginning of a document."""
    body = constrained(server, {"type": "json", "value": {"type": "array", "items": {"const": "abcdef"}, "minItems": 50}}, tokens=20).json()
    assert body["details"]["finish_reason"] == "length"
    assert json.dumps(["abcdef"] * 50).startswith(body["generated_text"])


@pytest.mark.concurrent
def test_many_at_once(server):
    """Constrained and free requests in one batch; a seeded one gives what it gives alone."""
    alone = constrained(server, {"type": "json", "value": PERSON}, seed=5).json()["generated_text"]
    free = server.generate(max_new_tokens=20, seed=5, do_sample=True)["generated_text"]

    def one(i):
        if i % 3 == 0:
            assert server.generate(max_new_tokens=20, seed=5, do_sample=True)["generated_text"] == free
        elif i % 3 == 1:
            assert constrained(server, {"type": "json", "value": PERSON}, seed=5).json()["generated_text"] == alone
        else:
            schema = {**PERSON, "title": f"number {i}"}
            valid(schema, constrained(server, {"type": "json", "value": schema}, seed=i).json()["generated_text"])

    in_parallel(one, range(18), 9)


BAD = [
    ({"type": "json", "value": {"type": "object", "properties": {"a": {"not": {}}}}}, "grammar is not valid: #/properties/a: `not` is not supported"),
    ({"type": "json", "value": "{"}, "grammar is not valid: the schema: malformed JSON at byte 1: expected a field name in double quotes"),
    ({"type": "json", "value": {"type": "string", "pattern": "("}}, "grammar is not valid: #: `pattern`: byte 0: the group has no closing )"),
    ({"type": "json", "value": {"enum": []}}, "grammar is not valid: no value is allowed"),
    ({"type": "json"}, "grammar is not valid: there is no schema"),
    ({"type": "yaml", "value": ""}, "grammar is not valid: the type yaml is not supported"),
    ("json", "grammar is not valid: expected an object with the fields `type` and `value`"),
]


@pytest.mark.smoke
@pytest.mark.parametrize("grammar,message", BAD, ids=[row[1][22:60] for row in BAD])
def test_bad(server, grammar, message):
    answer = constrained(server, grammar)
    assert answer.status_code == 422
    assert answer.json() == {"error": f"Input validation error: {message}", "error_type": "validation"}


@pytest.mark.smoke
def test_bad_regex(server):
    for regex in ("(", "a{2,1}", r"(a)\1", "(?=a)b", "[z-a]", "a" * 20000):
        answer = constrained(server, {"type": "regex", "value": regex})
        assert answer.status_code == 422, regex
        assert answer.json()["error"].startswith("Input validation error: grammar is not valid: "), answer.text


def hard_schemas():
    deep = {"type": "null"}
    for _ in range(28):
        deep = {"type": "object", "properties": {"a": deep, "b": {"$ref": "#"}}}
    yield "deep", deep
    yield "wide", {"type": "object", "properties": {f"property {i}": {"type": "integer", "minimum": i, "maximum": 10 ** 9 + i} for i in range(900)}}
    yield "enum", {"enum": [f"value {i} {i * i}" for i in range(5000)]}
    yield "either", {"anyOf": [{"properties": {f"k{i}": {"enum": list(range(50))}}} for i in range(300)], "type": "object", "required": ["x"]}
    yield "refs", {"$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{(i * 7 + k) % 800}"} for k in range(5)] + [{"type": "null"}]} for i in range(800)}, "$ref": "#/$defs/d0"}
    yield "pattern", {"type": "string", "pattern": "^((a{0,99}b{0,99}){0,99}|c){0,99}$", "maxLength": 99999}
    yield "all", {"allOf": [{"properties": {f"p{i}": {"type": "string"} for i in range(150)}} for _ in range(20)]}


@pytest.mark.parametrize("name,schema", list(hard_schemas()), ids=[name for name, _ in hard_schemas()])
def test_hard_schemas_stall_nobody(server, name, schema):
    """Answered in time, well or with 4xx, while others go on. (How long a token may take is measured elsewhere: no test
    here may fail because a machine is slow.)"""
    stop, others = threading.Event(), []

    def chat():
        while not stop.is_set():
            others.append(server.generate(max_new_tokens=2)["generated_text"])
    thread = threading.Thread(target=chat)
    thread.start()
    try:
        answer = constrained(server, {"type": "json", "value": schema}, tokens=8)
    finally:
        stop.set()
        thread.join()
    assert answer.status_code in (200, 422), answer.text
    assert len(set(others)) == 1  # and each was right


def test_character_that_no_token_has(start, tmp_path):
    """A vocabulary without "{": JSON objects are refused, with the character, when the grammar is compiled; what can be written is."""
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "tests/fixtures/models/qwen2", folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {token.replace("{", "}}}}}}"): id for token, id in vocabulary.items()}
    tokenizer["model"]["merges"] = [m for m in tokenizer["model"]["merges"] if "{" not in str(m)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    says = "no token of its vocabulary has the character '{'"
    with start("--chat-template", "plain", model=folder) as s:
        answer = requests.post(s.url + "/generate", json={"inputs": "x", "parameters": {"grammar": {"type": "json_object"}}}, timeout=300)
        assert answer.status_code == 422 and says in answer.json()["error"]
        chat = {"model": "model", "messages": [{"role": "user", "content": "x"}], "max_tokens": 20}
        answer = requests.post(s.url + "/v1/chat/completions", json={**chat, "response_format": {"type": "json_object"}}, timeout=300)
        assert answer.status_code == 422 and says in answer.json()["error"]["message"] and answer.json()["error"]["param"] == "response_format"
        answer = requests.post(s.url + "/v1/chat/completions", json={**chat, "structured_outputs": {"regex": "[a-z{]{3}"}}, timeout=300)
        assert answer.status_code == 200 and len(answer.json()["choices"][0]["message"]["content"]) == 3
