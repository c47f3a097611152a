"""/metrics in full: everything the documentation lists and nothing else, devices, and vLLM's names for the same numbers."""
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from conftest import BUILD, DEMO, ROOT, wait_for
from prometheus_client.parser import text_string_to_metric_families
from training import submit, wait_over

PIRATE = ROOT / "models/demo-pirate"
FAKE = {"LD_LIBRARY_PATH": str(BUILD / "tests/http")}
WORDS = {"type": "regex", "value": "(yes|no)"}


def families(server):
    return {f.name: f for f in text_string_to_metric_families(server.get("/metrics").text)}


def value(server, name, **labels):
    for family in families(server).values():
        for s in family.samples:
            if s.name == name and all(s.labels.get(k) == v for k, v in labels.items()):
                return s.value
    return None


@pytest.fixture(scope="module")
def watched(start):
    """A daemon with two fake devices and vLLM's names, that has done a little of everything."""
    with start("--adapters", f"pirate={PIRATE}", "--metrics-aliases", "vllm", "--threads", "2", model=DEMO, env=FAKE) as s:
        s.generate(max_new_tokens=8)
        s.generate(max_new_tokens=8, adapter_id="pirate")
        for _ in range(2):
            s.generate(max_new_tokens=8, grammar=WORDS)
        assert s.post("/generate", {"inputs": "x", "parameters": {"grammar": {"type": "regex", "value": "("}}}).status_code == 422
        assert wait_over(s, submit(s, max_steps=2))["status"] == "succeeded"
        s.wait_idle()
        wait_for(lambda: value(s, "tandem_device_memory_used_bytes", device="0"), what="the devices")
        yield s
        assert s.process.poll() is None, s.log()[-4000:]
        s.wait_idle()


