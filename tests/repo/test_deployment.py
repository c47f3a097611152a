"""Dockerfile, compose.yaml and the Kubernetes manifests: fields that their schemas have, of the right types, and names, flags, ports
and paths that the daemon has."""
import copy
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import jsonschema
import msgspec
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from dockerfile_parse import DockerfileParser
from lightkube.models import apps_v1, autoscaling_v2, core_v1, policy_v1
from sources import ROOT

BUILD = Path(os.environ.get("TANDEM_BUILD_DIR", ROOT / "build"))
BINARY = BUILD / "server/tandem"
KINDS = {("apps/v1", "Deployment"): apps_v1.Deployment, ("v1", "Service"): core_v1.Service, ("policy/v1", "PodDisruptionBudget"): policy_v1.PodDisruptionBudget,
         ("autoscaling/v2", "HorizontalPodAutoscaler"): autoscaling_v2.HorizontalPodAutoscaler}
INSTRUCTIONS = {"FROM", "ARG", "ENV", "RUN", "COPY", "ADD", "WORKDIR", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD", "LABEL", "SHELL"}
built = pytest.mark.skipif(not BINARY.exists(), reason="not built")


def documents(name):
    return [d for d in yaml.safe_load_all((ROOT / name).read_text()) if d]


def manifests():
    listed = documents("conf/kubernetes/kustomization.yaml")[0]["resources"]
    return [d for name in listed for d in documents(f"conf/kubernetes/{name}")]


def missing(doc, kept, path=""):
    """What the typed object does not have of the document: fields that there are none of."""
    if isinstance(doc, dict):
        return [x for k, v in doc.items() for x in (missing(v, kept[k], f"{path}.{k}") if isinstance(kept, dict) and k in kept else [f"{path}.{k}"])]
    if isinstance(doc, list):
        return [x for i, v in enumerate(doc) for x in missing(v, kept[i], f"{path}[{i}]")]
    return [] if doc == kept else [path]


def wrong_fields(doc):
    """Of a manifest, by the models that are generated from Kubernetes' OpenAPI description."""
    try:
        typed = msgspec.convert(doc, KINDS[doc["apiVersion"], doc["kind"]], strict=True)
    except msgspec.ValidationError as e:
        return [str(e)]
    return missing(doc, msgspec.to_builtins(typed))


def instructions():
    # its own file object: the parser's default is to keep the file open for writing
    with open(ROOT / "Dockerfile", "rb") as f:
        return [(s["instruction"], s["value"]) for s in DockerfileParser(fileobj=f).structure if s["instruction"] != "COMMENT"]


def values_of(instruction):
    return [value for name, value in instructions() if name == instruction]


def image_environment():
    return dict(pair.split("=", 1) for value in values_of("ENV") for pair in shlex.split(value))


def pod():
    deployment = next(d for d in manifests() if d["kind"] == "Deployment")
    return deployment["spec"]["template"]


def container():
    return pod()["spec"]["containers"][0]


def options(command):
    done = subprocess.run([BINARY, command, "--help"], capture_output=True, text=True, check=True)
    return set(re.findall(r"^  --(?:\[no-\])?([a-z-]+)", done.stdout, re.M))


# ---- schemas ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("doc", manifests(), ids=lambda d: d["kind"])
def test_manifests_have_fields_that_exist(doc):
    assert wrong_fields(doc) == []


@pytest.mark.parametrize("place, value", [
    (("enableServiceLink",), False), (("enableServiceLinks",), "no"), (("terminationGracePeriodSeconds",), "100"),
    (("containers", 0, "redinessProbe"), {}), (("containers", 0, "ports", 0, "containerPort"), "8080"), (("containers", 0, "env", 0, "value"), 4),
    (("containers", 0, "livenessProbe", "httpGet", "paht"), "/health"), (("volumes", 0, "emptydir"), {}),
])
def test_a_wrong_manifest_is_found(place, value):
    doc = copy.deepcopy(next(d for d in manifests() if d["kind"] == "Deployment"))
    at = doc["spec"]["template"]["spec"]
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    assert len(wrong_fields(doc)) == 1


def test_compose_has_fields_that_exist():
    schema = get_builtin_schema("vendor.compose-spec")
    compose = documents("compose.yaml")[0]
    jsonschema.validate(compose, schema)
    for name, value in (("stop_grace_perod", "90s"), ("read_only", {}), ("ulimits", {"nofile": []})):
        bad = copy.deepcopy(compose)
        bad["services"]["tandem"][name] = value
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema)


