"""The scripts: the last line of scripts/test is true, wrong arguments are refused, shellcheck is content."""
import os
import re
import shutil
import subprocess
import sys

import pytest
from sources import ROOT

SHELL = ["scripts/build", "scripts/cpu-level", "scripts/cross-aarch64", "scripts/deb", "scripts/deps", "scripts/find-gpu", "scripts/find-nvcc", "scripts/image", "scripts/install", "scripts/lint", "scripts/ninja",
         "scripts/runtime-packages", "scripts/serve", "scripts/symbolise", "scripts/test", "scripts/train-ranks", "scripts/try-deb", ".ci/run", "conf/mpi/tandem-group",
         "systemd/deb.postinst", "systemd/deb.postrm", "systemd/deb.prerm"]
PASS, FAIL, SKIP, LATE = ("<testcase name='a'/>", "<testcase><failure/></testcase>", "<testcase><skipped/><system-out/></testcase>",
                          "<testcase><timeout/></testcase>")


def count(folder, steps):
    """steps: [(name, status, kind, JUnit cases or None)] -> (last line, exit status)"""
    for _, _, kind, cases in steps:
        if cases is not None:
            (folder / kind).write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    (folder / "steps.tsv").write_text("".join(f"{name}\t{status}\t{kind}\n" for name, status, kind, _ in steps))
    done = subprocess.run([sys.executable, ROOT / "scripts/count_tests", folder], capture_output=True, text=True)
    return done.stdout.splitlines()[-1], done.returncode


@pytest.mark.parametrize("steps, line, status", [
    ([("b", 0, "setup", None), ("c", 0, "c.xml", PASS * 3 + SKIP)], "3 passed, 0 failed, 1 skipped", 0),
    ([("c", 1, "c.xml", PASS + FAIL + LATE)], "1 passed, 2 failed, 0 skipped", 1),
    ([("b", 1, "setup", None), ("c", 0, "c.xml", PASS)], "1 passed, 1 failed, 0 skipped", 1),
    ([("b", 1, "setup", None)], "0 passed, 1 failed, 0 skipped", 1),
    ([("crash after the last test", 1, "c.xml", PASS)], "1 passed, 1 failed, 0 skipped", 1),
    ([("crash before the first", 139, "missing.xml", None)], "0 passed, 1 failed, 0 skipped", 1),
    ([("fuzz", 0, "test", None), ("fuzz", 77, "test", None)], "1 passed, 0 failed, 1 skipped", 0),
    ([("fuzz", 77, "test", None), ("c", 1, "c.xml", PASS)], "1 passed, 1 failed, 1 skipped", 1),
    ([], "0 passed, 0 failed, 0 skipped", 1),
])
def test_the_last_line_is_true(tmp_path, steps, line, status):
    assert count(tmp_path, steps) == (line, status)


