"""tandem doctor: what it says of this machine, and of the GPUs of a driver that is made up (fake_nvml.c)."""
import json
import os
import subprocess

from conftest import BINARY, BUILD, ENV

FAKE = {"LD_LIBRARY_PATH": str(BUILD / "tests/http")}


def doctor(*words, env=None):
    return subprocess.run([BINARY, "doctor", *words], capture_output=True, text=True, env={**ENV, **(env or {})})


def findings(*words, env=None):
    got = doctor(*words, "--json", env=env)
    assert got.stderr == ""
    found = json.loads(got.stdout)["findings"]
    assert got.returncode == any(f["state"] == "change" for f in found)
    assert all((f["state"] == "change") == bool(f["advice"]) for f in found)
    return found


def test_text_and_json_agree():
    text = doctor().stdout
    for f in findings():
        assert f["name"] in text


def test_this_machine():
    by_name = {f["name"]: f for f in findings()}
    assert by_name["memory"]["state"] != "unknown"
    assert by_name["threads"]["state"] == "good"
    threads = {f["name"]: f for f in findings("--threads", "1024")}["threads"] if os.cpu_count() < 1024 else None
    assert not threads or (threads["state"] == "change" and threads["found"].startswith("1024;"))


def test_gpus():
    by_name = {}
    for f in findings(env=FAKE):
        by_name.setdefault(f["name"], []).append(f)
    assert by_name["NVIDIA GPUs"][0]["found"] == "2, driver 580.00"
    assert by_name["device cuda"][0]["state"] == "change"  # whatever the reason: there is no such GPU
    states = {name: [f["state"] for f in by_name[name]] for name in by_name if name.startswith("GPU ")}
    assert states == {"GPU memory": ["change", "change"], "GPU clock": ["change", "good"], "GPU temperature": ["change", "unknown"],
                      "GPU power": ["change", "unknown"], "GPU link": ["good", "change"], "GPU persistence": ["good", "unknown"],
                      "GPU memory errors": ["good", "unknown"]}


def test_memory_of_a_running_tandem_is_not_anothers():
    first, second = [f for f in findings(env={**FAKE, "FAKE_NVML": "own"}) if f["name"] == "GPU memory"]
    assert first["state"] == "good" and first["found"] == "0: 40.0 of 80.0 GiB in use, 39.0 GiB by tandem"
    assert second["state"] == "change" and second["found"] == "1: 41.0 of 80.0 GiB in use"


def test_driver_that_does_not_answer():
    by_name = {f["name"]: f for f in findings(env={**FAKE, "FAKE_NVML": "init"})}
    assert not [name for name in by_name if name.startswith("GPU ")]
