"""What overload, soak and beside_llamacpp share: a server's process, and runs of tandem-loadtest. Standard library only."""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("TANDEM_BUILD_DIR", ROOT / "build"))


def fail(text):
    sys.exit(f"{Path(sys.argv[0]).name}: {text}")


def get(url, timeout=10):
    """(status, text); status 0: nobody answers. With the key in $LOADTEST_KEY, as tandem-loadtest sends it."""
    key = os.environ.get("LOADTEST_KEY")
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as r:
            return r.status, r.read().decode(errors="replace")
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode(errors="replace")
    except OSError as e:
        return 0, str(e)


class Process:
    """A server that this program starts and ends. Its output is kept."""

    def __init__(self, command, url=None, ready="/ready", env=None, seconds=300):
        self.lines, self.url = [], url
        self.process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        errors="replace", env={**os.environ, **(env or {})})
        threading.Thread(target=self._read, daemon=True).start()
        end = time.monotonic() + seconds
        while not (self.url and get(self.url + ready)[0] == 200):
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                fail(f"{command[0]} did not start:\n" + "".join(self.lines[-30:]))
            time.sleep(0.05)

    def _read(self):
        for line in self.process.stdout:
            self.lines = self.lines[-500:] + [line]
            found = re.match(r"listening (http://\S+)", line)
            if found:
                self.url = found[1]

    def stop(self):
        """The exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(90)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def resident_bytes(self):
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def takes(self, number):
        """Does it catch the signal? Else it would end it."""
        caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{self.process.pid}/status").read_text(), re.M)
        return bool(int(caught[1], 16) >> (number - 1) & 1)

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def metrics(self):
        """{"name{labels}": value} of /metrics."""
        found = {}
        for line in get(self.url + "/metrics")[1].splitlines():
            if line and line[0] != "#":
                name, _, value = line.rpartition(" ")
                found[name] = float(value)
        return found


def tandem(binary, *flags, env=None):
    return Process([binary, "serve", "--port", "0", *flags], env=env)


def start_load(generator, url, *flags, **kw):
    """The generator's process; finish_load has its report."""
    out = tempfile.NamedTemporaryFile(prefix="loadtest", suffix=".json", delete=False)
    out.close()
    p = subprocess.Popen([str(generator), "--url", url, "--json", out.name, "--quiet", *map(str, flags)], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, **kw)
    p.report = out.name
    return p


def finish_load(p, may_fail=False):
    table, complaint = p.communicate()
    try:
        if complaint or (p.returncode and not may_fail):
            fail(f"tandem-loadtest ended with {p.returncode}: {complaint}\n{table}")
        report = json.loads(Path(p.report).read_text())
    finally:
        os.unlink(p.report)
    report["table"] = table
    return report


def load(generator, url, *flags):
    return finish_load(start_load(generator, url, *flags))


def add_server_options(parser):
    parser.add_argument("--tandem", default=BUILD / "server" / "tandem", type=Path, help="the daemon")
    parser.add_argument("--loadtest", default=BUILD / "loadtest" / "tandem-loadtest", type=Path, help="the generator")
    parser.add_argument("--model", default=str(ROOT / "models" / "demo"))
    parser.epilog = "What follows -- are further options of tandem serve."


def parse(parser):
    """What is after -- goes to the daemon: .option"""
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    a = parser.parse_args(arguments[:cut])
    a.option = arguments[cut + 1:]
    return a
