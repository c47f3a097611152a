"""Finding the project's own files, for the tests about the repository itself."""
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("kernels", "engine", "server")
C_SUFFIXES = {".c", ".h", ".cu", ".cuh", ".cc"}


def tracked(root=ROOT):
    """Every file of the project: tracked ones and new ones git does not ignore; without git, every file outside build*."""
    try:
        listing = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                                 capture_output=True, check=True).stdout.decode().split("\0")
        paths = [root / name for name in listing if name]
    except (OSError, subprocess.CalledProcessError):
        paths = [p for p in root.rglob("*") if not str(p.relative_to(root)).startswith(("build", ".git/"))]
    return sorted(p for p in paths if p.is_file() and not p.is_symlink())


def c_files(root=ROOT, folders=FOLDERS):
    """Sources and headers under the given folders: C, and the C++ and CUDA of the GPU device."""
    return sorted(p for folder in folders for p in (root / folder).rglob("*") if p.suffix in C_SUFFIXES)
