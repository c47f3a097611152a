"""docs/openapi.yaml and the daemon's route table name the same routes."""
import re

import yaml
from sources import ROOT

METHODS = {"get", "put", "post", "delete"}


def plain(path):
    """A parameter by any name, or the rest of the path."""
    return re.sub(r"\{\w+\}|\*$", "{}", path)


def described(text):
    return {(method.upper(), plain(path)) for path, item in yaml.safe_load(text)["paths"].items() for method in item if method in METHODS}


def routed(text):
    """{HTTP_M_POST, "/generate", ...} of the table."""
    table = text.split("const struct http_route serve_routes[]", 1)[1].split("};", 1)[0]
    return {(method, plain(path)) for method, path in re.findall(r'\{HTTP_M_(\w+), "([^"]+)"', table)}


def routed_roles(text):
    """.role = ROUTE_USER of the table, as openapi.yaml's x-role."""
    table = text.split("const struct http_route serve_routes[]", 1)[1].split("};", 1)[0]
    return {(method, plain(path)): role.lower()
            for method, path, role in re.findall(r'\{HTTP_M_(\w+), "([^"]+)"[^}]*?(?:\{[^}]*\})?[^}]*?\.role = ROUTE_(\w+)\}', table)}


def test_every_route_has_the_role_that_is_described():
    """Who may do what is written twice, in the table and for clients."""
    text = (ROOT / "server/cli/serve_routes.c").read_text()
    paths = yaml.safe_load((ROOT / "docs/openapi.yaml").read_text())["paths"]
    said = {(method.upper(), plain(path)): item[method]["x-role"] for path, item in paths.items() for method in item if method in METHODS}
    assert routed_roles(text) == said
    assert routed(text) == set(said)
    assert {role for role in said.values()} == {"open", "page", "user", "train", "admin"}


def test_every_operation_that_wants_a_key_says_what_it_answers_without():
    paths = yaml.safe_load((ROOT / "docs/openapi.yaml").read_text())["paths"]
    for path, item in paths.items():
        for method in METHODS & set(item):
            role, answers = item[method]["x-role"], set(item[method]["responses"])
            assert ("401" in answers) == (role != "open"), path
            assert ("403" in answers) == (role in ("train", "admin")), path
            assert (item[method].get("security") == []) == (role == "open"), path


def test_every_route_is_described_and_every_description_is_a_route():
    have = routed((ROOT / "server/cli/serve_routes.c").read_text())
    say = described((ROOT / "docs/openapi.yaml").read_text())
    assert have - say == set(), "routes that docs/openapi.yaml lacks"
    assert say - have == set(), "paths of docs/openapi.yaml that are no routes"
    assert len(have) > 40


def test_every_hyperparameter_is_described():
    table = (ROOT / "server/jobs/train_params.c").read_text().split("} fields[] = {", 1)[1].split("};", 1)[0]
    schema = yaml.safe_load((ROOT / "docs/openapi.yaml").read_text())["components"]["schemas"]["Hyperparameters"]
    assert set(re.findall(r'^    \{"(\w+)"', table, re.M)) == set(schema["properties"])
    aliases = (ROOT / "server/jobs/train_aliases.c").read_text().split("} aliases[] = {", 1)[1].split("};", 1)[0]
    names = set(re.findall(r'^    \{"(\w+)"', aliases, re.M))
    (pattern,) = schema["patternProperties"]
    assert names == set(pattern.removeprefix("^(").removesuffix(")$").split("|"))
    assert all(f"`{name}`" in (ROOT / "docs/train-api.md").read_text() for name in names)


def test_every_range_is_the_described_one():
    """A range is written once for the daemon, in the engine's table, and once for clients."""
    table = (ROOT / "engine/train/params.c").read_text().split("} table[] = {", 1)[1].split("};", 1)[0]
    rows = re.findall(r'\{\{"(\w+)", (\S+), (\S+), (true|false)\}', table)
    schema = yaml.safe_load((ROOT / "docs/openapi.yaml").read_text())["components"]["schemas"]["Hyperparameters"]["properties"]
    wanted = {name: {"exclusiveMinimum" if above == "true" else "minimum": float(least), "maximum": float(most)} for name, least, most, above in rows}
    limits = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    said = {name: {k: float(v) for k, v in s.items() if k in limits} for name, s in schema.items() if s.get("type") in ("number", "integer", ["integer", "string"]) and name != "seed"}
    assert len(rows) > 20 and said == wanted


def test_a_missing_route_is_found():
    table = 'const struct http_route serve_routes[] = {\n    {HTTP_M_GET, "/a", f, 0},\n    {HTTP_M_POST, "/b/*", g, 1, h},\n};\n'
    assert routed(table) == {("GET", "/a"), ("POST", "/b/{}")}
    assert described("paths:\n  /a/{b}:\n    parameters: []\n    get: {}\n") == {("GET", "/a/{}")}


def test_every_operation_has_a_name_of_its_own():
    paths = yaml.safe_load((ROOT / "docs/openapi.yaml").read_text())["paths"]
    names = [item[m]["operationId"] for item in paths.values() for m in item if m in METHODS]
    assert len(names) == len(set(names))
    assert all({"summary", "responses", "tags"} <= set(item[m]) for item in paths.values() for m in item if m in METHODS)
