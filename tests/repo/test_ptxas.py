"""The gate on what ptxas says of the kernels: it reads it right, and it can fail."""
import json
import sys

import pytest
from sources import ROOT

sys.path.insert(0, str(ROOT / "tests/gpu"))
import ptxas  # noqa: E402

NAME = "_ZN11cuda_device37_GLOBAL__N__48679c47_5_a_cu_c7e1e76710add_kernelE3matS1_"
TEXT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{name}' for '{arch}'
ptxas info    : Function properties for {name}
    {stack} bytes stack frame, {spill} bytes spill stores, {spill} bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers, 400 bytes cmem[0]
"""


def said(registers=12, spill=0, stack=0, arch="sm_80"):
    return TEXT.format(name=NAME, arch=arch, registers=registers, spill=spill, stack=stack)


def kernels(tmp_path, **numbers):
    (tmp_path / "a.ptxas").write_text(said(**numbers) + said(arch="sm_100"))
    return ptxas.read([tmp_path / "a.ptxas"])


def test_it_reads_every_number(tmp_path):
    found = kernels(tmp_path, registers=99, spill=4, stack=16)
    assert found == {"a: add_kernel": {"sm_80": {"registers": 99, "stack": 16, "spill": 8, "shared": 0},
                                       "sm_100": {"registers": 12, "stack": 0, "spill": 0, "shared": 0}}}


@pytest.mark.parametrize("numbers, same, wrong", [
    ({}, True, 0),
    ({"registers": 12 + ptxas.MARGIN}, True, 0),
    ({"registers": 13 + ptxas.MARGIN}, True, 1),
    ({"registers": 255}, False, 0),
    ({"spill": 4}, False, 1),
    ({"stack": 8}, True, 1),
])
def test_growth_and_spills_are_found(tmp_path, numbers, same, wrong):
    table = {"a: add_kernel": {"sm_80": {"registers": 12}, "sm_100": {"registers": 12}}}
    assert len(ptxas.complaints(kernels(tmp_path, **numbers), table, same)) == wrong


def test_a_kernel_that_is_not_in_the_table_is_found(tmp_path):
    assert len(ptxas.complaints(kernels(tmp_path), {}, True)) == 2


def test_the_table_knows_what_it_was_made_of(tmp_path, monkeypatch):
    """A changed source, header or flag, another compiler and a new source are all seen."""
    (tmp_path / "cuda").mkdir()
    for name, text in {"compile": "", "meson.build": "-O3", "a.cu": '#include "b.cuh"\n', "b.cuh": "int b;\n"}.items():
        (tmp_path / "cuda" / name).write_text(text)
    monkeypatch.setattr(ptxas, "ROOT", tmp_path)
    monkeypatch.setattr(ptxas, "KERNELS", tmp_path / "cuda")
    monkeypatch.setattr(ptxas, "TABLE", tmp_path / "table.json")
    ptxas.write(kernels(tmp_path), "13")

    def new(nvcc="13"):
        return ptxas.changed(json.loads(ptxas.TABLE.read_text()), nvcc)

    assert new() == [] and len(new("14")) == 1
    for name in ("b.cuh", "meson.build", "a.cu"):
        path = tmp_path / "cuda" / name
        was = path.read_text()
        path.write_text(was + "\n")
        assert new() == ["a"], name
        path.write_text(was)
    (tmp_path / "cuda/c.cu").write_text("")
    assert new() == ["c"]
