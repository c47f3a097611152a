#!/usr/bin/env python3
"""Makes the nf4 fixtures with bitsandbytes: two small models that transformers saved in 4 bits, and single matrices.

    python tests/model/make_nf4_fixtures.py --out tests/fixtures

Needs torch, transformers, accelerate, bitsandbytes, tokenizers and safetensors, on a CPU (not a test dependency: the
fixtures are committed). Made with torch 2.15.0, transformers 5.23.0, bitsandbytes 0.50.2.

models/llama-nf4         double quantisation, bf16; the inputs of down_proj are no multiple of 64
models/llama-nf4-single  f16, scales in f32; one matrix that is stacked with others is left in floats
    as the other golden models (make_fixtures.py), the logits from the dequantised weights in float32
nf4/matrices.safetensors
    matrices NAME: NAME.w (the source), NAME.codes, NAME.absmax (F32), NAME.values (F32, dequantised with it), and with
        double quantisation NAME.state (the text), NAME.nested_absmax, NAME.nested_values (F32, dequantised)
    nest: absmax (F32, a case of its own), q (nearest entries of the map), q_cpu (what the CPU kernel of bitsandbytes
        takes: it looks up one of 65536 places, so that near the middle of two entries it may take the other),
        nested_absmax, offset, restored (F32, from q)
    map: the dynamic map
"""
import argparse
import copy
import shutil
from pathlib import Path

import bitsandbytes
import bitsandbytes.functional as bnb
import make_fixtures as golden
import safetensors.torch
import torch
import transformers

LLAMA = dict(model_type="llama", vocab_size=golden.VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-5,
             tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=10000.0), bos_token_id=0,
             eos_token_id=0)
PROMPT = 16


# ---- models ----------------------------------------------------------------------------------------------------------

def values(codes, state):
    """The values in float32, before bitsandbytes rounds them to the type it computes in. They are asked for as one row:
    bitsandbytes 0.50.2 with AVX-512 gives a [64, 96] wrong values, as its kernel starts a block with each row."""
    flat, shape = copy.deepcopy(state), state.shape
    flat.dtype, flat.shape = torch.float32, torch.Size([1, shape.numel()])
    return bnb.dequantize_4bit(codes, flat).reshape(shape)


def dequantized(directory):
    """The saved model with its weights dequantised, in float32."""
    saved = transformers.AutoModelForCausalLM.from_pretrained(directory)
    state = {}
    for name, module in saved.named_modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            state[name + ".weight"] = values(module.weight.data, module.weight.quant_state)
    for name, value in saved.named_parameters():
        if name not in state:
            state[name] = value.float()
    config = copy.deepcopy(saved.config)
    del config.quantization_config
    config.dtype = torch.float32
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="eager")
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model.float().eval()


def save_quantized(directory, config, seed, dtype, double, skip, tok):
    plain = directory.with_name(directory.name + "-float")
    model = transformers.LlamaForCausalLM(transformers.AutoConfig.for_model(**copy.deepcopy(config)))
    golden.randomize(model, seed)
    model.to(dtype).save_pretrained(plain)
    how = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double,
                                          bnb_4bit_compute_dtype=dtype, llm_int8_skip_modules=skip)
    model = transformers.AutoModelForCausalLM.from_pretrained(plain, quantization_config=how, dtype=dtype, device_map="cpu")
    shutil.rmtree(plain)
    shutil.rmtree(directory, ignore_errors=True)
    model.save_pretrained(directory)
    golden.write_tokenizer(directory, tok)
    for file in directory.iterdir():
        file.chmod(0o644)


def make_model(out, name, tok, dtype, double, skip=None, **changes):
    directory = out / name
    for seed in range(1, 100):
        save_quantized(directory, LLAMA | changes, seed, dtype, double, skip, tok)
        model = dequantized(directory)
        prompt = golden.random_ids(golden.GREEDY_PROMPT, golden.VOCAB, 1000 + seed)
        greedy, margin = golden.greedy_of(model, prompt, golden.GREEDY_TOKENS)
        if margin > golden.MARGIN and golden.lively(greedy) and 0 not in greedy:
            break
    else:
        raise SystemExit(f"{name}: no seed gave a safe greedy path")
    ids = golden.random_ids(PROMPT, golden.VOCAB, 2000 + seed)
    golden.check_everything_matters(model, ids)
    golden.write_expected(directory / "expected.safetensors", ids, golden.logits_of(model, ids), prompt, greedy)
    golden.report(directory, f"seed {seed}, margin {margin:.4f}, {len(set(greedy))} different greedy tokens")


