"""Writes crd_schemas.json: of the custom resources in conf/kubernetes*, what their definitions say about the fields that are
used there. A field that is used for the first time needs it to be run again.

    python tests/repo/make_crd_schemas.py CLONES

CLONES: a folder with clones of the repositories in SOURCES, each with the tag that is named there."""
import json
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/repo/crd_schemas.json"
SOURCES = {  # apiVersion, kind: repository, tag, file
    ("inference.networking.k8s.io/v1", "InferencePool"):
        ("kubernetes-sigs/gateway-api-inference-extension", "v1.6.0", "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"):
        ("kubernetes-sigs/gateway-api", "v1.6.1", "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"):
        ("kubernetes-sigs/lws", "v0.10.0", "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"),
    ("kubeflow.org/v2beta1", "MPIJob"): ("kubeflow/mpi-operator", "v0.8.0", "manifests/base/kubeflow.org_mpijobs.yaml"),
}
# of a value; not kept are texts, rules in CEL and lists of alternatives
KEPT = ("type", "enum", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "pattern")


def is_pod(schema):
    """A template of pods: Kubernetes' own, which tests read by Kubernetes' description."""
    return "containers" in schema.get("properties", {}).get("spec", {}).get("properties", {})


def used(schema, docs):
    """The schema of the fields that the documents have."""
    if is_pod(schema):
        return {"pod": True}
    out = {key: schema[key] for key in KEPT if key in schema}
    fields = {name for doc in docs if isinstance(doc, dict) for name in doc}
    if "properties" in schema:
        missing = fields - set(schema["properties"])
        assert not missing, f"there are no fields {missing}"
        out["properties"] = {name: used(schema["properties"][name], [doc[name] for doc in docs if name in doc]) for name in sorted(fields)}
        out["required"] = sorted(schema.get("required", []))
        out["additionalProperties"] = False
    elif isinstance(schema.get("additionalProperties"), dict):
        out["additionalProperties"] = used(schema["additionalProperties"], [v for doc in docs for v in doc.values()])
    if "items" in schema:
        out["items"] = used(schema["items"], [item for doc in docs for item in doc])
    return out


def schema_of(clones, repository, tag, path, api):
    folder = clones / repository.split("/")[1]
    text = subprocess.run(["git", "-C", folder, "show", f"{tag}:{path}"], capture_output=True, check=True, text=True).stdout
    version, = (v for v in yaml.safe_load(text)["spec"]["versions"] if v["name"] == api.split("/")[1])
    return version["schema"]["openAPIV3Schema"]


def main(clones):
    docs = [d for path in sorted((ROOT / "conf").glob("kubernetes*/*.yaml")) for d in yaml.safe_load_all(path.read_text()) if d]
    out = []
    for (api, kind), (repository, tag, path) in SOURCES.items():
        mine = [{k: v for k, v in d.items() if k == "spec"} for d in docs if (d.get("apiVersion"), d.get("kind")) == (api, kind)]
        schema = used(schema_of(clones, repository, tag, path, api), mine)
        out.append({"apiVersion": api, "kind": kind, "source": f"https://github.com/{repository}/blob/{tag}/{path}", "schema": schema})
    OUT.write_text(json.dumps(out, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
