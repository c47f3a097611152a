#!/usr/bin/env python3
"""Side by side with llama.cpp, in one run: the same shapes, the same threads, prefill and decoding in true batches.

    compare_llamacpp.py make  MODEL_DIR OUT_PREFIX          # OUT_PREFIX-q8_0.gguf and OUT_PREFIX-q4_0.gguf
    compare_llamacpp.py bench --model MODEL_DIR --gguf OUT_PREFIX --tandem build/server/tandem --threads 2
    compare_llamacpp.py bench --gguf OUT_PREFIX --types q8_0,q4_k_m ...  # without --model: tandem opens the same files

llama.cpp is PyPI's llama-cpp-python, called through its low-level functions.  What is counted, and how to install what
this needs, is in docs/compare.md.  Every measurement runs in a process of its own, llama.cpp and tandem in turn.
"""
import argparse
import contextlib
import ctypes
import json
import os
import platform
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from gguf_text import add_tokenizer

INSTALL = """
    python3 -m venv venv
    CMAKE_ARGS="-DGGML_NATIVE=ON" venv/bin/pip install --no-binary llama-cpp-python llama-cpp-python gguf numpy
    venv/bin/python loadtest/compare_llamacpp.py ..."""
TYPES = {"q8_0": "Q8_0", "q4_0": "Q4_0", "q4_k_m": "Q4_K_M"}  # of files: llama.cpp's LLAMA_FTYPE_MOSTLY_...
PAIRS = {"q8_0": "int8", "q4_0": "int4"}  # llama.cpp's type: tandem's, of the directory
BUSY = 0.03  # share of the processors that others may take in a run that counts
CHUNK = 512  # tokens in one llama_decode of a prompt (n_batch and n_ubatch)


def fail(text):
    sys.exit(f"compare_llamacpp.py: {text}")


def need(module):
    """The module, or the end with what to install."""
    try:
        return __import__(module)
    except ImportError as e:
        fail(f"the Python package for `{module}` does not load ({e}). Install what this script needs:{INSTALL}")


# ---- make: a Hugging Face directory as GGUF --------------------------------------------------------------------------
# Names and keys as in the GGUF specification (github.com/ggml-org/ggml, docs/gguf.md).

TOP = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
       "lm_head.weight": "output.weight"}
LAYER = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2"}


def gguf_name(name):
    if name in TOP:
        return TOP[name]
    parts = name.split(".")  # model.layers.N.KIND.weight
    kind = ".".join(parts[3:-1])
    if parts[:2] != ["model", "layers"] or kind not in LAYER:
        fail(f"tensor {name} has no place in a Llama or Qwen2 GGUF file")
    return f"blk.{parts[2]}.{LAYER[kind]}.{parts[-1]}"


class Safetensors:
    """The tensors of a model directory, mapped: name -> (dtype, shape, array of the file's bytes as 16- or 32-bit words)."""

    WORDS = {"BF16": "<u2", "F16": "<f2", "F32": "<f4"}

    def __init__(self, folder):
        self.np = need("numpy")
        index = os.path.join(folder, "model.safetensors.index.json")
        files = ["model.safetensors"]
        if os.path.exists(index):
            files = sorted(set(json.load(open(index))["weight_map"].values()))
        self.where = {}
        for name in files:
            self.read_header(os.path.join(folder, name))

    def read_header(self, path):
        if not os.path.exists(path):
            fail(f"{path} does not exist")
        with open(path, "rb") as f:
            size = struct.unpack("<Q", f.read(8))[0]
            for name, t in json.loads(f.read(size)).items():
                if name == "__metadata__":
                    continue
                if t["dtype"] not in self.WORDS:
                    fail(f"{name} is {t['dtype']}; BF16, F16 and F32 are read")
                self.where[name] = (path, t["dtype"], t["shape"], 8 + size + t["data_offsets"][0])

    def read(self, name):
        path, dtype, shape, offset = self.where[name]
        return dtype, self.np.memmap(path, self.WORDS[dtype], "r", offset, tuple(shape))

    def floats(self, name):
        dtype, a = self.read(name)
        if dtype == "BF16":
            return (a.astype(self.np.uint32) << 16).view(self.np.float32)
        return a.astype(self.np.float32)


