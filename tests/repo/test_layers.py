"""The arrows between rooms point one way, as the table in rooms.py has them. Read from the includes and from the symbols
of the object files."""
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from rooms import EXEMPT, LIBRARIES, PUBLIC, ROOMS, Room, entries, linked_as, may_include, may_link, room_of, tower
from sources import FOLDERS, ROOT, c_files

BUILD = Path(os.environ.get("TANDEM_BUILD_DIR", ROOT / "build"))
TOWERS = [*FOLDERS, "loadtest"]

LIBC = set("""assert ctype errno fcntl fenv float fnmatch glob inttypes limits locale math poll pthread pwd grp sched semaphore setjmp
    signal spawn stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string strings termios threads time
    unistd wchar dirent dlfcn execinfo getopt malloc netdb link elf endian byteswap
    immintrin x86intrin cpuid arm_neon arm_sve""".split())
LIBC_FOLDERS = ("sys/", "linux/", "netinet/", "arpa/", "net/", "sanitizer/", "asm/")
GENERATED = {"server/console_files.c": "server/console"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


# ---- includes --------------------------------------------------------------------------------------------------------

def includes(path):
    """-> [(is_project_header, name)]"""
    return [(quote == '"', name) for quote, name in INCLUDE.findall(path.read_text())]


def allowed(room, is_project, name):
    if is_project:
        return may_include(room, name)
    return name.removesuffix(".h") in LIBC or name.startswith(LIBC_FOLDERS) or any(name in LIBRARIES[key] for key in ROOMS[room].libraries.split())


def wrong_includes(root):
    """{(file, header)} against the table; a header of None: the file's folder is in no row."""
    found = set()
    for path in c_files(root, TOWERS):
        name = str(path.relative_to(root))
        room = room_of(name)
        if name not in EXEMPT:
            found |= {(name, header) for is_project, header in includes(path) if not allowed(room, is_project, header)} if room else {(name, None)}
    return found


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


# ---- symbols ---------------------------------------------------------------------------------------------------------

def source_of(entry, cuda):
    """The source of a line of compile_commands.json, by its path in the repository; None: not one of ours. cuda: names of
    the sources that simt compiles, by stem."""
    name = os.path.relpath(os.path.join(entry["directory"], entry["file"]), ROOT)
    if Path(name).name.startswith("simt_"):
        return cuda.get(Path(name).stem.removeprefix("simt_"))
    in_build = os.path.relpath(os.path.join(entry["directory"], entry["file"]), BUILD)
    return in_build if in_build in GENERATED else name


def objects(build):
    """{source: object file} of everything that the build compiles from the towers; skips where it has not."""
    cuda = {p.stem: str(p.relative_to(ROOT)) for p in c_files(ROOT, ["kernels/cuda"]) if p.suffix == ".cu"}
    commands = build / "compile_commands.json"
    if not commands.exists() or not shutil.which("nm"):
        pytest.skip("no build or no nm")
    found = {}
    for entry in json.loads(commands.read_text()):
        source = source_of(entry, cuda)
        if source and entry["output"].startswith(tuple(f"{folder}/" for folder in TOWERS)) and source not in EXEMPT:
            found[source] = build / entry["output"]
    found = {source: path for source, path in found.items() if source in GENERATED or room_of(source)}
    missing = [str(path) for path in found.values() if not path.exists()]
    if missing:
        pytest.skip(f"not built: {missing[0]}")
    return found


def symbols(files):
    """{source: (wanted, defined)} of {source: object file}; weak ones, C++'s inline functions, are nobody's."""
    sources = {str(path): source for source, path in files.items()}
    found = {source: (set(), set()) for source in files}
    out = subprocess.run(["nm", "-g", "-P", "-A", *sources], capture_output=True, check=True, text=True).stdout
    for line in out.splitlines():
        file, _, rest = line.partition(": ")
        name, kind = rest.split()[:2]
        if kind not in "vwVW":
            found[sources[file]][kind != "U"].add(name)
    return found


def wrong_symbols(found, room=lambda source: linked_as(GENERATED.get(source) or room_of(source)), link=may_link):
    """{(source, symbol)}: wanted, and defined only in rooms that the source's room may not reach."""
    homes = {}
    for source, (_, defined) in found.items():
        for name in defined:
            homes.setdefault(name, set()).add(room(source))
    reach = {name: link(name) for name in {room(source) for source in found}}
    return {(source, name) for source, (wanted, _) in found.items() for name in wanted if name in homes and not homes[name] & reach[room(source)]}


# ---- the project -----------------------------------------------------------------------------------------------------

def test_includes_follow_the_table():
    assert wrong_includes(ROOT) == set()


def test_symbols_follow_the_table():
    assert wrong_symbols(symbols(objects(BUILD))) == set()


def test_every_object_is_looked_at():
    compiled = {str(p.relative_to(ROOT)) for p in c_files(ROOT, ["server", "engine"]) if p.suffix == ".c"}
    assert compiled - set(objects(BUILD)) == set()


def test_no_include_cycle():
    assert include_cycle(ROOT) is None


def test_every_folder_is_looked_at():
    assert all(c_files(ROOT, [folder]) for folder in FOLDERS)


def rows_that_point_up(rooms):
    """[(row, entry)]: entries that are no room or header further down, or one of a tower below that is not public."""
    rows, wrong = list(rooms), []
    for at, name in enumerate(rows):
        for entry in entries(name, rooms):
            below = room_of(entry, rooms) in rows[at + 1:] if tower(entry) == tower(name) else entry in PUBLIC.get(tower(entry), [])
            wrong += [] if below else [(name, entry)]
    return wrong


def test_the_table_points_down():
    assert rows_that_point_up(ROOMS) == []


def test_the_table_names_what_there_is():
    assert [row for row in ROOMS if not (ROOT / row).exists()] == []
    assert [header for headers in PUBLIC.values() for header in headers if not (ROOT / header).exists()] == []


# ---- these tests can fail --------------------------------------------------------------------------------------------

@pytest.mark.parametrize("where, line", [
    ("kernels/a.c", '#include "engine/serve/engine.h"'),
    ("kernels/a.c", '#include "kernels/cpu/cpu.h"'),
    ("kernels/a.c", "#include <algorithm>"),
    ("kernels/cpu/a.h", '#include "server/net/http.h"'),
    ("kernels/cpu/a.h", '#include "kernels/ref/ref.h"'),
    ("kernels/cuda/gemm/a.cu", '#include "kernels/cuda/rows/rows.cuh"'),
    ("kernels/a.c", "#include <uv.h>"),
    ("engine/model/a.c", '#include "server/net/http.h"'),
    ("engine/model/a.c", '#include "kernels/dev.h"'),
    ("engine/model/a.h", '#include "engine/serve/sched.h"'),
    ("engine/tokenizer/a.h", '#include "engine/model/model.h"'),
    ("engine/base/a.h", '#include "kernels/rng.h"'),
    ("engine/base/a.h", "  #  include <uv.h>"),
    ("engine/train/a.c", "#include <llhttp.h>"),
    ("engine/train/a.c", "#include <cjson/cJSON.h>"),
    ("engine/a.c", "#include <stdlib.h>"),  # in no room
    ("server/cli/a.c", '#include "kernels/ops.h"'),
    ("server/cli/a.c", '#include "engine/model/model.h"'),
    ("server/cli/a.c", '#include "cmd.h"'),
    ("server/cli/a.c", "#include <curl/curl.h>"),
    ("server/cli/a.c", '#include "loadtest/client.h"'),
    ("server/net/a.c", '#include "server/api/models.h"'),
    ("server/json/a.c", '#include "server/net/http.h"'),
    ("server/store/a.c", '#include "engine/serve/engine.h"'),
    ("server/new/a.c", '#include "server/net/http.h"'),
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


@pytest.mark.parametrize("row, may, wrong", [
    ("engine/model", "serve", "engine/serve/"),
    ("engine/model", "base serves", "engine/serves/"),
    ("engine/bench", "kernels/dev.h", "kernels/dev.h"),
    ("server/net", "engine/model/model.h", "engine/model/model.h"),
    ("engine/base", "server/net/", "server/net/"),
])
def test_a_planted_row_is_found(row, may, wrong):
    assert rows_that_point_up({**ROOMS, row: Room(may)}) == [(row, wrong)]


@pytest.mark.skipif(not (shutil.which("cc") and shutil.which("nm")), reason="no compiler")
@pytest.mark.parametrize("lower, upper", [
    ("engine/model/low.c", "engine/serve/up.c"),
    ("engine/grammar/low.c", "engine/model/up.c"),  # beside each other
    ("server/net/low.c", "server/api/up.c"),
    ("engine/base/low.c", "server/net/up.c"),
    ("kernels/low.c", "engine/base/up.c"),
    ("kernels/cpu/low.c", "kernels/open.c"),
    ("loadtest/low.c", "server/net/up.c"),
])
def test_a_planted_symbol_is_found(tmp_path, lower, upper):
    files = {}
    for source, text in {lower: "int up(void); int low(void); int low(void) { return up(); }",
                         upper: "int low(void); int up(void); int up(void) { return low(); }"}.items():
        (tmp_path / source).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / source).write_text(text)
        files[source] = tmp_path / (source + ".o")
        subprocess.run(["cc", "-c", source, "-o", files[source]], cwd=tmp_path, check=True)
    wrong = wrong_symbols(symbols(files))
    assert (lower, "up") in wrong
    assert wrong <= {(lower, "up"), (upper, "low")}
