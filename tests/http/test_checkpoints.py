"""Directories that others have quantised: GPTQ, AWQ, compressed-tensors, fp8, LLM.int8(), written here by
tests/model/checkpoint_formats.py from a trained model.  Each measures like the same values stored as floats, is served
and can be the base of an adapter."""
import json
import shutil
import sys

import numpy
import pytest
from conftest import DEVICE, ROOT
from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(ROOT / "tests" / "model"))
import checkpoint_formats as formats  # noqa: E402

pytestmark = pytest.mark.skipif(bool(DEVICE), reason="perplexities of the cpu")

SOURCE = ROOT / "tests" / "fixtures" / "models" / "tinystories-656k"
ORDER = numpy.random.default_rng(3)


def order_of(w):
    return ORDER.permutation(w.shape[1])


def order_of_inputs(w):
    """The same for matrices of as many inputs: those that read the same activations, as GPTQ orders them."""
    return numpy.random.default_rng(w.shape[1]).permutation(w.shape[1])


def weights(**more):
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", **more}}},
            "ignore": ["lm_head"]}


KINDS = {
    "gptq": (lambda w: formats.gptq(w, 4, 128), {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}),
    "gptq-order": (lambda w: formats.gptq(w, 4, 32, False, order_of_inputs(w)),
                   {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False}),
    "gptq-orders": (lambda w: formats.gptq(w, 4, 32, False, order_of(w)),
                    {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False}),
    "gptq8": (lambda w: formats.gptq(w, 8, 32, less_one=False),
              {"quant_method": "gptq", "bits": 8, "group_size": 32, "checkpoint_format": "gptq_v2"}),
    "awq": (lambda w: formats.awq(w, 64), {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}),
    "packed": (lambda w: formats.packed(w, 4, 32, False),
               {"quant_method": "compressed-tensors", "format": "pack-quantized", **weights()}),
    "int8": (formats.int8, {"quant_method": "compressed-tensors", "format": "int-quantized", **weights()}),
    "bnb8": (formats.bnb8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "fp8": (lambda w: formats.fp8(w, (64, 64)), {"quant_method": "fp8", "weight_block_size": [64, 64]}),
    "fp8-outputs": (lambda w: formats.fp8(w, (1, w.shape[1]), "weight_scale"),
                    {"quant_method": "compressed-tensors", "format": "float-quantized", **weights(num_bits=8, type="float")}),
}


def write(directory, tensors, config, codes_of=None):
    """A model directory; tensors named in codes_of hold codes of F8_E4M3."""
    directory.mkdir()
    for file in SOURCE.iterdir():
        if "token" in file.name or file.name == "generation_config.json":
            shutil.copy(file, directory)
    (directory / "config.json").write_text(json.dumps(json.loads((SOURCE / "config.json").read_text()) | config))
    path = directory / "model.safetensors"
    save_file({k: numpy.ascontiguousarray(v) for k, v in tensors.items()}, path)
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    for name in codes_of or ():
        header[name]["dtype"] = "F8_E4M3"
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size:])
    return directory


@pytest.fixture(scope="session", params=KINDS)
def pair(request, tmp_path_factory):
    """-> (the kind, the quantised directory, the same values as floats)"""
    quantise, config = KINDS[request.param]
    out = tmp_path_factory.mktemp("checkpoints")
    stored, floats = {}, {}
    for name, w in load_file(SOURCE / "model.safetensors").items():
        if name.endswith("proj.weight"):
            tensors, floats[name] = quantise(w.astype(numpy.float32))
            stored |= {name.removesuffix("weight") + suffix: v for suffix, v in tensors.items()}
        else:
            stored[name] = floats[name] = w
    codes = [n for n in stored if n.endswith("proj.weight")] if request.param.startswith("fp8") else None
    yield (request.param, write(out / "quantised", stored, {"quantization_config": config}, codes),
           write(out / "floats", floats, {}))
    shutil.rmtree(out)


