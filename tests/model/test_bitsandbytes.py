"""What `tandem quantize --type nf4` writes is what transformers and bitsandbytes write and read.

Needs torch, transformers, accelerate and bitsandbytes, which are no test dependencies: skipped without them. Run with

    TANDEM_BUILD_DIR=build PYTHON -m pytest tests/model/test_bitsandbytes.py
"""
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
bitsandbytes = pytest.importorskip("bitsandbytes")
pytest.importorskip("accelerate")
from make_nf4_fixtures import values  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
MODELS = ROOT / "tests" / "fixtures" / "models"
TANDEM = Path(os.environ.get("TANDEM_BUILD_DIR", ROOT / "build")) / "server" / "tandem"
CHOSEN = [ROOT / "models" / "demo", *(MODELS / n for n in ("llama-f16", "qwen2-bf16", "qwen3", "phi", "gpt2", "distilgpt2-prefixed"))]
ULP = 2.0**-23
TEXT = "Once upon a time there was a little dog. He liked to play in the park with his friends."


def tandem(*words):
    done = subprocess.run([TANDEM, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.fixture(scope="module", params=CHOSEN, ids=lambda p: p.name)
def case(request, tmp_path_factory):
    """-> (the model, the same as tandem wrote it, the same as transformers wrote it)"""
    out = tmp_path_factory.mktemp("nf4")
    tandem("quantize", "--model", request.param, "--out", out / "ours", "--type", "nf4")
    dtype = torch_dtype(request.param)
    how = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                          bnb_4bit_compute_dtype=dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(request.param, quantization_config=how, dtype=dtype, device_map="cpu")
    model.save_pretrained(out / "theirs")
    yield request.param, out / "ours", out / "theirs"
    shutil.rmtree(out)


def torch_dtype(directory):
    first = next(iter(load_file(directory / "model.safetensors").values()))
    return first.dtype


def config(directory):
    return json.loads((directory / "config.json").read_text())["quantization_config"]


def state_of(tensor):
    return json.loads(bytes(tensor.tolist()))


def with_prefix(tensors, names):
    """The published gpt2 has no "transformer." before its names, and neither has what is made from it."""
    return {k if k in names or "transformer." + k not in names else "transformer." + k: v for k, v in tensors.items()}


def test_same_tensors(case):
    """All but the codes of the scales byte for byte: for those bitsandbytes looks one of 65536 places up on a CPU, so they may
    be the neighbour; and where its sum of float32 is rounded otherwise, the offset and what is relative to it."""
    _, ours, theirs = case
    want = load_file(theirs / "model.safetensors")
    got = with_prefix(load_file(ours / "model.safetensors"), want)
    assert set(want) <= set(got) and all(k.endswith(".attn.bias") for k in set(got) - set(want))  # GPT-2's stored masks
    matrices = [k.removesuffix(".absmax") for k in want if k.endswith("weight.absmax")]
    assert matrices
    scales = different = 0
    for name in matrices:
        for part in ("", ".quant_map", ".nested_quant_map"):
            assert torch.equal(got.pop(name + part), want.pop(name + part)), name + part
        key = name + ".quant_state.bitsandbytes__nf4"
        a, b = bytes(got.pop(key).tolist()), bytes(want.pop(key).tolist())
        x, y = json.loads(a), json.loads(b)
        offset = abs(x["nested_offset"] - y["nested_offset"])
        assert a == b or offset
        assert offset <= 2 * ULP * y["nested_offset"]
        assert x | {"nested_offset": 0} == y | {"nested_offset": 0}
        a, b = got.pop(name + ".nested_absmax"), want.pop(name + ".nested_absmax")
        assert a.shape == b.shape and (a - b).abs().max() <= 2 * offset
        a, b = got.pop(name + ".absmax").int(), want.pop(name + ".absmax").int()
        assert a.shape == b.shape and (a - b).abs().max() <= 1
        scales += a.numel()
        different += int((a != b).sum())
    assert different <= scales / 50
    for name, value in want.items():  # what was not quantised
        assert got[name].dtype == value.dtype and torch.equal(got[name], value), name


def test_same_config(case):
    _, ours, theirs = case
    got, want = config(ours), config(theirs)
    assert got == want | {"bnb_4bit_compute_dtype": got["bnb_4bit_compute_dtype"]}


def dequantized(directory):
    """transformers' model of the directory, every Linear4bit replaced by its values in float32, and those by name."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    found = {}
    for name, module in list(model.named_modules()):
        if not isinstance(module, bitsandbytes.nn.Linear4bit):
            continue
        found[name] = values(module.weight.data, module.weight.quant_state)
        plain = torch.nn.Linear(module.in_features, module.out_features, bias=module.bias is not None)
        plain.weight.data = found[name]
        if module.bias is not None:
            plain.bias.data = module.bias.data.float()
        model.set_submodule(name, plain)
    for p in model.parameters():
        p.data = p.data.float()
    return model.eval(), found


def test_loads_and_gives_the_same(case):
    """bitsandbytes' values are those of the formula on the file, and the model on them has the log likelihood tandem reports."""
    _, ours, theirs = case
    model, found = dequantized(ours)
    file = with_prefix(load_file(ours / "model.safetensors"), load_file(theirs / "model.safetensors"))
    for name, got in found.items():
        part = {k.removeprefix(name + ".weight"): v for k, v in file.items() if k.startswith(name + ".weight")}
        state = state_of(part[".quant_state.bitsandbytes__nf4"])
        blocks = part[".absmax"].numel()
        absmax = part[".nested_quant_map"][part[".absmax"].long()] * part[".nested_absmax"].repeat_interleave(256)[:blocks]
        absmax += torch.tensor(state["nested_offset"], dtype=torch.float32)
        packed = part[""].flatten()
        codes = torch.stack([packed >> 4, packed & 15], 1).flatten()[:got.numel()].long()
        want = part[".quant_map"][codes] * absmax.repeat_interleave(64)[:got.numel()]
        assert torch.equal(got.flatten(), want), name
    text = ours / "text"
    text.write_text(TEXT)
    said = json.loads(tandem("perplexity", "--model", ours, "--file", text, "--kv-cache", "f32", "--json"))
    ids = torch.tensor([t["id"] for t in json.loads(tandem("tokenize", "--model", ours, "--text", TEXT, "--json"))["tokens"]])
    with torch.no_grad():
        logits = model(ids[None], use_cache=False).logits[0].double()
    nll = torch.nn.functional.cross_entropy(logits[:-1], ids[1:])
    assert said["scored_tokens"] == len(ids) - 1
    assert abs(said["mean_nll"] - float(nll)) < 1e-4, (said["mean_nll"], float(nll))
