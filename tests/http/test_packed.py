"""Directories that `tandem quantize` packs: their file, what damage does, a kill half-way, and that processes share the memory."""
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy
import pytest
import requests
from conftest import BINARY, DEVICE, ENV, MODEL, ROOT
from safetensors import safe_open

pytestmark = pytest.mark.skipif(bool(DEVICE), reason="packed for the cpu")

SUM = '"header_crc32c":"'
QKV = "packed.layers.1.qkv"


def ok(result):
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode()


def quantize(run, out, *args):
    ok(run("quantize", "--model", MODEL, "--out", out, *args))
    return out


@pytest.fixture(scope="session")
def packed(run, tmp_path_factory):
    return quantize(run, tmp_path_factory.mktemp("packed") / "q", "--type", "int4")


def crc32c_table():
    table = []
    for c in range(256):
        for _ in range(8):
            c = c >> 1 ^ (0x82F63B78 if c & 1 else 0)
        table.append(c)
    return table


TABLE = crc32c_table()


def crc32c(data):
    c = 0xFFFFFFFF
    for byte in data:
        c = c >> 8 ^ TABLE[(c ^ byte) & 255]
    return c ^ 0xFFFFFFFF


class File:
    """A safetensors file as a header (dictionary) and data; save() writes it with a right header checksum."""

    def __init__(self, path):
        raw = path.read_bytes()
        n = int.from_bytes(raw[:8], "little")
        self.path, self.header, self.data, self.room = path, json.loads(raw[8:8 + n]), raw[8 + n:], 8 + n

    @property
    def notes(self):
        return self.header["__metadata__"]

    def tensor(self, name):
        begin, end = self.header[name]["data_offsets"]
        return self.data[begin:end]

    def save(self):
        self.notes["header_crc32c"] = "0" * 8
        text = json.dumps(self.header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (self.room - 8 - len(text))
        text = text.replace((SUM + "0" * 8).encode(), (SUM + f"{crc32c(text):08x}").encode(), 1)
        self.path.write_bytes(len(text).to_bytes(8, "little") + text + self.data)


# ---- the file --------------------------------------------------------------------------------------------------------

@pytest.mark.full
@pytest.mark.parametrize("layout", ["packed", "canonical"])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_the_file_is_as_documented(run, tmp_path, weights, layout):
    path = quantize(run, tmp_path / "q", "--type", weights, "--layout", layout) / "model.safetensors"
    file = File(path)
    assert file.room % 4096 == 0
    for name, entry in file.header.items():
        if name == "__metadata__":
            continue
        begin, _ = entry["data_offsets"]
        assert name.startswith("padding.") or (file.room + begin) % 64 == 0
        assert file.notes["crc32c:" + name] == f"{crc32c(file.tensor(name)):08x}"
    with safe_open(path, "numpy") as opened:  # the format's own library reads it
        notes = opened.metadata()
        assert notes["format"] == "tandem" and notes["version"] == "2" and notes["type"] == weights
        if layout == "packed":
            assert notes["layout"].startswith("tandem-cpu-")
            assert notes[QKV] == f"{weights} {qkv_rows()}x{config()['hidden_size']} group {32 if weights == 'int4' else 0}"
            assert opened.get_tensor(QKV).dtype == numpy.uint8
        else:
            assert notes["layout"] == "canonical"
            assert opened.get_tensor("model.layers.1.self_attn.q_proj.weight").dtype == (numpy.int8 if weights == "int8" else numpy.uint8)
        assert not [name for name in opened.keys() if name.endswith("proj.weight")] or layout == "canonical"
    written = json.loads((path.parent / "config.json").read_text())["quantization_config"]
    assert written["quant_method"] == "tandem" and written["type"] == weights and written["layout"] == notes["layout"]


def config():
    return json.loads((MODEL / "config.json").read_text())


def qkv_rows():
    c = config()
    dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    return (c["num_attention_heads"] + 2 * c.get("num_key_value_heads", c["num_attention_heads"])) * dim


def test_packed_again_is_the_same_file(run, tmp_path, packed):
    again = quantize(run, tmp_path / "again", "--type", "int4")
    assert (again / "model.safetensors").read_bytes() == (packed / "model.safetensors").read_bytes()


def test_another_device_says_what_to_do(run, packed):
    got = run("generate", "--model", packed, "--device", "ref", "--prompt", "a")
    assert got.returncode == 1 and b"--layout canonical" in got.stderr and len(got.stderr.splitlines()) == 1


def test_quantised_weights_are_not_quantised_again(run, packed, tmp_path):
    got = run("quantize", "--model", packed, "--out", tmp_path / "x")
    assert got.returncode == 1 and b"quantised to int4 already" in got.stderr and not (tmp_path / "x").exists()


# ---- damage ----------------------------------------------------------------------------------------------------------

@pytest.fixture
def copy(packed, tmp_path):
    return Path(shutil.copytree(packed, tmp_path / "copy"))


def generate(run, directory, *args):
    return run("generate", "--model", directory, "--prompt", "Once", "--max-new-tokens", 2, *args)


def refused(got, says):
    message = got.stderr.decode(errors="replace")
    assert got.returncode == 1, f"exit status {got.returncode}: {message}"
    assert len(message.splitlines()) == 1 and re.search(says, message), message


@pytest.mark.smoke
@pytest.mark.parametrize("name", [QKV, "packed.layers.0.down", "packed.head", "model.norm.weight"])
def test_a_changed_byte_is_found_when_asked_for(run, copy, name):
    file = File(copy / "model.safetensors")
    at = file.room + file.header[name]["data_offsets"][0] + 33
    raw = bytearray(file.path.read_bytes())
    raw[at] ^= 0x10
    file.path.write_bytes(raw)
    assert generate(run, copy).returncode == 0  # not looked for: that would read every byte at each start
    refused(generate(run, copy, "--verify-weights"), f"tensor {re.escape(name)} is damaged")
    refused(run("quantize", "--model", copy, "--verify-weights"), f"tensor {re.escape(name)} is damaged")


def test_verify(run, copy):
    assert b"every checksum is right" in run("quantize", "--model", copy, "--verify-weights").stderr
    assert generate(run, copy, "--verify-weights").returncode == 0
    assert b"every checksum is right" in run("quantize", "--model", MODEL, "--verify-weights").stderr  # tandem wrote it, too
    plain = ROOT / "tests/fixtures/models/tinystories-656k"
    refused(run("quantize", "--model", plain, "--verify-weights"), "no checksums")
    refused(generate(run, plain, "--verify-weights"), "no checksums")


@pytest.mark.smoke
def test_a_changed_header_is_always_found(run, copy):
    path = copy / "model.safetensors"
    good = path.read_bytes()
    room = int.from_bytes(good[:8], "little")
    places = {"the checksum": good.index(SUM.encode()) + len(SUM), "the layout": good.index(b"tandem-cpu-") + 11,
              "a description": good.index(b"group 32"), "a name": good.index(b"model.norm"), "the padding": room - 3,
              "a checksum of a tensor": good.index(b'crc32c:packed.head":"') + 21}
    for what, at in places.items():
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1:])
        got = generate(run, copy)
        assert got.returncode == 1 and len(got.stderr.splitlines()) == 1, (what, got.stderr)
        assert b"checksum" in got.stderr or b"JSON" in got.stderr, (what, got.stderr)


