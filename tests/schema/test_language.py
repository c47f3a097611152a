"""What schemas become, without a model: texts drawn from the automaton are valid by Python's jsonschema, and documents are
accepted if and only if they are valid, as far as docs/constrained.md promises it."""
import datetime
import ipaddress
import json
import os
import random
import re
import subprocess
import urllib.parse
import uuid
from pathlib import Path

import jsonschema
import pytest
from random_schemas import dumps, mutated, plain_numbers, random_regex, random_schema

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TANDEM_BUILD_DIR", ROOT / "build"))
CHECKER = jsonschema.FormatChecker(["date", "ipv4", "ipv6", "uuid"])


class Tool:
    def __init__(self):
        self.process = subprocess.Popen([BUILD / "tests/schema/schema_tool"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, schema=None, documents=(), samples=0, seed=1, **more):
        ask = {"documents": list(documents), "samples": samples, "seed": seed, **more}
        if schema is not None:
            ask["schema"] = schema
        self.process.stdin.write(json.dumps(ask).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def tool():
    t = Tool()
    yield t
    t.process.stdin.close()
    assert t.process.wait(300) == 0


def accepted(tool, schema, *texts):
    answer = tool(schema, texts)
    assert "error" not in answer, answer
    return answer["accepted"]


def check(schema, text):
    """The text is a document that the schema allows."""
    document = json.loads(text)
    assert jsonschema.Draft202012Validator(schema, format_checker=CHECKER).is_valid(document), (schema, text)


# ---- what is drawn is valid ----------------------------------------------------------------------------------------

@pytest.mark.smoke
def test_samples_are_valid(tool):
    ended = 0
    for seed in range(150):
        rng = random.Random(seed)
        schema, size = random_schema(rng)
        answer = tool(schema, samples=4, seed=seed)
        if "error" in answer:  # then there is none
            assert "no text" in answer["error"] or "no value" in answer["error"] or "matches no string" in answer["error"], (schema, answer)
            continue
        for text in answer["samples"]:
            assert text is not False, (schema, "a dead end")
            if text is None:
                assert size is None, schema
                continue
            ended += 1
            loosened = json.loads(json.dumps(schema).replace('"oneOf"', '"anyOf"'))
            check(loosened, text)
            assert size is None or len(text.encode()) <= size, (schema, text)
    assert ended > 450, ended


def test_recursion(tool):
    node = {"type": "object", "properties": {"value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#"}}}, "required": ["value"]}
    lists = {"$defs": {"l": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"next": {"$ref": "#/$defs/l"}}, "required": ["next"]}]}},
             "$ref": "#/$defs/l"}
    person = {"$defs": {"P": {"type": "object", "properties": {"age": {"type": "integer"}, "boss": {"allOf": [{"$ref": "#/$defs/P"}], "default": None},
                              "friend": {"$ref": "#/$defs/P", "type": "object"}, "other": {"$ref": "#/$defs/P", "minProperties": 1}}}}, "$ref": "#/$defs/P"}
    for schema in (node, lists, person):
        texts = [t for t in tool(schema, samples=60)["samples"] if t]
        assert len(texts) > 30
        for text in texts:
            check(schema, text)
    assert accepted(tool, node, '{"value": 1, "children": [{"value": 2}, {"value": 3, "children": []}]}', '{"children": []}') == [True, False]
    assert accepted(tool, person, '{"boss": {"boss": {"friend": {"age": 1}}}}', '{"other": {}}', '{"other": {"other": {"boss": {}}}}') == [True, False, True]
    assert accepted(tool, lists, '{"next": {"next": null}}', '{"next": {}}') == [True, False]


def test_any_object(tool):
    answer = tool(object=True, samples=100, documents=["{}", '{"a": [1, {"b": null}]}', "[]", '{"a" : 1}', "{}}"])
    assert answer["accepted"] == [True, True, False, False, False]
    for text in answer["samples"]:
        assert text is None or isinstance(json.loads(text), dict)


# ---- accepted means valid ------------------------------------------------------------------------------------------

