"""Fine-tuning from the outside: small data sets, jobs to wait for, streams to read."""
import json
import time

import requests
from conftest import wait_for

OVER = ("succeeded", "failed", "cancelled")
NAMES = ["Tom", "Lily", "Ben", "Amy", "Sam", "Mia", "Max", "Sue"]
THINGS = ["a red ball", "an old boat", "the big dog", "a small cake", "her blue hat", "the tall tree"]


def rows(n=24):
    """Short rows of prompt and completion, all different."""
    return [{"prompt": f"{NAMES[i % 8]} saw {THINGS[i % 6]}.", "completion": f" Arr, said {NAMES[(i + 1) % 8]}, number {i} be mine!"}
            for i in range(n)]


def jsonl(n=24):
    return "".join(json.dumps(r) + "\n" for r in rows(n))


def request(serve_as=None, n=24, dataset=None, **hyper):
    """A POST /train body that takes a moment: max_steps optimizer steps, however few rows there are."""
    small = {"max_steps": 6, "epochs": 1000, "batch_tokens": 128, "max_length": 64, "lora_r": 4, "lora_alpha": 8, "seed": 7}
    body = {"dataset": dataset or {"rows": rows(n)}, "hyperparameters": {**small, **hyper}}
    return {**body, "serve_as": serve_as} if serve_as else body


def submit(server, *args, **kw):
    answer = server.post("/train", request(*args, **kw))
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


def job(server, job_id):
    answer = server.get(f"/train/{job_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def wait_over(server, job_id, seconds=90, states=OVER):
    def over():
        found = job(server, job_id)
        return found if found["status"] in states else None
    return wait_for(over, seconds, f"{job_id} in {states}")


def wait_step(server, job_id, step=1, seconds=60):
    return wait_for(lambda: job(server, job_id)["step"] >= step or job(server, job_id)["status"] in OVER, seconds, f"step {step}")


def events(server, job_id, after=None):
    """All events by paging through the list."""
    out, last = [], after or 0
    while True:
        page = server.get(f"/train/{job_id}/events?after={last}&limit=500").json()
        out += page["data"]
        if not page["has_more"]:
            return out
        last = out[-1]["id"]


def stream(server, job_id, last=None, seconds=90):
    """The events of the SSE stream, as (id, type, data), until it ends."""
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": str(last)} if last is not None else {})}
    with requests.get(f"{server.url}/train/{job_id}/events", headers=headers, stream=True, timeout=seconds) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream"), answer.text
        fields = {}
        for line in answer.iter_lines(decode_unicode=True):
            if line.startswith(":"):
                continue
            if line:
                key, _, value = line.partition(": ")
                fields[key] = value
            elif fields:
                yield int(fields["id"]), fields["event"], json.loads(fields["data"])
                fields = {}


def sleep_until_idle(server):
    wait_for(lambda: not any(j["status"] in ("queued", "running") for j in server.get("/train").json()["data"]), 90, "no job runs")
    time.sleep(0.01)
