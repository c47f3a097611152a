"""Makes tests/fixtures/checkpoints.safetensors: matrices as GPTQ, AWQ, compressed-tensors, fp8 and LLM.int8() store them.

    python tests/model/make_checkpoint_fixtures.py --out tests/fixtures

For a case NAME: NAME.qweight and its neighbours as checkpoint_formats.py packs them, and NAME.values (F32), what they
stand for. compressed-tensors' own unpacking and bitsandbytes' own dequantising must give the same values. GPTQ's and
AWQ's packing is a statement of AutoGPTQ 0.7's and AutoAWQ 0.2.9's pack (weights_gptq.h).

Needs torch, compressed-tensors, bitsandbytes, numpy and safetensors (not test dependencies: the fixture is committed).
Made with torch 2.15.0, compressed-tensors 0.20.0, bitsandbytes 0.50.2.
"""
import argparse
from pathlib import Path

import bitsandbytes.functional as bnb
import checkpoint_formats as formats
import compressed_tensors.quantization as ct
import numpy as np
import safetensors.torch
import torch
from compressed_tensors.compressors.naive_quantized.base import NaiveQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor


def compressed_values(tensors, bits, symmetric, strategy, group=None):
    """What compressed-tensors itself reads, with the scales in float32."""
    args = ct.QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, strategy=strategy, group_size=group)
    scheme = ct.QuantizationScheme(targets=["Linear"], weights=args)
    state = {k: torch.from_numpy(v.copy()) for k, v in tensors.items() if k != "weight_g_idx"}
    state["weight_scale"] = state["weight_scale"].float()
    kind = PackedQuantizationCompressor if "weight_packed" in tensors else NaiveQuantizationCompressor
    return kind.decompress(state, scheme)["weight"].float().numpy()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rng = np.random.default_rng(5)

    def matrix(rows, cols):
        return rng.normal(0, 0.05, (rows, cols)).astype(np.float32)

    order = rng.permutation(96)
    cases = {
        "gptq4": formats.gptq(matrix(24, 96)),
        "gptq4-zeros": formats.gptq(matrix(24, 96), symmetric=False),
        "gptq4-v2": formats.gptq(matrix(24, 96), symmetric=False, less_one=False),
        "gptq4-order": formats.gptq(matrix(24, 96), symmetric=False, order=order),
        "gptq8": formats.gptq(matrix(24, 96), bits=8, group=96),
        "gptq8-groups": formats.gptq(matrix(24, 96), bits=8, group=16),
        "gptq2": formats.gptq(matrix(32, 96), bits=2, symmetric=False),
        "awq": formats.awq(matrix(24, 96)),
        "awq-128": formats.awq(matrix(8, 256), group=128),
        "pack4": formats.packed(matrix(23, 96)),
        "pack4-zeros": formats.packed(matrix(23, 96), symmetric=False),
        "pack4-order": formats.packed(matrix(23, 96), symmetric=False, order=order),
        "pack3": formats.packed(matrix(23, 96), bits=3, symmetric=False),
        "pack8": formats.packed(matrix(23, 96), bits=8, group=96),
        "int8": formats.int8(matrix(23, 50)),
        "int8-zeros": formats.int8(matrix(23, 50), symmetric=False),
        "bnb8": formats.bnb8(matrix(23, 50)),
        "fp8": formats.fp8(matrix(23, 50), suffix="weight_scale"),
        "fp8-channel": formats.fp8(matrix(23, 50), block=(1, 50), suffix="weight_scale"),
        "fp8-block": formats.fp8(matrix(40, 50), block=(16, 32)),
    }
    for name, bits, symmetric, strategy, group in (
            ("pack4", 4, True, "group", 32), ("pack4-zeros", 4, False, "group", 32), ("pack3", 3, False, "group", 32),
            ("pack8", 8, True, "group", 96), ("int8", 8, True, "channel", None), ("int8-zeros", 8, False, "channel", None)):
        tensors, want = cases[name]
        got = compressed_values(tensors, bits, symmetric, strategy, group)
        assert np.array_equal(got, want), (name, np.abs(got - want).max())
    tensors, want = cases["bnb8"]
    theirs = bnb.int8_vectorwise_dequant(torch.from_numpy(tensors["weight"]), torch.from_numpy(tensors["SCB"])).numpy()
    assert np.abs(theirs - want).max() <= np.abs(want).max() * 2.0**-22
    out = {}
    for name, (tensors, want) in cases.items():
        for suffix, v in tensors.items():
            t = torch.from_numpy(np.ascontiguousarray(v))
            fp8 = name.startswith("fp8") and suffix == "weight"
            out[f"{name}.{suffix}"] = t.view(torch.float8_e4m3fn) if fp8 else t
        out[f"{name}.values"] = torch.from_numpy(want)
        if name.startswith("fp8"):
            f = out[f"{name}.weight"].float().numpy()
            assert np.array_equal(f, formats.e4m3_values()[tensors["weight"]]), name
    path = args.out / "checkpoints.safetensors"
    safetensors.torch.save_file(out, path)
    path.chmod(0o644)
    print(f"{path}: {path.stat().st_size // 1024} KiB, {len(cases)} matrices")


if __name__ == "__main__":
    main()
