#!/usr/bin/env python3
"""Concurrent streams of a model of Llama 3.1 8B's shape, random weights: from `tandem serve`, and PyTorch's decoding beside it.

    serve.py --tandem PROGRAM --device NAME [--tiny] [--seconds N] [--sides NAME,...]

Every stream has a prompt of 512 random tokens of its own and generates 128, greedily (--tiny: a small model, 16 and 8). All
begin at once. 32 and 128 streams come first, which are worth most when the time ends, then 8 and 1; the same for the sides:
int8, none (bf16), torch, int4, compiled, vllm.

    server            tandem: `tandem serve` over HTTP, loadtest/bench_http.py is the client. PyTorch: transformers'
                      LlamaForCausalLM with a static cache, in one process and without HTTP; a decode step is one CUDA graph,
                      greedy choice included ("eager": it could not be captured). Its attention is SDPA called so that the heads
                      of keys are not copied for every head of queries, which transformers' own call does beside a static cache.
                      "compiled": the same with norms and MLPs by torch.compile, its prompts without.
                      vLLM: its offline engine, where python3 has it.
    weights           bf16, or quantised by `tandem serve` while loading
    steady tokens/s   of all streams together while all of them generate; prompts are not counted
    first token       ms from the request to the first token, the median of the streams; PyTorch reads all prompts in one pass, so
                      all of its streams have their first token together
    between tokens    ms between a stream's tokens: median and 99th percentile; PyTorch: of the steps, by events of the device

The last table divides tandem's steady rate by the best of PyTorch's at the same number of streams. What no longer fits into --seconds is left
out, with a line that says so. Status 1 when tandem failed.
"""
import argparse
import importlib.util
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "loadtest"))
import bench_http  # noqa: E402
import runner  # noqa: E402

SIDES = ("int8", "none", "torch", "int4", "compiled", "vllm")  # the most wanted first; those of tandem are --quantize's
NAMES = {"int8": ("tandem", "int8"), "none": ("tandem", "bf16"), "int4": ("tandem", "int4"), "torch": ("PyTorch", "bf16"),
         "compiled": ("PyTorch compiled", "bf16"), "vllm": ("vLLM", "bf16")}


class Failed(Exception):
    pass


def say(text):
    print(f"serve.py: {text}", file=sys.stderr, flush=True)


class Plan:
    """What there is time for."""

    def __init__(self, a):
        self.end, self.a = time.monotonic() + a.seconds, a
        self.start, self.run = (3, 3) if a.tiny else (25, 5)  # seconds: guesses, then the longest there was

    def left(self):
        return self.end - time.monotonic()

    def streams(self, later):
        """The numbers of streams that fit, one by one; the less wanted ones leave time for the sides that come later."""
        for n in self.a.streams:
            keep = 0 if n in self.a.streams[:2] else later * (self.start + 2 * self.run)
            if self.left() - keep < 1.5 * self.run:
                yield n, False
                continue
            begin = time.monotonic()
            yield n, True
            self.run = max(self.run, time.monotonic() - begin)


# ---- tandem ------------------------------------------------------------------------------------------------------------

class Server(runner.Process):
    """One that does not stay when this program is told to end while it starts."""

    def __init__(self, *command, **how):
        try:
            super().__init__(*command, **how)
        except BaseException:
            self.process.kill()
            raise