def perplexity(run, model, *words, file=ROOT / "models" / "demo" / "heldout.txt"):
    result = run("perplexity", "--model", model, "--json", "--activations", "f32", "--file", file, *words)
    assert result.returncode == 0, result.stderr.decode()
    return json.loads(result.stdout)["perplexity"]


def test_perplexity(run, pair):
    """Like the floats, but for int8 activations."""
    kind, quantised, floats = pair
    ratio = perplexity(run, quantised) / perplexity(run, floats)
    assert abs(ratio - 1) < (1e-5 if kind.startswith("fp8") else 0.005), (kind, ratio)


def test_stays_packed(run, pair, tmp_path):
    """fp8 takes a byte for each weight where the floats take four, act-order two thirds of a byte."""
    kind, quantised, floats = pair
    if not kind.startswith("fp8") and kind != "gptq-order":
        pytest.skip("of the other types the unit tests say")

    (tmp_path / "text").write_bytes((ROOT / "models" / "demo" / "heldout.txt").read_bytes()[:200])

    def bits(model):
        result = run("perplexity", "--model", model, "--json", "--file", tmp_path / "text")
        return json.loads(result.stdout)["bits_per_weight"]

    stored = load_file(floats / "model.safetensors")
    matrices = sum(w.size for name, w in stored.items() if name.endswith("proj.weight"))
    saved = (bits(floats) - bits(quantised)) / 8 * sum(w.size for w in stored.values())
    assert saved > (3.1 if kind == "gptq-order" else 2.7) * matrices, (saved, matrices)


@pytest.mark.full
def test_divided_over_ranks(start, pair):
    """Each rank takes its part of what the file has; the answers are those of one rank."""
    answers = []
    for ranks in (1, 2):
        with start("--device", "cpu", "--tensor-parallel", ranks, model=pair[1]) as server:
            answers.append(server.generate("Once upon a time", max_new_tokens=12, details=True, decoder_input_details=True))
    assert answers[0] == answers[1], pair[0]


def test_on_simt(run, pair, tmp_path):
    """The kernels for GPUs, beside the CPU's in the same types, which this has by itself only where its bf16 is fast."""
    kind, quantised, _ = pair
    if kind not in ("awq", "packed", "gptq8", "gptq-order"):
        pytest.skip("one of each form is enough: simt is slow")
    text = tmp_path / "text"
    text.write_bytes((ROOT / "models" / "demo" / "heldout.txt").read_bytes()[:200])
    types = ("--activations", "bf16", "--kv-cache", "bf16")
    cpu, simt = (perplexity(run, quantised, "--device", device, *types, file=text) for device in ("cpu", "simt"))
    assert abs(simt / cpu - 1) < 0.01, (kind, cpu, simt)


def test_served_and_trained(run, pair, tmp_path):
    _, quantised, _ = pair
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"Tom has {n} ", "completion": "red cats."}) + "\n" for n in range(8)))
    out = tmp_path / "adapter"
    result = run("train", "--model", quantised, "--data", rows, "--out", out, "--max-steps", 3, "--method", "qlora")
    assert result.returncode == 0, result.stderr.decode()
    result = run("generate", "--model", quantised, "--adapter", out, "--prompt", "Once upon a time", "--max-new-tokens", 8)
    assert result.returncode == 0, result.stderr.decode()


def test_quantised_already(run, pair):
    kind, quantised, _ = pair
    name = {"gptq-order": "gptq", "gptq-orders": "gptq", "gptq8": "gptq", "packed": "compressed-tensors", "int8": "compressed-tensors",
            "bnb8": "int8", "fp8-outputs": "compressed-tensors"}.get(kind, kind)
    result = run("generate", "--model", quantised, "--quantize", "int4", "--prompt", "a")
    assert result.returncode == 1
    assert f"is quantised to {name} already" in result.stderr.decode()