def rope_pairs(a, heads):
    """llama.cpp turns neighbours (2i, 2i+1) in its `llama` architecture, Hugging Face (i, i + half): reorder a head's rows."""
    half = a.shape[0] // heads // 2
    return a.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(a.shape)


def add_keys(w, c, arch):
    heads = c["num_attention_heads"]
    head_dim = c.get("head_dim") or c["hidden_size"] // heads
    if c.get("rope_scaling"):
        print("note: rope_scaling is left out (no effect on speed; the texts would differ)", file=sys.stderr)
    w.add_name("benchmark")
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(heads)
    w.add_head_count_kv(c.get("num_key_value_heads", heads))
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_rope_dimension_count(head_dim)
    w.add_rope_freq_base(c.get("rope_theta", 10000.0))
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_vocab_size(c["vocab_size"])


def write_gguf(folder, path):
    """The directory's weights as they are; vectors as F32, which llama.cpp demands of norms and biases."""
    gguf, np = need("gguf"), need("numpy")
    c = json.load(open(os.path.join(folder, "config.json")))
    arch = ARCHITECTURES.get(c.get("model_type"))
    if not arch:
        fail(f"model_type {c.get('model_type')}: only {', '.join(ARCHITECTURES)} are converted")
    src = Safetensors(folder)
    w = gguf.GGUFWriter(path, arch)
    add_keys(w, c, arch)
    add_tokenizer(w, folder, c, arch)
    kinds = {"BF16": gguf.GGMLQuantizationType.BF16, "F16": gguf.GGMLQuantizationType.F16,
             "F32": gguf.GGMLQuantizationType.F32}
    names = [n for n in src.where if not (n == "lm_head.weight" and c.get("tie_word_embeddings"))]
    for name in names:
        _, dtype, shape, _ = src.where[name]
        if len(shape) == 1:
            dtype = "F32"
        width = 4 if dtype == "F32" else 2
        size = int(np.prod(shape)) * width
        w.add_tensor_info(gguf_name(name), shape, np.dtype(np.float32), size, raw_dtype=kinds[dtype])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for name in names:
        shape = src.where[name][2]
        a = src.floats(name) if len(shape) == 1 else src.read(name)[1]
        if arch == "llama" and ".q_proj." in name:
            a = rope_pairs(a, c["num_attention_heads"])
        elif arch == "llama" and ".k_proj." in name:
            a = rope_pairs(a, c.get("num_key_value_heads", c["num_attention_heads"]))
        w.write_tensor_data(np.ascontiguousarray(a))
    w.close()


def quantize(lc, source, path, kind, threads):
    """llama.cpp's own recipe for the type, as its llama-quantize tool applies it."""
    p = lc.llama_model_quantize_default_params()
    p.ftype = getattr(lc, f"LLAMA_FTYPE_MOSTLY_{TYPES[kind]}")
    p.nthread = threads
    if lc.llama_model_quantize(source.encode(), path.encode(), ctypes.byref(p)) != 0:
        fail(f"llama.cpp could not write {path}")


def describe(path):
    """Which types the file's tensors have: the layers' matrices, and the token embedding / output."""
    gguf = need("gguf")
    layers, rest = {}, []
    for t in gguf.GGUFReader(path).tensors:
        if len(t.shape) == 2 and t.name.startswith("blk."):
            layers[t.tensor_type.name] = layers.get(t.tensor_type.name, 0) + 1
        elif len(t.shape) == 2:
            rest.append(f"{t.name} {t.tensor_type.name}")
    counts = ", ".join(f"{n} x {kind}" for kind, n in sorted(layers.items()))
    return f"layers {counts}; {', '.join(rest)}; {os.path.getsize(path) / 1e6:.0f} MB"


def cmd_make(a):
    lc = open_llama()
    kinds = a.types.split(",")
    for kind in kinds:
        if kind not in TYPES and kind != "bf16":
            fail(f"--types: {kind} is none of bf16, {', '.join(TYPES)}")
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(a.out))) as folder:
        source = os.path.join(folder, "source.gguf")
        write_gguf(a.model, source)
        for kind in kinds:
            if kind != "bf16":
                quantize(lc, source, f"{a.out}-{kind}.gguf", kind, a.threads)
                print(f"{a.out}-{kind}.gguf: {describe(f'{a.out}-{kind}.gguf')}")
        if "bf16" in kinds:
            os.rename(source, f"{a.out}-bf16.gguf")
            print(f"{a.out}-bf16.gguf: {describe(f'{a.out}-bf16.gguf')}")


