"""The load generator against the real daemon: the protocols, clients that leave, read slowly or ask nonsense, training beside."""
import json
import subprocess
import sys

import pytest
from load_rig import BUILD, QUIET, ROOT, at_some_pace, outcomes, run_load

from conftest import server, shared, start  # noqa: F401  fixtures

TEMPLATE = ["--chat-template", "plain"]


@pytest.fixture(scope="module")
def daemon(start):  # noqa: F811
    with start(*TEMPLATE, "--max-seqs", 8, "--max-queue", 64) as s:
        yield s


@pytest.mark.smoke
@pytest.mark.parametrize("api", ["openai", "openai-chat", "tgi"])
def test_every_protocol_counts_what_the_daemon_counts(daemon, tmp_path, api):
    before = daemon.metric("tandem_generated_tokens_total")
    run = run_load(tmp_path, daemon.url, "--api", api, "--rate", 100, "--requests", 12, "--prompt-tokens", "5-20", "--output-tokens", "3-9",
                   "--metrics-every", 0.05)["runs"][0]
    assert outcomes(run) == {"ok": 12} and run["errors"] == 0
    assert run["tokens"] == daemon.metric("tandem_generated_tokens_total") - before and run["ttft_ms"]["count"] == run["e2e_ms"]["count"] == 12
    assert run["prompt_tokens"] >= 12 * 5 and run["gauges"] and run["gauges"][0]["running"] >= 0
    daemon.wait_idle()