# ---- matrices --------------------------------------------------------------------------------------------------------

def matrix(out, name, w):
    codes, state = bnb.quantize_4bit(w, blocksize=64, quant_type="nf4", compress_statistics=False)
    out |= {f"{name}.w": w, f"{name}.codes": codes, f"{name}.absmax": state.absmax, f"{name}.values": values(codes, state)}
    again, nested = bnb.quantize_4bit(w, blocksize=64, quant_type="nf4", compress_statistics=True)
    assert torch.equal(codes, again)
    packed = nested.as_dict(packed=True)
    out |= {f"{name}.state": packed["quant_state.bitsandbytes__nf4"], f"{name}.nested_absmax": nested.state2.absmax,
            f"{name}.nested_q": nested.absmax, f"{name}.nested_values": values(codes, nested)}


def nest(out, absmax):
    """The second quantisation alone. Given doubles, bitsandbytes' CPU kernel takes its general path: the nearest entry."""
    code = bnb.create_dynamic_map()
    offset = absmax.mean()
    y = absmax - offset
    q, nested = torch.ops.bitsandbytes.quantize_blockwise.default(y.double(), code, 256)
    q_cpu, nested_cpu = torch.ops.bitsandbytes.quantize_blockwise.default(y, code, 256)
    assert torch.equal(nested.float(), nested_cpu)
    restored = torch.ops.bitsandbytes.dequantize_blockwise.default(q, nested_cpu, code, 256, torch.float32) + offset
    out |= {"nest.absmax": absmax, "nest.q": q, "nest.q_cpu": q_cpu, "nest.nested_absmax": nested_cpu,
            "nest.offset": offset.reshape(1), "nest.restored": restored, "map": code}


def edges():
    """[1, 148]: a block of the thresholds and what lies next to them, one with values that a division by absmax and a
    multiplication by its reciprocal put on different sides of a threshold, and a short one (20) of such."""
    code = bnb.get_4bit_type("nf4", device="cpu")
    bounds = (code[:-1] + code[1:]) / 2
    up, down = torch.tensor(2.0), torch.tensor(-2.0)
    first = torch.cat([bounds, torch.nextafter(bounds, up), torch.nextafter(bounds, down), torch.ones(1), torch.zeros(18)])

    def split(count, absmax):
        found, g = [], torch.Generator().manual_seed(3)
        while len(found) < count - 1:
            m = (absmax * (1 + torch.rand(1, generator=g))).item()
            m = torch.tensor([m])
            near = (bounds * m)
            x = torch.cat([near, torch.nextafter(near, 100 * up), torch.nextafter(near, 100 * down)])
            differ = torch.bucketize(x / m, bounds) != torch.bucketize(x * (1.0 / m), bounds)
            if int(differ.sum()) >= 3:
                found = x[differ].tolist()[:count - 1]
                found += [0.0] * (count - 1 - len(found))
        return torch.cat([m, torch.tensor(found)])

    return torch.cat([first, split(64, 1.3), split(20, 0.7)]).reshape(1, -1)


def make_matrices(path):
    g = torch.Generator().manual_seed(7)
    out = {}
    w = torch.randn(9, 192, generator=g)
    w[3, 64:128] = 0                       # a block of zeros
    w[5, 7] = 40                           # and one with an outlier
    w[6, :64] *= 1e-30
    matrix(out, "f32", w)
    matrix(out, "bf16", (0.02 * torch.randn(23, 70, generator=g)).bfloat16())  # blocks that straddle rows, a short last one
    matrix(out, "odd", torch.randn(5, 27, generator=g).half())                 # an odd number of weights
    matrix(out, "edge", edges())
    # whole 2^-16ths, so that their sum is exact in every order and the offset is the same to the bit
    nest(out, torch.round((0.05 + 0.02 * torch.rand(700, generator=g) ** 3) * 65536) / 65536)
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(out, path)
    path.chmod(0o644)
    print(f"{path}: {path.stat().st_size // 1024} KiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, bitsandbytes {bitsandbytes.__version__}")
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    make_matrices(args.out / "nf4" / "matrices.safetensors")
    tok = golden.make_tokenizer()
    make_model(args.out / "models", "llama-nf4", tok, torch.bfloat16, True)
    make_model(args.out / "models", "llama-nf4-single", tok, torch.float16, False, ["lm_head", "model.layers.1.self_attn.k_proj"],
               intermediate_size=128)


if __name__ == "__main__":
    main()
