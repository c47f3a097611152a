#!/usr/bin/env python3
"""Train the demo model: a small Llama that tells little stories.

    python train.py --data DIR --out DIR [--minutes N] [--seed S]

DIR given as --data holds plain-text files with one story between each pair of
<|endoftext|> marks (TinyStories). The script
  1. cleans the stories, drops duplicates and near duplicates, and splits off a
     held-out set (heldout.txt) before anything is trained;
  2. trains a byte-level BPE tokenizer on the training stories;
  3. trains the model on the CPU, keeping the averaged weights that score best
     on the held-out stories, and
  4. writes a Hugging Face directory (config.json, model.safetensors in bf16,
     tokenizer.json, ...) that transformers' LlamaForCausalLM loads.

Needs torch (2.9 or newer, for Muon), numpy, tokenizers, safetensors and, for
torch.compile, a C++ compiler; --no-compile does without the compiler and is about
half as fast. The schedule follows the clock (--minutes), so a slower machine sees
fewer steps. A run that was stopped goes on with --resume.
"""
import argparse
import collections
import ctypes
import json
import math
import os
import random
import re
import time

# idle threads sleep rather than spin: on a busy machine the core they leave helps
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

END = "<|endoftext|>"
FILES = ["tinystories_cased_2MB.txt", "tinystories_more.txt", "tinystories_recased.txt"]
CONTEXT = 512


# ---------------------------------------------------------------- the stories

