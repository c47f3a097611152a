"""tandem bench: the JSON document and what must hold in it, the tables, --ops, mistakes, and a signal in the middle."""
import json
import os
import pty
import signal
import subprocess
import time

import pytest
from conftest import BINARY, DEMO, ENV, MODEL, PATIENCE, ROOT

CONFIG = json.loads((MODEL / "config.json").read_text())
PROMPT, STEPS, REPEAT = 40, 6, 2


def ok(result):
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode()


def close(a, b, rel=1e-5):
    assert a == pytest.approx(b, rel=rel), (a, b)


class Model:
    """What config.json makes of a step: the sizes that the figures are checked against."""
    C, F, V, L, H = (CONFIG[k] for k in ("hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers", "num_attention_heads"))
    G = CONFIG.get("num_key_value_heads", H)
    D = CONFIG.get("head_dim", C // H)
    matrices = [((H + 2 * G) * D, C), (C, H * D), (2 * F, C), (C, F)]
    layers = L * sum(n * k for n, k in matrices)
    head = V * C

    @classmethod
    def weight_bytes(cls, quantize):
        """(layers, head) in the canonical form"""
        if quantize == "none":
            return 2 * cls.layers, 2 * cls.head
        return cls.layers + cls.L * sum(4 * n for n, _ in cls.matrices), cls.head + 4 * cls.V

    @classmethod
    def attention_macs(cls, seen):
        return 2 * cls.L * cls.H * cls.D * seen

    @classmethod
    def kv_bytes(cls, tokens):
        return 2 * 2 * cls.L * cls.G * cls.D * tokens  # f16


def bench(run, *args):
    return json.loads(ok(run("bench", "--model", MODEL, "--json", "--prompt-tokens", PROMPT, "--generate-tokens", STEPS,
                             "--repeat", REPEAT, *args, timeout=300)))


@pytest.fixture(scope="module", params=["none", pytest.param("int8", marks=pytest.mark.full)])
def report(request, run):
    return request.param, bench(run, "--quantize", request.param, "--batch", "1,3", "--threads", 2)


def phases(doc):
    return {(r["phase"], r["batch"]): r for r in doc["results"]}


# ---- the document ----------------------------------------------------------------------------------------------------

def test_the_whole(report):
    quantize, doc = report
    assert set(doc) == {"version", "system", "ceilings", "model", "results"}
    assert set(phases(doc)) == {("prefill", 1), ("decode", 1), ("decode", 3)}
    system, model = doc["system"], doc["model"]
    assert system["threads"] == 2 and system["cores"] >= 1 and system["memory_bytes"] > 2**20 and system["device"].startswith("cpu ")
    assert model["id"] == MODEL.name and model["load_seconds"] > 0 and model["load_peak_bytes"] > model["weight_bytes"] > 0
    assert model["weight_type"] == ("int8" if quantize == "int8" else "bf16") and model["kv_type"] in ("f16", "bf16")


def test_ceilings(report):
    c = report[1]["ceilings"]
    for name in ("read_bytes_per_s", "int8_macs_per_s", "int4_macs_per_s", "bf16_macs_per_s", "f32_macs_per_s"):
        values = [c["before"][name], c["after"][name]]
        if name == "bf16_macs_per_s" and None in values:
            assert values == [None, None] and c[name] is None
        else:
            of_phases = [r["ceilings"][name] for r in report[1]["results"]]
            assert min(values + of_phases) > 0
            assert c[name] == pytest.approx(sum(of_phases) / len(of_phases), rel=1e-6)
    assert c["read_buffer_bytes"] > 0


def test_results_are_sound(report):
    for r in report[1]["results"]:
        assert r["prompt_tokens"] == PROMPT and r["repeats"] == REPEAT
        assert r["generate_tokens"] == (STEPS if r["phase"] == "decode" else 0)
        assert r["steps"] == (STEPS if r["phase"] == "decode" else 1)
        assert 0 < r["tokens_per_s_min"] <= r["tokens_per_s"] <= r["tokens_per_s_max"]
        close(r["tokens_per_s"] * r["seconds"], r["batch"] * STEPS if r["phase"] == "decode" else PROMPT)
        assert 0 < r["step_ms"]["p50"] <= r["step_ms"]["p95"] <= r["step_ms"]["p99"]
        assert r["peak_memory_bytes"] > 0
        assert isinstance(r["advice"], list) and all(isinstance(a, str) and a for a in r["advice"])


def test_work_is_what_the_model_takes(report):
    quantize, doc = report
    layers, head = Model.weight_bytes(quantize)
    for (phase, batch), r in phases(doc).items():
        if phase == "prefill":
            weights, seen, kv = PROMPT * Model.layers + Model.head, PROMPT * (PROMPT + 1) / 2, PROMPT
        else:
            weights = batch * (Model.layers + Model.head)
            seen = kv = batch * (PROMPT + (STEPS + 1) / 2)  # the mean over the steps
        close(r["weight_macs_per_step"], weights)
        close(r["attention_macs_per_step"], Model.attention_macs(seen))
        close(r["macs_per_step"], weights + Model.attention_macs(seen))
        if quantize == "none":
            close(r["weight_bytes_per_step"], layers + head)
        else:  # a device may pack more beside them, such as a sum for each row
            assert layers + head <= r["weight_bytes_per_step"] <= 1.05 * (layers + head)
        close(r["kv_bytes_per_step"], Model.kv_bytes(kv))
        close(r["bytes_per_step"], r["weight_bytes_per_step"] + r["kv_bytes_per_step"])


def test_ops_are_the_whole_time(report):
    for r in report[1]["results"]:
        ops = {o["op"]: o for o in r["ops"]}
        assert len(ops) == len(r["ops"]) and {"linear", "head", "attn", "sample", "engine"} <= set(ops)
        close(sum(o["share"] for o in r["ops"]), 1, 1e-3)
        assert [o["seconds"] for o in r["ops"]] == sorted((o["seconds"] for o in r["ops"]), reverse=True)
        steps = r["steps"] * r["repeats"]
        assert ops["attn"]["calls"] == steps * Model.L and sum(ops[o]["calls"] for o in ("linear", "gate_up") if o in ops) == 4 * steps * Model.L
        assert ops["head"]["calls"] == ops["sample"]["calls"] == steps
        close(sum(o["macs"] for o in r["ops"]), steps * r["macs_per_step"])
        close(sum(o["bytes"] for o in r["ops"]), steps * r["bytes_per_step"])


def test_ratios_follow_from_the_rest(report):
    quantize, doc = report
    for r in doc["results"]:
        c = r["ceilings"]
        floats = max(c["bf16_macs_per_s"] or 0, c["f32_macs_per_s"])
        unit = c["int8_macs_per_s"] if quantize == "int8" else floats
        step = r["seconds"] / r["steps"]
        close(r["read_ratio"], r["bytes_per_step"] / c["read_bytes_per_s"] / step, 1e-4)
        close(r["multiplier_ratio"], r["weight_macs_per_step"] / c["int8_macs_per_s"] / step, 1e-4)
        close(r["compute_ratio"], (r["weight_macs_per_step"] / unit + r["attention_macs_per_step"] / floats) / step, 1e-4)
        assert r["ceiling_ratio"] == max(r["read_ratio"], r["compute_ratio"]) > 0
        expected = ("overhead" if r["ceiling_ratio"] < 0.4 else "memory" if r["read_ratio"] > r["compute_ratio"] else "multiplier")
        assert r["bound_by"] == expected
        close(r["macs_per_s"], r["macs_per_step"] / step, 1e-4)
        close(r["bytes_per_s"], r["bytes_per_step"] / step, 1e-4)


@pytest.mark.full
def test_a_prompt_in_chunks(run):
    """The same work in more steps; the head only in the last."""
    r = phases(bench(run, "--max-batch-tokens", 16, "--batch", 2, "--kv-cache", "int8"))["prefill", 1]
    assert r["steps"] == 3  # 16 + 16 + 8
    close(r["weight_macs_per_step"] * 3, PROMPT * Model.layers + Model.head)
    close(r["attention_macs_per_step"] * 3, Model.attention_macs(PROMPT * (PROMPT + 1) / 2))
    layers, head = Model.weight_bytes("none")
    close(r["weight_bytes_per_step"] * 3, 3 * layers + head)


@pytest.mark.full
def test_other_devices(run):
    for device in ("cpu:portable", "ref"):
        doc = bench(run, "--device", device, "--batch", 1, "--repeat", 1)
        assert doc["system"]["device"].split()[-1] == device.split(":")[-1]
        assert all(r["tokens_per_s"] > 0 for r in doc["results"]) and doc["ceilings"]["int8_macs_per_s"] > 0
        if doc["system"]["best_level"] != "portable":
            assert any("--device" in a for r in doc["results"] for a in r["advice"])


# ---- tables ----------------------------------------------------------------------------------------------------------

@pytest.mark.full
def test_tables(run):
    got = run("bench", "--model", MODEL, "--repeat", 1, "--batch", "1,2", timeout=300)
    text = ok(got)
    assert not got.stderr  # progress is for terminals
    lines = text.splitlines()
    for row in ("machine ", "device ", "model ", "memory read", "int8 multiply-adds", "bf16 multiply-adds", "f32 multiply-adds"):
        assert any(line.strip().startswith(row) for line in lines), row
    for phase, batch in (("prefill", 1), ("decode", 1), ("decode", 2)):
        assert sum(line.split()[:2] == [phase, str(batch)] for line in lines) == 2, phase  # speed, and work
    for op in ("linear", "head", "attn", "sample", "engine"):
        assert any(line.split()[:1] == [op] and line.count("%") == 3 for line in lines), op
    assert "what to change" in text
    assert MODEL != DEMO or "prompts of 447 tokens, then 64 steps" in text  # without --prompt-tokens its room of 512 decides


# ---- single ops ------------------------------------------------------------------------------------------------------

@pytest.mark.full
def test_ops(run):
    doc = json.loads(ok(run("bench", "--ops", "M=1 N=128", "--json", timeout=300)))
    assert set(doc) == {"version", "system", "ceilings", "ops"}
    assert [o["name"] for o in doc["ops"]] == [f"linear {t} M=1 N=128 K=384" for t in ("f32", "bf16", "int8", "fp8", "int4", "nf4")]
    for o in doc["ops"]:
        close(o["macs_per_s"] * o["seconds"], 128 * 384, 1e-3)
        assert o["bytes_per_s"] > 0 and o["read_ratio"] > 0 and o["multiplier_ratio"] > 0


@pytest.mark.full
def test_ops_as_a_table(run):
    text = ok(run("bench", "--ops", "512 x 896", "--threads", 1, timeout=300))
    rows = [line.split(" 512 x")[0] for line in text.splitlines() if " 512 x 896" in line]
    assert {"add", "add_norm", "norm rms", "norm layer", "rows"} <= set(rows)
    got = run("bench", "--ops", "no such op", timeout=300)
    assert got.returncode == 1 and b"no such op" in got.stderr


# ---- mistakes and signals --------------------------------------------------------------------------------------------

@pytest.mark.parametrize("words, says", [
    (["--batch", "0"], "--batch: 0 is not between 1 and 1024"),
    (["--batch", "1025"], "--batch: 1025 is not"),
    (["--batch", "99999999999999999999"], "--batch: 99999999999999999999 is not"),
    (["--batch", ""], "--batch: ''"),
    (["--batch", "1,"], "--batch: '1,'"),
    (["--batch", "1;2"], "--batch: '1;2'"),
    (["--batch", "-1"], "--batch: '-1'"),
    (["--batch", ",".join(["1"] * 33)], "--batch: more than 32"),
    (["--prompt-tokens", "0"], "--prompt-tokens: 0 is not"),
    (["--generate-tokens", "x"], "--generate-tokens: 'x'"),
    (["--repeat", "0"], "--repeat: 0 is not"),
    (["--quantize", "int3"], "--quantize: 'int3' is not one of"),
    (["--kv-cache", "f8"], "--kv-cache: 'f8' is not one of"),
    (["--threads", "-1"], "--threads: -1 is not"),
    (["--prompt", "x"], "--prompt is not an option of this command"),
    (["--ops", "a", "b"], "unexpected argument 'b'"),
])
def test_called_wrongly(run, words, says):
    got = run("bench", *words)
    assert got.returncode == 2 and says in got.stderr.decode() and not got.stdout


@pytest.mark.parametrize("words, says", [
    (["--model", "no/such/model"], "no/such/model"),
    (["--device", "gpu9"], "gpu9"),
    (["--ops", "--device", "gpu9"], "gpu9"),
    (["--prompt-tokens", "16777216"], "positions; the model has"),
    (["--prompt-tokens", "500", "--generate-tokens", "64"], "take 565 positions; the model has 512"),
])
def test_cannot(run, words, says):
    got = run("bench", *words)
    assert got.returncode == 1 and says in got.stderr.decode() and not got.stdout


def test_progress_and_interrupt():
    """On a terminal one line says what is being done; SIGINT ends the run at the next step, without a report."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([BINARY, "bench", "--model", MODEL, "--repeat", "1000"], stdout=subprocess.PIPE, stderr=theirs, cwd=ROOT, env=ENV) as p:
        os.close(theirs)
        seen, end = b"", time.monotonic() + PATIENCE
        while b" of 1000: " not in seen and time.monotonic() < end:
            seen += os.read(ours, 4096)
        p.send_signal(signal.SIGINT)
        out = p.stdout.read()
        try:
            while chunk := os.read(ours, 4096):
                seen += chunk
        except OSError:  # the other end is closed
            pass
        os.close(ours)
        assert p.wait(300) == 130 and not out
    assert b"prefill, batch 1, run " in seen and seen.rstrip().endswith(b"tandem: interrupted")
