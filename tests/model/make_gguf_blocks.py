"""tests/fixtures/gguf/blocks.safetensors: random blocks of each quantised type of GGUF, and the floats that they stand for as
the `gguf` package dequantises them.  Made with gguf 0.19.0, numpy 2.4.6:

    python tests/model/make_gguf_blocks.py

TYPE.blocks U8 [rows, bytes]; TYPE.values F32 [rows, elements]: the first rows have random bytes with scales of usual size,
the next ones scales that are 0, -0, subnormal, the largest and negative; the last one has any bytes, scales that are
infinite or NaN included.
"""
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

TYPES = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4".split()
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2],
          "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}  # offsets of the f16 in a block
ODD = np.array([0, -0.0, 6e-8, 65504, -65504, -0.37, 6.1e-5, 1], np.float16)


def blocks(name, rng):
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    per_row = 256 // elements
    rows = rng.integers(0, 256, (5 if per_row == 1 else 4, per_row, size), np.uint8)
    last = len(rows) - 1
    for r in range(last):
        for b in range(per_row):
            for at in SCALES[name]:
                usual = np.float16(rng.normal() * 0.01)
                scale = ODD[(b + at + 3 * r) % len(ODD)] if r >= 2 else usual
                rows[r, b, at : at + 2] = np.frombuffer(scale.tobytes(), np.uint8)
            if name == "MXFP4":
                rows[r, b, 0] = rng.integers(110, 140) if r < 2 else [0, 1, 2, 127, 254, 255, 3, 200][b]
    return kind, rows.reshape(len(rows), -1)


def main():
    rng = np.random.default_rng(17)
    out = {}
    for name in TYPES:
        kind, rows = blocks(name, rng)
        out[f"{name}.blocks"] = rows
        with np.errstate(all="ignore"):
            out[f"{name}.values"] = gguf.quants.dequantize(rows, kind)
    path = Path(__file__).parent.parent / "fixtures" / "gguf" / "blocks.safetensors"
    path.parent.mkdir(exist_ok=True)
    save_file(out, path)


if __name__ == "__main__":
    main()