def valid(schema, document):
    """By jsonschema, and without members that no schema lists (docs/constrained.md)."""
    return jsonschema.Draft202012Validator(closed(schema), format_checker=CHECKER).is_valid(document)


def closed(schema):
    if isinstance(schema, list):
        return [closed(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    out = {k: v if k in ("const", "enum", "required") else {n: closed(s) for n, s in v.items()} if k in ("properties", "$defs") else closed(v)
           for k, v in schema.items()}
    if "properties" in out and "additionalProperties" not in out:
        out["additionalProperties"] = False
    return out


def test_accepted_if_and_only_if_valid(tool):
    yes = no = 0
    for seed in range(200):
        rng = random.Random(seed)
        schema, _ = random_schema(rng, exact=True)
        drawn = tool(schema, samples=3, seed=seed)
        if "error" in drawn:
            continue
        documents = [json.loads(t) for t in drawn["samples"] if t and len(t) < 3000]
        tried = [d for base in documents for d in [mutated(rng, base) for _ in range(8)] if plain_numbers(d)]
        for document, got in zip(tried, accepted(tool, schema, *map(dumps, tried))):
            want = valid(schema, document)
            assert got == want, (schema, document, got)
            yes, no = yes + want, no + (not want)
    assert yes > 500 and no > 500, (yes, no)


NUMBERS = [
    ({"type": "integer"}, ["0", "-1", "42", "999999999999999"], ["-0", "01", "1.0", "1e3", "", "-", "+1", "1000000000000000"]),
    ({"type": "integer", "minimum": -5, "maximum": 17}, ["-5", "-1", "0", "9", "10", "17"], ["-6", "18", "-10", "170", "-50"]),
    ({"type": "integer", "exclusiveMinimum": 99, "exclusiveMaximum": 1000}, ["100", "999"], ["99", "1000", "0"]),
    ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, ["1"], ["0", "-1"]),
    ({"type": "integer", "multipleOf": 7, "minimum": 100}, ["105", "700000000007"], ["98", "100", "7", "-105"]),
    ({"type": "integer", "multipleOf": 500}, ["0", "500", "-1500", "123000"], ["5", "50", "00", "-0", "250"]),
    ({"type": "integer", "minimum": 123456789, "maximum": 9007199254740993}, ["123456789", "9007199254740993"], ["123456788", "9007199254740994"]),
    ({"type": "integer", "minimum": 1.5, "maximum": 3.5}, ["2", "3"], ["1", "4"]),
    ({"type": "number"}, ["0", "-0", "1.5", "1e5", "-2.5E-10", "1e+5"], ["01", ".5", "1.", "1e", "1e100", "NaN", "+1"]),
    ({"type": "number", "minimum": 0.5, "maximum": 2.25}, ["0.5", "2.25", "1", "2.249999", "0.500000"], ["0.49", "2.26", "3", "-1", "0", "1e0"]),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, ["0.1", "0.000001", "0.999999"], ["0", "1", "0.0", "1.0", "0.000000"]),
    ({"type": "number", "maximum": -0.001}, ["-0.001", "-1", "-5.5"], ["0", "-0", "-0.0009", "1"]),
    ({"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 10}, ["0.00", "9.99", "10.00"], ["10.01", "0.001", "-0.01"]),
    ({"type": "number", "multipleOf": 0.25}, ["0.00", "1.25", "-3.50"], ["0.20", "1.1", "-0.00"]),
    ({"type": "number", "multipleOf": 2}, ["0", "4", "-2"], ["1", "2.5"]),
    ({"minimum": 3}, ["3", "3.5"], ["2", '"a"']),
]


@pytest.mark.parametrize("schema,good,bad", NUMBERS, ids=[json.dumps(row[0]) for row in NUMBERS])
def test_numbers(tool, schema, good, bad):
    assert accepted(tool, schema, *good, *bad) == [True] * len(good) + [False] * len(bad)


def test_every_integer_of_a_range(tool):
    rng = random.Random(5)
    for _ in range(40):
        low = rng.randint(-300, 300)
        schema = {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 400), "multipleOf": rng.choice([1, 1, 3, 4, 11, 30])}
        want = [schema["minimum"] <= v <= schema["maximum"] and v % schema["multipleOf"] == 0 for v in range(-800, 800)]
        if any(want):
            assert accepted(tool, schema, *map(str, range(-800, 800))) == want, schema
        else:
            assert tool(schema)["error"] == "no value is allowed"


OBJECTS = [
    ({"properties": {"a": {}, "b": {}, "c": {}}, "required": ["b"]}, ['{"b": 1}', '{"a": 1, "b": 1}', '{"b": 1, "c": 1}', '{"a": 1, "b": 2, "c": 3}'],
     ["{}", '{"a": 1}', '{"b": 1, "a": 1}', '{"b": 1,"c": 1}', '{"b":1}', '{"b": 1, "d": 1}', '{"b": 1, }', '{, "b": 1}', '{ "b": 1}']),
    ({"properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}}},
     ["{}", '{"a": null}', '{"b": null}', '{"c": null}', '{"a": null, "c": null}', '{"b": null, "c": null}', '{"a": null, "b": null, "c": null}'],
     ['{"a": null, "a": null}', '{"c": null, "b": null}', '{"a": null "b": null}']),
    ({"properties": {"ab": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
     ["{}", '{"ab": null}', '{"ab": null, "x": 1}', '{"a": 1, "abc": 2}', '{"\\"": 3}'],
     ['{"ab": 1}', '{"ab": null, "ab": 1}', '{"x": null}', '{"x": 1, "ab": null}', '{"": 1}', '{"\\u0061b": 1}']),
    ({"type": "object", "properties": {}}, ["{}"], ['{"a": 1}']),
    ({"type": "object"}, ["{}", '{"a": 1, "b": {"c": []}}'], ["[]"]),
    ({"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"type": "boolean"}},
     ['{"a": true}', '{"a": true, "b": false}'], ["{}", '{"a": true, "b": true, "c": true}']),
    ({"properties": {"a": {}}, "minProperties": 1}, ['{"a": 0}'], ["{}"]),
    ({"patternProperties": {"^x-[a-z]+$": {"type": "integer"}}}, ["{}", '{"x-a": 1}', '{"x-a": 1, "x-b": 2}'], ['{"x-": 1}', '{"y": 1}', '{"x-a": null}']),
    ({"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}}, ["{}", '{"b": 1, "a": 2}'], ['{"c": 1}']),
    ({"required": ["k"], "type": "object"}, ['{"k": 1}', '{"k": [], "z": 2}'], ["{}", '{"z": 1}']),
    ({"properties": {"a": False, "b": {}}}, ["{}", '{"b": 1}'], ['{"a": 1}']),
    ({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False}, ['{"a": 1}'], ['{"a": 1, "b": 2}']),
    ({"allOf": [{"properties": {"a": {"minimum": 3}}, "required": ["a"]}, {"properties": {"a": {"maximum": 5, "type": "integer"}, "b": {"type": "null"}}}]},
     ['{"a": 3}', '{"a": 5, "b": null}'], ['{"a": 2}', '{"a": 6}', '{"b": null}', "{}"]),
    ({"properties": {"a": {"type": "integer"}}, "required": ["a"], "anyOf": [{"properties": {"b": {"const": 1}}, "required": ["b"]}, {"properties": {"c": {"const": 2}}}]},
     ['{"a": 0, "b": 1}', '{"a": 0}', '{"a": 0, "c": 2}'], ['{"b": 1}', '{"a": 0, "b": 2}']),
    ({"$defs": {"n": {"type": "object", "properties": {"x": {"type": "integer"}}}}, "$ref": "#/$defs/n", "required": ["x"]}, ['{"x": 1}'], ["{}", '{"x": null}']),
    ({"type": "object", "properties": {"a": {"type": "string", "nullable": True}}}, ['{"a": null}', '{"a": "s"}'], ['{"a": 1}']),
]


@pytest.mark.parametrize("schema,good,bad", OBJECTS, ids=[json.dumps(row[0])[:80] for row in OBJECTS])
def test_objects(tool, schema, good, bad):
    assert accepted(tool, schema, *good, *bad) == [True] * len(good) + [False] * len(bad)


OTHERS = [
    ({"type": "array"}, ["[]", "[1]", '["a", {}]'], ["[1,2]", "[ ]", "[1, ]", "{}"]),
    ({"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 3}, ["[null]", "[null, null, null]"], ["[]", "[null, null, null, null]"]),
    ({"prefixItems": [{"const": 1}, {"const": 2}], "items": {"const": 3}}, ["[]", "[1]", "[1, 2]", "[1, 2, 3, 3]"], ["[2]", "[1, 3]", "[1, 2, 2]"]),
    ({"prefixItems": [{"const": 1}, {"const": 2}], "minItems": 2, "maxItems": 2}, ["[1, 2]"], ["[1]", "[]", "[1, 2, 3]"]),
    ({"items": [{"const": 1}], "additionalItems": False, "type": "array"}, ["[]", "[1]"], ["[1, 1]"]),
    ({"type": "array", "items": False}, ["[]"], ["[1]"]),
    ({"items": {"enum": ["a", "b", 1, "a"]}, "uniqueItems": True, "minItems": 1, "maxItems": 2}, ['["a"]', '["b", "a"]', '[1, "b"]'],
     ["[]", '["a", "a"]', '["a", "b", 1]', '["a", 2]', '["a",1]']),
    ({"$defs": {"e": {"type": "string", "enum": ["x", 3]}}, "type": "array", "items": {"$ref": "#/$defs/e"}, "uniqueItems": True}, ["[]", '["x"]'], ["[3]", '["x", "x"]']),
    ({"type": "string"}, ['""', '"é"', '"\\""', '"\\\\"', '"\\n"', '"/"', '"😀"'], ['"', '"\n"', '"\\x"', '"\\u00e9"', '"\\/"', "a"]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"😀é\\n"'], ['"a"', '"abcd"', '""']),
    ({"type": "string", "pattern": "^a\\\\\"$"}, ['"a\\\\\\""'], ['"a"']),
    ({"type": "string", "pattern": "b"}, ['"b"', '"abc"', '"bb"'], ['"a"', '""']),
    ({"type": "string", "pattern": "^b|c$"}, ['"bx"', '"xc"', '"b"'], ['"xbx"', '"cx"']),
    ({"type": "string", "pattern": "^(a|b)*$", "maxLength": 2}, ['""', '"ab"'], ['"aba"', '"c"']),
    ({"type": "string", "pattern": "^[a-z]+$", "minLength": 3, "maxLength": 4}, ['"abc"', '"abcd"'], ['"ab"', '"abcde"', '"AB1"']),
    ({"enum": ["a", 1, None, {"k": [1.5]}]}, ['"a"', "1", "null", '{"k": [1.5]}'], ['"b"', "2", '{"k":[1.5]}']),
    ({"const": "\u0001"}, ['"\\u0001"'], ['"a"']),
    ({"type": "string", "enum": ["a", 1, "bb"], "maxLength": 1}, ['"a"'], ["1", '"bb"']),
    ({"type": ["string", "null"], "maxLength": 1}, ['"a"', "null"], ['"ab"', "1"]),
    ({}, ["1", '"a"', "{}", "[]", "true", "null", "-1.5e3"], ["", "tru", "[1"]),
    (True, ["1", "{}"], ["x"]),
    ({"type": "boolean"}, ["true", "false"], ["null", "True"]),
    ({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}, False]}, ["12", '"a"'], ['"ab"', "1.5"]),
    ({"type": "string", "format": "date"}, ['"2024-02-29"', '"1999-12-31"'], ['"2023-02-29"', '"2024-13-01"', '"2024-04-31"', '"2024-1-1"']),
    ({"type": "string", "format": "email", "maxLength": 20}, ['"a@b.org"'], ['"a@b"', '"' + "a" * 20 + '@b.org"']),
    ({"type": "string", "format": "uri"}, ['"https://example.org/a?b=c#d"', '"http://a.b:80"'], ['"example"', '"https://"', '"http://a b"']),
    ({"type": "string", "format": "password"}, ['"anything"'], ["1"]),
]


@pytest.mark.smoke
@pytest.mark.parametrize("schema,good,bad", OTHERS, ids=[json.dumps(row[0])[:80] for row in OTHERS])
def test_others(tool, schema, good, bad):
    assert accepted(tool, schema, *good, *bad) == [True] * len(good) + [False] * len(bad)


def is_time(text):
    return datetime.time.fromisoformat(text) is not None


FORMATS = {
    "date": datetime.date.fromisoformat,
    "time": is_time,
    "date-time": datetime.datetime.fromisoformat,
    "uuid": uuid.UUID,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "email": lambda s: re.fullmatch(r"[^@\s]+@[a-z0-9-]+(\.[a-z0-9-]+)+", s) or 1 / 0,
    "hostname": lambda s: (len(s) <= 253 and re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", s)) or 1 / 0,
    "uri": lambda s: urllib.parse.urlsplit(s).netloc or 1 / 0,
    "uri-reference": urllib.parse.urlsplit,
    "duration": lambda s: re.fullmatch(r"P(?=.)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+S)?)?)", s) or 1 / 0,
    "json-pointer": lambda s: re.fullmatch(r"(/([^~/]|~[01])*)*", s) is not None or 1 / 0,
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats(tool, name):
    texts = [json.loads(t) for t in tool({"type": "string", "format": name}, samples=100, seed=3)["samples"]]
    assert len(set(texts)) > 20
    for text in texts:
        FORMATS[name](text)
    short = tool({"type": "string", "format": name, "maxLength": 32}, samples=20)
    if "error" not in short:
        assert all(len(json.loads(t)) <= 32 for t in short["samples"])


def test_patterns_of_random_regexes(tool):
    """As `pattern`, tied to both ends: what is drawn matches, in both of Python's ways to read classes."""
    drawn = 0
    for seed in range(150):
        regex = random_regex(random.Random(seed))
        answer = tool({"type": "string", "pattern": f"^(?:{regex})$"}, samples=3, seed=seed)
        if "error" in answer:
            assert "matches no string" in answer["error"] or "no text" in answer["error"], (regex, answer)
            continue
        for text in answer["samples"]:
            assert re.search(f"^(?:{regex})$", json.loads(text)), (regex, text)
            assert re.fullmatch(regex, json.loads(text), re.ASCII) or not re.search(r"\\[wWdDsS]", regex), (regex, text)
            drawn += 1
    assert drawn > 300


# ---- refused -------------------------------------------------------------------------------------------------------

REFUSED = [
    ({"not": {}}, "#: `not` is not supported"),
    ({"properties": {"a/b": {"uniqueItems": True, "type": "array"}}}, "#/properties/a~1b: `uniqueItems` is supported where `items` is an `enum` of at most 8 values only"),
    ({"$defs": {"t": {"if": True}}, "items": {"$ref": "#/$defs/t"}}, "#/$defs/t: `if` is not supported"),
    ({"type": "strin"}, "#: `type` must be names of types"),
    ({"type": []}, "#: `type` must be names of types"),
    ({"$ref": "other.json"}, "#: `$ref` must be a JSON pointer into the same schema"),
    ({"$ref": "#/$defs/x"}, "#: `$ref` #/$defs/x is not there"),
    ({"minLength": -1, "type": "string"}, "#: `minLength` must be a whole number"),
    ({"type": "string", "pattern": "("}, "#: `pattern`: byte 0: the group has no closing )"),
    ({"type": "string", "pattern": "(?=a)"}, "look-around is not supported"),
    ({"type": "string", "pattern": r"(a)\1"}, "back-references are not supported"),
    ({"type": "string", "pattern": "a", "format": "date"}, "`pattern` beside `format`"),
    ({"type": "string", "format": "regex"}, "`format` regex is not supported"),
    ({"type": "string", "pattern": "^abc$", "maxLength": 2}, "no string was found"),
    ({"properties": {"a": 3}}, "#/properties/a: a schema must be an object, true or false"),
    ({"anyOf": []}, "#: `anyOf` must be a list of schemas"),
    ({"enum": []}, "no value is allowed"),
    ({"type": "integer", "minimum": 5, "maximum": 4}, "no value is allowed"),
    ({"type": "integer", "multipleOf": 1009}, "`multipleOf` 1009"),
    ({"type": "integer", "multipleOf": 0}, "`multipleOf` must be greater than 0"),
    (False, "no value is allowed"),
    ({"$ref": "#"}, "begins with itself"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "no text"),
    ({"allOf": [{"pattern": "a"}, {"pattern": "b"}], "type": "string"}, "#/allOf/1: different `pattern`"),
    ({"patternProperties": {"a": {}, "b": {}}}, "one pattern only"),
    ({"properties": {"a": {}, "b": {}}, "minProperties": 2}, "`minProperties`"),
    ({"contains": {}}, "`contains` is not supported"),
    ({"dependentRequired": {"a": ["b"]}}, "`dependentRequired` is not supported"),
    ({"items": {"unevaluatedProperties": {"type": "null"}}}, "#/items: `unevaluatedProperties`"),
    ({"type": "object", "properties": {f"p{i}": {"minimum": i} for i in range(900)}}, "the schema is too large"),
    ({"allOf": [{"$ref": "#"}]}, "begins with itself"),
    ({"allOf": [{"$ref": "#"}, {"type": "object"}]}, "nested too deeply"),
    ({"anyOf": [{"$ref": "#"}, {"$ref": "#"}], "type": "object"}, "the schema is nested too deeply"),
]


@pytest.mark.smoke
@pytest.mark.parametrize("schema,message", REFUSED, ids=[row[1] for row in REFUSED])
def test_refused(tool, schema, message):
    answer = tool(schema)
    assert message in answer.get("error", "accepted"), answer


# ---- what would take all time or memory ------------------------------------------------------------------------------

def deep(levels=55):
    return {"a": deep(levels - 1)} if levels else 1


def many(schema, n):
    return {"allOf": [schema, *[{"$ref": "#/allOf/0"}] * n]}


def peak_memory(tool):
    return 1024 * int(re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{tool.process.pid}/status").read_text())[1])


LARGE = "the schema is too large"


@pytest.mark.parametrize("schema, message", [
    ({"enum": [deep(), 2], "const": deep()}, None),
    ({"type": "array", "items": {"enum": [deep(), deep()]}, "uniqueItems": True}, None),
    ({"allOf": [{"enum": [deep()]}, {"enum": [deep()]}]}, None),
    ({"allOf": [{"propertyNames": {"enum": [deep()]}, "type": "integer"}, {"propertyNames": {"enum": [deep()]}}]}, None),
    (many({"required": ["a"] * 16000}, 2500), LARGE),
    (many({"enum": ["a"] * 16000}, 2500), LARGE),
    (many({"type": ["string"] * 6000}, 2500), LARGE),
    ({"enum": ["a" * 60000], "anyOf": [True] * 13000}, LARGE),
    ({"anyOf": [{"const": "a" * 60000}, *[{"$ref": "#/anyOf/0", "type": "string"}] * 1500]}, LARGE),
    ({"allOf": [{"properties": {"a": True}}, {"properties": [1]}]}, "`properties` must be an object"),
    ({"allOf": [{"properties": [1]}, {"properties": {"a": True}}]}, "`properties` must be an object"),
    ({"allOf": [{"required": ["a"]}, {"required": [1]}]}, "`required` must be a list of names"),
    ({"properties": {"a" * 60000: {"anyOf": [{"allOf": [{"type": "null"}, {"type": "null"}]}] * 1500}}}, None),
], ids=lambda v: str(v)[:40])
def test_bounded(tool, schema, message):
    before = peak_memory(tool)
    answer = tool(schema)
    if message:
        assert message in answer.get("error", "accepted"), str(answer)[:300]
    else:
        assert "error" not in answer, str(answer)[:300]
    assert answer["seconds"] < 2
    assert peak_memory(tool) < before + 50e6


def test_required_of_several(tool):
    schema = {"allOf": [{"properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["a", "a"]}, {"required": ["b", "a"]}]}
    assert accepted(tool, schema, '{"a": 1, "b": 2}', '{"a": 1}', '{"b": 2}') == [True, False, False]