@pytest.mark.smoke
def test_a_truncated_file(run, copy):
    path = copy / "model.safetensors"
    good = path.read_bytes()
    room = int.from_bytes(good[:8], "little") + 8
    for length in (0, 1, 7, 8, 9, room // 2, room - 1, room, room + 1, (room + len(good)) // 2, len(good) - 4096, len(good) - 1):
        path.write_bytes(good[:length])
        refused(generate(run, copy), r"model\.safetensors|tensor ")


def note(key, value):
    def change(file):
        assert key in file.notes
        if value is None:
            del file.notes[key]
        else:
            file.notes[key] = value
    return change


def replace_data(file, name, data, **entry):
    """Gives a tensor other bytes; those that follow move."""
    begin, end = file.header[name]["data_offsets"]
    grow = len(data) - (end - begin)
    file.data = file.data[:begin] + data + file.data[end:]
    for other, e in file.header.items():
        if other != "__metadata__" and e["data_offsets"][0] >= end:
            e["data_offsets"] = [at + grow for at in e["data_offsets"]]
    file.header[name].update(data_offsets=[begin, end + grow], **entry)


def shorter(file):
    data = file.tensor(QKV)[:-64]
    replace_data(file, QKV, data, shape=[len(data)])


def misaligned(file):
    """A tensor of 32 bytes before all others."""
    for name, entry in file.header.items():
        if name != "__metadata__":
            entry["data_offsets"] = [at + 32 for at in entry["data_offsets"]]
    file.header["first"] = {"dtype": "U8", "shape": [32], "data_offsets": [0, 32]}
    file.data = bytes(32) + file.data


def overlapping(file):
    file.header[QKV]["data_offsets"] = [at - 64 for at in file.header[QKV]["data_offsets"]]


def missing(file):
    replace_data(file, QKV, b"", shape=[0])
    del file.header[QKV]


def rewritten(file):
    file.header[QKV]["dtype"] = "I8"


def exchanged(file):
    file.header[QKV], file.header["packed.head"] = file.header["packed.head"], file.header[QKV]


LIES = {
    "version-3": (note("version", "3"), 'version "3"'),
    "version-missing": (note("version", None), 'version ""'),
    "layout-other": (note("layout", "tandem-cpu-1"), "packed as tandem-cpu-1; device cpu takes tandem-cpu-"),
    "description-missing": (note(QKV, None), f"tensor {QKV}: the file says"),
    "description-empty": (note(QKV, ""), f"tensor {QKV}: the file says"),
    "type-unknown": (note(QKV, "int5 8x8 group 32"), f"tensor {QKV}: the file says"),
    "type-other": (lambda f: note(QKV, f.notes[QKV].replace("int4", "int8").replace("32", "0"))(f), f"tensor {QKV}: "),
    "group-other": (lambda f: note(QKV, f.notes[QKV].replace("group 32", "group 64"))(f), f"tensor {QKV}: .* bytes are not"),
    "group-odd": (lambda f: note(QKV, f.notes[QKV].replace("group 32", "group 7"))(f), f"tensor {QKV}: .* bytes are not"),
    "group-negative": (lambda f: note(QKV, f.notes[QKV].replace("group 32", "group -32"))(f), f"tensor {QKV}: "),
    "rows-other": (lambda f: note(QKV, re.sub(r"\d+x", "8x", f.notes[QKV]))(f), f"tensor {QKV}: the file says"),
    "interleaved": (lambda f: note(QKV, f.notes[QKV] + " gate_up")(f), f"tensor {QKV}: the file says"),
    "shorter": (shorter, f"tensor {QKV}: .* bytes are not"),
    "exchanged": (exchanged, "tensor packed[.].*: .* bytes are not"),
    "misaligned": (misaligned, "not aligned to 64"),
    "overlapping": (overlapping, f"tensors .* overlap|{QKV}"),
    "missing": (missing, f"tensor {QKV} is missing"),
    "dtype": (rewritten, f"tensor {QKV}: not U8"),
}


@pytest.mark.smoke
@pytest.mark.parametrize("name", LIES)
def test_a_file_that_lies(run, copy, name):
    change, says = LIES[name]
    file = File(copy / "model.safetensors")
    change(file)
    file.save()
    refused(generate(run, copy), says)


def test_saved_again_unchanged_is_taken(run, copy):
    """What the lies are told with does not itself make the file wrong."""
    before = ok(generate(run, copy))
    file = File(copy / "model.safetensors")
    file.save()
    assert ok(generate(run, copy)) == before


def test_a_config_of_another_shape(run, copy):
    path = copy / "config.json"
    value = json.loads(path.read_text())
    value["intermediate_size"] *= 2
    path.write_text(json.dumps(value))
    refused(generate(run, copy), r"tensor packed\.layers\.0\.up: the file says")


@pytest.mark.full
def test_canonical_int8_of_minus_128(run, tmp_path):
    file = File(quantize(run, tmp_path / "q", "--layout", "canonical") / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj.weight"
    at = file.header[name]["data_offsets"][0] + 5
    file.data = file.data[:at] + b"\x80" + file.data[at + 1:]
    file.save()
    refused(generate(run, tmp_path / "q"), f"tensor {name}: value 5 is -128")


# ---- writing ---------------------------------------------------------------------------------------------------------

@pytest.mark.full
def test_killed_half_way(run, tmp_path):
    """Whatever the moment: no model.safetensors, or the whole; and the next run writes it."""
    out, halves = tmp_path / "q", 0
    for attempt in range(20):
        shutil.rmtree(out, ignore_errors=True)
        writer = subprocess.Popen([BINARY, "quantize", "--model", MODEL, "--out", out, "--type", "int4"], env=ENV,
                                  stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not (out / "model.safetensors.tmp").exists() and writer.poll() is None:
            pass
        time.sleep(attempt % 5 * 0.004)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        if (out / "model.safetensors").exists():
            ok(generate(run, out, "--verify-weights"))
        else:
            halves += 1
            refused(generate(run, out), "config.json|neither model.safetensors")
            ok(run("quantize", "--model", MODEL, "--out", out, "--type", "int4"))  # the same command, over what is left
            ok(generate(run, out, "--verify-weights"))
        if halves == 2:
            break
    assert halves, "every run was over before it could be killed"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    (out / "model.safetensors.tmp").write_bytes(b"what a killed run leaves")
    ok(run("quantize", "--model", MODEL, "--out", out, "--type", "int4"))
    ok(generate(run, out, "--verify-weights"))
    assert not (out / "model.safetensors.tmp").exists()


def test_no_room_on_the_disk(tmp_path):
    def little():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, 1 << 17))
    got = subprocess.run([BINARY, "quantize", "--model", MODEL, "--out", tmp_path / "q"], env=ENV, capture_output=True, preexec_fn=little)
    refused(got, r"model\.safetensors\.tmp: File too large")
    assert os.listdir(tmp_path / "q") == []


# ---- sharing ---------------------------------------------------------------------------------------------------------

def mapped(pid, path):
    """(Rss, Pss) in kB of a process's mappings of a file."""
    rss = pss = 0
    ours = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            rss += int(line.split()[1])
        elif ours and line.startswith("Pss:"):
            pss += int(line.split()[1])
    return rss, pss


def test_processes_share_the_weights(start, packed):
    path = (packed / "model.safetensors").resolve()
    size = sum(len(File(path).tensor(name)) for name in File(path).header if name.startswith("packed."))
    with start(model=packed) as one:
        alone = mapped(one.process.pid, path)
        assert alone[0] * 1024 >= size  # in place, all of it, before the first request
        with start(model=packed) as two:
            assert one.generate(max_new_tokens=8) == two.generate(max_new_tokens=8)
            for server in (one, two):
                rss, pss = mapped(server.process.pid, path)
                assert rss * 1024 >= size and pss < 0.7 * rss


@pytest.mark.skipif("-fsanitize" in (BINARY.parents[1] / "build.ninja").read_text(), reason="the sanitizer reports")
def test_a_file_that_becomes_shorter_ends_the_daemon_with_its_name(start, packed, tmp_path):
    """The weights are the mapped file: a page that is gone cannot be computed with, and its reader is told which file it was."""
    model = tmp_path / "q"
    shutil.copytree(packed, model)
    s = start(model=model)
    os.truncate(next(model.glob("*.safetensors")), 4096)
    with contextlib.suppress(requests.RequestException):
        s.post("/generate", {"inputs": "Once", "parameters": {"max_new_tokens": 2}})
    assert s.wait() == 74
    assert "model.safetensors: a part of the file that is in use cannot be read" in s.log()
    assert "crash report" not in s.log()
