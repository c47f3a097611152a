"""The arrows between folders point one way: server -> engine -> kernels. Read from the includes and from the libraries."""
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from sources import FOLDERS, ROOT, c_files

BUILD = Path(os.environ.get("TANDEM_BUILD_DIR", ROOT / "build"))

LIBC = set("""assert ctype errno fcntl fenv float fnmatch glob inttypes limits locale math poll pthread pwd grp sched semaphore setjmp
    signal spawn stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string strings termios threads time
    unistd wchar dirent dlfcn execinfo getopt malloc netdb link elf endian byteswap
    immintrin x86intrin cpuid arm_neon arm_sve""".split())
CXX = set("""algorithm chrono cassert cfloat cinttypes climits cmath cstddef cstdint cstdio cstdlib cstring ctime deque functional
    limits new tuple type_traits unordered_map unordered_set utility vector""".split())
CUDA = {"cuda_runtime.h", "library_types.h"}
LIBC_FOLDERS = ("sys/", "linux/", "netinet/", "arpa/", "net/", "sanitizer/", "asm/")


@dataclass
class Rule:
    own: str            # the folder itself, all of it
    project: set        # headers of other folders; one that ends in / stands for all below it
    libraries: set      # third-party headers, as written between < and >


RULES = {
    "kernels": Rule("kernels/", set(), set()),
    "engine": Rule("engine/", {"kernels/ops.h", "kernels/ceilings.h", "kernels/trace.h", "kernels/num.h", "kernels/rng.h"}, {"pcre2.h", "utf8proc.h", "gmp.h", "cjson/cJSON.h"}),
    "server": Rule("server/", {"engine/serve/engine.h", "engine/bench/bench.h", "engine/bench/eval.h", "engine/model/quantize.h", "engine/tokenizer/tokenizer.h", "engine/train/train.h", "engine/train/offline.h", "engine/data/dataset.h", "engine/train/tfevents.h", "engine/template/chat_template.h", "engine/grammar/grammar.h",
                                "engine/base/"},
                   {"uv.h", "llhttp.h", "llhttp/llhttp.h", "cjson/cJSON.h", "yaml.h", "sqlite3.h", "jemalloc/jemalloc.h",
                    "openssl/bio.h", "openssl/crypto.h", "openssl/err.h", "openssl/ssl.h", "openssl/sslerr.h", "openssl/x509.h"}),
    "loadtest": Rule("loadtest/", {"engine/base/", "kernels/rng.h"}, {"uv.h", "llhttp.h", "cjson/cJSON.h"}),
}
EXEMPT = {"loadtest/constrained_cost.c"}  # measures the engine from inside, built by hand

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def includes(path):
    """-> [(is_project_header, name)]"""
    return [(quote == '"', name) for quote, name in INCLUDE.findall(path.read_text())]


def allowed(rule, is_project, name):
    if is_project:
        return name.startswith(rule.own) or name in rule.project or any(p.endswith("/") and name.startswith(p) for p in rule.project)
    return name in rule.libraries or name.removesuffix(".h") in LIBC or name.startswith(LIBC_FOLDERS) or (rule.own == "kernels/" and name in CXX | CUDA)


def wrong_includes(root):
    return [f"{path.relative_to(root)} includes {name}" for folder, rule in RULES.items() for path in c_files(root, [folder])
            for is_project, name in includes(path) if not allowed(rule, is_project, name) and str(path.relative_to(root)) not in EXEMPT]


def include_cycle(root):
    """A cycle among our own headers as a list of names, or None."""
    graph = {str(p.relative_to(root)): [name for ours, name in includes(p) if ours] for p in c_files(root)}
    finished, trail = set(), []

    def visit(name):
        if name in trail:
            return trail[trail.index(name):] + [name]
        if name in finished or name not in graph:
            return None
        trail.append(name)
        cycle = next(filter(None, map(visit, graph[name])), None)
        trail.pop()
        finished.add(name)
        return cycle

    return next(filter(None, map(visit, graph)), None)


def symbols(library, kind):
    """Global symbols of an archive: kind "undefined" or "defined-only"."""
    out = subprocess.run(["nm", "-g", "-P", f"--{kind}", library], capture_output=True, check=True, text=True).stdout
    return {line.split()[0] for line in out.splitlines() if line and not line.endswith(":")}


def upward_symbols(lower, upper):
    """What the lower library wants that only the upper one has."""
    return sorted((symbols(lower, "undefined-only") - symbols(lower, "defined-only")) & symbols(upper, "defined-only"))


def library(folder):
    path = BUILD / folder / f"lib{folder}.a"
    if not path.exists() or not shutil.which("nm"):
        pytest.skip(f"no {path.name} or no nm")
    return path


# ---- the project -----------------------------------------------------------------------------------------------------

def test_includes_follow_the_rules():
    assert wrong_includes(ROOT) == []


def test_no_include_cycle():
    assert include_cycle(ROOT) is None


def test_every_folder_is_looked_at():
    assert all(c_files(ROOT, [folder]) for folder in FOLDERS)


@pytest.mark.parametrize("lower, upper", [("kernels", "engine"), ("kernels", "server"), ("engine", "server")])
def test_libraries_do_not_reach_up(lower, upper):
    assert upward_symbols(library(lower), library(upper)) == []


# ---- these tests can fail --------------------------------------------------------------------------------------------

@pytest.mark.parametrize("where, line", [
    ("kernels/a.c", '#include "engine/serve/engine.h"'),
    ("kernels/cpu/a.h", '#include "server/net/http.h"'),
    ("kernels/a.c", "#include <uv.h>"),
    ("engine/a.c", '#include "server/net/http.h"'),
    ("engine/a.c", '#include "kernels/dev.h"'),
    ("engine/a.h", "  #  include <uv.h>"),
    ("engine/a.c", "#include <llhttp.h>"),
    ("server/a.c", '#include "kernels/ops.h"'),
    ("server/a.c", '#include "engine/model/model.h"'),
    ("server/a.c", '#include "http.h"'),
    ("server/a.c", "#include <curl/curl.h>"),
    ("server/a.c", '#include "loadtest/client.h"'),
    ("loadtest/a.c", '#include "server/net/http.h"'),
    ("loadtest/a.c", '#include "engine/serve/engine.h"'),
])
def test_a_planted_include_is_found(tmp_path, where, line):
    path = tmp_path / where
    path.parent.mkdir(parents=True)
    path.write_text(f"/* planted */\n#include <stdio.h>\n{line}\n")
    assert len(wrong_includes(tmp_path)) == 1


def test_a_planted_cycle_is_found(tmp_path):
    (tmp_path / "engine").mkdir()
    for name, other in ("ab", "bc", "ca"):
        (tmp_path / f"engine/{name}.h").write_text(f'#include "engine/{other}.h"\n')
    assert include_cycle(tmp_path)


@pytest.mark.skipif(not (shutil.which("cc") and shutil.which("ar") and shutil.which("nm")), reason="no compiler")
def test_a_planted_symbol_is_found(tmp_path):
    for name, text in {"lower": "int up(void); int low(void); int low(void) { return up(); }",
                       "upper": "int low(void); int up(void); int up(void) { return low(); }"}.items():
        (tmp_path / f"{name}.c").write_text(text)
        subprocess.run(["cc", "-c", f"{name}.c"], cwd=tmp_path, check=True)
        subprocess.run(["ar", "rc", f"{name}.a", f"{name}.o"], cwd=tmp_path, check=True)
    assert upward_symbols(tmp_path / "lower.a", tmp_path / "upper.a") == ["up"]
