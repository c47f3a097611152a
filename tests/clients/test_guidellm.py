"""guidellm: a short benchmark over HTTP finishes, with an answer to every request."""
import json
import os
import subprocess
import sys

import pytest
from client_rig import DEMO, NEEDS_DEMO, package, start  # noqa: F401

pytestmark = NEEDS_DEMO
package("guidellm")


@pytest.fixture(scope="module")
def daemon(start):  # noqa: F811
    with start("--chat-template", "plain", "--threads", "2", model=DEMO) as s:
        yield s


def test_benchmark(daemon, tmp_path):
    requests, tokens = 8, 12
    command = [sys.executable, "-m", "guidellm", "benchmark", "--target", daemon.url, "--model", "demo", "--processor", DEMO,
               "--data", f"prompt_tokens=16,output_tokens={tokens},samples={requests}", "--rate-type", "concurrent", "--rate", "3",
               "--max-requests", str(requests), "--output-path", tmp_path / "report.json", "--disable-progress"]
    environment = {**os.environ, "GUIDELLM__MAX_WORKER_PROCESSES": "1", "GUIDELLM__SCHEDULER_START_DELAY": "1"}
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=580, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    [benchmark] = json.loads((tmp_path / "report.json").read_text())["benchmarks"]
    made = benchmark["run_stats"]["requests_made"]
    assert (made["successful"], made["errored"], made["incomplete"]) == (requests, 0, 0)
    assert {r["output_tokens"] for r in benchmark["requests"]["successful"]} == {tokens}
    daemon.wait_idle()
