#!/usr/bin/env python3
"""Reads what ptxas said of every kernel (registers, stack, spills, shared memory, for each architecture), prints it as a
table, and compares it with the committed one.

    tests/gpu/ptxas.py [--accept] [--table] FILE.ptxas...
    tests/gpu/ptxas.py --current

    --accept   write tests/gpu/ptxas.json anew: what is there now is what is wanted
    --table    print every kernel, not only those that are wrong
    --current  status 0 when the table was made of the sources as they are, by the nvcc that is here: then ptxas would say
               the same again, for every architecture.  Else the sources that changed are printed, and the status is 1

The build writes a FILE.ptxas beside each object (kernels/cuda/compile). Status 1 when a kernel spills, needs stack that the
table does not grant it, uses more than MARGIN registers above the table, or is not in the table. Registers are compared only
with the nvcc that made the table: another assigns them otherwise; spills always count.
"""
import argparse
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).parent / "ptxas.json"
KERNELS = ROOT / "kernels/cuda"
MARGIN = 8  # registers: the step in which the hardware hands them out

ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(sm_\w+)'")
PROPERTIES = re.compile(r"Function properties for (\S+)")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?, (\d+) bytes smem)?")
HASHES = re.compile(r"\d+_GLOBAL__N__[0-9a-f]{8}_\d+_(\w+)_cu_[0-9a-f]{8}(?=\d)")


def parse(text):
    """-> {(mangled, architecture): {"registers", "stack", "spill", "shared"}}"""
    found, key, function = {}, None, None
    for line in text.splitlines():
        if entry := ENTRY.search(line):
            key = function = entry.groups()
            found[key] = {"registers": 0, "stack": 0, "spill": 0, "shared": 0}
        elif properties := PROPERTIES.search(line):
            function = (properties[1], key[1]) if key else None
        elif (frame := FRAME.search(line)) and key:
            # of a function that was not inlined, too: what calls it pays
            stack, stores, loads = map(int, frame.groups())
            found[key]["stack"] += stack
            found[key]["spill"] += stores + loads
        elif (used := USED.search(line)) and key and function == key:
            found[key]["registers"] = int(used[1])
            found[key]["shared"] = int(used[2] or 0)
    return found


def demangle(names):
    done = subprocess.run(["c++filt", *names], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def readable(names):
    """{mangled: what people read}; the parameters only where two kernels differ in nothing else."""
    plain = [HASHES.sub(lambda m: f"{len(m[1]) + 3}{m[1]}_cu", name) for name in names]
    whole = [re.sub(r"^void |cuda_device::|\w+_cu::|\(anonymous namespace\)::", "", name) for name in demangle(plain)]
    short = [without_parameters(name) for name in whole]
    return {name: s if short.count(s) == 1 else w for name, s, w in zip(names, short, whole)}


def without_parameters(name):
    """Up to the parameter list, which is the last pair of parentheses outside <>."""
    depth = 0
    for i in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[i], 0)
        if depth == 0:
            return name[:i] or name
    return name


def read(paths):
    """-> {"source: kernel": {architecture: numbers}}"""
    kernels = {}
    for path in map(Path, paths):
        found = parse(path.read_text())
        names = sorted({name for name, _ in found})
        spoken = readable(names) if names else {}
        for (name, arch), numbers in found.items():
            kernels.setdefault(f"{path.stem}: {spoken[name]}", {})[arch] = numbers
    return kernels


def complaints(kernels, table, same_compiler):
    wrong = []
    for kernel, archs in sorted(kernels.items()):
        for arch, now in archs.items():
            then = table.get(kernel, {}).get(arch)
            where = f"{kernel} on {arch}"
            if now["spill"]:
                wrong.append(f"{where} spills {now['spill']} bytes")
            if then is None:
                wrong.append(f"{where} is not in the table: {now['registers']} registers, {now['stack']} bytes of stack")
            elif now["stack"] > then.get("stack", 0):
                wrong.append(f"{where} needs {now['stack']} bytes of stack, {then.get('stack', 0)} before")
            elif same_compiler and now["registers"] > then["registers"] + MARGIN:
                wrong.append(f"{where} uses {now['registers']} registers, {then['registers']} before")
    return wrong


