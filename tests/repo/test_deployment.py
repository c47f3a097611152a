"""Dockerfile, compose.yaml and the Kubernetes manifests: fields that their schemas have, of the right types, and names, flags, ports
and paths that the daemon has."""
import copy
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import jsonschema
import msgspec
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from dockerfile_parse import DockerfileParser
from lightkube.models import apps_v1, autoscaling_v2, core_v1, networking_v1, policy_v1
from sources import ROOT

BUILD = Path(os.environ.get("TANDEM_BUILD_DIR", ROOT / "build"))
BINARY = BUILD / "server/tandem"
KINDS = {("apps/v1", "Deployment"): apps_v1.Deployment, ("v1", "Service"): core_v1.Service, ("policy/v1", "PodDisruptionBudget"): policy_v1.PodDisruptionBudget,
         ("networking.k8s.io/v1", "NetworkPolicy"): networking_v1.NetworkPolicy, ("autoscaling/v2", "HorizontalPodAutoscaler"): autoscaling_v2.HorizontalPodAutoscaler}
INSTRUCTIONS = {"FROM", "ARG", "ENV", "RUN", "COPY", "ADD", "WORKDIR", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD", "LABEL", "SHELL"}
built = pytest.mark.skipif(not BINARY.exists(), reason="not built")


def documents(name):
    return [d for d in yaml.safe_load_all((ROOT / name).read_text()) if d]


def manifests():
    listed = documents("conf/kubernetes/kustomization.yaml")[0]["resources"]
    return [d for name in listed for d in documents(f"conf/kubernetes/{name}")]


KUBERNETES = [ROOT / "conf/kubernetes", ROOT / "conf/kubernetes-gateway"]
KUBECTL = shutil.which("kubectl")
VALUES = ["prometheus-adapter.yaml"]  # of a Helm chart
CUSTOM = {(c["apiVersion"], c["kind"]): c["schema"] for c in json.loads((ROOT / "tests/repo/crd_schemas.json").read_text())}


def files():
    return [p for folder in KUBERNETES for p in sorted(folder.rglob("*.yaml"))]


def objects():
    """Every object in these folders, but patches."""
    names = [str(p.relative_to(ROOT)) for p in files() if p.name not in [*VALUES, "kustomization.yaml", "replicas.yaml"]]
    return [d for name in names for d in documents(name)]


def one(kind):
    found, = (d for d in objects() if d["kind"] == kind)
    return found


def merged(base, patch):
    """A strategic merge, as far as our patches need it: lists of objects by name."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {k: merged(base[k], patch[k]) if k in base and k in patch else base.get(k, patch.get(k)) for k in [*base, *(k for k in patch if k not in base)]}
    if isinstance(base, list) and isinstance(patch, list):
        new = {x["name"]: x for x in patch}
        return [merged(x, new.pop(x["name"])) if x["name"] in new else x for x in base] + list(new.values())
    return patch


def gateway_deployment():
    patch, = documents("conf/kubernetes-gateway/replicas.yaml")
    base = one("Deployment")
    assert (patch["kind"], patch["metadata"]["name"]) == (base["kind"], base["metadata"]["name"])
    return merged(base, patch)


def missing(doc, kept, path=""):
    """What the typed object does not have of the document: fields that there are none of."""
    if isinstance(doc, dict):
        return [x for k, v in doc.items() for x in (missing(v, kept[k], f"{path}.{k}") if isinstance(kept, dict) and k in kept else [f"{path}.{k}"])]
    if isinstance(doc, list):
        return [x for i, v in enumerate(doc) for x in missing(v, kept[i], f"{path}[{i}]")]
    return [] if doc == kept else [path]


def wrong_fields(doc):
    """Of a manifest: by the models that are generated from Kubernetes' OpenAPI description, or by crd_schemas.json."""
    name = doc["apiVersion"], doc["kind"]
    return wrong_values(doc, KINDS[name]) if name in KINDS else wrong_custom({"spec": doc["spec"]}, CUSTOM[name])


def wrong_values(value, type):
    try:
        typed = msgspec.convert(value, type, strict=True)
    except msgspec.ValidationError as e:
        return [str(e)]
    return missing(value, msgspec.to_builtins(typed))


def wrong_custom(value, schema):
    """jsonschema's errors, and those of the pods' templates in it."""
    return [e.message for e in jsonschema.Draft202012Validator(schema).iter_errors(value)] + \
        [x for template in templates(value, schema) for x in wrong_values(template, core_v1.PodTemplateSpec)]


def templates(value, schema):
    """Of pods, where the definition has one."""
    if schema.get("pod"):
        return [value]
    more = schema.get("additionalProperties")
    inside = [(v, schema.get("properties", {}).get(k, more)) for k, v in value.items()] if isinstance(value, dict) else []
    return [t for v, s in inside if isinstance(s, dict) for t in templates(v, s)]


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

@pytest.mark.parametrize("doc", [*objects(), gateway_deployment()], ids=lambda d: d["kind"])
def test_manifests_have_fields_that_exist(doc):
    assert wrong_fields(doc) == []


def test_every_manifest_belongs_to_something():
    """Resources and patches that a kustomization lists are there; what none lists is applied by itself, or is values of a chart."""
    listed = set()
    for path in (p for p in files() if p.name == "kustomization.yaml"):
        doc, = documents(path.relative_to(ROOT))
        named = [(path.parent / name).resolve() for name in [*doc["resources"], *(p["path"] for p in doc.get("patches", []))]]
        assert all(p.exists() for p in named)
        assert not any(path.is_relative_to(p) for p in named), "kustomize takes a folder that it is in for a cycle"
        listed |= set(named)
    alone = {p.name for p in files() if p.resolve() not in listed and p.name != "kustomization.yaml"}
    assert alone == {"tensor-parallel.yaml", "train.yaml", *VALUES}
    assert {d["kind"] for d in objects()} >= {kind for _, kind in CUSTOM}


@pytest.mark.skipif(not KUBECTL, reason="no kubectl")
@pytest.mark.parametrize("folder", KUBERNETES, ids=lambda p: p.name)
def test_kustomize_takes_these(folder):
    done = subprocess.run([KUBECTL, "kustomize", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = {d["kind"]: d for d in yaml.safe_load_all(done.stdout)}
    gateway = {"InferencePool", "HTTPRoute", "NetworkPolicy"} if folder.name == "kubernetes-gateway" else set()
    assert set(made) == {d["kind"] for d in manifests()} | gateway
    deployment = gateway_deployment() if gateway else one("Deployment")
    spec, ours = (d["spec"]["template"]["spec"]["containers"][0] for d in (made["Deployment"], deployment))
    for c in (spec, ours):
        c["ports"] = sorted(c["ports"], key=lambda p: p["name"])
        c["env"] = sorted(c["env"], key=lambda e: e["name"])
    assert spec == ours


@pytest.mark.parametrize("kind, place, value", [
    ("InferencePool", ("targetPorts", 0, "number"), "8080"), ("InferencePool", ("endpointPickerRef", "failureMode"), "Open"),
    ("InferencePool", ("selector", "matchLabel"), {}), ("HTTPRoute", ("rules", 0, "backendRefs", 0, "nam"), "x"),
    ("HTTPRoute", ("rules", 0, "matches", 0, "path", "type"), "Prefix"), ("HTTPRoute", ("rules", 0, "timeouts", "request"), "an hour"),
    ("LeaderWorkerSet", ("leaderWorkerTemplate", "size"), "2"), ("LeaderWorkerSet", ("leaderWorkerTemplate", "restartPolicy"), "Always"),
    ("LeaderWorkerSet", ("leaderWorkerTemplate", "workerTemplate", "spec", "containers", 0, "commnd"), []),
    ("LeaderWorkerSet", ("leaderWorkerTemplate", "leaderTemplate", "spec", "containers", 0, "ports", 0, "containerPort"), "8080"),
    ("MPIJob", ("mpiReplicaSpec",), {}), ("MPIJob", ("mpiReplicaSpecs", "Worker", "replicas"), "2"), ("MPIJob", ("slotsPerWorker",), 1.5),
    ("MPIJob", ("mpiReplicaSpecs", "Launcher", "template", "spec", "container"), []),
])
def test_a_wrong_custom_resource_is_found(kind, place, value):
    doc = copy.deepcopy(one(kind))
    at = doc["spec"]
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    assert len(wrong_fields(doc)) == 1


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


# ---- several replicas, several pods ------------------------------------------------------------------------------------

def container_of(template):
    found, = template["spec"]["containers"]
    return found


def ports(c):
    return {p["name"]: p["containerPort"] for p in c["ports"]}


def values(c):
    return {e["name"]: e["value"] for e in c.get("env", []) if "value" in e}


def fits(selector, labels):
    return selector.items() <= labels.items()


def group():
    """-> the templates of the leader and of the workers."""
    template = one("LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    return template["leaderTemplate"], template["workerTemplate"]


def test_the_gateway_finds_the_replicas():
    template = gateway_deployment()["spec"]["template"]
    pool, route, policy = one("InferencePool")["spec"], one("HTTPRoute")["spec"], one("NetworkPolicy")["spec"]
    has, labels = ports(container_of(template)), template["metadata"]["labels"]
    assert fits(pool["selector"]["matchLabels"], labels) and fits(policy["podSelector"]["matchLabels"], labels)
    assert [p["number"] for p in pool["targetPorts"]] == [has["http"]]
    assert [r["name"] for rule in route["rules"] for r in rule["backendRefs"]] == [one("InferencePool")["metadata"]["name"]]
    assert {p["port"] for rule in policy["ingress"] for p in rule["ports"]} == set(has)
    open_to_all = [p["port"] for rule in policy["ingress"] if "from" not in rule for p in rule["ports"]]
    assert open_to_all == ["http"]
    pickers = [peer["podSelector"]["matchLabels"] for rule in policy["ingress"] for peer in rule.get("from", [])]
    name = pool["endpointPickerRef"]["name"]
    assert pickers == [{"inferencepool": name}, {"llm-d-router-gateway": name}]  # the charts' selectorLabels


def test_the_replicas_tell_the_gateway():
    c = container_of(gateway_deployment()["spec"]["template"])
    has, set_to = ports(c), values(c)
    assert (set_to["TANDEM_KV_EVENTS"], set_to["TANDEM_KV_EVENTS_REPLAY"]) == (f"tcp://*:{has['kv-events']}", f"tcp://*:{has['kv-replay']}")
    address, model = set_to["TANDEM_KV_EVENTS_TOPIC"].split("@")[1:]
    assert address == f"$(POD_IP):{has['http']}" and model == "{model}"
    names = [e["name"] for e in c["env"]]
    assert names.index("POD_IP") < names.index("TANDEM_KV_EVENTS_TOPIC") and len(set(names)) == len(names)


@built
@pytest.mark.parametrize("which", ["gateway", "group"])
def test_variables_of_these_pods_are_options(which, tmp_path):
    env = values(container_of(gateway_deployment()["spec"]["template"] if which == "gateway" else group()[0]))
    env = {k: v for k, v in env.items() if k.startswith("TANDEM_")}
    # their ports may be another's here, and the module need not be built
    done = subprocess.run([BINARY, "serve", "--model", tmp_path / "nothing", "--port", "0", "--host", "127.0.0.1", "--data-dir", tmp_path, "--comm", "none",
                           "--kv-events", "", "--kv-events-replay", ""], env={"PATH": os.environ["PATH"], **env}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "the model could not be loaded" in done.stderr and "level=warn" not in done.stderr, done.stderr


def mpi_templates():
    job = {name: spec["template"] for name, spec in one("MPIJob")["spec"]["mpiReplicaSpecs"].items()}
    return {"leader": group()[0], "worker of a group": group()[1], **job}


@pytest.mark.parametrize("name, template", mpi_templates().items())
def test_ranks_find_each_other(name, template):
    """The image's user, its sshd, the port and the folder of keys are those of its configuration."""
    text = (ROOT / "Dockerfile").read_text().split("FROM run AS mpi")[1]
    user = int(re.search(r"useradd --uid (\d+)", text)[1])
    assert f"USER {user}:{user}" in text and template["spec"]["securityContext"]["runAsUser"] == user
    sshd, ssh = ((ROOT / "conf/mpi" / f).read_text() for f in ("sshd_config", "ssh_config"))
    port = re.search(r"^Port (\d+)$", sshd, re.M)[1]
    assert f"    Port {port}\n" in ssh
    keys = {os.path.dirname(path) for path in re.findall(r"(/home/\S+)", sshd + ssh)}
    c = container_of(template)
    if c["command"] == ["/usr/sbin/sshd"]:
        assert ports(c) == {"ssh": int(port)} and c["args"][-1] in text.split()
    else:
        assert c["command"][0] in ("mpirun", "tandem-group") and "tandem" in c["command"] + c["args"]
    if "group" in name or name == "leader":
        assert keys == {m["mountPath"] for m in c["volumeMounts"] if m["name"] == "ssh"}
    assert keys == {one("MPIJob")["spec"]["sshAuthMountPath"]}


def test_a_group_drains():
    leader, worker = group()
    c = container_of(leader)
    drains = int(values(c)["TANDEM_DRAIN_TIMEOUT"])
    stop = {"leader": c, "worker": container_of(worker)}
    waits = {name: int(x["lifecycle"]["preStop"]["exec"]["command"][1]) for name, x in stop.items()}
    assert waits["leader"] + drains < leader["spec"]["terminationGracePeriodSeconds"]
    assert waits["leader"] + drains < waits["worker"] < worker["spec"]["terminationGracePeriodSeconds"]


def test_clients_find_a_group():
    """By a Service that is not the one which the operator makes for the pods' names: that has the name of the LeaderWorkerSet."""
    leader, _ = group()
    services = [d for d in objects() if d["kind"] == "Service"]
    assert len([d for d in services if fits(d["spec"]["selector"], leader["metadata"]["labels"])]) == 1
    assert one("LeaderWorkerSet")["metadata"]["name"] not in [d["metadata"]["name"] for d in services]


@built
def test_a_job_has_as_many_ranks_as_workers():
    spec = one("MPIJob")["spec"]
    line = container_of(spec["mpiReplicaSpecs"]["Launcher"]["template"])["args"]
    assert int(line[line.index("-n") + 1]) == spec["slotsPerWorker"] * spec["mpiReplicaSpecs"]["Worker"]["replicas"]
    train = line[line.index("tandem") + 1:]
    assert {word[2:] for word in train if word.startswith("--")} <= options(train[0])
