"""What is installed and how it is run: the systemd units, the installed tree, containers, Kubernetes."""
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from sources import ROOT

BUILD = Path(os.environ.get("TANDEM_BUILD_DIR", ROOT / "build"))
systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
EXPOSURE = 2.0


def analyze(*args):
    return subprocess.run(["systemd-analyze", *map(str, args)], capture_output=True, text=True, env={**os.environ, "SYSTEMD_COLORS": "0"})


@pytest.fixture
def units(tmp_path):
    """The units of this build in a folder, with a program that is there."""
    text = (BUILD / "systemd/tandem.service").read_text()
    program = re.search(r"^ExecStart=(\S+)", text, re.M).group(1)
    (tmp_path / "tandem.service").write_text(text.replace(program, str(BUILD.resolve() / "server/tandem")))
    shutil.copy(ROOT / "systemd/tandem.socket", tmp_path)
    return tmp_path


def exposure(unit):
    done = analyze("security", "--offline=true", "--no-pager", unit)
    found = re.search(r"Overall exposure level for \S+: (\d+\.\d+)", done.stdout)
    assert found, done.stdout + done.stderr
    return float(found.group(1))


@systemd
def test_units_are_clean(units):
    done = analyze("verify", "--man=false", units / "tandem.service", units / "tandem.socket")
    complaints = [x for x in done.stderr.splitlines() if "tandem" in x]  # not of the machine's own units
    assert (done.returncode, complaints) == (0, [])


@systemd
def test_a_wrong_unit_is_not_clean(units):
    path = units / "tandem.service"
    path.write_text(path.read_text().replace("WatchdogSec=60", "WatchdogSec=sometimes"))
    assert "tandem.service:" in analyze("verify", "--man=false", path).stderr


@systemd
def test_exposure(units):
    assert exposure(units / "tandem.service") <= EXPOSURE


@systemd
def test_an_open_unit_is_exposed(units):
    path = units / "tandem.service"
    path.write_text(re.sub(r"^(DynamicUser|CapabilityBoundingSet|SystemCallFilter|ProtectSystem|PrivateUsers)=.*\n", "", path.read_text(), flags=re.M))
    assert exposure(path) > EXPOSURE


def test_what_the_daemon_does_has_room_in_the_unit():
    """Times that belong together, and the options that the tests of the daemon are about."""
    unit = dict(re.findall(r"^(\w+)=(.*)$", (ROOT / "systemd/tandem.service.in").read_text(), re.M))
    conf = yaml.safe_load((ROOT / "conf/tandem.yaml").read_text())
    assert unit["Type"] == "notify" and unit["NotifyAccess"] == "main"
    assert int(unit["TimeoutStopSec"]) >= conf["drain-timeout"] + 26
    assert "$MAINPID" in unit["ExecReload"] and "-HUP" in unit["ExecReload"]
    assert "AF_UNIX" in unit["RestrictAddressFamilies"]  # the manager's socket


