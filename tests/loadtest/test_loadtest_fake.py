"""The load generator against servers made for it: what it measures is true, what goes wrong is counted."""
import json
import re
import signal
import socket
import statistics
import subprocess
import threading
import time

import pytest
from load_rig import (HEAD, LOADTEST, QUIET, Fake, answer, at_some_pace, chunk, command, event, nearest_rank, outcomes, run_load, schedule, tokens,
                      wait_for)


# ---- arrivals --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("flags, variance", [
    (["--arrivals", "poisson"], 1), (["--arrivals", "gamma", "--burstiness", "0.25"], 4), (["--arrivals", "gamma", "--burstiness", "4"], 0.25),
    (["--arrivals", "constant"], 0)])
def test_arrivals_have_the_moments_of_their_kind(flags, variance):
    times = [r["at"] for r in schedule(*flags, "--rate", 20, "--requests", 20000)]
    gaps = [20 * (b - a) for a, b in zip(times, times[1:])]
    assert statistics.mean(gaps) == pytest.approx(1, abs=5 * (variance / 20000) ** 0.5 + 1e-6)
    assert statistics.variance(gaps) == pytest.approx(variance, rel=0.25, abs=1e-6)


def test_a_schedule_depends_on_its_seed_only():
    flags = ["--requests", 200, "--prompt-tokens", "5-50", "--slow-share", 0.3, "--bad-share", 0.3]
    assert schedule(*flags) == schedule(*flags, "--url", "http://elsewhere") != schedule(*flags, "--seed", 2)


def test_a_duration_ends_arrivals_and_a_ramp_halves_them():
    full, ramped = (len(schedule("--rate", 200, "--duration", 20, *ramp)) for ramp in ([], ["--ramp", 20]))
    assert full == pytest.approx(4000, abs=400) and ramped == pytest.approx(2000, abs=300)


def test_a_trace_is_replayed(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5000000,374,44\n2023-11-16 18:15:48.5000000,39,900\n")
    rows = schedule("--arrivals", "trace", "--trace", trace, "--trace-speed", 4, "--max-output-tokens", 100)
    assert [(r["at"], r["prompt_tokens"], r["output_tokens"]) for r in rows] == [(0, 374, 44), (0.5, 39, 100)]
    lengths = schedule("--trace", trace, "--trace-lengths", "--requests", 5, "--rate", 7)
    assert [r["prompt_tokens"] for r in lengths] == [374, 39, 374, 39, 374] and lengths[4]["at"] > 0
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n")
    done = subprocess.run([LOADTEST, "--dry-run", "--arrivals", "trace", "--trace", trace], capture_output=True, text=True, env=QUIET)
    assert done.returncode == 2 and "line 2" in done.stderr and done.stdout == ""


# ---- what is measured ------------------------------------------------------------------------------------------------

@pytest.mark.smoke
def test_percentiles_are_those_of_the_samples(tmp_path):
    samples = tmp_path / "samples.jsonl"
    with Fake(lambda i, send, body: tokens(send, 3 + i % 3, 0.001 * (i % 7))) as fake:
        run = run_load(tmp_path, fake.url, "--rate", 150, "--requests", 150, "--samples", samples)["runs"][0]
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(rows) == 150 and outcomes(run) == {"ok": 150}
    values = {"ttft": [r["ttft_ms"] for r in rows], "e2e": [r["e2e_ms"] for r in rows], "tpot": [r["tpot_ms"] for r in rows if r["tokens"] > 1],
              "itl": [g for r in rows for g in r["itl_ms"]], "late": [r["late_ms"] for r in rows]}
    for name, known in values.items():
        got = run[f"{name}_ms"]
        assert got["count"] == len(known)
        assert got["mean"] == pytest.approx(statistics.mean(known), rel=1e-5, abs=1e-5)
        assert (got["min"], got["max"]) == pytest.approx((min(known), max(known)), rel=1e-5, abs=2e-6)
        for percent in (50, 90, 95, 99, 99.9):
            assert got[f"p{percent:g}"] == pytest.approx(nearest_rank(known, percent), rel=0.002, abs=2e-6), (name, percent)
    assert all(len(r["itl_ms"]) == r["pieces"] - 1 for r in rows)


def test_a_stalled_server_is_seen_by_all_who_came_meanwhile(tmp_path):
    """A closed loop with one user would see one slow answer; here everyone who arrived in the stall has waited."""
    begin = []

    def reply(i, send, body):
        begin.append(time.monotonic())
        now = begin[-1] - begin[0]
        if 1.0 <= now < 2.0:
            time.sleep(2.0 - now)
        tokens(send, 2)
    with Fake(reply) as fake:
        run = run_load(tmp_path, fake.url, "--arrivals", "constant", "--rate", 50, "--duration", 2.5)["runs"][0]
    assert outcomes(run) == {"ok": 125}
    assert run["ttft_ms"]["p90"] > 500 and run["ttft_ms"]["max"] > 900  # 25 of 125 waited half the stall or longer


def test_a_stalled_generator_counts_its_own_delay(tmp_path):
    """Whoever was due while the generator itself stood still has waited too, and it says that it was late."""
    def test(pace):  # it may have sent most before this test stops it
        out = tmp_path / "out.json"
        with Fake(lambda i, send, body: tokens(send, 2)) as fake:
            process = subprocess.Popen(command(fake.url, "--arrivals", "constant", "--rate", 50, "--duration", 1.5 * pace, out=out), env=QUIET,
                                       stdout=subprocess.PIPE, text=True)
            wait_for(lambda: fake.count >= 10, what="ten requests")
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.6 * pace)
            process.send_signal(signal.SIGCONT)
            table = process.communicate(timeout=300)[0]
        run = json.loads(out.read_text())["runs"][0]
        assert run["requests"] == 75 * pace and run["late_ms"]["max"] > 400 and run["ttft_ms"]["max"] > 400 and run["ttft_ms"]["p90"] > 200
        assert run["generator"]["saturated"] and "could not keep up" in table
    at_some_pace(test)