# ---- one measurement of llama.cpp, in a process of its own ---------------------------------------------------------

keep = []  # callbacks that C holds


def open_llama():
    lc = need("llama_cpp")

    @lc.llama_log_callback
    def log(level, text, _):
        if level == 4:  # errors
            sys.stderr.write(text.decode(errors="replace"))

    keep.append(log)
    lc.llama_log_set(log, None)
    lc.llama_backend_init()
    return lc


def llama_version(lc):
    """llama-cpp-python's version, llama.cpp's system line, and ggml's version and commit where the build knows them."""
    v = {"llama_cpp_python": lc.__version__, "system_info": lc.llama_print_system_info().decode().strip()}
    base = os.path.join(os.path.dirname(lc.__file__), "lib", "libggml-base.so")
    for name in ("ggml_version", "ggml_commit"):
        try:
            f = getattr(ctypes.CDLL(base), name)
            f.restype = ctypes.c_char_p
            v[name] = f().decode()
        except (OSError, AttributeError):
            v[name] = "unknown"
    return v


class Llama:
    """A model of llama.cpp and, one at a time, a context of it for n sequences."""

    def __init__(self, path, a):
        self.lc, self.a, self.ctx = open_llama(), a, None
        if not os.path.exists(path):
            fail(f"{path} does not exist; write it with `compare_llamacpp.py make`")
        p = self.lc.llama_model_default_params()
        p.n_gpu_layers = 0
        self.model = self.lc.llama_model_load_from_file(path.encode(), p)
        if not self.model:
            fail(f"llama.cpp could not load {path}")
        self.n_vocab = self.lc.llama_vocab_n_tokens(self.lc.llama_model_get_vocab(self.model))
        self.batch = self.lc.llama_batch_init(max(CHUNK, 256), 0, 1)
        self.rng = random.Random(1)

    def open(self, sequences):
        """A context for so many sequences; each gets room for prompt and generated tokens, in llama.cpp's units of 256."""
        lc, a = self.lc, self.a
        if self.ctx:
            lc.llama_free(self.ctx)
        p = lc.llama_context_default_params()
        p.n_ctx = sequences * (-(-(a.prompt_tokens + a.generate_tokens) // 256) * 256)
        p.n_batch = p.n_ubatch = CHUNK
        p.n_seq_max = sequences
        p.n_threads = p.n_threads_batch = a.threads
        p.type_k = p.type_v = 1  # GGML_TYPE_F16
        p.flash_attn_type = lc.LLAMA_FLASH_ATTN_TYPE_ENABLED if a.flash == "on" else lc.LLAMA_FLASH_ATTN_TYPE_DISABLED
        p.kv_unified = a.kv == "unified"
        p.offload_kqv = p.op_offload = False
        p.no_perf = True
        self.ctx = lc.llama_init_from_model(self.model, p)
        if not self.ctx:
            fail(f"llama.cpp could not make a context of {p.n_ctx} tokens")
        self.memory = lc.llama_get_memory(self.ctx)

    def decode(self, rows):
        """One llama_decode of rows (sequence, position, whether logits are wanted), with random token ids."""
        b, lc = self.batch, self.lc
        b.n_tokens = len(rows)
        for i, (seq, pos, logits) in enumerate(rows):
            b.token[i] = self.rng.randrange(self.n_vocab)
            b.pos[i] = pos
            b.n_seq_id[i] = 1
            b.seq_id[i][0] = seq
            b.logits[i] = logits
        t = time.perf_counter()
        rc = lc.llama_decode(self.ctx, b)
        lc.llama_synchronize(self.ctx)
        t = time.perf_counter() - t
        if rc != 0:
            fail(f"llama_decode returned {rc}")
        return t

    def prefill(self):
        """Seconds for a prompt in sequence 0, logits for its last token only."""
        n, lc = self.a.prompt_tokens, self.lc
        lc.llama_memory_clear(self.memory, True)
        return sum(self.decode([(0, i, i == n - 1) for i in range(first, min(first + CHUNK, n))])
                   for first in range(0, n, CHUNK))

    def fill(self, sequences):
        """The same prompt in every sequence, each with a copy of its own: what so many strangers' prompts cost to read."""
        self.prefill()
        size = self.lc.llama_state_seq_get_size(self.ctx, 0)
        data = (ctypes.c_uint8 * size)()
        if self.lc.llama_state_seq_get_data(self.ctx, data, size, 0) != size:
            fail("llama_state_seq_get_data wrote less than it announced")
        for seq in range(1, sequences):
            if self.lc.llama_state_seq_set_data(self.ctx, data, size, seq) == 0:
                fail(f"llama_state_seq_set_data failed for sequence {seq}")

    def generate(self, sequences, steps):
        """Seconds of each of so many steps of one token a sequence after the prompt, logits for every row; then back to the
        prompt."""
        n = self.a.prompt_tokens
        t = [self.decode([(seq, n + step, 1) for seq in range(sequences)]) for step in range(steps)]
        for seq in range(sequences):
            self.lc.llama_memory_seq_rm(self.memory, seq, n, -1)
        return t


def percentile_99(times):
    """The smallest of them that 99 % do not exceed, as tandem bench counts it."""
    return sorted(times)[-(-99 * len(times) // 100) - 1]


def cmd_llama(a):
    """Prints {"version": ..., "cells": {"prefill": [tokens/s, ...], "1": [...], "8": [...]}, "p99_ms": {"1": ms, ...}}, p99 of
    the steps."""
    m = Llama(a.gguf, a)
    cells, p99 = {}, {}
    if "prefill" in a.cells:
        m.open(1)
        m.prefill()  # touches every weight once
        cells["prefill"] = [a.prompt_tokens / m.prefill() for _ in range(a.repeat)]
    for cell in a.cells:
        if cell == "prefill":
            continue
        sequences = int(cell)
        m.open(sequences)
        m.fill(sequences)
        m.generate(sequences, 2)
        runs = [m.generate(sequences, a.generate_tokens) for _ in range(a.repeat)]
        cells[cell] = [sequences * a.generate_tokens / sum(steps) for steps in runs]
        p99[cell] = 1e3 * percentile_99([t for steps in runs for t in steps])
    print(json.dumps({"version": llama_version(m.lc), "cells": cells, "p99_ms": p99}))


# ---- bench: both in turn -------------------------------------------------------------------------------------------

def cpu_seconds():
    """(what all processors did together, what they did not get from the host, what our finished children did), in seconds."""
    tick = os.sysconf("SC_CLK_TCK")
    user, nice, system, _, _, irq, softirq, steal = [int(x) / tick for x in open("/proc/stat").readline().split()[1:9]]
    t = os.times()
    return user + nice + system + irq + softirq, steal, t.children_user + t.children_system


@contextlib.contextmanager
def neighbour():
    """A process that takes one of the processors that are ours, the first, all the time."""
    first = min(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{first}])\nwhile True: pass"]) as p:
        try:
            yield
        finally:
            p.kill()


def run(a, command):
    """The JSON a command writes to stdout.  Notes which share of the processors others took meanwhile."""
    before, start = cpu_seconds(), time.perf_counter()
    env = dict(os.environ, OPENBLAS_NUM_THREADS="1")  # numpy's, idle in any case
    with neighbour() if a.neighbour else contextlib.nullcontext():
        p = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=env)
        seconds = time.perf_counter() - start
    busy, steal, own = (x - y for x, y in zip(cpu_seconds(), before))
    if seconds > 1 and not a.neighbour:  # the kernel counts in ticks of 10 ms: nothing can be said of less
        a.others.append(max(0.0, busy - own + steal) / (seconds * os.cpu_count()))
    if p.returncode != 0:
        fail(f"exit status {p.returncode} from: {' '.join(command)}")
    try:
        return json.loads(p.stdout)
    except json.JSONDecodeError as e:
        fail(f"no JSON ({e}) from: {' '.join(command)}")


def run_llama(a, kind, variant, cells, steps, repeat):
    flash, kv = variant
    return run(a, [sys.executable, os.path.abspath(__file__), "llama", "--gguf", f"{a.gguf}-{kind}.gguf",
                   "--prompt-tokens", str(a.prompt_tokens), "--generate-tokens", str(steps),
                   "--threads", str(a.threads), "--repeat", str(repeat), "--flash", flash, "--kv", kv,
                   "--cells", ",".join(cells)])


def tandem_type(a, kind):
    return PAIRS[kind] if a.model else kind


def run_tandem(a, kind):
    """({"prefill": tokens/s, "1": tokens/s, ...}, p99 of the steps in ms, what tandem says of the system)."""
    weights = ["--model", a.model, "--quantize", PAIRS[kind]] if a.model else ["--model", f"{a.gguf}-{kind}.gguf"]
    level = ["--device", f"cpu:{a.level}"] if a.level else []
    command = [a.tandem, "bench", *weights, *level, "--prompt-tokens", str(a.prompt_tokens),
               "--generate-tokens", str(a.generate_tokens), "--batch", a.batch, "--threads", str(a.threads), "--json"]
    answer = run(a, command)
    cells, p99 = {}, {}
    for r in sorted(answer.get("results", []), key=lambda r: r.get("batch", 1)):
        if r["phase"] == "decode":
            cells[str(r["batch"])], p99[str(r["batch"])] = r["tokens_per_s"], r["step_ms"]["p99"]
        elif r["phase"] == "prefill" and r["prompt_tokens"] == a.prompt_tokens:
            cells.setdefault("prefill", r["tokens_per_s"])  # the smallest batch: one prompt
    missing = [c for c in a.cells if c not in cells]
    if missing:
        fail(f"tandem bench reported nothing for {', '.join(missing)}: {' '.join(command)}")
    return cells, p99, answer.get("system")


def variant_name(variant):
    return f"flash {variant[0]}, KV {variant[1]}"


def choose(a, kind):
    """Which of llama.cpp's ways is fastest for each cell, from a short run of each: {cell: (flash, kv)}."""
    variants = [(f, kv) for f in (("on", "off") if a.flash == "both" else (a.flash,))
                for kv in (("separate", "unified") if a.kv == "both" else (a.kv,))]
    best, tried, version = {}, {}, None
    for v in variants:
        progress(a, f"{kind}: trying {variant_name(v)}")
        answer = run_llama(a, kind, v, a.cells, min(a.generate_tokens, 16), 2)
        version = answer["version"]
        for cell, rates in answer["cells"].items():
            rate = max(rates)
            tried.setdefault(cell, {})[variant_name(v)] = rate
            if cell not in best or rate > best[cell][0]:
                best[cell] = (rate, v)
    return {cell: v for cell, (_, v) in best.items()}, tried, version


def progress(a, text):
    if not a.quiet:
        print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def measure(a, kind, chosen, round_):
    """One round of one type: (({cell: median of llama.cpp}, {cell: p99}), the same of tandem, system)."""
    theirs, theirs_p99 = {}, {}
    for v in sorted(set(chosen.values())):
        cells = [c for c in a.cells if chosen[c] == v]
        progress(a, f"round {round_}: llama.cpp {kind}, {variant_name(v)}: {', '.join(cells)}")
        answer = run_llama(a, kind, v, cells, a.generate_tokens, a.repeat)
        theirs.update({c: statistics.median(r) for c, r in answer["cells"].items()})
        theirs_p99.update(answer["p99_ms"])
    progress(a, f"round {round_}: tandem {tandem_type(a, kind)}")
    ours, ours_p99, system = run_tandem(a, kind)
    return (theirs, theirs_p99), (ours, ours_p99), system


def cpu_flags():
    try:
        for line in open("/proc/cpuinfo"):
            if line.startswith("flags"):
                return set(line.split(":")[1].split())
    except OSError:
        pass
    return set()


# of /proc/cpuinfo and of llama.cpp's system line
FEATURES = {"avx2": "AVX2", "avx_vnni": "AVX_VNNI", "avx512f": "AVX512", "avx512_vnni": "AVX512_VNNI",
            "avx512_bf16": "AVX512_BF16"}
LEVELS = {"avx2": {"avx2"}, "avxvnni": {"avx2", "avx_vnni"}, "avx512": {"avx2", "avx512f", "avx512_vnni"}}


def check_build(version, level):
    """A llama.cpp that was not built for this processor would be no opponent, nor one built for more than the level."""
    # beside AVX-512 VNNI it does not count whether a native build has AVX-VNNI, the same on fewer bits
    wanted, info = LEVELS[level] if level else cpu_flags() - {"avx_vnni"}, version["system_info"]
    for flag, name in FEATURES.items():
        if flag in wanted and f"{name} = 1" not in info:
            fail(f"this llama.cpp was built without {name}, which {'the level' if level else 'the processor'} has. "
                 + (f"Build it with -DGGML_NATIVE=OFF -DGGML_{name}=ON" if level else f"Build it natively:{INSTALL}"))
        if level and flag not in wanted and f"{name} = 1" in info:
            fail(f"this llama.cpp was built with {name}, which the level {level} has not: "
                 f"build it with -DGGML_NATIVE=OFF -DGGML_{name}=OFF")


def phase_name(a, cell):
    return f"prefill {a.prompt_tokens}" if cell == "prefill" else f"decode, batch {cell}"


def report(a, rows):
    head = (f"{'types':12} {'phase':18} {'llama.cpp':>10} {'tandem':>10} {'ratio':>6}  "
            f"{'rounds':>11}  {'p99, ms':>17}  llama.cpp's way")
    print(head)
    print("-" * len(head))
    for r in rows:
        p99 = "" if r["tandem_p99_ms"] is None else f"{r['llamacpp_p99_ms']:.1f} / {r['tandem_p99_ms']:.1f}"
        print(f"{r['types']:12} {r['phase']:18} {r['llamacpp']:10.1f} {r['tandem']:10.1f} {r['ratio']:6.2f}  "
              f"{r['ratio_min']:5.2f}-{r['ratio_max']:5.2f}  {p99:>17}  {r['llamacpp_way']}")


def summarise(a, kind, chosen, samples):
    rows = []
    for cell in a.cells:
        theirs, ours = ([s[side][0][cell] for s in samples] for side in (0, 1))
        p99 = [statistics.median(s[side][1][cell] for s in samples) if cell in samples[0][side][1] else None
               for side in (0, 1)]
        ratios = [o / t for t, o in zip(theirs, ours)]
        rows.append({"types": f"{kind}/{PAIRS[kind]}" if a.model else kind, "phase": phase_name(a, cell), "cell": cell,
                     "llamacpp": statistics.median(theirs), "tandem": statistics.median(ours),
                     "ratio": statistics.median(ours) / statistics.median(theirs), "ratio_min": min(ratios),
                     "ratio_max": max(ratios), "llamacpp_p99_ms": p99[0], "tandem_p99_ms": p99[1],
                     "llamacpp_way": variant_name(chosen[cell]), "llamacpp_samples": theirs, "tandem_samples": ours})
    return rows


def cmd_bench(a):
    a.cells = ["prefill"] + a.batch.split(",")
    kinds = a.types.split(",")
    need("llama_cpp")
    for kind in kinds:
        known = PAIRS if a.model else TYPES
        if kind not in known:
            fail(f"--types: {kind} is none of {', '.join(known)}")
        if not os.path.exists(f"{a.gguf}-{kind}.gguf"):
            fail(f"{a.gguf}-{kind}.gguf does not exist; write it with `compare_llamacpp.py make`")
    if not os.access(a.tandem, os.X_OK):
        fail(f"--tandem {a.tandem} is no program")
    a.others = []
    chosen, tried, samples, version, system = {}, {}, {k: [] for k in kinds}, None, None
    for kind in kinds:
        chosen[kind], tried[kind], version = choose(a, kind)
        check_build(version, a.level)
    for round_ in range(1, a.rounds + 1):
        for kind in kinds:
            theirs, ours, system = measure(a, kind, chosen[kind], round_)
            samples[kind].append((theirs, ours))
    rows = [r for kind in kinds for r in summarise(a, kind, chosen[kind], samples[kind])]
    if a.json:
        print(json.dumps({"model": a.model, "threads": a.threads, "prompt_tokens": a.prompt_tokens,
                          "generate_tokens": a.generate_tokens, "rounds": a.rounds, "repeat": a.repeat,
                          "machine": platform.platform(), "others_cpu_share": a.others, "llamacpp": version, "llamacpp_ways_tried": tried,
                          "tandem_system": system, "results": rows}, indent=1))
        return
    print(f"llama-cpp-python {version['llama_cpp_python']}, ggml {version['ggml_version']} ({version['ggml_commit']})")
    print(f"{version['system_info']}\n{a.model or a.gguf}, {a.threads} threads, prompt {a.prompt_tokens}, {a.generate_tokens} "
          f"generated; tokens/s, medians of {a.rounds} rounds (llama.cpp: of {a.repeat} repetitions in each)\n")
    report(a, rows)
    print("\na neighbour took one processor all the time" if a.neighbour else
          f"\nprocessor time that others took during a run: {100 * max(a.others, default=0):.1f} % at most")
    if max(a.others, default=0) > BUSY:
        print("WARNING: the machine was not quiet. llama.cpp's threads wait for each other at every operation and lose most "
              "from that: these ratios mean nothing")


# ---- command line ----------------------------------------------------------------------------------------------------

def shape_options(p, threads):
    p.add_argument("--prompt-tokens", type=int, default=512, metavar="P")
    p.add_argument("--generate-tokens", type=int, default=64, metavar="G", help="steps after the prompt")
    p.add_argument("--threads", type=int, default=threads, metavar="N", help="for both (default %(default)s)")
    p.add_argument("--repeat", type=int, default=3, help="repetitions inside one process of llama.cpp")


def main():
    cores = len(os.sched_getaffinity(0))
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = ap.add_subparsers(dest="command", required=True)

    p = sub.add_parser("make", help="write a model directory as GGUF")
    p.add_argument("model", metavar="MODEL_DIR")
    p.add_argument("out", metavar="OUT_PREFIX")
    p.add_argument("--types", default="q8_0,q4_0", help="of bf16,q8_0,q4_0,q4_k_m (default %(default)s)")
    p.add_argument("--threads", type=int, default=cores)
    p.set_defaults(run=cmd_make)

    p = sub.add_parser("bench", help="measure both in turn")
    p.add_argument("--model", metavar="DIR", help="the model directory, for tandem (none: it opens the GGUF files too)")
    p.add_argument("--gguf", required=True, metavar="OUT_PREFIX", help="what `make` was given")
    p.add_argument("--tandem", default="build/server/tandem", metavar="PROGRAM")
    p.add_argument("--types", default="q8_0,q4_0", help="(default %(default)s)")
    p.add_argument("--batch", default="1,8,32", help="sequences decoded at once (default %(default)s)")
    p.add_argument("--rounds", type=int, default=3, help="alternations of llama.cpp and tandem")
    p.add_argument("--flash", choices=("both", "on", "off"), default="both", help="llama.cpp's flash attention")
    p.add_argument("--kv", choices=("both", "separate", "unified"), default="both",
                   help="llama.cpp's KV cache: one buffer a sequence, or one for all")
    p.add_argument("--neighbour", action="store_true", help="another process takes one of the processors meanwhile")
    p.add_argument("--level", choices=LEVELS, help="of instructions, for both: llama.cpp must be built for it")
    p.add_argument("--json", action="store_true")
    p.add_argument("--quiet", action="store_true", help="no progress on stderr")
    shape_options(p, cores)
    p.set_defaults(run=cmd_bench)

    p = sub.add_parser("llama", help="one measurement of llama.cpp, as JSON (`bench` runs this)")
    p.add_argument("--gguf", required=True, metavar="FILE")
    p.add_argument("--flash", choices=("on", "off"), default="on")
    p.add_argument("--kv", choices=("separate", "unified"), default="separate")
    p.add_argument("--cells", type=lambda s: s.split(","), default=["prefill", "1", "8", "32"])
    shape_options(p, cores)
    p.set_defaults(run=cmd_llama)

    a = ap.parse_args()
    a.run(a)


if __name__ == "__main__":
    main()