@pytest.mark.skipif(not shutil.which("systemd-sysusers"), reason="no systemd-sysusers")
def test_sysusers(tmp_path):
    (tmp_path / "etc").mkdir()
    done = subprocess.run(["systemd-sysusers", f"--root={tmp_path}", ROOT / "systemd/tandem.sysusers.conf"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^tandem:[^:]*:\d+:\d+:tandem language model server:/:", (tmp_path / "etc/passwd").read_text(), re.M)


# ---- meson install ---------------------------------------------------------------------------------------------------

@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """The root that `meson install` filled, and the prefix in it."""
    if not shutil.which("meson"):
        pytest.skip("no meson")
    root = tmp_path_factory.mktemp("root")
    subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", root], check=True, capture_output=True)
    unit = next(root.rglob("tandem.service"))
    return root, unit.parents[3]


def test_everything_is_installed(installed):
    _, prefix = installed
    found = {str(p.relative_to(prefix)) for p in prefix.rglob("*") if p.is_file()}
    assert {"bin/tandem", "lib/systemd/system/tandem.service", "lib/systemd/system/tandem.socket", "lib/sysusers.d/tandem.conf",
            "lib/tmpfiles.d/tandem.conf", "etc/tandem/tandem.yaml", "share/man/man1/tandem.1", "share/doc/tandem/operations.md", "share/doc/tandem/LICENSE",
            "share/doc/tandem/symbolise", "share/tandem/models/demo/model.safetensors", "share/tandem/models/demo/tokenizer.json"} <= found
    documents = {p.name for p in (ROOT / "docs").glob("*.md")} - {"performance.md", "compare.md", "loadtest.md"}  # of the repository's own measuring
    assert {f"share/doc/tandem/{name}" for name in documents} <= found
    assert ("bin/tandem-train-ranks" in found) == any(x.endswith("libtandem_mpi.so") for x in found)
    assert not [x for x in found if "test" in x]


def test_installed_files_name_each_other(installed):
    root, prefix = installed
    unit = (prefix / "lib/systemd/system/tandem.service").read_text()
    program, config = re.search(r"^ExecStart=(\S+) serve --config (\S+)$", unit, re.M).groups()
    folder = re.search(r"^WorkingDirectory=(\S+)$", unit, re.M).group(1)
    document = re.search(r"^Documentation=file:(\S+)$", unit, re.M).group(1)
    for path in (program, config, document):
        assert (root / path.lstrip("/")).is_file(), path
    assert (root / folder.lstrip("/") / yaml.safe_load((root / config.lstrip("/")).read_text())["model"] / "config.json").is_file()
    assert "@" not in re.sub(r"^#.*|@system-service|~@privileged", "", unit, flags=re.M)
    assert str(Path(config).parent) in (prefix / "lib/tmpfiles.d/tandem.conf").read_text()


def test_what_is_installed_runs(installed, tmp_path):
    """As the unit would: from its folder, with the installed configuration, its state where systemd says."""
    _, prefix = installed
    env = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")}
    process = subprocess.Popen([prefix / "bin/tandem", "serve", "--config", prefix / "etc/tandem/tandem.yaml", "--port", "0"],
                               cwd=prefix / "share/tandem", env={**env, "STATE_DIRECTORY": str(tmp_path / "state")}, stderr=subprocess.PIPE, text=True)
    try:
        seen = []
        for line in process.stderr:
            seen.append(line)
            if line.startswith("console "):
                break
        port = next(x for x in seen if x.startswith("listening ")).rsplit(":", 1)[1].strip()
        asked = subprocess.run([prefix / "bin/tandem", "health", "--ready", "--port", port], capture_output=True, text=True)
        assert (asked.returncode, asked.stdout) == (0, "ready\n"), "".join(seen) + asked.stderr
        process.terminate()
        process.stderr.read()
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.stderr.close()
        process.wait()


# ---- containers ------------------------------------------------------------------------------------------------------

def documents(name):
    return [d for d in yaml.safe_load_all((ROOT / name).read_text()) if d]


def served_routes():
    return set(re.findall(r'\{HTTP_M_GET, "([^"]+)"', (ROOT / "server/cli/serve_routes.c").read_text()))


def metric_names():
    return set(re.findall(r"tandem_\w+", "".join(p.read_text() for p in (ROOT / "server").rglob("metrics*.c"))))


def option_names():
    return set(re.findall(r'^    \{"([a-z-]+)", "', (ROOT / "server/config/table.c").read_text(), re.M))


def is_option(variable):
    return variable.removeprefix("TANDEM_").lower().replace("_", "-") in option_names()


def test_dockerfile():
    text = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^ARG BASE=debian:bookworm-slim$", text, re.M) and text.count("\nFROM ") == 4 and text.endswith("\nFROM run\n")
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", text, re.M)
    assert re.search(r'^HEALTHCHECK .*CMD \["tandem", "health"\]$', text, re.M)
    assert all(map(is_option, re.findall(r"\b(TANDEM_\w+)=", text)))
    ignored = (ROOT / ".dockerignore").read_text().split()
    copied = {"README.md", "LICENSE", "conf", "docs", "engine", "kernels", "models", "scripts", "server", "systemd"}
    assert not copied & set(ignored)


def test_compose():
    services = documents("compose.yaml")[0]["services"]
    assert {"tandem", "prometheus", "grafana"} == set(services)
    assert all(map(is_option, services["tandem"]["environment"]))
    conf = yaml.safe_load((ROOT / "conf/tandem.yaml").read_text())
    assert int(services["tandem"]["stop_grace_period"].removesuffix("s")) >= conf["drain-timeout"] + 26
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith("./conf") or (ROOT / source).exists(), source
    # Prometheus scrapes localhost, Grafana asks prometheus:9090: both are the network of the tandem container
    target, = yaml.safe_load((ROOT / "conf/prometheus/prometheus.yml").read_text())["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target == "localhost:8080" and services["prometheus"]["network_mode"] == "service:tandem"
    assert "prometheus" in services["tandem"]["networks"]["default"]["aliases"]
    assert "http://prometheus:9090" in (ROOT / "conf/grafana/provisioning/datasources/prometheus.yml").read_text()


def test_kubernetes():
    kinds = {d["kind"]: d for d in documents("conf/kubernetes/tandem.yaml")}
    pod = kinds["Deployment"]["spec"]["template"]["spec"]
    container, = pod["containers"]
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert ports["http"] == 8080
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in served_routes() and asked["port"] in ports
    assert container["livenessProbe"]["httpGet"]["path"] == "/health" and container["readinessProbe"]["httpGet"]["path"] == "/ready"
    env = {e["name"]: e.get("value") for e in container["env"]}
    assert all(is_option(name) for name in env if name.startswith("TANDEM_"))
    sleep = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= sleep + int(env["TANDEM_DRAIN_TIMEOUT"]) + 26
    user = re.search(r"^USER (\d+):", (ROOT / "Dockerfile").read_text(), re.M).group(1)
    assert pod["securityContext"]["runAsNonRoot"] and str(pod["securityContext"]["runAsUser"]) == user
    mounts = {m["name"] for m in container["volumeMounts"]}
    assert mounts == {v["name"] for v in pod["volumes"]}
    labels = kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selector in (kinds["Deployment"]["spec"]["selector"]["matchLabels"], kinds["Service"]["spec"]["selector"], kinds["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]):
        assert selector.items() <= labels.items()
    assert kinds["Service"]["spec"]["ports"][0]["targetPort"] in ports


def test_autoscaling_goes_by_a_metric_that_is_there():
    hpa, = documents("conf/kubernetes/hpa.yaml")
    name = hpa["spec"]["metrics"][0]["pods"]["metric"]["name"]
    rule, = documents("conf/kubernetes/prometheus-adapter.yaml")[0]["rules"]["custom"]
    assert name in metric_names() and rule["name"]["as"] == name and rule["seriesQuery"].startswith(name + "{")
    target = hpa["spec"]["scaleTargetRef"]
    assert any((d["kind"], d["metadata"]["name"]) == (target["kind"], target["name"]) for d in documents("conf/kubernetes/tandem.yaml"))
    listed = documents("conf/kubernetes/kustomization.yaml")[0]["resources"]
    assert all((ROOT / "conf/kubernetes" / name).is_file() for name in listed)


@pytest.mark.skipif(not (shutil.which("ldd") and shutil.which("dpkg-query")), reason="not Debian")
def test_runtime_packages():
    done = subprocess.run([ROOT / "scripts/runtime-packages", BUILD / "server/tandem"], capture_output=True, text=True)
    assert done.returncode == 0 and {"libc6", "libuv1", "libsqlite3-0"} <= {x.removesuffix("t64") for x in done.stdout.split()}, done.stderr