def test_goodput_counts_what_met_the_limits(tmp_path):
    with Fake(lambda i, send, body: tokens(send, 2, 0.25 if i % 2 else 0)) as fake:
        run = run_load(tmp_path, fake.url, "--rate", 100, "--requests", 40, "--goodput", "ttft:200")["runs"][0]
    assert run["goodput"]["missed"]["ttft"] >= 20 and run["goodput"]["good"] == 40 - run["goodput"]["missed"]["ttft"]
    assert run["goodput"]["requests_per_s"] < run["requests_per_s"]


def test_rejects_are_timed_and_asked_again_when_told(tmp_path):
    seen = {}

    def reply(i, send, body):
        n = seen[body] = seen.get(body, 0) + 1
        if n == 1:
            send(answer(429, b"{}", b"Retry-After: 1\r\n"))
        else:
            tokens(send)
    with Fake(reply) as fake:
        first = run_load(tmp_path, fake.url, "--rate", 100, "--requests", 10, status=1)["runs"][0]
        assert outcomes(first) == {"rejected": 10} and first["status"] == {"429": 10} and first["reject_ms"]["count"] == 10
        assert first["errors"] == 0 and first["reject_service_ms"]["max"] <= first["reject_ms"]["max"] * 1.001
        seen.clear()
        run = run_load(tmp_path, fake.url, "--rate", 100, "--requests", 10, "--retry")["runs"][0]
    assert outcomes(run) == {"ok": 10} and run["attempts"] == 20 and run["ttft_ms"]["min"] >= 1000


def test_a_closed_loop_keeps_so_many_open(tmp_path):
    lock, now, most = threading.Lock(), [0], [0]

    def reply(i, send, body):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.005)
        with lock:
            now[0] -= 1
        tokens(send, 3, 0.002)
    with Fake(reply) as fake:
        report = run_load(tmp_path, fake.url, "--sweep", "1,3,6", "--requests", 30, "--html", tmp_path / "r.html", "--title", "a <b> & c")
    assert [r["concurrency"] for r in report["runs"]] == [1, 3, 6] and most[0] <= 6
    assert all(outcomes(r) == {"ok": 30} and r["peak_open"] == r["concurrency"] for r in report["runs"])
    for r in report["runs"]:
        assert r["tps_per_user"] == pytest.approx(1000 / r["tpot_ms"]["p90"], rel=1e-6) and r["generator"]["kept"] >= 15
    page = (tmp_path / "r.html").read_text()
    assert page.count("<svg") >= 3 + 3 * 4 and "a &lt;b&gt; &amp; c" in page and "tokens/s/user" in report["table"]
    assert not re.search(r"<script|<link|<img|src=|url\(|@import", page)


# ---- what goes wrong -------------------------------------------------------------------------------------------------

def cut(send):
    send(HEAD + chunk(event()))
    return False


def late_error(send):
    send(HEAD + chunk(event()) + chunk(b'data: {"error":{"message":"no"}}\n\n') + b"0\r\n\r\n")


