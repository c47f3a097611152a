"""The formats of GPTQ, AWQ, compressed-tensors, fp8 and LLM.int8() in numpy: for tests that write such checkpoints, and
for make_checkpoint_fixtures.py, which compares what it can with the packages that define them.

Each function takes a matrix w [outputs, inputs] (float32) and returns (tensors by suffix, the values they stand for in
float32).  Integers are rounded to nearest within groups of inputs; how well they fit does not matter here.
"""
import numpy as np

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def integers(w, bits, group, symmetric, order=None):
    """-> codes [outputs, inputs], zero points and scales (float16) [outputs, groups], the group of each input"""
    outputs, inputs = w.shape
    group_of = np.arange(inputs) // group
    if order is not None:
        group_of = group_of[order]
    groups = int(group_of.max()) + 1
    top = (1 << bits) - 1
    zero = np.zeros((outputs, groups), np.int64)
    scale = np.zeros((outputs, groups), np.float16)
    codes = np.zeros(w.shape, np.int64)
    for g in range(groups):
        part = w[:, group_of == g]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            high = np.maximum(-low, high)
            low = -high
        s = np.maximum((high - low) / top, 1e-4).astype(np.float16)
        z = np.full(outputs, (top + 1) // 2) if symmetric else np.clip(np.rint(-low / s.astype(np.float32)), 0, top)
        scale[:, g], zero[:, g] = s, z
        q = np.rint(part / s.astype(np.float32)[:, None]) + zero[:, g][:, None]
        codes[:, group_of == g] = np.clip(q, 0, top)
    return codes, zero, scale, group_of


def values(codes, zero, scale, group_of):
    return (codes - zero[:, group_of]).astype(np.float32) * scale.astype(np.float32)[:, group_of]


def words(codes, bits):
    """Codes along the last axis to int32, the first in the lowest bits; bits divides 32."""
    per = 32 // bits
    parts = codes.reshape(*codes.shape[:-1], -1, per).astype(np.uint64)
    return (parts << (np.arange(per, dtype=np.uint64) * np.uint64(bits))).sum(-1).astype(np.uint32).view(np.int32)


def gptq(w, bits=4, group=32, symmetric=True, order=None, less_one=True):
    codes, zero, scale, group_of = integers(w, bits, group, symmetric, order)
    stored = (zero - 1) % (1 << bits) if less_one else zero
    tensors = {"qweight": np.ascontiguousarray(words(codes, bits).T), "qzeros": words(stored.T, bits),
               "scales": np.ascontiguousarray(scale.T), "g_idx": group_of.astype(np.int32)}
    return tensors, values(codes, zero, scale, group_of)


def awq(w, group=32):
    codes, zero, scale, group_of = integers(w, 4, group, False)

    def pack(by_output):
        eights = by_output.T.reshape(by_output.shape[1], -1, 8)
        return words(eights[:, :, AWQ_ORDER].reshape(by_output.shape[1], -1), 4)

    tensors = {"qweight": pack(codes), "qzeros": pack(zero), "scales": np.ascontiguousarray(scale.T)}
    return tensors, values(codes, zero, scale, group_of)


def dense(codes, bits):
    """Codes along the last axis to int32 without padding between them."""
    rows, cols = codes.shape
    out = np.zeros((rows, (cols * bits + 31) // 32 * 32), np.uint32)
    for b in range(bits):
        out[:, np.arange(cols) * bits + b] = codes >> b & 1
    return (out.reshape(rows, -1, 32) << np.arange(32, dtype=np.uint32)).sum(-1).astype(np.uint32).view(np.int32)


def packed(w, bits=4, group=32, symmetric=True, order=None):
    """compressed-tensors' pack-quantized"""
    codes, zero, scale, group_of = integers(w, bits, group, symmetric, order)
    tensors = {"weight_packed": dense(codes, bits), "weight_scale": scale, "weight_shape": np.array(w.shape, np.int64)}
    if not symmetric:
        tensors["weight_zero_point"] = np.ascontiguousarray(dense(zero.T, bits).T)
    if order is not None:
        tensors["weight_g_idx"] = group_of.astype(np.int32)
    return tensors, values(codes, zero, scale, group_of)


def int8(w, symmetric=True):
    """compressed-tensors' int-quantized, one group for each output"""
    codes, zero, scale, group_of = integers(w, 8, w.shape[1], symmetric)
    codes = np.maximum(codes, 1) if symmetric else codes
    tensors = {"weight": (codes - 128).astype(np.int8), "weight_scale": scale}
    if not symmetric:
        tensors["weight_zero_point"] = (zero - 128).astype(np.int8)
    return tensors, values(codes, zero, scale, group_of)


def bnb8(w):
    """LLM.int8()"""
    amax = np.abs(w).max(1, keepdims=True)
    q = np.rint(w * (127 / amax)).astype(np.int8)
    scale = amax.astype(np.float32) * np.float32(1 / 127)
    return {"weight": q, "SCB": amax[:, 0].astype(np.float32)}, q.astype(np.float32) * scale


def e4m3_values():
    """the 256 values of F8_E4M3, NaN for 0x7f and 0xff"""
    b = np.arange(256)
    e, m = b >> 3 & 15, b & 7
    v = np.where(e > 0, (8 + m) * 2.0 ** (e - 10.0), m * 2.0**-9)
    v[(b & 127) == 127] = np.nan
    return np.where(b & 128, -v, v).astype(np.float32)


def fp8(w, block=None, suffix="weight_scale_inv"):
    """-> codes as uint8 (a safetensors file says F8_E4M3), scales for blocks of (rows, columns), or one"""
    a, b = block or w.shape
    down, across = -(-w.shape[0] // a), -(-w.shape[1] // b)
    scale = np.zeros((down, across), np.float32)
    codes = np.zeros(w.shape, np.uint8)
    table = e4m3_values()[:127]
    for i in range(down):
        for j in range(across):
            where = np.s_[i * a:(i + 1) * a, j * b:(j + 1) * b]
            scale[i, j] = max(np.abs(w[where]).max() / 448, 1e-6)
            x = np.abs(w[where] / scale[i, j])
            at = np.clip(np.searchsorted(table, x), 1, 126)
            at -= x - table[at - 1] < table[at] - x
            codes[where] = at | np.signbit(w[where]).astype(np.uint8) << 7
    each = np.kron(scale, np.ones((a, b), np.float32))[:w.shape[0], :w.shape[1]]
    return {"weight": codes, suffix: scale if block else scale[0]}, e4m3_values()[codes] * each