def test_dockerfile_has_instructions_that_exist():
    found = instructions()
    assert {name for name, _ in found} <= INSTRUCTIONS
    stages = [re.search(r" AS (\w+)$", value) for value in values_of("FROM")]
    names = {m.group(1) for m in stages if m}
    assert names and set(re.findall(r"--from=(\w+)", " ".join(values_of("COPY")))) <= names
    declared = {value.split("=")[0] for value in values_of("ARG")}
    used = set(re.findall(r"\$\{([A-Z_]+)[:}]", " ".join(value for _, value in found)))
    assert used <= declared, used - declared
    for instruction in ("ENTRYPOINT", "CMD"):
        assert all(isinstance(json.loads(value), list) for value in values_of(instruction))  # a shell would swallow signals


# ---- names -----------------------------------------------------------------------------------------------------------

@built
def test_flags_and_commands_exist():
    """Every `tandem COMMAND --flag` that a container, a probe or a unit runs."""
    entry, = (json.loads(value) for value in values_of("ENTRYPOINT"))
    check, = (json.loads(value.split("CMD", 1)[1]) for value in values_of("HEALTHCHECK"))
    lines = [entry + json.loads(values_of("CMD")[0]), check, entry + container()["args"], entry + documents("compose.yaml")[0]["services"]["tandem"]["command"]]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        lines += [container()[probe]["exec"]["command"]] if "exec" in container()[probe] else []
    unit = (ROOT / "systemd/tandem.service.in").read_text()
    lines += [shlex.split(line.replace("@bindir@/", "")) for line in re.findall(r"^Exec(?:Start|StartPre)=(.*tandem .*)$", unit, re.M)]
    assert len(lines) >= 5
    for line in lines:
        assert line[0] == "tandem"
        flags = {word[2:].split("=")[0] for word in line[2:] if word.startswith("--")}
        assert flags <= options(line[1]), line


@built
@pytest.mark.parametrize("where", ["Dockerfile", "compose.yaml", "kubernetes"])
def test_variables_are_options_with_good_values(where, tmp_path):
    """The daemon comes to its model, which is not there: what it reads before that is good, and it warns of nothing."""
    env = {"Dockerfile": image_environment,
           "compose.yaml": lambda: {k: re.sub(r"\$\{\w+:-(.*)\}", r"\1", v) for k, v in documents("compose.yaml")[0]["services"]["tandem"]["environment"].items()},
           "kubernetes": lambda: {e["name"]: e.get("value", "default") for e in container()["env"]}}[where]()
    env = {k: v.replace("$(POD_NAMESPACE)", "default") for k, v in env.items() if k.startswith("TANDEM_")}
    assert env
    done = subprocess.run([BINARY, "serve", "--model", tmp_path / "nothing", "--port", "0", "--host", "127.0.0.1", "--data-dir", tmp_path],
                          env={"PATH": os.environ["PATH"], **env}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "the model could not be loaded" in done.stderr, done.stderr
    assert "level=warn" not in done.stderr


# ---- ports, paths, names ---------------------------------------------------------------------------------------------

def test_one_port_and_one_place_for_state():
    env, ports = image_environment(), {p["name"]: p["containerPort"] for p in container()["ports"]}
    port = int(env["TANDEM_PORT"])
    assert values_of("EXPOSE") == [str(port)] and ports == {"http": port}
    assert yaml.safe_load((ROOT / "conf/tandem.yaml").read_text())["port"] == port  # else a service link would change it
    tandem = documents("compose.yaml")[0]["services"]["tandem"]
    assert f"127.0.0.1:{port}:{port}" in tandem["ports"]
    notes = pod()["metadata"]["annotations"]
    assert notes["prometheus.io/port"] == str(port) and f'"{notes["prometheus.io/path"]}"' in (ROOT / "server/cli/serve_routes.c").read_text()
    state = env["TANDEM_DATA_DIR"]
    assert values_of("VOLUME") == [state]
    assert state in {m["mountPath"] for m in container()["volumeMounts"]} and any(v.split(":")[1] == state for v in tandem["volumes"])


def test_names_and_variables_of_the_pod():
    """No service links, the Service's names are known to the daemon, and $(NAME) is set before it is used."""
    assert pod()["spec"]["enableServiceLinks"] is False
    seen, env = set(), container()["env"]
    for e in env:
        assert set(re.findall(r"\$\((\w+)\)", e.get("value", ""))) <= seen
        seen.add(e["name"])
    service = next(d for d in manifests() if d["kind"] == "Service")["metadata"]["name"]
    allowed = next(e["value"] for e in env if e["name"] == "TANDEM_ALLOWED_HOSTS").split(",")
    assert f"{service}.$(POD_NAMESPACE)" in allowed
