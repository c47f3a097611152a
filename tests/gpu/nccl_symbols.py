#!/usr/bin/env python3
"""Whether the NCCL of this machine has every function that tandem looks up in it. No GPU is needed to load it.

    tests/gpu/nccl_symbols.py FOLDER...     libnccl.so.2 is looked for where programs find it, then in the folders

Status 0: it has all; 1: not; 77: there is no NCCL here."""
import ctypes
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = "libnccl.so.2"


def functions():
    source = (ROOT / "kernels/cuda/runtime/exchange.h").read_text()
    listed = re.search(r"#define NCCL_FUNCTIONS\(X\)((?:.*\\\n)+.*\n)", source)[1]
    return ["nccl" + name for name in re.findall(r"X\((\w+)\)", listed)]


def library(folders):
    for path in [LIBRARY, *(str(Path(f) / LIBRARY) for f in folders)]:
        try:
            return path, ctypes.CDLL(path)
        except OSError as why:
            if "cannot open shared object" not in str(why):
                print(path, why)
    return None, None


def main():
    path, found = library(sys.argv[1:])
    if not found:
        print("no", LIBRARY)
        return 77
    missing = [name for name in functions() if not hasattr(found, name)]
    version = ctypes.c_int()
    print(f"{path}: status {found.ncclGetVersion(ctypes.byref(version))}, version {version.value}, {len(functions())} functions, missing: {missing or 'none'}")
    return 1 if missing or version.value < 21100 else 0  # from 2.11 on all ranks of an operation capture it, or none


sys.exit(main())
