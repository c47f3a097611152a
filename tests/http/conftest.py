"""The real binary, started on a free port with the demo model. TANDEM_BUILD_DIR says which build, TANDEM_TEST_DEVICE on which
device the tests run that name none."""
import os
import re
import signal
import subprocess
import time
import traceback
from pathlib import Path

import pytest
import requests

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TANDEM_BUILD_DIR", ROOT / "build"))
BINARY = BUILD / "server" / "tandem"
DEMO = ROOT / "models" / "demo"
MODEL = DEMO if (DEMO / "config.json").exists() else ROOT / "tests/fixtures/models/tinystories-656k"
ENV = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")}
ENV.update(HF_HUB_OFFLINE="1", HF_HOME="/nonexistent/huggingface")  # test_hub.py has a hub of its own
DEVICE = os.environ.get("TANDEM_TEST_DEVICE")
if DEVICE:
    ENV["TANDEM_DEVICE"] = DEVICE


PATIENCE = 300.0  # seconds: what has not come by then never comes, however busy the machine is


def wait_for(condition, seconds=PATIENCE, what="the condition"):
    """Polls until condition() is true and returns its value; for PATIENCE, or longer if asked to."""
    seconds = max(seconds, PATIENCE)
    begin = time.monotonic()
    while (passed := time.monotonic() - begin) < seconds:
        value = condition()
        if value:
            return value
        time.sleep(min(max(0.01, 0.05 * passed), 0.05))  # rarely where it takes long: asking takes processor time
    raise AssertionError(f"{what} did not come true in {seconds} s")


def at_some_pace(test):
    """Calls test(pace) with 1, 4 and 16 until one passes.  For what is about times: each of the test's times is a multiple of
    the pace, so a busy machine, which fails it at the first, passes at a slower one; what is wrong fails at every pace."""
    for pace in (1, 4):
        try:
            return test(pace)
        except (AssertionError, OSError, EOFError, LookupError):
            traceback.print_exc()
    return test(16)


class Server:
    """One `tandem serve`; a context manager that ends it with SIGTERM and expects a clean exit.

    key: the API key that get and post send. verify: the certificate that they expect. wrap, popen: of how it is started."""

    def __init__(self, log, *args, model=MODEL, ready=True, env=None, key=None, verify=None, wrap=(), binary=BINARY, **popen):
        self.log_path = log
        self.options = {"headers": {"Authorization": f"Bearer {key}"} if key else {}, "verify": str(verify) if verify else True}
        self.data = Path(next((args[i + 1] for i in range(len(args) - 1) if args[i] == "--data-dir"), f"{log}.data"))
        with open(log, "wb") as out:
            self.process = subprocess.Popen([*wrap, binary, "serve", *(["--model", model] if model else []), "--port", "0", "--data-dir", self.data, *map(str, args)],
                                            stderr=out, stdout=out, stdin=subprocess.DEVNULL, cwd=ROOT, env={**ENV, **(env or {})}, **popen)
        try:
            self.url = wait_for(self._listening, what=f"listening; {log}")
            self.port = int(self.url.rsplit(":", 1)[1])
            if ready:
                self.wait_ready()
        except BaseException:
            self.process.kill()
            raise

    def _listening(self):
        assert self.process.poll() is None, self.log()
        found = re.search(r'^listening (https?://\S+)\n|"msg":"listening","url":"([^"]+)"', self.log(), re.M)  # the second: --log-format json
        return found and (found.group(1) or found.group(2))

    def wait_ready(self):
        def ready():
            assert self.process.poll() is None, self.log()
            try:
                return self.get("/ready").status_code == 200
            except requests.ConnectionError as e:  # it is ending: its log says why
                self.process.wait(PATIENCE)
                raise AssertionError(self.log()) from e
        wait_for(ready, what="ready")

    def log(self):
        return self.log_path.read_text(errors="replace")

    def get(self, path, **kw):
        return requests.get(self.url + path, timeout=PATIENCE, **{**self.options, **kw})

    def post(self, path, body, **kw):
        return requests.post(self.url + path, json=body, timeout=kw.pop("timeout", PATIENCE), **{**self.options, **kw})

    def generate(self, inputs="Once upon a time", path="/generate", **parameters):
        answer = self.post(path, {"inputs": inputs, "parameters": parameters})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def metric(self, name, **labels):
        """The value of one sample; 0 when it is not there."""
        pattern = re.escape(name) + (r"\{(.*)\}" if labels else "") + r" (\S+)$"
        for match in re.finditer("^" + pattern, self.get("/metrics").text, re.M):
            if not labels or all(f'{k}="{v}"' in match.group(1) for k, v in labels.items()):
                return float(match.group(match.lastindex))
        return 0.0

    def wait_idle(self, seconds=PATIENCE):
        """Until no request runs, waits or is paused, and no page is held."""
        def idle():
            names = ("tandem_requests_running", "tandem_requests_waiting", "tandem_requests_paused", "tandem_kv_pages_used")
            return all(self.metric(name) == 0 for name in names)
        wait_for(idle, seconds, "idle")

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self):
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, seconds=PATIENCE):
        return self.process.wait(max(seconds, PATIENCE))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            time.sleep(0.02)
            if self.process.poll() is None:
                self.signal(signal.SIGTERM)  # the second one does not wait for requests
        try:
            status = self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert exc[0] or status == 0, f"exit status {status}\n{self.log()[-4000:]}"


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """start(*flags) -> Server, to be used in a with statement."""
    folder, count = tmp_path_factory.mktemp("logs"), [0]

    def run(*args, **kw):
        count[0] += 1
        return Server(folder / f"server{count[0]}.log", *args, **kw)
    return run


@pytest.fixture(scope="session")
def quantised(tmp_path_factory):
    """quantised(type) -> the model in a directory with such weights ("none": the model itself).

    By the release build where there is one: calibrating takes a sanitizer's build a minute, and is tested elsewhere."""
    folder, release = tmp_path_factory.mktemp("quantised"), ROOT / "build" / "server" / "tandem"

    def make(kind):
        out = folder / kind
        if kind == "none":
            return MODEL
        if not out.exists():
            subprocess.run([release if release.exists() else BINARY, "quantize", "--model", MODEL, "--out", out, "--type", kind], check=True, capture_output=True)
        return out
    return make


@pytest.fixture(scope="session")
def shared(start):
    with start() as s:
        yield s


@pytest.fixture
def server(shared):
    """The shared server; a test must leave it alive and idle."""
    yield shared
    assert shared.process.poll() is None, shared.log()[-4000:]
    shared.wait_idle()


@pytest.fixture(scope="session")
def run():
    """run("generate", "--prompt", ...) -> CompletedProcess of the command line."""
    def call(*args, timeout=PATIENCE, cwd=ROOT, env=None, **kw):
        return subprocess.run([BINARY, *map(str, args)], capture_output=True, timeout=timeout, cwd=cwd, env={**ENV, **(env or {})}, **kw)
    return call