def by_tandem(a, side, folder, plan):
    """The server; what it returns measures so many streams: {"rate": ...}."""
    step = 64 if a.tiny else 4096
    flags = ["--port", 0, "--model", folder / "model", "--data-dir", folder / "data", "--device", a.device, "--quantize", side,
             # the prompts must all be read before the first stream ends, and are read in large steps, as PyTorch reads them
             "--max-seqs", max(a.streams), "--max-total-tokens", 2 * (a.prompt + a.generate), "--max-batch-tokens", step, "--max-prefill-tokens", step,
             # random weights soon repeat themselves, and guesses would be right too often; no request is to be refused for its wait
             "--speculate", "off", "--max-wait", 0]
    server = Server([a.tandem, "serve", *flags], seconds=max(10, plan.left()))
    for line in server.lines:
        print("    " + line.rstrip(), file=sys.stderr)
    url, rng = urlsplit(server.url), random.Random(1)

    def measure(n):
        how = SimpleNamespace(sample=False, every=0, timeout=max(20, plan.left()), prompt_tokens=a.prompt, generate_tokens=a.generate)
        bench_http.run(url, how, rng, n, 8, 4)  # twice the same number of rows: its graph is captured
        streams, cpu = bench_http.run(url, how, rng, n, a.prompt, a.generate)
        for s in streams:
            s.check(how)
        m = bench_http.measure(streams, cpu, how)
        say(f"{n} streams: {m['total_seconds']:.2f} s, {m['steady_seconds']:.2f} s of them steady; the client took {100 * m['client_cpu_share']:.0f} % of a core")
        return {"rate": m["steady_tokens_per_s"], "first": m["ttft"]["p50"], "p50": m["itl"]["p50"], "p99": m["itl"]["p99"]}

    def stop():
        server.process.terminate()  # nothing runs: there is nothing to wait for
        try:
            status = server.process.wait(20)
        except subprocess.TimeoutExpired:
            server.process.kill()
            status = "none: it did not end"
        if status:
            raise Failed(f"the daemon's status: {status}\n" + "".join(server.lines[-10:]))
    return measure, stop


# ---- the others, each in a process of its own, whose end frees the GPU ---------------------------------------------------

def by_child(a, side, folder, plan):
    command = [sys.executable, __file__, "--child", side, "--model", folder / "model", "--tandem", a.tandem, "--device", a.device, *["--tiny"] * a.tiny]
    log = folder / f"{side}.log"
    with open(log, "w") as errors:
        child = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)

    def answer():
        signal.alarm(max(1, int(plan.left())))  # it may hang
        line = child.stdout.readline()
        signal.alarm(0)
        if not line:
            child.kill()
            raise Failed(f"status {child.wait()}: {log.read_text()[-1500:]}")
        return json.loads(line)

    def measure(n):
        print(n, file=child.stdin, flush=True)
        found = answer()
        if "failed" in found:
            raise Failed(found["failed"])
        return found

    def stop():
        child.kill()
        child.wait()

    signal.signal(signal.SIGALRM, lambda *_: child.kill())
    try:
        answer()
    except BaseException:
        stop()
        raise
    return measure, stop


