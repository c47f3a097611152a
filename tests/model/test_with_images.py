"""The text model of a model that also takes images: as the same model alone, with the names that transformers gives the tensors in
files, and with those of its memory, which PEFT has."""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

TESTS = Path(__file__).parent.parent
sys.path.insert(0, str(TESTS / "model"))
import checkpoint_formats as formats  # noqa: E402

TANDEM = Path(os.environ.get("TANDEM_BUILD_DIR", TESTS.parent / "build")) / "server" / "tandem"
MODELS, ADAPTERS = TESTS / "fixtures" / "models", TESTS / "fixtures" / "adapters"
WRAPPERS = {"gemma3": "gemma3", "mistral": "mistral3", "ministral": "mistral3"}
BESIDE = ["torch_dtype", "eos_token_id", "tie_word_embeddings"]  # of the whole model, in some files


def tandem(*words, status=0):
    done = subprocess.run([TANDEM, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, timeout=100)
    assert done.returncode == status, done.stderr.decode()
    return done.stdout.decode() if status == 0 else done.stderr.decode()


def renamed(name, of_files):
    """A tensor's name in transformers' Gemma3ForConditionalGeneration and Mistral3ForConditionalGeneration."""
    if of_files:
        return "language_model." + name
    return name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name


def wrap(name, out, of_files):
    """The fixture as the text model of one with images."""
    shutil.copytree(MODELS / name, out, ignore=lambda _, names: [n for n in names if n in ("expected.safetensors", "embeddings.safetensors")])
    text = json.loads((out / "config.json").read_text())
    whole = {"model_type": WRAPPERS[name], "vision_config": {"hidden_size": 8, "num_hidden_layers": 1}, "text_config": text, "image_token_index": 3}
    whole["architectures"] = [text.pop("architectures")[0].replace("CausalLM", "ConditionalGeneration")]
    whole.update({k: text.pop(k) for k in BESIDE if k in text})
    (out / "config.json").write_text(json.dumps(whole))
    tensors = {renamed(k, of_files): v for k, v in load_file(out / "model.safetensors").items()}
    vision = "vision_tower.embeddings.weight" if of_files else "model.vision_tower.embeddings.weight"
    save_file({**tensors, vision: np.ones((4, 8), np.float32)}, out / "model.safetensors", metadata={"format": "pt"})
    return out


def answer(model, *words):
    """Greedy tokens with the log-probabilities of the three likeliest."""
    out = json.loads(tandem("generate", "--model", model, "--prompt", "Once upon a time", "--max-new-tokens", 12, "--temperature", 0, "--ignore-eos",
                            "--json", "--top-n", 3, *words))
    return [(t["id"], t["logprob"], t["top"]) for t in out["tokens"]]


@pytest.mark.parametrize("of_files", [True, False], ids=["files", "memory"])
@pytest.mark.parametrize("name", WRAPPERS)
def test_as_the_text_model(name, of_files, tmp_path):
    model = wrap(name, tmp_path / "m", of_files)
    assert answer(model) == answer(MODELS / name)


def test_quantised(tmp_path):
    model = wrap("mistral", tmp_path / "m", True)
    for words in (["--type", "int8"], ["--type", "q8_0"]):
        both = []
        for i, source in enumerate((model, MODELS / "mistral")):
            out = tmp_path / f"{i}.{'gguf' if words[1] == 'q8_0' else 'int8'}"
            tandem("quantize", "--model", source, "--out", out, *words)
            both.append(answer(out))
        assert both[0] == both[1], words


@pytest.mark.parametrize("of_files", [True, False], ids=["files", "memory"])
def test_adapter(of_files, tmp_path):
    """As PEFT names the modules; patterns are matched with the names of transformers today."""
    model, adapter = wrap("gemma3", tmp_path / "m", of_files), tmp_path / "a"
    shutil.copytree(ADAPTERS / "gemma3--some-layers", adapter)
    lead = "base_model.model."
    tensors = {lead + renamed(k.removeprefix(lead), of_files): v for k, v in load_file(adapter / "adapter_model.safetensors").items()}
    save_file(tensors, adapter / "adapter_model.safetensors")
    want = answer(MODELS / "gemma3", "--adapter", ADAPTERS / "gemma3--some-layers")
    assert answer(model, "--adapter", adapter) == want != answer(model)
    config = json.loads((adapter / "adapter_config.json").read_text())
    config.update(target_modules=r"model\.language_model\.layers\.[125]\.(self_attn\.(q|o)_proj|mlp\.down_proj)", layers_to_transform=None)
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    assert answer(model, "--adapter", adapter) == want


def test_training(tmp_path):
    """The adapter has the names that PEFT gives the modules; merged, the model's other tensors stay."""
    model, rows = wrap("mistral", tmp_path / "m", True), tmp_path / "rows.jsonl"
    rows.write_text('{"prompt":"Hello","completion":" Ahoy"}\n')
    tandem("train", "--model", model, "--data", rows, "--out", tmp_path / "a", "--max-steps", 2, "--learning-rate", 0.1)
    names = load_file(tmp_path / "a" / "adapter_model.safetensors")
    assert all(k.startswith("base_model.model.model.language_model.layers.") for k in names), sorted(names)
    got = answer(model, "--adapter", tmp_path / "a")
    assert got != answer(model)
    tandem("merge", "--model", model, "--adapter", tmp_path / "a", "--out", tmp_path / "merged")
    merged, whole = load_file(tmp_path / "merged" / "model.safetensors"), load_file(model / "model.safetensors")
    assert merged.keys() == whole.keys() and np.array_equal(merged["vision_tower.embeddings.weight"], whole["vision_tower.embeddings.weight"])
    assert [t[0] for t in answer(tmp_path / "merged")] == [t[0] for t in got]


def test_fp8(tmp_path):
    """As the instruct models of Ministral 3 are published: e4m3 with a scale for each matrix, the image part and the head in floats."""
    source, models = MODELS / "mistral3-images", [tmp_path / "fp8", tmp_path / "floats"]
    stored, floats, codes = {}, {}, []
    for name, w in load_file(source / "model.safetensors").items():
        if not name.startswith("language_model.model.layers.") or not name.endswith("proj.weight"):
            stored[name] = floats[name] = w
            continue
        parts, floats[name] = formats.fp8(w)
        codes.append(name)
        stored |= {name.removesuffix("weight") + suffix: np.array(v.item(), np.float32) if v.size == 1 else v for suffix, v in parts.items()}
        stored[name.removesuffix("weight") + "activation_scale"] = np.array(0.01, np.float32)
    quantised = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None, "dequantize": False,
                                         "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head"]}}
    for model, tensors, more in zip(models, (stored, floats), (quantised, {})):
        shutil.copytree(source, model)
        (model / "config.json").write_text(json.dumps(json.loads((source / "config.json").read_text()) | more))
        save_file({k: np.ascontiguousarray(v) if v.ndim else v for k, v in tensors.items()}, model / "model.safetensors")
    path = models[0] / "model.safetensors"
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    for name in codes:
        header[name]["dtype"] = "F8_E4M3"
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size:])
    ours, want = (answer(model, "--activations", "f32", "--kv-cache", "f32") for model in models)
    assert [t[0] for t in ours] == [t[0] for t in want] and len(codes) == 14
    assert max(abs(a[1] - b[1]) for a, b in zip(ours, want)) < 1e-3
