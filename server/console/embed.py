"""Writes a C file with the bytes of the console's files: embed.py OUT FILE... (meson runs it; see server/console/console.h)."""
import hashlib
import sys
from pathlib import Path

TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".svg": "image/svg+xml"}


def array(name, data):
    lines = (",".join(map(str, data[i:i + 32])) for i in range(0, len(data), 32))
    return f"static const unsigned char {name}[] = {{\n" + ",\n".join(lines) + "};\n"


def main(out, *paths):
    files = [(Path(p).name, TYPES[Path(p).suffix], Path(p).read_bytes()) for p in paths]
    with open(out, "w", encoding="ascii") as c:
        c.write("/* Generated from server/console/ by embed.py. */\n#include \"server/console/console.h\"\n\n")
        for i, (_, _, data) in enumerate(files):
            c.write(array(f"file_{i}", data))
        c.write("\nconst struct console_file console_files[] = {\n")
        for i, (name, kind, data) in enumerate(files):
            tag = hashlib.sha256(data).hexdigest()[:32]
            c.write(f'    {{"{name}", "{kind}", "\\"{tag}\\"", file_{i}, sizeof file_{i}}},\n')
        c.write(f"}};\nconst int console_n_files = {len(files)};\n")


main(*sys.argv[1:])