def documented():
    """{name: (type, labels)} of the tables in docs/operations.md."""
    text = (ROOT / "docs/operations.md").read_text().split("## Metrics", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `((?:tandem_|process_)[a-z0-9_]+)` \| (\w+) \| ([^|]*) \|", text, re.M)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def shown(server):
    """The same of what a daemon has."""
    got = {}
    for family in families(server).values():
        if family.name.startswith("vllm:"):
            continue
        labels = {k for s in family.samples for k in s.labels} - {"le"}
        name = family.name + ("_total" if family.type == "counter" else "")
        got[name] = (family.type, labels)
    return got


def test_the_documentation_lists_what_there_is(watched, start):
    got = shown(watched)
    with start("--device", "cpu", "--tensor-parallel", 2, model=DEMO) as divided:  # which has figures of its ranks, and cannot train
        divided.generate(max_new_tokens=8)
        got |= {name: of for name, of in shown(divided).items() if name.startswith(("tandem_comm_", "tandem_ranks"))}
    said = documented()
    assert {n: said.get(n) for n in got} == got
    assert set(said) - set(got) == set(), "documented, but not there"


def test_labels_are_bounded(watched):
    """Series before and after strangers have done their worst are the same."""
    def series():
        return {(s.name, tuple(sorted(s.labels.items()))) for f in families(watched).values() for s in f.samples
                if not s.name.startswith("vllm:lora")}
    watched.get("/nowhere-0")
    watched.get("/metrics")
    before = series()
    for i in range(20):
        watched.get(f"/nowhere-{i}", headers={"X-Request-Id": f"id-{i}"})
        watched.post("/generate", {"inputs": "x", "parameters": {"max_new_tokens": 1, "adapter_id": f"none-{i}"}})
    assert {n for n, _ in series() - before} <= {"tandem_requests_total"}  # /generate with 422
    assert len(series()) - len(before) <= 1


def test_times_of_a_request_add_up(watched):
    names = [f"tandem_{n}_seconds_sum" for n in ("queue_time", "prefill_time", "decode_time", "inference_time")]
    before = [value(watched, n) for n in names]
    watched.generate(max_new_tokens=20, ignore_eos=True)
    queue, prefill, decode, inference = (value(watched, n) - b for n, b in zip(names, before))
    assert queue >= 0 and prefill > 0 and decode > 0
    assert abs(prefill + decode - inference) < 1e-6


def test_steps(watched):
    before = {n: value(watched, n) for n in ("tandem_steps_total", "tandem_step_tokens_sum", "tandem_step_sequences_sum",
                                             "tandem_decode_tokens_total", "tandem_step_duration_seconds_count")}
    answer = watched.generate("Once upon a time there was nobody who had ever said this", max_new_tokens=9, ignore_eos=True, details=True,
                              decoder_input_details=True)
    prompt = len(answer["details"]["prefill"])
    watched.wait_idle()
    grown = {n: value(watched, n) - b for n, b in before.items()}
    assert grown["tandem_steps_total"] == grown["tandem_step_duration_seconds_count"] == grown["tandem_step_sequences_sum"] == 9
    assert grown["tandem_step_tokens_sum"] == prompt + 8
    assert grown["tandem_decode_tokens_total"] == 8
    assert value(watched, "tandem_step_running_seconds") == 0 and value(watched, "tandem_oldest_waiting_seconds") == 0


def test_constraints_are_counted(watched):
    assert value(watched, "tandem_constraint_compile_seconds_count") == 2
    assert value(watched, "tandem_constraint_cache_hits_total") == 1
    assert value(watched, "tandem_constraint_errors_total") == 1


def test_memory(watched):
    info = watched.get("/info").json()
    parts = {s.labels["part"]: s.value for s in families(watched)["tandem_memory_bytes"].samples}
    assert parts["weights"] == info["weight_bytes"] and parts["kv_cache"] == info["kv_bytes"]
    assert parts["workspace"] > 4 * info["max_seqs"] * info["vocab_size"] and parts["adapters"] > 0
    resident = sum(s.value for s in families(watched)["tandem_resident_memory_bytes"].samples)
    assert resident == pytest.approx(value(watched, "process_resident_memory_bytes"), rel=0.1)
    assert resident < value(watched, "tandem_memory_limit_bytes")


def test_startup(watched):
    phases = {s.labels["phase"]: s.value for s in families(watched)["tandem_startup_seconds"].samples}
    assert set(phases) == {"listen", "template", "weights", "tokenizer", "memory", "adapters", "ready"}
    assert sum(v for k, v in phases.items() if k != "ready") <= phases["ready"] < 60
    assert phases["weights"] + phases["tokenizer"] + phases["memory"] == pytest.approx(value(watched, "tandem_model_load_seconds"), abs=1e-3)


def test_duration_by_route(watched):
    n = value(watched, "tandem_http_request_duration_seconds_count", route="/health") or 0
    watched.get("/health")
    assert value(watched, "tandem_http_request_duration_seconds_count", route="/health") == n + 1


@pytest.fixture(scope="module")
def slow(start):
    """A device on which a text of some hundred tokens takes seconds."""
    with start("--adapters", f"pirate={PIRATE}", "--metrics-aliases", "vllm", "--device", "ref", "--max-seqs", "1", model=DEMO) as s:
        yield s
        assert s.process.poll() is None, s.log()[-4000:]
        s.wait_idle()


def long_stream(server, **parameters):
    """Its head has come; an iterator over its lines that is dropped would close it."""
    return requests.post(server.url + "/generate_stream", stream=True, timeout=300,
                         json={"inputs": "Once", "parameters": {"max_new_tokens": 450, "ignore_eos": True, **parameters}})


def test_clients_that_leave_are_counted(slow):
    before = value(slow, "tandem_requests_aborted_total", reason="client")
    long_stream(slow).close()
    wait_for(lambda: value(slow, "tandem_requests_aborted_total", reason="client") == before + 1, what="the client is missed")


# ---- devices ---------------------------------------------------------------------------------------------------------

def test_devices(watched):
    got = families(watched)
    assert [s.labels for s in got["tandem_device_info"].samples] == [
        {"device": str(i), "name": f'NVIDIA "Fake" {i}', "uuid": f"GPU-00000000-0000-0000-0000-00000000000{i}"} for i in range(2)]
    assert [s.value for s in got["tandem_device_memory_total_bytes"].samples] == [80 << 30] * 2
    assert [s.value for s in got["tandem_device_memory_used_bytes"].samples] == [40 << 30, 41 << 30]
    # the second has none: a series that is missing is better than one that lies
    assert [(s.labels["device"], s.value) for s in got["tandem_device_utilization_ratio"].samples] == [("0", 0.87)]
    assert [s.value for s in got["tandem_device_power_watts"].samples] == [345.678]
    assert [s.value for s in got["tandem_device_temperature_celsius"].samples] == [64]


@pytest.mark.parametrize("how", ["init", "none", "lost", "slow"])
def test_devices_that_fail(start, how):
    """The daemon serves, and /metrics answers, whatever the driver does."""
    with start("--threads", "1", env={**FAKE, "FAKE_NVML": how}) as s:
        text = s.get("/metrics").text
        assert "tandem_ready 1" in text
        s.generate(max_new_tokens=2)
        if how == "slow":  # the scrape waits for the sample, nobody else does
            def sampled():
                begin = time.monotonic()
                text = s.get("/metrics").text
                return time.monotonic() - begin > 1 and "tandem_device_memory_used_bytes" in text
            wait_for(sampled, what="a sample")
        else:
            assert "tandem_device" not in s.get("/metrics").text


def test_a_driver_that_does_not_let_go(start):
    """The end of the daemon does not wait for it."""
    with start("--threads", "1", env={**FAKE, "FAKE_NVML": "stuck"}) as s:
        wait_for(lambda: "tandem_device_memory_used_bytes" in s.get("/metrics").text, what="devices")
        s.signal(signal.SIGTERM)
        assert s.process.wait(300) == 0


# ---- vLLM's names ----------------------------------------------------------------------------------------------------

VLLM = {
    "gauge": ["num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc", "lora_requests_info",
              "cache_config_info"],
    "counter": ["prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "prompt_tokens", "generation_tokens", "request_success",
                "prompt_tokens_cached"],
    "histogram": ["time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds",
                  "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
                  "request_inference_time_seconds", "request_prompt_tokens", "request_generation_tokens", "request_params_max_tokens",
                  "request_params_n"],
}


def test_vllm_names_and_types(watched):
    got = families(watched)
    for kind, names in VLLM.items():
        for name in names:
            family = got["vllm:" + name]
            assert family.type == kind, name
            for s in family.samples:
                if "lora" not in name:
                    assert s.labels["model_name"] == DEMO.name and s.labels["engine"] == "0"
    # its name ends like a counter's, so the parser calls its family what it likes
    assert value(watched, "vllm:iteration_tokens_total_count") == value(watched, "tandem_steps_total")


def test_vllm_means_the_same(watched):
    pairs = {"vllm:prompt_tokens_total": "tandem_prompt_tokens_total", "vllm:generation_tokens_total": "tandem_generated_tokens_total",
             "vllm:prefix_cache_queries_total": "tandem_prefix_query_tokens_total", "vllm:prefix_cache_hits_total": "tandem_prefix_hit_tokens_total",
             "vllm:kv_cache_usage_perc": "tandem_kv_usage_ratio", "vllm:num_requests_running": "tandem_requests_running",
             "vllm:request_queue_time_seconds_sum": "tandem_queue_time_seconds_sum"}
    for theirs, ours in pairs.items():
        assert value(watched, theirs) == value(watched, ours), theirs
    ended = {s.labels["finished_reason"]: s.value for s in families(watched)["vllm:request_success"].samples}
    assert set(ended) == {"stop", "length", "abort", "error", "repetition"} and ended["length"] > 0
    info = watched.get("/info").json()
    config = families(watched)["vllm:cache_config_info"].samples[0]
    assert config.value == 1
    assert (config.labels["block_size"], config.labels["num_gpu_blocks"]) == (str(info["page_tokens"]), str(info["kv_pages"]))


def lora(server, running, waiting):
    """The sample, once it names these adapters."""
    def named():
        s = families(server)["vllm:lora_requests_info"].samples[0]
        return s if (s.labels["running_lora_adapters"], s.labels["waiting_lora_adapters"]) == (running, waiting) else None
    return wait_for(named, what=f"{running} running, {waiting} waiting")


def test_vllm_lora_in_use(slow):
    """As an endpoint picker reads it: which adapters run, which wait, when that was."""
    slow.wait_idle()
    quiet = lora(slow, "", "")
    assert set(quiet.labels) == {"max_lora", "running_lora_adapters", "waiting_lora_adapters"} and quiet.labels["max_lora"] == "64"
    assert abs(quiet.value - time.time()) < 600
    with ThreadPoolExecutor(1) as pool:
        with long_stream(slow, adapter_id="pirate"):
            busy = lora(slow, "pirate", "")
            second = pool.submit(slow.post, "/generate", {"inputs": "x", "parameters": {"max_new_tokens": 1, "adapter_id": "pirate"}})
            lora(slow, "pirate", "pirate")  # there is one place: the second waits
        assert second.result().status_code == 200
    assert busy.value >= quiet.value


def test_no_aliases_unless_asked_for(server):
    assert "vllm:" not in server.get("/metrics").text
