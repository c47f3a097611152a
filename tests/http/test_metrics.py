"""/metrics: it parses, it keeps the conventions, and it counts what happened."""
import re
import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sse import stream

EXPECTED = {
    "counter": ["tandem_requests", "tandem_requests_finished", "tandem_requests_rejected", "tandem_prompt_tokens", "tandem_generated_tokens",
                "tandem_prefix_query_tokens", "tandem_prefix_hit_tokens", "tandem_preemptions", "tandem_steps", "process_cpu_seconds",
                "tandem_connections_accepted"],
    "gauge": ["tandem_requests_running", "tandem_requests_waiting", "tandem_requests_paused", "tandem_kv_pages", "tandem_kv_pages_used",
              "tandem_kv_pages_cached", "tandem_kv_usage_ratio", "tandem_connections", "tandem_build_info", "tandem_ready", "tandem_model_info",
              "process_resident_memory_bytes", "process_open_fds", "process_start_time_seconds"],
    "histogram": ["tandem_time_to_first_token_seconds", "tandem_inter_token_latency_seconds", "tandem_e2e_request_latency_seconds",
                  "tandem_queue_time_seconds", "tandem_request_prompt_tokens", "tandem_request_generated_tokens"],
}


def families(server):
    return {f.name: f for f in text_string_to_metric_families(server.get("/metrics").text)}


@pytest.mark.smoke
def test_parses_and_is_complete(server):
    answer = server.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    got = families(server)
    for kind, names in EXPECTED.items():
        for name in names:
            assert name in got and got[name].type == kind, name
            assert got[name].documentation


def test_conventions(server):
    for name, family in families(server).items():
        assert re.fullmatch(r"(tandem|process)_[a-z0-9_]+", name)
        for sample in family.samples:
            if family.type == "counter":
                assert sample.name.endswith("_total")
            assert not any(unit in name for unit in ("_ms", "milli", "_percent", "_kb"))


def test_histograms_are_cumulative(server):
    server.generate(max_new_tokens=5)
    for name in EXPECTED["histogram"]:
        samples = families(server)[name].samples
        buckets = [(float(s.labels["le"]), s.value) for s in samples if s.name == name + "_bucket"]
        assert buckets == sorted(buckets) and buckets[-1][0] == float("inf")
        assert [v for _, v in buckets] == sorted(v for _, v in buckets)
        total = next(s.value for s in samples if s.name == name + "_count")
        assert total == buckets[-1][1] > 0


def test_promtool(server):
    tool = shutil.which("promtool")
    if not tool:
        pytest.skip("no promtool")
    got = subprocess.run([tool, "check", "metrics"], input=server.get("/metrics").content, capture_output=True, timeout=300)
    assert got.returncode == 0 and not got.stderr, got.stderr.decode()


def test_counts(server):
    names = ["tandem_generated_tokens_total", "tandem_time_to_first_token_seconds_count", "tandem_inter_token_latency_seconds_count",
             "tandem_e2e_request_latency_seconds_count", "tandem_request_generated_tokens_sum"]
    before = {n: server.metric(n) for n in names}
    length = server.metric("tandem_requests_finished_total", reason="length")
    routed = server.metric("tandem_requests_total", route="/generate", status="200")
    stop = server.metric("tandem_requests_finished_total", reason="stop_sequence")
    server.generate(max_new_tokens=7)
    word = server.generate(max_new_tokens=7)["generated_text"].split()[0]
    stream(server, max_new_tokens=3)
    server.generate(max_new_tokens=7, stop=[word])
    server.wait_idle()
    grown = {n: server.metric(n) - before[n] for n in names}
    assert grown["tandem_time_to_first_token_seconds_count"] == 4
    assert grown["tandem_e2e_request_latency_seconds_count"] == 4
    assert grown["tandem_generated_tokens_total"] == grown["tandem_request_generated_tokens_sum"]
    assert grown["tandem_inter_token_latency_seconds_count"] == grown["tandem_generated_tokens_total"] - 4
    assert server.metric("tandem_requests_finished_total", reason="length") == length + 3
    assert server.metric("tandem_requests_finished_total", reason="stop_sequence") == stop + 1
    assert server.metric("tandem_requests_total", route="/generate", status="200") == routed + 3


def test_prefix_hits_are_counted(server):
    text = "The prefix cache remembers what it has seen, page by page, until it needs the room. " * 3
    first = server.post("/generate", {"inputs": text, "parameters": {"max_new_tokens": 2}})
    hits = server.metric("tandem_prefix_hit_tokens_total")
    second = server.post("/generate", {"inputs": text, "parameters": {"max_new_tokens": 2}})
    assert first.json() == second.json()
    assert int(second.headers["x-cached-tokens"]) > 0
    assert server.metric("tandem_prefix_hit_tokens_total") == hits + int(second.headers["x-cached-tokens"])


def test_memory_of_metrics_is_fixed(server):
    """Paths that nobody serves do not make new series."""
    server.get("/one"), server.get("/two")
    text = server.get("/metrics").text
    assert "/one" not in text and text.count('route="other"') >= 1