def repair_capitals(stories, reference):
    """The recased file got its capitals from a rule that misses some names.
    Capitalise a word when the well-cased stories write it as a name, or when
    they do not know it and the story itself also has it with a capital."""
    lower = collections.Counter(re.findall(r"(?<![\w'])[a-z]+(?!\w)", reference))
    name = collections.Counter(re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", reference))

    def repair(story):
        have = set(re.findall(r"[A-Z][a-z]+", story))

        def one(m):
            w = m.group(0)
            c = w.capitalize()
            if len(w) > 2 and (name[c] > 3 * lower[w] or (lower[w] == 0 and c in have)):
                return c
            return w
        story = re.sub(r"(?<![\w'])[a-z]+(?!\w)", one, story)
        return re.sub(r'(?<=[?!]" )(mom|dad|mommy|daddy|mum|mummy)\b',
                      lambda m: m.group(0).capitalize(), story)
    return [repair(s) for s in stories]


def load_stories(folder):
    """Whole, cleaned stories, each with the name of its file."""
    plain = str.maketrans({"“": '"', "”": '"', "«": '"', "»": '"', "’": "'", "‘": "'",
                           "–": "-", "—": "-", "…": "...", "\u200a": " "})
    raw = {}
    for f in FILES:
        path = os.path.join(folder, f)
        if not os.path.exists(path):
            continue
        text = open(path, encoding="utf-8", errors="replace").read().translate(plain)
        out = []
        for s in text.split(END):
            s = "\n\n".join(re.sub(r"\s+", " ", p).strip() for p in s.split("\n") if p.strip())
            # a fragment, a story cut in the middle, or two stories run together
            if len(s) < 300 or s[-1] not in ".!?\"'" or s.count("Once upon a time") > 1:
                continue
            if re.search(r"[^\x00-\x7f]", s):
                continue
            out.append(s)
        raw[f] = out
    if not raw:
        raise SystemExit("no story files (%s) in %s" % (", ".join(FILES), folder))
    cased = "\n".join("\n".join(v) for k, v in raw.items() if "recased" not in k)
    for f in raw:
        if "recased" in f:
            raw[f] = repair_capitals(raw[f], cased)
    return [(f, s) for f in raw for s in raw[f]]


def shingles(story, n=6):
    words = re.findall(r"[a-z']+", story.lower())
    return {hash(tuple(words[i:i + n])) for i in range(len(words) - n + 1)}


def split_stories(stories, heldout_bytes, seed):
    """Drop near duplicates; then choose held-out stories which share next to
    no six-word run with any other story, apart from the most common ones."""
    where = collections.defaultdict(list)
    kept, sets = [], []
    worst = []                       # largest overlap with any other kept story
    for f, s in stories:
        mine = shingles(s)
        if not mine:
            continue
        shared = collections.Counter(k for h in mine for k in where[h])
        over = [(n / min(len(mine), len(sets[k])), k) for k, n in shared.items()]
        top = max(over, default=(0.0, -1))
        if top[0] > 0.5:
            continue
        i = len(kept)
        kept.append((f, s))
        sets.append(mine)
        worst.append(top[0])
        for v, k in over:
            worst[k] = max(worst[k], v)
        for h in mine:
            where[h].append(i)
    order = list(range(len(kept)))
    random.Random(seed).shuffle(order)
    held, size = set(), 0
    for i in order:
        f, s = kept[i]
        n = len(s) + len(END)
        if "recased" in f or worst[i] > 0.10 or size + n > heldout_bytes:
            continue
        held.add(i)
        size += n
        if size > heldout_bytes - 400:
            break
    train = [s for i, (_, s) in enumerate(kept) if i not in held]
    return train, [kept[i][1] for i in order if i in held]


# -------------------------------------------------------------- the tokenizer

def make_tokenizer(stories, vocab):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(stories, trainers.BpeTrainer(
        vocab_size=vocab, min_frequency=2, special_tokens=[END], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    return tok


# ------------------------------------------------------------------ the model

class Norm(nn.Module):
    def __init__(self, d, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, (x.size(-1),), self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, self.h, self.kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
        self.hd = d // self.h
        self.q_proj = nn.Linear(d, d, bias=False)
        self.k_proj = nn.Linear(d, self.kv * self.hd, bias=False)
        self.v_proj = nn.Linear(d, self.kv * self.hd, bias=False)
        self.o_proj = nn.Linear(d, d, bias=False)

    def forward(self, x, cos, sin, mask):
        B, T, d = x.shape
        q = self.q_proj(x).view(B, T, self.h, self.hd).transpose(1, 2)
        k = self.k_proj(x).view(B, T, self.kv, self.hd).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.kv, self.hd).transpose(1, 2)

        def rope(t):                                    # Hugging Face layout: halves
            a, b = t.chunk(2, -1)
            return t * cos + torch.cat((-b, a), -1) * sin
        q, k = rope(q), rope(k)
        # the query heads that share a key head become further rows of one product
        g = self.h // self.kv
        q = q.reshape(B, self.kv, g * T, self.hd)
        score = (q @ k.transpose(-1, -2)) * self.hd ** -0.5
        score = score.view(B, self.kv, g, T, T) + mask
        y = score.softmax(-1, dtype=x.dtype).view(B, self.kv, g * T, T) @ v
        return self.o_proj(y.view(B, self.h, T, self.hd).transpose(1, 2).reshape(B, T, d))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, f = c["hidden_size"], c["intermediate_size"]
        self.gate_proj = nn.Linear(d, f, bias=False)
        self.up_proj = nn.Linear(d, f, bias=False)
        self.down_proj = nn.Linear(f, d, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.mlp = MLP(c)

    def forward(self, x, cos, sin, mask, drop):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask) * drop[0]
        return x + self.mlp(self.post_attention_layernorm(x)) * drop[1]


class Llama(nn.Module):
    """Parameter names are those of transformers' LlamaModel."""

    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = Norm(c["hidden_size"], c["rms_norm_eps"])
        hd = c["hidden_size"] // c["num_attention_heads"]
        inv = c["rope_theta"] ** (-torch.arange(0, hd, 2).float() / hd)
        ang = torch.outer(torch.arange(CONTEXT).float(), inv)
        ang = torch.cat((ang, ang), -1)
        self.register_buffer("cos", ang.cos(), persistent=False)
        self.register_buffer("sin", ang.sin(), persistent=False)
        self.register_buffer("mask", torch.full((CONTEXT, CONTEXT), -1e9).triu(1), persistent=False)
        for n, p in self.named_parameters():
            if p.dim() == 2:
                out = n.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(p, std=0.02 if not out else 0.02 / math.sqrt(2 * len(self.layers)))

    def dropout_masks(self, rows, p):
        """One mask per sequence, the same for all its tokens: cheap, and the
        stronger kind. First for the embedding, then two for each layer."""
        n, d = 1 + 2 * len(self.layers), self.embed_tokens.embedding_dim
        return (torch.rand(n, rows, 1, d) >= p).to(torch.bfloat16) / (1 - p) if p else torch.ones(n, 1, 1, 1)

    def forward(self, ids, drop, dtype):
        """The normed last hidden states."""
        T = ids.size(1)
        cos, sin, mask = self.cos[:T].to(dtype), self.sin[:T].to(dtype), self.mask[:T, :T].to(dtype)
        x = self.embed_tokens(ids) * drop[0]
        for i, layer in enumerate(self.layers):
            x = layer(x, cos, sin, mask, drop[1 + 2 * i:3 + 2 * i])
        return self.norm(x)


class LinearLoss(torch.autograd.Function):
    """Mean cross entropy of hidden @ weight.T against the targets (-1: none),
    a piece at a time so that the logits stay in the cache."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, piece=1024):
        h, w = hidden.to(torch.bfloat16), weight.to(torch.bfloat16)
        count = (targets >= 0).sum()
        dh, dw, total = torch.empty_like(h), torch.zeros_like(weight), 0.0
        for i in range(0, len(targets), piece):
            a, t = h[i:i + piece], targets[i:i + piece]
            have, t = t >= 0, t.clamp(min=0)[:, None]
            z = (a @ w.t()).float().log_softmax(-1)
            total = total - (z.gather(1, t)[:, 0] * have).sum()
            z.exp_().scatter_add_(1, t, torch.full(t.shape, -1.0))
            z = (z * (have / count)[:, None]).to(torch.bfloat16)
            dh[i:i + piece] = z @ w
            dw += z.t() @ a
        ctx.save_for_backward(dh.to(hidden.dtype), dw)
        return total / count

    @staticmethod
    def backward(ctx, grad):
        dh, dw = ctx.saved_tensors
        return dh * grad, dw * grad, None, None


# ----------------------------------------------------------------- the batches

def shapes_for(encoded, tokens):
    """A few (rows, length) shapes that hold the stories with little padding."""
    lengths = np.sort([min(len(e) + 1, CONTEXT) for e in encoded])
    edges = {int(math.ceil(np.quantile(lengths, q) / 16) * 16) for q in (.1, .25, .4, .55, .7, .82, .92)}
    return [(max(1, tokens // n), n) for n in sorted(edges | {CONTEXT})]


def one_epoch(encoded, end, shapes, rng):
    """Batches of rows, in random order; each story is in one of them. Seven of
    eight stories have a row of their own with others of like length; the rest
    are packed, whole stories one after the other, into rows of full length.
    Half of the rows begin with the end mark (as after another story), half with
    the first word, so that a prompt works with and without a leading mark."""
    rows = {n: [] for _, n in shapes}
    open_rows = []
    for i in rng.permutation(len(encoded)):
        ids = encoded[i] + [end]
        if rng.random() < 0.125:
            for r in open_rows:
                if len(r) + len(ids) <= CONTEXT + 1:
                    r.extend(ids)
                    break
            else:
                open_rows.append([end] + ids)
            continue
        if rng.random() < 0.5:
            ids = [end] + ids
        rows[next((n for _, n in shapes if len(ids) <= n + 1), CONTEXT)].append(ids)
    rows[CONTEXT] += open_rows
    batches = []
    for count, n in shapes:
        some = rows[n]
        for k in range(0, len(some), count):
            part = some[k:k + count]
            x = np.full((count, n + 1), -1, dtype=np.int64)
            for j in range(count):
                r = part[j] if j < len(part) else some[rng.integers(len(some))]
                x[j, :len(r)] = r[:n + 1]
            batches.append(x)
    return [batches[k] for k in rng.permutation(len(batches))]


def as_batch(rows):
    rows = torch.from_numpy(rows)
    return rows[:, :-1].clamp(min=0), rows[:, 1:].reshape(-1)


@torch.no_grad()
def heldout_loss(model, encoded, end):
    """Mean loss per token of the held-out stories, each on its own: the end
    mark first, the end mark last. Plain float32."""
    total = count = 0
    some = sorted(([end] + e + [end] for e in encoded), key=len)
    drop = model.dropout_masks(1, 0)
    for i in range(0, len(some), 8):
        part = [r[:CONTEXT + 1] for r in some[i:i + 8]]
        x = np.full((len(part), max(map(len, part))), -1, dtype=np.int64)
        for k, r in enumerate(part):
            x[k, :len(r)] = r
        ids, y = as_batch(x)
        h = model(ids, drop, torch.float32)
        h = h.reshape(-1, h.size(-1))[y >= 0]
        total += float(F.cross_entropy(F.linear(h, model.embed_tokens.weight), y[y >= 0], reduction="sum"))
        count += len(h)
    return total / count


@torch.no_grad()
def tell(model, tok, prompt, temperature=0.0, top_p=0.9, limit=300, seed=0):
    end = tok.token_to_id(END)
    ids = tok.encode(prompt).ids
    gen = torch.Generator().manual_seed(seed)
    drop = model.dropout_masks(1, 0)
    for _ in range(limit):
        h = model(torch.tensor([ids[-CONTEXT:]]), drop, torch.float32)[0, -1]
        logits = model.embed_tokens.weight @ h
        if temperature == 0:
            nxt = int(logits.argmax())
        else:
            p, order = (logits / temperature).softmax(-1).sort(descending=True)
            p[p.cumsum(-1) - p > top_p] = 0
            nxt = int(order[torch.multinomial(p, 1, generator=gen)])
        ids.append(nxt)
        if nxt == end:
            break
    return tok.decode(ids, skip_special_tokens=False)


# ------------------------------------------------------------------- the files

def write_json(path, value):
    with open(path + ".new", "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2, ensure_ascii=False)
        f.write("\n")
    os.replace(path + ".new", path)


def write_model(out, state, config, tok, end):
    tensors = {"model." + k: v.to(torch.bfloat16).contiguous() for k, v in state.items()}
    save_file(tensors, os.path.join(out, "model.safetensors.new"), metadata={"format": "pt"})
    os.chmod(os.path.join(out, "model.safetensors.new"), 0o644)
    os.replace(os.path.join(out, "model.safetensors.new"), os.path.join(out, "model.safetensors"))
    write_json(os.path.join(out, "config.json"), config)
    write_json(os.path.join(out, "generation_config.json"), {
        "bos_token_id": end, "eos_token_id": end, "pad_token_id": end,
        "do_sample": True, "temperature": 0.7, "top_p": 0.9, "max_new_tokens": 400})
    tok.save(os.path.join(out, "tokenizer.json"))
    write_json(os.path.join(out, "tokenizer_config.json"), {
        "tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False,
        "add_eos_token": False, "add_prefix_space": False, "bos_token": END,
        "eos_token": END, "pad_token": END, "unk_token": None,
        "clean_up_tokenization_spaces": False, "model_max_length": CONTEXT,
        "added_tokens_decoder": {str(end): {
            "content": END, "lstrip": False, "normalized": False, "rstrip": False,
            "single_word": False, "special": True}}})
    write_json(os.path.join(out, "special_tokens_map.json"),
               {"bos_token": END, "eos_token": END, "pad_token": END})


# -------------------------------------------------------------------- training

def keep_memory():
    """Have glibc keep freed blocks: fresh pages for each activation cost more
    than the arithmetic of a model this small."""
    try:
        libc = ctypes.CDLL(None)
        for option, value in ((-8, 1), (-4, 0), (-1, 2 ** 31 - 1), (-2, 2 ** 28)):
            libc.mallopt(option, value)      # ARENA_MAX, MMAP_MAX, TRIM_THRESHOLD, TOP_PAD
    except (OSError, AttributeError):
        pass


def main():
    ap = argparse.ArgumentParser(description="Train the demo model.")
    ap.add_argument("--data", required=True, help="folder with the story files")
    ap.add_argument("--out", required=True, help="folder to write the model to")
    ap.add_argument("--minutes", type=float, default=75, help="training time by the clock")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--vocab", type=int, default=2048)
    ap.add_argument("--layers", type=int, default=5)
    ap.add_argument("--hidden", type=int, default=256)
    ap.add_argument("--ffn", type=int, default=512)
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--kv-heads", type=int, default=2)
    ap.add_argument("--dropout", type=float, default=0.1)
    ap.add_argument("--batch", type=int, default=4096, help="tokens in a batch")
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--weight-decay", type=float, default=0.1)
    ap.add_argument("--every", type=int, default=250, help="steps between held-out losses")
    ap.add_argument("--no-compile", action="store_true", help="do not torch.compile the model")
    ap.add_argument("--resume", action="store_true", help="go on from OUT/checkpoint.pt")
    a = ap.parse_args()

    keep_memory()
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    rng = np.random.default_rng(a.seed)
    os.makedirs(a.out, exist_ok=True)
    log_file = open(os.path.join(a.out, "train.log"), "a" if a.resume else "w", buffering=1)

    def log(line):
        print(line, flush=True)
        log_file.write(line + "\n")

    # stories, tokenizer
    train, held = split_stories(load_stories(a.data), 62000, a.seed)
    with open(os.path.join(a.out, "heldout.txt"), "w", encoding="utf-8", newline="\n") as f:
        f.write("".join(s + END for s in held))
    tok = make_tokenizer(train, a.vocab)
    end = tok.token_to_id(END)
    enc_train = [e.ids for e in tok.encode_batch(train)]
    enc_held = [e.ids for e in tok.encode_batch(held)]
    n_train, n_held = (sum(len(e) + 1 for e in x) for x in (enc_train, enc_held))
    log("stories: %d training (%d tokens), %d held-out (%d tokens, %d bytes)"
        % (len(train), n_train, len(held), n_held, sum(len(s) for s in held)))

    # model
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "vocab_size": tok.get_vocab_size(), "hidden_size": a.hidden,
        "intermediate_size": a.ffn, "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads, "num_key_value_heads": a.kv_heads,
        "head_dim": a.hidden // a.heads, "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": None,
        "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0,
        "mlp_bias": False, "tie_word_embeddings": True, "initializer_range": 0.02,
        "use_cache": True, "bos_token_id": end, "eos_token_id": end, "pad_token_id": end,
        "torch_dtype": "bfloat16"}
    model = Llama(config)
    log("model: %d parameters, vocabulary %d, %d layers, hidden %d, ffn %d, heads %d/%d"
        % (sum(p.numel() for p in model.parameters()), config["vocab_size"], a.layers,
           a.hidden, a.ffn, a.heads, a.kv_heads))
    log("run: minutes %g, seed %d, batch %d, lr %g, weight decay %g, dropout %g"
        % (a.minutes, a.seed, a.batch, a.lr, a.weight_decay, a.dropout))
    # AdamW for the embedding and the norms; Muon, its learning rate scaled to AdamW's, for
    # the matrices of the layers: after 750 steps the held-out loss was 2.49, with AdamW
    # for everything 2.66
    matrices = [p for p in model.layers.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    opts = [torch.optim.Muon(matrices, lr=a.lr, momentum=0.95, weight_decay=a.weight_decay,
                             adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW([{"params": [model.embed_tokens.weight], "weight_decay": a.weight_decay},
                               {"params": vectors, "weight_decay": 0.0}],
                              lr=a.lr, betas=(0.9, 0.98), eps=1e-8, fused=True)]
    average = {k: v.detach().clone() for k, v in model.state_dict().items()}
    judge = Llama(config)                    # holds the averaged weights
    shapes = shapes_for(enc_train, a.batch)
    forward = model
    if not a.no_compile:
        torch._dynamo.config.cache_size_limit = 2 * len(shapes) + 4
        forward = torch.compile(model, dynamic=False)

    # where the run stands
    at = {"step": 0, "seen": 0, "seconds": 0.0, "best": float("inf")}
    checkpoint = os.path.join(a.out, "checkpoint.pt")
    if a.resume:
        c = torch.load(checkpoint)
        model.load_state_dict(c["model"])
        for o, state in zip(opts, c["opts"]):
            o.load_state_dict(state)
        average, at = c["average"], c["at"]
        rng = np.random.default_rng([a.seed, at["step"]])
        log("resumed at step %d, %.1f min" % (at["step"], at["seconds"] / 60))
    recent = []

    def check():
        judge.load_state_dict(average)
        loss = heldout_loss(judge, enc_held, end)
        mark = ""
        if loss < at["best"]:
            at["best"], mark = loss, " best"
            write_model(a.out, average, config, tok, end)
        log("step %5d  epoch %5.2f  %5.1f min  lr %.2e  train %.4f  held-out %.4f%s"
            % (at["step"], at["seen"] / n_train, at["seconds"] / 60, opts[0].param_groups[0]["lr"],
               sum(recent) / max(1, len(recent)), loss, mark))
        recent.clear()
        torch.save({"model": model.state_dict(), "opts": [o.state_dict() for o in opts], "average": average, "at": at},
                   checkpoint + ".new")
        os.replace(checkpoint + ".new", checkpoint)

    batches = []
    before = time.time()
    while at["seconds"] < a.minutes * 60:
        if not batches:
            batches = one_epoch(enc_train, end, shapes, rng)
        x, y = as_batch(batches.pop())
        progress = at["seconds"] / (a.minutes * 60)
        lr = a.lr * min(1.0, (at["step"] + 1) / 200) * (0.01 + 0.99 * (1 + math.cos(math.pi * progress)) / 2)
        for o in opts:
            for g in o.param_groups:
                g["lr"] = lr
        drop = model.dropout_masks(len(x), a.dropout)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = forward(x, drop, torch.bfloat16)
        loss = LinearLoss.apply(h.view(-1, h.size(-1)), model.embed_tokens.weight, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for o in opts:
            o.step()
            o.zero_grad(set_to_none=True)
        at["step"] += 1
        at["seen"] += int((y >= 0).sum())
        recent.append(loss.item())
        keep = min(0.998, at["step"] / (at["step"] + 10))    # running average of the weights
        with torch.no_grad():
            for k, v in model.state_dict().items():
                average[k].lerp_(v, 1 - keep)
        now = time.time()
        at["seconds"] += now - before
        before = now
        if at["step"] % a.every == 0:
            check()
    check()
    os.remove(checkpoint)

    # the numbers of the file as written
    judge.load_state_dict({k[len("model."):]: v.float()
                           for k, v in load_file(os.path.join(a.out, "model.safetensors")).items()})
    loss = heldout_loss(judge, enc_held, end)
    log("done: %d steps, %.1f epochs, %.1f min; model.safetensors: held-out loss %.4f, perplexity %.3f"
        % (at["step"], at["seen"] / n_train, at["seconds"] / 60, loss, math.exp(loss)))
    log("\ngreedy:\n" + tell(judge, tok, "Once upon a time"))
    log("\ntemperature 0.7, top_p 0.9:\n" + tell(judge, tok, "Once upon a time", 0.7, 0.9))


if __name__ == "__main__":
    main()