@pytest.mark.parametrize("command", [["scripts/test", "--nonsense"], ["scripts/deps", "nonsense"], ["scripts/install", "--nonsense"]])
def test_wrong_arguments_are_refused(command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode != 0 and "scripts/" in done.stderr


def test_deps_says_what_is_missing_without_apt(tmp_path):
    """On a system without apt-get, and here without a compiler either, the message names what to install."""
    os.symlink(shutil.which("bash"), tmp_path / "bash")
    done = subprocess.run([shutil.which("bash"), "scripts/deps", "build"], cwd=ROOT, capture_output=True, text=True,
                          env={"PATH": str(tmp_path)})
    assert done.returncode == 1 and "apt-get" in done.stderr and "meson" in done.stderr


@pytest.mark.parametrize("text, level", [
    ("flags\t\t: fpu avx2 fma", "avx2"), ("flags\t\t: fpu avx2 avx_vnni", "avxvnni"),
    ("flags\t\t: fpu avx2 avx512_bf16 avx512_vnni", "avx512bf16"), ("vendor_id\t: GenuineIntel\nflags\t\t: avx2 avx512_bf16 avx512_vnni", "avx512"),
    ("flags\t\t: avx2 avx512_vnni amx_int8", "avx512,amx"), ("vendor_id\t: GenuineIntel\nflags\t\t: avx512_vnni avx512_bf16 amx_int8", "avx512,amx"),
    ("Features\t: fp asimd asimddp sve i8mm bf16 dgh", "neonbf16"), ("Features\t: fp asimd asimddp i8mm bf16", "neonbf16"),
    ("Features\t: fp asimd asimddp i8mm", "i8mm"), ("Features\t: fp asimd asimddp bf16", "neon"), ("Features\t: fp asimd", "portable"), ("", "portable"),
])
def test_the_fastest_level_of_a_processor(tmp_path, text, level):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{text}\n")
    assert subprocess.run(["scripts/cpu-level", tmp_path / "cpuinfo"], cwd=ROOT, capture_output=True, text=True, check=True).stdout == level + "\n"


def test_a_group_can_be_stopped_while_it_waits(tmp_path):
    """tandem-group has a trap for SIGTERM from its begin: it is process 1 of its container, which dies of no signal."""
    (tmp_path / "ssh").write_text("#!/bin/sh\nexit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "LWS_LEADER_ADDRESS": "x-0.x.default", "LWS_GROUP_SIZE": "2"}
    with subprocess.Popen([ROOT / "conf/mpi/tandem-group", "true"], env=env, stderr=subprocess.PIPE, text=True) as group:
        assert "waiting for x-0-1.x.default" in group.stderr.readline()
        group.terminate()
        assert group.wait(300) == 0


def test_lint_says_what_is_missing_and_why_it_fails(tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "dirname"):
        os.symlink(shutil.which(tool), tools / tool)

    def lint(path):
        return subprocess.run([shutil.which("bash"), "scripts/lint", "-b", tmp_path, "kernels/ops.c"], cwd=ROOT, capture_output=True, text=True,
                              env={"PATH": path})
    done = lint(str(tools))
    assert done.returncode == 2 and "clang-tidy" in done.stderr and "apt-get install" in done.stderr
    for tool, text in {"clang-tidy": "echo it cannot start >&2; exit 1", "cppcheck": "exit 0", "ninja": "exit 0"}.items():
        (tools / tool).write_text(f"#!{shutil.which('bash')}\n{text}\n")
        (tools / tool).chmod(0o755)
    (tmp_path / "compile_commands.json").write_text("[]")
    done = lint(f"{tools}:{os.environ['PATH']}")
    assert done.returncode == 1 and "it cannot start" in done.stderr and "nothing found" not in done.stdout


# ---- what is compiled for which GPU --------------------------------------------------------------------------------------

def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path):
    """A machine with a CUDA toolkit that compiles nothing; machine(capability) puts a GPU in. -> what it is started with"""
    toolkit = tmp_path / "toolkit"
    program(toolkit / "bin/nvcc", 'case $1 in --version) echo "Cuda compilation tools, release 13.0, V13.0.88" ;; '
                                  "*) printf 'sm_80\\nsm_86\\nsm_90\\nsm_100\\nsm_120\\n' ;; esac")
    for name in ("lib64/libcudart_static.a", "include/cuda_runtime.h"):
        (toolkit / name).parent.mkdir()
        (toolkit / name).touch()

    def make(said=None, status=0):
        smi = tmp_path / "driver/nvidia-smi"
        if said is None:
            smi.unlink(missing_ok=True)
        else:
            program(smi, f"printf '{said}'; exit {status}")
        path = [d for d in os.environ["PATH"].split(":") if not os.path.exists(f"{d}/nvidia-smi")]
        return {**os.environ, "PATH": ":".join([str(smi.parent), *path]), "CUDA_HOME": str(toolkit)}
    return make


@pytest.mark.parametrize("said, status, found", [
    (None, 0, []), ("9.0\\n", 0, ["9.0"]), ("8.6\\n9.0\\n9.0\\n", 0, ["8.6", "9.0"]),
    ("No devices were found\\n", 6, []), ("[N/A]\\n", 0, []),
])
def test_find_gpu(machine, said, status, found):
    done = subprocess.run(["scripts/find-gpu"], cwd=ROOT, capture_output=True, text=True, env=machine(said, status))
    assert (done.stdout.split(), done.returncode) == (found, 0 if found else 1)
    assert bool(done.stderr) == (not found)


@pytest.mark.full
@pytest.mark.parametrize("said, options, compiled", [
    (None, [], set()),  # a toolkit alone: the first start does not wait for it
    ("9.0\\n", [], {"sm_90a"}),
    ("8.6\\n12.0\\n", [], {"sm_86", "sm_120"}),
    ("9.0\\n", ["-Dcuda=disabled"], set()),
    (None, ["-Dcuda=enabled"], {"sm_80", "sm_90a", "sm_100", "compute_100"}),
    (None, ["-Dgpu_archs=86"], {"sm_86"}),
    ("9.0\\n", ["-Dcuda=enabled", "-Dgpu_archs=80"], {"sm_80"}),
])
def test_cuda_is_compiled_for_the_gpu_that_is_there(machine, tmp_path, said, options, compiled):
    done = subprocess.run(["meson", "setup", tmp_path / "b", "-Dtests=false", *options], cwd=ROOT, capture_output=True, text=True, env=machine(said))
    assert done.returncode == 0, done.stdout
    text = (tmp_path / "b/build.ninja").read_text()
    assert set(re.findall(r"code=(\w+)", text)) == compiled
    assert "libsimt" not in text


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="no shellcheck")
@pytest.mark.parametrize("script", SHELL)
def test_shellcheck_is_content(script):
    subprocess.run(["shellcheck", script], cwd=ROOT, check=True)


def test_every_fuzz_target_runs():
    """scripts/test names them; a target that is only built finds nothing."""
    named = re.search(r"^fuzz_targets=\((.*)\)$", (ROOT / "scripts/test").read_text(), re.M)[1].split()
    built = re.findall(r"^  '(\w+)': \[", (ROOT / "tests/fuzz/meson.build").read_text(), re.M)
    assert named == sorted(built) and built