def test_streams_beside_a_batch(start, tmp_path):  # noqa: F811
    """The script's own checks: every stream whole, the batch neither over nor without answers."""
    with start("--max-seqs", 4, "--data-dir", tmp_path / "data") as s:
        done = subprocess.run([sys.executable, ROOT / "loadtest/batch_beside.py", "--url", s.url, "--streams", "2", "--prompt-tokens", "16", "--generate-tokens",
                               "48", "--lines", "5000", "--seconds", "0.5", "--repeat", "1", "--json"], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        figures = json.loads(done.stdout)
        assert all(figures[f"streams_{when}"]["ttft_p50_ms"] > 0 for when in ("alone", "beside"))
        assert all(figures[f"batch_{when}"].keys() == {"lines_per_s", "tokens_per_s"} for when in ("alone", "beside"))
        assert s.metric("tandem_batch_lines_total", outcome="completed") > 0
        s.wait_idle()


@pytest.mark.parametrize("api", ["openai", "tgi"])
def test_lengths_are_exact_when_asked(daemon, tmp_path, api):
    samples = tmp_path / "samples.jsonl"
    run_load(tmp_path, daemon.url, "--api", api, "--requests", 4, "--rate", 100, "--prompt-tokens", 33, "--output-tokens", 7, "--exact-prompts",
             "--samples", samples)
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert [(r["prompt_tokens"], r["tokens"]) for r in rows] == [(33, 7)] * 4


@pytest.mark.smoke
@pytest.mark.parametrize("api", ["openai", "openai-chat", "tgi"])
def test_every_fault_is_refused(daemon, tmp_path, api):
    run = run_load(tmp_path, daemon.url, "--api", api, "--rate", 300, "--requests", 40, "--bad-share", 1, status=1)["runs"][0]
    assert outcomes(run) == {"refused": 40} and run["errors"] == 0 and len(run["status"]) > 2


def test_clients_that_leave_leave_nothing_behind(daemon, tmp_path):
    run = run_load(tmp_path, daemon.url, "--rate", 100, "--requests", 40, "--disconnect-share", 0.7, "--disconnect-after", 5, "--output-tokens", 300,
                   "--prompt-tokens", 100, "--prefix-tokens", 90)["runs"][0]
    assert run["outcomes"]["left"] == run["kinds"]["disconnect"] > 15 and run["outcomes"]["ok"] == 40 - run["outcomes"]["left"]
    daemon.wait_idle()


def test_slow_readers_are_served_and_kept_apart(daemon, tmp_path):
    run = run_load(tmp_path, daemon.url, "--api", "tgi", "--rate", 50, "--requests", 12, "--slow-share", 0.5, "--slow-ms", 10,
                   "--output-tokens", 60)["runs"][0]
    assert outcomes(run) == {"ok": 12} and 0 < run["kinds"]["slow"] < 12 and run["ttft_ms"]["count"] == 12 - run["kinds"]["slow"]


def test_a_shared_prefix_hits_the_cache(daemon, tmp_path):
    before = daemon.metric("tandem_prefix_hit_tokens_total")
    run_load(tmp_path, daemon.url, "--arrivals", "closed", "--requests", 6, "--prompt-tokens", 100, "--prefix-tokens", 80, "--output-tokens", 2)
    assert daemon.metric("tandem_prefix_hit_tokens_total") - before >= 5 * 64


def test_overload_is_rejected_not_failed(start, tmp_path):  # noqa: F811
    with start("--max-seqs", 1, "--max-queue", 1) as s:
        run = run_load(tmp_path, s.url, "--rate", 400, "--requests", 100, "--output-tokens", 40, "--goodput", "ttft:1000")["runs"][0]
        assert run["outcomes"]["rejected"] > 0 and run["outcomes"]["ok"] > 0 and run["errors"] == 0
        assert run["reject_ms"]["count"] == run["outcomes"]["rejected"] == run["status"]["429"]


@pytest.mark.full
def test_training_goes_on_beside(start, tmp_path):  # noqa: F811
    with start() as s:
        report = run_load(tmp_path, s.url, "--rate", 10, "--duration", 2, "--train-jobs", 1, "--train-steps", 2, "--output-tokens", 8)
        training = report["runs"][0]["training"]
        assert training["started"] >= 1 and training["failed"] == training["lost"] == training["refused"] == 0
        assert training["started"] == training["succeeded"] + training["cancelled"] and "jobs begun" in report["table"]
        assert s.metric("tandem_train_jobs", status="running") == 0


def script(name, *flags, timeout=300):
    return subprocess.run([sys.executable, ROOT / "loadtest" / name, *map(str, flags)], capture_output=True, text=True, timeout=timeout,
                          env={**QUIET, "TANDEM_BUILD_DIR": str(BUILD)})


@pytest.mark.full
def test_overload_prints_its_three_figures(tmp_path):
    def test(pace):  # the machine may have been slower when the capacity was measured
        done = script("overload", "--seconds", 0.6 * pace, "--slots", 4, "--queue", 2, "--output-tokens", 16, "--prompt-tokens", 8, "--factors",
                      "0.5,4", "--json", tmp_path / "o.json")
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads((tmp_path / "o.json").read_text())
        assert {"reject_p99_ms", "itl_p99_of_full", "goodput_ratio"} <= set(found["figures"]) and found["capacity_rps"] > 0
        assert found["runs"]["4.0"]["outcomes"]["rejected"] > 0 and "goodput:" in done.stdout and "of when they were due" in " ".join(done.stdout.split())
    at_some_pace(test)


@pytest.mark.full
def test_a_short_soak_passes(tmp_path):
    """Minutes and its verdict on memory are for loadtest/soak by hand: a short run allocates for the first time."""
    done = script("soak", 0.05, "--memory", 1000, "--rate", 30, "--steps", 2, "--hup", 1, "--json", tmp_path / "s.json")
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads((tmp_path / "s.json").read_text())
    assert verdict["faults"] == [] and verdict["hups"] > 0 and verdict["outcomes"]["refused"] > 0 and verdict["outcomes"]["left"] > 0


@pytest.mark.full
def test_a_soak_of_a_daemon_that_refuses_fails(tmp_path):
    """The verdict can be bad: this daemon takes 16 tokens at most, so plain requests get a 422."""
    done = script("soak", 0.02, "--rate", 60, "--steps", 1, "--", "--max-total-tokens", 16)
    assert done.returncode == 1 and "FAULT" in done.stdout, done.stdout + done.stderr