def architectures(kernels):
    return {arch for archs in kernels.values() for arch in archs}


def show(kernels):
    print("| kernel | architecture | registers | stack | spilled | shared |\n| --- | --- | --- | --- | --- | --- |")
    for kernel, archs in sorted(kernels.items()):
        for arch, n in archs.items():
            print(f"| {kernel} | {arch} | {n['registers']} | {n['stack']} | {n['spill']} | {n['shared']} |")


# ---- what the table was made of ---------------------------------------------------------------------------------------

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def includes(path, seen):
    """Adds to `seen` the file and what it includes of this tree."""
    if path in seen or not path.exists():
        return seen
    seen.add(path)
    for name in INCLUDE.findall(path.read_text()):
        includes(ROOT / name if (ROOT / name).exists() else path.parent / name, seen)
    return seen


def digests():
    """{source: SHA-256 of all that decides what ptxas says of it, but for the compiler}"""
    how = [KERNELS / "meson.build", KERNELS / "compile"]
    found = {}
    for source in sorted(KERNELS.rglob("*.cu"), key=lambda p: p.stem):
        text = b"".join(p.read_bytes() for p in how + sorted(includes(source, set())))
        found[source.stem] = hashlib.sha256(text).hexdigest()
    return found


def changed(committed, nvcc):
    """What differs from the table's origin, as lines."""
    if committed["nvcc"] != nvcc:
        return [f"nvcc {nvcc}, the table's is {committed['nvcc'] or '(none)'}"]
    then, now = committed.get("sources", {}), digests()
    return sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))


def write(kernels, nvcc):
    kept = {kernel: {arch: {k: v for k, v in n.items() if v} for arch, n in archs.items()} for kernel, archs in sorted(kernels.items())}
    lines = [f"  {json.dumps(kernel)}: {json.dumps(archs)}" for kernel, archs in kept.items()]
    made_of = ",\n".join(f'  "{name}": "{digest}"' for name, digest in digests().items())
    TABLE.write_text(f'{{"nvcc": {json.dumps(nvcc)}, "sources": {{\n{made_of}\n}}, "kernels": {{\n' + ",\n".join(lines) + "\n}}\n")


def nvcc_version():
    script = ROOT / "scripts/find-nvcc"
    nvcc = subprocess.run([script], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"\bV(\d+\.\d+\.\d+)", said)[1]


def main():
    parser = argparse.ArgumentParser(usage="tests/gpu/ptxas.py [--accept] [--table] FILE.ptxas... | --current")
    parser.add_argument("--accept", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--current", action="store_true")
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    committed = json.loads(TABLE.read_text()) if TABLE.exists() else {"nvcc": "", "kernels": {}}
    nvcc = nvcc_version()
    if args.current:
        new = changed(committed, nvcc)
        print("the table of ptxas is of other sources:" if new else "the table of ptxas is of these sources", *new)
        return 1 if new else 0
    kernels = read(args.files)
    if args.table:
        show(kernels)
    if args.accept:
        missing = architectures(committed["kernels"]) - architectures(kernels)
        if missing:
            parser.error(f"--accept needs a build for {', '.join(sorted(missing))} too: -Dcuda=enabled without -Dgpu_archs")
        write(kernels, nvcc)
        committed = json.loads(TABLE.read_text())
    same = committed["nvcc"] == nvcc
    wrong = complaints(kernels, committed["kernels"], same)
    gone = sorted(set(committed["kernels"]) - set(kernels))
    print(f"{len(kernels)} kernels, {len(wrong)} complaints" + ("" if same else
          f"; the table is of nvcc {committed['nvcc'] or '(none)'}, this is {nvcc}: registers are not compared"))
    for line in wrong + [f"note: {kernel} is in the table and no longer built" for kernel in gone]:
        print(line)
    if wrong:
        print("If this is meant: ninja -C build accept-ptxas writes the table anew (never with spills).")
    return 1 if wrong or not kernels else 0


if __name__ == "__main__":
    sys.exit(main())
