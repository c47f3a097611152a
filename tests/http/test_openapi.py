"""Schemathesis over docs/openapi.yaml, against the daemon with the demo model: requests that fit the description and requests
that do not get no 5xx, no status, header or type of content that the description lacks, and bodies of the form it says.

The daemon has API keys and is asked with an administrator's; test_keys.py asks without. What is asked for is kept small (few
tokens, two steps of training), and every other id is one that exists."""
import random
import zlib

import pytest
import schemathesis
import yaml
from conftest import DEMO, ROOT, wait_for
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (content_type_conformance, response_headers_conformance, response_schema_conformance,
                                               status_code_conformance)
from keys import bearer, new_key
from training import jsonl, request, wait_over

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance, response_schema_conformance]
EXAMPLES = 10
SPEC = yaml.safe_load((ROOT / "docs/openapi.yaml").read_text())
EXAMPLE_FILE = SPEC["paths"]["/console/{file}"]["parameters"][0]["schema"]["examples"][0]

schema = schemathesis.openapi.from_path(ROOT / "docs/openapi.yaml")
schema.config.phases.coverage.unexpected_methods = {"put", "patch", "delete"}  # 405; one that no server knows is 501, rightly


class Daemon:
    """The daemon and the ids of things that are there."""

    def __init__(self, server, key):
        self.server, self.key = server, key
        self.file = self.upload()
        job = server.post("/train", request("known", max_steps=3)).json()
        assert wait_over(server, job["id"])["status"] == "succeeded"
        self.job, self.adapter = job["id"], "known"

        self.lines = self.upload("batch", '{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "max_tokens": 2}}')
        self.batch = server.post("/v1/batches", {"input_file_id": self.lines, "endpoint": "/v1/completions", "completion_window": "24h"}).json()["id"]

        self.evaluation = server.post("/evaluate", {"dataset": [{"text": "Once upon a time"}]}).json()["id"]

    def upload(self, purpose="fine-tune", content=jsonl(8)):
        import requests
        return requests.post(self.server.url + "/v1/files", files={"file": ("rows.jsonl", content)}, data={"purpose": purpose},
                             headers=bearer(self.key), timeout=300).json()["id"]

    def finished_job(self):
        """One that may be deleted."""
        job = self.server.post("/train", request(max_steps=1)).json()["id"]
        self.server.post(f"/train/{job}/cancel", None)
        return wait_over(self.server, job)["id"]

    def finished_evaluation(self):
        one = self.server.post("/evaluate", {"dataset": [{"text": "Once"}], "resamples": 0}).json()["id"]
        return wait_for(lambda: self.server.get(f"/evaluate/{one}").json()["finished_at"] and one, 60, "its end")

    def answered(self):
        """The id of an answer that nothing was said of."""
        return self.server.post("/v1/completions", {"prompt": "Once", "max_tokens": 2, "n": 2}).json()["id"]

    def known(self, method, path):
        if path.startswith("/feedback/"):
            self.server.post("/feedback", {"id": self.answered(), "rating": "up"})
            return "demo/default"
        if path.startswith("/v1/models/"):
            return "demo"
        if path.startswith("/console/"):
            return EXAMPLE_FILE
        if "/batches/" in path:
            return self.batch
        if "/files/" in path:
            return self.upload() if method == "DELETE" else self.file
        if path.startswith("/evaluate/"):
            return self.finished_evaluation() if method == "DELETE" else self.evaluation
        if path.startswith("/train/"):
            return self.finished_job() if method == "DELETE" else self.job
        return "f" + "t" + self.job if "/fine_tuning/" in path else self.adapter


@pytest.fixture(scope="module")
def daemon(start, tmp_path_factory):
    file = tmp_path_factory.mktemp("keys") / "keys"
    key = new_key(file, "tester", "admin")
    before = (ROOT / "tandem-data").exists()
    with start("--threads", "2", "--max-seqs", "16", "--max-total-tokens", "96", "--chat-template", "plain", "--feedback", "--api-keys", file, model=DEMO, key=key) as s:
        yield Daemon(s, key)
        assert s.process.poll() is None, s.log()[-4000:]
        s.wait_idle()
    assert (ROOT / "tandem-data").exists() == before


