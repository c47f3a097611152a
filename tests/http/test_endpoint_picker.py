"""/metrics and the OpenAI routes as an endpoint picker of the Gateway API inference extension uses them: the model server
protocol (its docs/proposals/003-model-server-protocol), by the rules of the reference picker (llm-d-inference-scheduler 0.8,
core-metrics-extractor): which families it wants, how it chooses among series, how it reads labels."""
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from conftest import DEMO, PATIENCE, ROOT, wait_for
from prometheus_client.parser import text_string_to_metric_families

SPEC = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?")
# the picker's own for servers that are not labelled; what docs/fleet.md says for those that have no aliases
VLLM = {"queued": "vllm:num_requests_waiting", "running": "vllm:num_requests_running", "kv": "vllm:kv_cache_usage_perc",
        "lora": "vllm:lora_requests_info", "cache": "vllm:cache_config_info"}
OWN = {"queued": "tandem_requests_waiting", "running": "tandem_requests_running", "kv": "tandem_kv_usage_ratio", "block": "tandem_kv_page_tokens",
       "blocks": "tandem_kv_pages"}
HEADERS = {"x-gateway-destination-endpoint": "10.0.0.1:8080", "x-gateway-destination-endpoint-subset": "10.0.0.1:8080",
           "x-gateway-inference-objective": "chat", "x-gateway-model-name-rewrite": "pirate", "x-forwarded-proto": "http",
           "x-envoy-expected-rq-timeout-ms": "15000", "x-request-id": "from-the-gateway"}


def parse(spec):
    """name{label=value,...}, where quotes around values may be left out -> name, {label: value}"""
    name, labels = SPEC.fullmatch(spec).groups()
    pairs = [pair.split("=", 1) for pair in (labels or "").split(",") if pair]
    return name, {k.strip(): v.strip().strip('"') for k, v in pairs}


def chosen(families, spec, by_value=False):
    """Of the series with these labels the newest: by its timestamp, of adapters by its value.  Of equal ones the first."""
    name, labels = parse(spec)
    family = families[name]
    assert family.type == "gauge"
    fit = [s for s in family.samples if all(s.labels.get(k) == v for k, v in labels.items())]
    return max(fit, key=lambda s: s.value if by_value else s.timestamp or 0)


def names(text):
    return {name.strip() for name in text.split(",") if name.strip()}


def picture(server, specs):
    """What the picker knows of the server after a scrape."""
    answer = server.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
    families = {f.name: f for f in text_string_to_metric_families(answer.text)}
    seen = {key: chosen(families, specs[key]).value for key in ("queued", "running", "kv")}
    if "lora" in specs:
        lora = chosen(families, specs["lora"], by_value=True)
        seen.update(active=names(lora.labels["running_lora_adapters"]), waiting=names(lora.labels["waiting_lora_adapters"]),
                    most=int(lora.labels["max_lora"]))
    if "block" in specs:
        seen.update({key: chosen(families, specs[key]).value for key in ("block", "blocks")})
    if "cache" in specs:
        cache = chosen(families, specs["cache"])
        seen.update(block=int(cache.labels["block_size"]), blocks=int(cache.labels["num_gpu_blocks"]))
    return seen


@pytest.fixture(scope="module")
def slow(start):
    """Two places, and a text of some hundred tokens takes seconds."""
    pirate = ROOT / "models/demo-pirate"
    with start("--adapters", f"pirate={pirate},captain={pirate}", "--metrics-aliases", "vllm", "--device", "ref", "--max-seqs", "2",
               "--max-adapters", "7", "--chat-template", "plain", model=DEMO) as s:
        yield s


def test_specs_are_read_as_the_picker_reads_them():
    assert parse('a:b{x=1, y="two"}') == ("a:b", {"x": "1", "y": "two"}) and parse("a") == ("a", {})


@pytest.mark.parametrize("specs", [VLLM, OWN], ids=["aliases", "own names"])
def test_idle(slow, specs):
    slow.wait_idle()
    seen = picture(slow, specs)
    assert (seen["queued"], seen["running"], seen["kv"]) == (0, 0, 0)
    info = slow.get("/info").json()
    assert (seen["block"], seen["blocks"]) == (info["page_tokens"], info["kv_pages"])
    if specs is VLLM:
        assert (seen["active"], seen["waiting"], seen["most"]) == (set(), set(), 7)


def test_under_load(slow):
    """Two run, of the base model and of an adapter; two wait, both of another adapter."""
    def ask(model):
        body = {"model": model, "prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}
        return requests.post(slow.url + "/v1/completions", json=body, stream=True, timeout=PATIENCE, headers=HEADERS)

    def seen(**said):
        """A scrape with this; counts and adapters are not of the same moment."""
        return wait_for(lambda: (s := picture(slow, VLLM)) | said == s and s, what=str(said))

    with ask(DEMO.name) as one, ask("pirate") as two, ThreadPoolExecutor(2) as pool:
        assert one.status_code == two.status_code == 200
        seen(running=2, queued=0, active={"pirate"}, waiting=set())
        others = [pool.submit(ask, "captain") for _ in range(2)]
        full = seen(running=2, queued=2, active={"pirate"}, waiting={"captain"})
        own = picture(slow, OWN)
        assert (own["queued"], own["running"]) == (2, 2) and 0 < own["kv"] <= 1 and 0 < full["kv"] <= 1
        one.close()
        two.close()
        seen(running=2, queued=0, active={"captain"}, waiting=set())
        for other in others:
            other.result().close()
    slow.wait_idle()


def test_an_adapter_is_a_model(slow):
    """As the picker's models-data-source and its clients see it: an id with a parent, named in `model`, on both routes."""
    listed = {m["id"]: m.get("parent") for m in slow.get("/v1/models").json()["data"]}
    assert listed["pirate"] == listed["captain"] == DEMO.name and not listed[DEMO.name]
    chat = {"model": "pirate", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    text = {"model": "pirate", "prompt": "Hello", "max_tokens": 2}
    for path, body in (("/v1/chat/completions", chat), ("/v1/completions", text)):
        answer = slow.post(path, body, headers=HEADERS)
        assert answer.status_code == 200 and answer.json()["model"] == "pirate", answer.text
        assert answer.headers["x-request-id"] == "from-the-gateway"
        assert slow.post(path, body | {"model": "nobody"}, headers=HEADERS).status_code == 404