BAD = {
    "closed": lambda i, send, body: False,
    "closed in the head": lambda i, send, body: send(b"HTTP/1.1 200 OK\r\nConte") or False,
    "closed in the stream": lambda i, send, body: cut(send),
    "stream without an end": lambda i, send, body: send(HEAD + chunk(event()) + b"0\r\n\r\n"),
    "garbage": lambda i, send, body: send(b"\x00\x01\x02 not HTTP at all\r\n\r\n") or False,
    "garbage chunk": lambda i, send, body: send(HEAD + b"zz\r\n") or False,
    "garbage event": lambda i, send, body: send(HEAD + chunk(b"data: {]\n\n") + b"0\r\n\r\n"),
    "html": lambda i, send, body: send(answer(200, b"<html>hello</html>", b"Content-Type: text/html\r\n")),
    "endless header": lambda i, send, body: send(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 400000) or False,
    "http 500": lambda i, send, body: send(answer(500, b"oops")),
    "error event": lambda i, send, body: late_error(send),
    "empty": lambda i, send, body: send(HEAD + chunk(event("", "stop")) + b"0\r\n\r\n"),
    "silent": lambda i, send, body: time.sleep(600),
}
EXPECT = {"stream without an end": "closed", "closed in the head": "closed", "closed in the stream": "closed", "garbage chunk": "garbage",
          "garbage event": "garbage", "html": "garbage", "endless header": "garbage", "http 500": "http_error", "error event": "error_event",
          "silent": "timeout"}


@pytest.mark.smoke
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_answer_is_counted(tmp_path, kind):
    def test(pace):
        patience = pace if kind == "silent" else 300  # only that one waits for it; a busy machine is late with the good answers
        with Fake(lambda i, send, body: BAD[kind](i, send, body) if i % 2 else tokens(send)) as fake:
            run = run_load(tmp_path, fake.url, "--rate", 200, "--requests", 8, "--timeout", patience, "--fresh-connections")["runs"][0]
        assert outcomes(run) == {"ok": 4, EXPECT.get(kind, kind): 4} and run["errors"] == 4
    at_some_pace(test)


def test_kept_connections_that_the_server_closes_are_no_errors(tmp_path):
    def reply(i, send, body):
        tokens(send)
        return False  # without having said so
    with Fake(reply) as fake:
        run = run_load(tmp_path, fake.url, "--arrivals", "closed", "--requests", 50)["runs"][0]
    assert outcomes(run) == {"ok": 50}


def test_no_server_is_said(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{s.getsockname()[1]}"
    done = subprocess.run(command(url), capture_output=True, text=True, timeout=300, env=QUIET)
    assert done.returncode == 1 and "no server answers" in done.stderr


def test_connections_refused_in_the_middle_are_counted(tmp_path):
    with Fake(lambda i, send, body: tokens(send)) as fake:
        def reply(i, send, body):
            if i == 5:
                fake.listener.shutdown(2)
                fake.listener.close()
            tokens(send)
        fake.reply = reply
        run = run_load(tmp_path, fake.url, "--rate", 50, "--requests", 30, "--fresh-connections")["runs"][0]
    assert run["outcomes"]["connect"] > 0 and run["requests"] == 30 and set(outcomes(run)) <= {"ok", "connect", "closed"}


def test_an_interrupt_ends_the_run_with_its_report(tmp_path):
    out = tmp_path / "out.json"
    with Fake(lambda i, send, body: tokens(send) if i < 5 else time.sleep(600)) as fake:
        process = subprocess.Popen(command(fake.url, "--rate", 50, "--duration", 100, out=out), env=QUIET, stdout=subprocess.PIPE)
        wait_for(lambda: fake.count >= 30, what="thirty requests")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
    run = json.loads(out.read_text())["runs"][0]
    assert process.returncode == 130 and run["interrupted"] and run["outcomes"]["ok"] == 5 and run["outcomes"]["unfinished"] > 0


def test_the_generators_own_limit_is_an_error(tmp_path):
    with Fake(lambda i, send, body: time.sleep(0.4) or tokens(send)) as fake:
        report = run_load(tmp_path, fake.url, "--rate", 200, "--requests", 20, "--max-open", 3)
    run = report["runs"][0]
    assert run["outcomes"]["limit"] >= 1 and run["errors"] == run["outcomes"]["limit"] and run["peak_open"] <= 4
    assert run["generator"]["saturated"]


@pytest.mark.parametrize("flags", [["--rate", "none"], ["--nonsense"], ["--url", "https://x"], ["--api", "soap"], ["--goodput", "ttft"]])
def test_wrong_options_are_refused(flags):
    done = subprocess.run([LOADTEST, *flags], capture_output=True, text=True, timeout=300, env=QUIET)
    assert done.returncode == 2 and done.stderr.startswith("tandem-loadtest: ") and done.stdout == ""


def test_help_has_every_option():
    text = subprocess.run([LOADTEST, "--help"], capture_output=True, text=True, check=True, env=QUIET).stdout
    assert len(re.findall(r"^  --\S+", text, re.M)) > 40
