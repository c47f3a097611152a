"""Code blocks of Markdown pages as examples that tests run."""
import re
import subprocess

from conftest import ROOT


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def commands(text):
    """The lines of a page's sh blocks. A command that continues on the next line is joined."""
    out = []
    for block in blocks(text, "sh"):
        for line in block.splitlines():
            if out and (out[-1].endswith("\\") or out[-1].count("'") % 2):
                out[-1] = out[-1].removesuffix("\\") + line
            else:
                out.append(line)
    return out


def shell(daemon, line, *flags):
    """Runs the command with the daemon's address in place of the page's."""
    line = line.replace("localhost:8080", f"127.0.0.1:{daemon.port}").replace("curl ", f"curl -sS {' '.join(flags)} ", 1)
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=300, cwd=ROOT)
