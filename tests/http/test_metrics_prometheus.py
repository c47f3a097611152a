"""The files in conf/prometheus and conf/grafana against the daemon and a real Prometheus: promtool is content, the rules fire
where they should, a scrape of the loaded daemon works, and every query of the dashboard and of the rules finds data."""
import json
import re
import shutil
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
import yaml
from conftest import BUILD, DEMO, ROOT, wait_for
from prometheus_client.parser import text_string_to_metric_families
from training import submit

CONF = ROOT / "conf/prometheus"
RULES = CONF / "tandem.rules.yml"
DASHBOARD = ROOT / "conf/grafana/dashboards/tandem.json"
PROMTOOL, PROMETHEUS = shutil.which("promtool"), shutil.which("prometheus")
needs_promtool = pytest.mark.skipif(not PROMTOOL, reason="no promtool")


def promtool(*args, **kw):
    done = subprocess.run([PROMTOOL, *map(str, args)], capture_output=True, timeout=300, **kw)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return (done.stdout + done.stderr).decode()


# ---- the files -------------------------------------------------------------------------------------------------------

def queries(dashboard):
    return [(p["title"], t["expr"]) for p in dashboard["panels"] for t in p.get("targets", [])]


def names_in(expr):
    """Metrics of ours in an expression, without the endings of histograms."""
    return {re.sub(r"_(bucket|sum|count)$", "", n) for n in re.findall(r"\b(?:tandem|process)_[a-z0-9_]+\b", re.sub(r'"[^"]*"', '""', expr))}


def rules():
    return [r for g in yaml.safe_load(RULES.read_text())["groups"] for r in g["rules"]]


def documented():
    """The metrics that docs/operations.md lists, which test_metrics_full.py compares with the daemon."""
    text = (ROOT / "docs/operations.md").read_text()
    return set(re.findall(r"^\| `((?:tandem|process)_[a-z0-9_]+)` \|", text, re.M))


def test_every_name_exists():
    known = documented()
    assert len(known) > 60
    for title, expr in queries(json.loads(DASHBOARD.read_text())):
        assert names_in(expr) <= known, (title, names_in(expr) - known)
    for r in rules():
        assert names_in(r["expr"]) <= known, (r, names_in(r["expr"]) - known)


def test_dashboard_is_sound():
    board = json.loads(DASHBOARD.read_text())
    panels = board["panels"]
    assert board["uid"] == "tandem" and len({p["id"] for p in panels}) == len(panels)
    taken = set()
    for p in panels:
        g = p["gridPos"]
        cells = {(x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])}
        assert not cells & taken and g["x"] + g["w"] <= 24, p["title"]
        taken |= cells
        for t in p.get("targets", []):
            assert "$instance" in t["expr"]
    for path in sorted((ROOT / "conf/grafana/provisioning").rglob("*.yml")):
        assert yaml.safe_load(path.read_text())["apiVersion"] == 1


def test_every_alert_says_how_bad_and_what():
    alerts = [r for r in rules() if "alert" in r]
    assert len(alerts) >= 20 and len({r["alert"] for r in alerts}) == len(alerts)
    tested = (CONF / "tests/tandem.rules.test.yml").read_text()
    for r in alerts:
        assert r["labels"]["severity"] in ("warning", "critical") and "{{ $labels.instance }}" in r["annotations"]["summary"]
        assert r["alert"] in tested or r["alert"].startswith("TandemTraining"), r["alert"]
    text = (ROOT / "docs/operations.md").read_text()
    assert [r["alert"] for r in alerts if f"`{r['alert']}`" not in text] == []


@needs_promtool
def test_rules_are_good():
    assert "SUCCESS" in promtool("check", "rules", RULES)
    assert "SUCCESS" in promtool("test", "rules", *sorted((CONF / "tests").glob("*.yml")))
    assert "SUCCESS" in promtool("check", "config", CONF / "prometheus.yml")


@needs_promtool
def test_rules_can_fail(tmp_path):
    shutil.copytree(CONF, tmp_path / "conf")
    path = tmp_path / "conf" / RULES.name
    path.write_text(path.read_text().replace("tandem_kv_usage_ratio > 0.95", "tandem_kv_usage_ratio > 0.99"))
    done = subprocess.run([PROMTOOL, "test", "rules", *sorted((tmp_path / "conf/tests").glob("*.yml"))], capture_output=True, timeout=300)
    assert done.returncode != 0 and b"TandemKvCacheFull" in done.stdout + done.stderr