def child_main(a):
    """Reads numbers of streams, answers with a line of JSON each; what libraries print goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    measure = (vllm_side if a.child == "vllm" else torch_side)(a)
    print("{}", file=out, flush=True)
    for line in sys.stdin:
        try:
            found = measure(int(line))
        except Exception as e:  # of memory, say: fewer streams may still fit
            found = {"failed": repr(e)[-1000:]}
        print(json.dumps(found), file=out, flush=True)


def torch_side(a):
    import torch
    from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, StaticCache

    def attention(module, query, key, value, mask, scaling=None, **_):
        n, heads, m, size = query.shape
        sdpa = torch.nn.functional.scaled_dot_product_attention
        if m > 1:  # prompts, from their beginning
            out = sdpa(query, key[:, :, :m], value[:, :, :m], is_causal=True, scale=scaling, enable_gqa=True)
        else:  # the queries that share keys as if they were positions of one text
            out = sdpa(query.view(n, key.shape[1], -1, size), key, value, attn_mask=mask, scale=scaling).reshape(n, heads, 1, size)
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register("folded", attention)
    device = torch.device(a.device if a.device.startswith("cuda") else "cpu")
    cuda = device.type == "cuda"
    wait = torch.cuda.synchronize if cuda else lambda: None
    torch.manual_seed(1)
    with device:  # weights of its own, made where they are used
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(a.model), dtype=torch.bfloat16, attn_implementation="folded").eval()
    vocab = model.config.vocab_size
    for part in model.modules() if a.child == "compiled" else ():
        if type(part).__name__ in ("LlamaRMSNorm", "LlamaMLP"):  # whole layers would be compiled one by one, for minutes
            part.compile(dynamic=False)

    def captured(step):
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # libraries are opened, kernels chosen and compiled: not while capturing
            step()
            step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay

    def gaps(run, n):
        """The seconds of each of n steps, without waiting between them."""
        clock = (lambda: torch.cuda.Event(enable_timing=True)) if cuda else time.perf_counter
        times = [clock()]
        if cuda:
            times[0].record()
        for _ in range(n):
            run()
            times.append(clock())
            if cuda:
                times[-1].record()
        wait()
        return [x.elapsed_time(y) / 1000 if cuda else y - x for x, y in zip(times, times[1:])]

    @torch.inference_mode()
    def measure(n):
        if cuda:
            torch.cuda.empty_cache()
        with device:
            prompts, cache = torch.randint(vocab, (n, a.prompt)), StaticCache(config=model.config, max_cache_len=a.prompt + a.generate)
            place, places = torch.tensor([a.prompt]), torch.arange(a.prompt + a.generate)
            with torch.compiler.set_stance("force_eager"):
                model(prompts[:, :8], logits_to_keep=1, use_cache=False)
                wait()
                begin = time.perf_counter()
                token = model(prompts, past_key_values=cache, logits_to_keep=1).logits[:, -1].argmax(-1, keepdim=True)
                wait()
                first = time.perf_counter() - begin

            def step():
                mask = (places <= place)[None, None, None].expand(n, 1, 1, -1)
                logits = model(token, past_key_values=cache, position_ids=place[None], attention_mask=mask, logits_to_keep=1).logits
                token.copy_(logits[:, -1].argmax(-1, keepdim=True))
                place.add_(1)

            run, how, begun = step, "eager", token.clone()
            if not cuda:
                step()
            else:
                try:
                    run, how = captured(step), "CUDA graph"
                except Exception as e:
                    print(f"not captured: {e!r}", file=sys.stderr, flush=True)
            token.copy_(begun)  # back to the end of the prompts
            place.fill_(a.prompt)
            for layer in cache.layers:
                layer.cumulative_length.fill_(a.prompt)
            found = gaps(run, a.generate - 1)
        return {"rate": n * len(found) / sum(found), "first": first, "p50": statistics.median(found), "p99": bench_http.percentile(found, 99), "how": how}
    return measure


def vllm_side(a):
    from vllm import LLM, SamplingParams
    longest, rng = a.prompt + a.generate, random.Random(1)
    engine = LLM(str(a.model), dtype="bfloat16", max_model_len=longest + 8, max_num_seqs=max(a.streams), skip_tokenizer_init=True,
                 enable_prefix_caching=False, disable_log_stats=True)
    vocab = json.loads((Path(a.model) / "config.json").read_text())["vocab_size"]

    def seconds(n, generate):
        prompts = [{"prompt_token_ids": [rng.randrange(vocab) for _ in range(a.prompt)]} for _ in range(n)]
        begin = time.perf_counter()
        engine.generate(prompts, SamplingParams(temperature=0, max_tokens=generate, ignore_eos=True, detokenize=False), use_tqdm=False)
        return time.perf_counter() - begin

    def measure(n):
        seconds(n, 2)
        first, whole = seconds(n, 1), seconds(n, a.generate)
        return {"rate": n * (a.generate - 1) / (whole - first), "first": first, "p50": (whole - first) / (a.generate - 1), "p99": None, "how": "offline"}
    return measure


# ---- tables ------------------------------------------------------------------------------------------------------------

def row(*cells):
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def ms(seconds):
    return "" if seconds is None else f"{1000 * seconds:.1f}"


def measure_side(a, side, folder, plan, later, rates):
    """Its rows. Did it fail?"""
    name, weights = NAMES[side]
    begin, stop, failed = time.monotonic(), None, False
    try:
        measure, stop = (by_tandem if name == "tandem" else by_child)(a, side, folder, plan)
        plan.start = max(plan.start, time.monotonic() - begin)
        say(f"{name} {weights}: started in {time.monotonic() - begin:.1f} s (reading, quantising and timing of GEMMs included)")
        for n, fits in plan.streams(later):
            if not fits:
                row(name, weights, n, "left out: no time", "", "", "")
                continue
            try:
                m = measure(n)
            except (Failed, SystemExit) as e:  # bench_http ends the program
                say(f"{name} {weights}, {n} streams: {e}")
                row(name, weights, n, "failed", "", "", "")
                failed = True
                continue
            if m["rate"] is not None:
                rates[side, n] = m["rate"]
            row(f"{name}, {m['how']}" if "how" in m else name, weights, n, "none" if m["rate"] is None else f"{m['rate']:.0f}", ms(m["first"]),
                ms(m["p50"]), ms(m["p99"]))
    except (Failed, SystemExit) as e:
        say(f"{name} {weights}: {e}")
        failed = plan.left() > 0  # else it may only have been slow to start
        row(name, weights, "all", "failed" if failed else "left out: not ready in time", "", "", "")
    finally:
        try:
            if stop:
                stop()
        except Failed as e:
            say(f"{name} {weights}: {e}")
            failed = True
    return failed


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tandem", required=True)
    p.add_argument("--device", required=True)
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--seconds", type=float, default=240)
    p.add_argument("--sides", help=",".join(SIDES))
    p.add_argument("--child", help=argparse.SUPPRESS)
    p.add_argument("--model", help=argparse.SUPPRESS)
    a = p.parse_args()
    a.prompt, a.generate, a.streams = (16, 8, [3, 1]) if a.tiny else (512, 128, [32, 128, 8, 1])
    if a.child:
        return child_main(a)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an exception, so that servers end too
    plan, wrong, rates = Plan(a), False, {}
    # compiling takes a minute on a slow machine, and nothing of it is tried without a GPU
    sides = a.sides.split(",") if a.sides else [s for s in SIDES if (s != "compiled" or not a.tiny) and (s != "vllm" or importlib.util.find_spec("vllm"))]
    print(f"\nLlama 3.1 8B's shape{', small' if a.tiny else ''}, random weights; prompts of {a.prompt} tokens, {a.generate} generated:\n")
    row("server", "weights", "streams", "steady tokens/s", "first token, ms", "between tokens, ms", "p99")
    row(*["---"] * 7)
    with tempfile.TemporaryDirectory(prefix="tandem-serve") as folder:
        folder = Path(folder)
        begin = time.monotonic()
        subprocess.run([sys.executable, ROOT / "loadtest/random_model.py", "llama-3.1-8b", folder / "model", *["--small"] * a.tiny], check=True,
                       stdout=sys.stderr)
        say(f"the model was written in {time.monotonic() - begin:.1f} s")
        for i, side in enumerate(sides):
            if plan.left() < plan.start + plan.run:
                row(*NAMES[side], "all", "left out: no time", "", "", "")
                continue
            failed = measure_side(a, side, folder, plan, len(sides) - 1 - i, rates)
            wrong |= failed and NAMES[side][0] == "tandem"
    print("\ntandem's steady tokens/s divided by the best of PyTorch in bf16:\n")
    row("streams", "bf16", "int8", "int4")
    row(*["---"] * 4)
    for n in sorted(a.streams):
        best = max(rates.get(("torch", n), 0), rates.get(("compiled", n), 0))
        row(n, *(f"{rates[side, n] / best:.2f}" if best and (side, n) in rates else "" for side in ("none", "int8", "int4")))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
