"""What scripts/cross-aarch64 builds, under an emulator: which level of the cpu device a processor gets, every level against ref and
against the others, golden models, and the unit tests that units.txt names.

An emulated instruction takes as long as many of the machine's own, so only what is quick is run.  Tests of tests/http can be run
the same way, with TANDEM_BUILD_DIR=build-aarch64/emulated."""
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build-aarch64"
FIXTURES = ROOT / "tests/fixtures/models"
LEVELS = ["portable", "neon", "i8mm", "neonbf16"]
UNITS = (Path(__file__).parent / "units.txt").read_text().split()

pytestmark = pytest.mark.skipif(not (BUILD / "server/tandem").exists(), reason="there is no build-aarch64: scripts/cross-aarch64")


def emulated(program, *args, processor="max", statuses=(0,)):
    """-> what the program printed"""
    done = subprocess.run(["qemu-aarch64", "-L", ROOT / "build-aarch64-sysroot", BUILD / program, *args], capture_output=True, text=True, cwd=ROOT,
                          env={**os.environ, "QEMU_CPU": processor})
    assert done.returncode in statuses, f"exit status {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout + done.stderr


@pytest.mark.parametrize("processor, level", [("cortex-a72", "portable"), ("neoverse-n1", "neon"), ("max", "neonbf16")])
def test_level_of_a_processor(processor, level):
    lines = emulated("server/tandem", "doctor", processor=processor, statuses=(0, 1)).splitlines()  # 1: there is something to change
    assert any(line.startswith("ok  instructions") and line.endswith(level) for line in lines), lines


@pytest.mark.parametrize("processor, level", [("cortex-a72", "neon"), ("neoverse-n1", "i8mm"), ("neoverse-n1", "neonbf16")])
def test_a_processor_without_the_level(processor, level):
    said = emulated("server/tandem", "generate", "--prompt", "Once", "--device", f"cpu:{level}", "--model", FIXTURES / "tinystories-656k",
                    processor=processor, statuses=(1,))
    assert f"this processor lacks what the {level} level needs" in said


def test_ops():
    """Of every level against ref, a part of the cases; and all levels have the same bits."""
    said = emulated("tests/ops/ops_test", "--thin", "16")
    assert [level for level in LEVELS if f" cpu:{level} " not in said] == [] and " 0 failures" in said


def test_golden_models():
    said = emulated("tests/golden_test", "--thin", "22", FIXTURES, *(f"cpu:{level}" for level in LEVELS))
    assert [level for level in LEVELS if f"cpu:{level}" not in said] == [] and " 0 failures" in said


@pytest.mark.parametrize("name", UNITS)
def test_unit(name):
    emulated(f"tests/test_{name}", FIXTURES)