# ---- a real Prometheus -----------------------------------------------------------------------------------------------

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Prometheus:
    """It scrapes the daemon every second, by the committed configuration in all but that and the address."""

    def __init__(self, folder, target):
        config = yaml.safe_load((CONF / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(RULES)]
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [target]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = open(folder / "log", "w+b")
        self.process = subprocess.Popen([PROMETHEUS, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                         f"--web.listen-address=127.0.0.1:{port}"], stdout=self.log, stderr=self.log)

    def ready(self):
        assert self.process.poll() is None, self.text()
        try:
            return requests.get(self.url + "/-/ready", timeout=300).status_code == 200
        except requests.ConnectionError:
            return False

    def text(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-4000:]

    def api(self, path, **params):
        answer = requests.get(self.url + "/api/v1/" + path, params=params, timeout=300).json()
        assert answer["status"] == "success", (params, answer)
        return answer["data"]

    def query(self, expr):
        return self.api("query", query=expr)["result"]

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.terminate()
        self.process.wait(300)
        self.log.close()


def some_of_each(server, number):
    """Requests of every kind."""
    server.generate(f"Tale {number % 5}: Once upon a time there was a little girl who lived in a wood", max_new_tokens=16, ignore_eos=True,
                    **({"adapter_id": "pirate"} if number % 2 else {}))
    server.post("/v1/completions", {"prompt": "The dog", "max_tokens": 8, "model": "demo"})
    server.post("/generate", {"inputs": "x", "parameters": {"grammar": {"type": "regex", "value": "[ab]{1,%d}" % (number % 9 + 1)}}})
    server.post("/generate", {"inputs": "", "parameters": {"max_new_tokens": 0}})


def load(server, stop):
    number = 0
    while not stop.is_set():
        number += 1
        try:
            some_of_each(server, number)
        except requests.ConnectionError:  # on a machine that stood still the daemon's time limits are over
            assert server.process.poll() is None


@pytest.fixture(scope="module")
def scraped(start, tmp_path_factory):
    if not PROMETHEUS:
        pytest.skip("no prometheus")
    with start("--adapters", f"pirate={ROOT / 'models/demo-pirate'}", "--threads", "2", "--train-itl-budget-ms", "20", model=DEMO,
               env={"LD_LIBRARY_PATH": str(BUILD / "tests/http")}) as s, \
            Prometheus(tmp_path_factory.mktemp("prometheus"), f"127.0.0.1:{s.port}") as p, ThreadPoolExecutor(1) as pool:
        job = submit(s, max_steps=100000, eval_fraction=0.1, eval_steps=10)
        stop = threading.Event()
        busy = pool.submit(load, s, stop)
        try:
            wait_for(p.ready, 60, "Prometheus")
            wait_for(lambda: p.query("tandem_train_steps_total > 1"), 60, "a job that trains")
            time.sleep(5)
            yield s, p
        finally:
            stop.set()
            busy.result()
            wait_for(lambda: s.post(f"/train/{job}/cancel", None), what="the job's end")


def filled(expr):
    return expr.replace("$__rate_interval", "10s").replace("$instance", ".*")


def test_scrapes(scraped):
    server, p = scraped
    target = p.api("targets")["activeTargets"][0]
    assert target["health"] == "up" and target["lastError"] == "", target
    assert p.query("up")[0]["value"][1] == "1"
    assert p.query("scrape_samples_scraped > 300")
    # nothing was lost on the way: every series that the daemon shows is there
    shown = {s.name for f in text_string_to_metric_families(server.get("/metrics").text) for s in f.samples}
    wait_for(lambda: shown <= set(p.api("label/__name__/values")), what="the scrape after that")


def test_every_query_of_the_dashboard_has_data(scraped):
    _, p = scraped
    board = json.loads(DASHBOARD.read_text())
    seen = queries(board)
    assert len(seen) > 80
    for title, expr in seen:
        wait_for(lambda: p.query(filled(expr)), 60, f"{title}: {expr}")
    label = board["templating"]["list"][1]["query"]
    assert label == "label_values(tandem_ready, instance)" and p.query("tandem_ready")[0]["metric"]["instance"]
    p.query(board["annotations"]["list"][0]["expr"])


def test_every_rule_has_series(scraped):
    """Each evaluates without an error, and each selector in it, taken alone, finds something."""
    _, p = scraped
    for group in p.api("rules")["groups"]:
        for r in group["rules"]:
            assert r["health"] == "ok" and not r.get("lastError"), r
    for r in rules():
        p.query(r["expr"])
        for selector in re.findall(r"\b(?:tandem|process)_[a-z0-9_]+(?:\{[^}]*\})?|\bup\{[^}]*\}", r["expr"]):
            if 'status=~"5..' in selector:  # nothing has failed
                continue
            assert p.query(selector), (r, selector)
    firing = {a["labels"]["alertname"] for a in p.api("alerts")["alerts"] if a["state"] == "firing"}
    # a machine that is busy with tests, and a job of a hundred thousand steps over 24 rows
    assert firing <= {"TandemTokensSlow", "TandemMemoryHigh", "TandemMemoryCritical", "TandemTrainingStuck"}, firing


@needs_promtool
def test_promtool_reads_a_busy_daemon(scraped):
    server, _ = scraped
    assert promtool("check", "metrics", input=server.get("/metrics").content) == ""