def little(body, name, most):
    """At most so many of what the body asks for; what is no number stays."""
    if name not in body or body[name] is None or (isinstance(body[name], (int, float)) and body[name] > most):
        body[name] = most


def unhurried(case, body):
    """A deadline that is one is far away: a daemon that has no time left says 504, which is no fault of its own."""
    for fields in (body, body.get("parameters")):
        if isinstance(fields, dict) and isinstance(fields.get("timeout_ms"), int) and 0 < fields["timeout_ms"] < 60000:
            fields["timeout_ms"] = 60000
    if case.headers and str(case.headers.get("X-Request-Timeout", "")).isdigit():
        case.headers["X-Request-Timeout"] = str(max(60000, int(case.headers["X-Request-Timeout"])))


def tame(case, daemon):
    body = case.body if isinstance(case.body, dict) else {}
    unhurried(case, body)
    chosen = random.Random(zlib.crc32(repr((case.path_parameters, case.body, case.query)).encode()))
    if chosen.random() < 0.9:  # a key that comes again is a conflict, and nothing else is looked at
        (case.headers or {}).pop("Idempotency-Key", None)
    if case.path_parameters and chosen.random() < 0.5:
        for name in case.path_parameters:
            case.path_parameters[name] = daemon.known(case.method, case.operation.path)
    if case.operation.path in ("/generate", "/generate_stream", "/"):
        if isinstance(body.setdefault("parameters", {}), dict):
            little(body["parameters"], "max_new_tokens", 4)
    if case.operation.path == "/v1/messages":
        little(body, "max_tokens", 4)
    if case.operation.path == "/v1/responses":
        little(body, "max_output_tokens", 4)
    if case.operation.path in ("/v1/completions", "/v1/chat/completions"):
        little(body, "max_tokens", 4)
        for name in ("n", "best_of", "max_completion_tokens"):
            if name in body:
                little(body, name, 2)
    if case.operation.path == "/inference/v1/generate" and isinstance(body.get("sampling_params") or {}, dict):
        body["sampling_params"] = body.get("sampling_params") or {}
        little(body["sampling_params"], "max_tokens", 4)
        if "n" in body["sampling_params"]:
            little(body["sampling_params"], "n", 2)
    if case.operation.path in ("/train", "/train/validate") and case.method == "POST" and chosen.random() < 0.02:
        case.body = body = request(n=4, max_steps=1)  # hardly anything drawn is data that can be trained on
    if case.operation.path in ("/train", "/v1/fine_tuning/jobs") and case.method == "POST":
        if isinstance(body.setdefault("hyperparameters", {}), dict):
            little(body["hyperparameters"], "max_steps", 2)
        if "training_file" in body and chosen.random() < 0.5:
            body["training_file"] = daemon.file
    if case.operation.path == "/feedback" and case.method == "POST" and chosen.random() < 0.8:
        body["id"] = daemon.answered()
        body.pop("choice", None) if chosen.random() < 0.5 else None
    if "input_file_id" in body and chosen.random() < 0.5:
        body["input_file_id"] = daemon.lines
    if case.operation.path == "/debug/trace" and str((case.query or {}).get("seconds", "1")) not in ("0", "31"):
        case.query = {"seconds": 1}
    if isinstance(body.get("model"), str) and chosen.random() < 0.75:
        body["model"] = "demo"


@pytest.mark.full
@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate],
          suppress_health_check=list(HealthCheck))
def test_as_described(case, daemon):
    tame(case, daemon)
    response = case.call(base_url=daemon.server.url, timeout=300, headers=bearer(daemon.key))
    assert response.status_code not in (401, 403)
    case.validate_response(response, checks=CHECKS)
