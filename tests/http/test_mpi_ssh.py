"""Ranks in several pods: mpirun starts them over ssh, with the files that the image of target mpi has (conf/mpi).

Here all pods are this machine: sshd runs as this user with the image's configuration but for port and folder, and ssh finds the
workers' names there."""
import json
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest
import requests
from conftest import BINARY, ENV, PATIENCE, ROOT, Server, wait_for

SMALL = ROOT / "tests/fixtures/models/tinystories-656k"
CONF = ROOT / "conf/mpi"
SSHD = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin")
needed = [SSHD, shutil.which("ssh"), shutil.which("mpirun"), (BINARY.parent / "libtandem_mpi.so").exists()]
pytestmark = [pytest.mark.full, pytest.mark.skipif(not all(needed), reason="no sshd, ssh or mpirun here, or tandem was built without MPI")]
OPTIONS = ["--device", "cpu", "--threads", "1"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Pods:
    """hosts: names that lead to the sshd here, as a cluster's DNS would."""

    def __init__(self, folder, hosts):
        self.folder, self.port = folder, free_port()
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-N", "", "-f", folder / "id_rsa"], check=True)  # as mpi-operator's
        shutil.copy(folder / "id_rsa.pub", folder / "authorized_keys")
        here = {name: self.moved(CONF / name) for name in ("sshd_config", "ssh_config")}
        (folder / "sshd_config").write_text(here["sshd_config"])
        (folder / "ssh_config").write_text("".join(f"Host {h}\n    HostName 127.0.0.1\n" for h in hosts) + here["ssh_config"])
        (folder / "bin").mkdir()
        (folder / "bin/ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
        (folder / "bin/ssh").chmod(0o755)
        self.env = {**ENV, "PATH": f"{folder}/bin:{ENV['PATH']}", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # what sshd as root wants
        self.log = open(folder / "sshd.log", "wb")
        self.sshd = subprocess.Popen([SSHD, "-De", "-f", folder / "sshd_config"], stderr=self.log)

    def moved(self, path):
        """The image's file, for this folder and port."""
        text = path.read_text()
        assert text.count("Port 2222") == 1 and "/home/tandem/.ssh/" in text
        return text.replace("Port 2222", f"Port {self.port}").replace("/home/tandem/.ssh", str(self.folder))

    def text(self):
        return (self.folder / "sshd.log").read_text()

    def logins(self):
        return self.text().count("Accepted publickey")

    def __enter__(self):
        wait_for(lambda: "listening on" in self.text() or self.sshd.poll() is not None, what="sshd")
        assert self.sshd.poll() is None, self.text()
        return self

    def __exit__(self, *exc):
        self.sshd.terminate()
        self.sshd.wait(PATIENCE)
        self.log.close()


def test_a_stranger_is_refused(tmp_path):
    """No password, no other key; and a host without the job's key is none of the job's."""
    with Pods(tmp_path, ["worker"]) as pods:
        def ssh():
            return subprocess.run([tmp_path / "bin/ssh", "worker", "echo", "hello"], capture_output=True, text=True, timeout=300)
        assert ssh().stdout == "hello\n"
        subprocess.run(["ssh-keygen", "-q", "-N", "", "-f", tmp_path / "other"], check=True)
        (tmp_path / "authorized_keys").write_text((tmp_path / "other.pub").read_text())
        assert "Permission denied (publickey)" in ssh().stderr
        (tmp_path / "id_rsa.pub").write_text((tmp_path / "other.pub").read_text())
        assert "Host key verification failed" in ssh().stderr


def test_a_group_serves_one_model(tmp_path):
    """The pods of a LeaderWorkerSet: tandem-group waits for the worker's sshd, and starts a rank in each."""
    with Server(tmp_path / "one.log", *OPTIONS, model=SMALL) as one:
        said = one.generate("Once upon a time", max_new_tokens=40, ignore_eos=True)
    with Pods(tmp_path, ["tandem-0-1.tandem.default"]) as pods:
        env = {**pods.env, "LWS_LEADER_ADDRESS": "tandem-0.tandem.default", "LWS_GROUP_SIZE": "2", "TANDEM_DRAIN_TIMEOUT": "20",
               "TANDEM_MAX_SEQS": "5"}
        with Server(tmp_path / "two.log", *OPTIONS, model=SMALL, wrap=[CONF / "tandem-group"], env=env) as two:
            assert two.generate("Once upon a time", max_new_tokens=40, ignore_eos=True) == said
            info = two.get("/info").json()
            assert info["max_seqs"] == 5 and two.metric("tandem_ranks") == 2  # by a variable
            with requests.post(two.url + "/generate_stream", stream=True, timeout=PATIENCE,
                               json={"inputs": "Once", "parameters": {"max_new_tokens": 400, "ignore_eos": True}}) as answer:
                lines = answer.iter_lines()
                next(lines)
                two.signal(signal.SIGTERM)  # rank 0 drains
                last = [json.loads(line[5:]) for line in lines if line.startswith(b"data:")][-1]
            assert last["generated_text"]
            assert two.wait() == 0
        assert pods.logins() == 2  # to see whether it is there, and for the rank
    assert "waiting for" not in (tmp_path / "two.log").read_text()


def test_a_group_waits_for_its_workers(tmp_path):
    with Pods(tmp_path, ["tandem-0-1.tandem.default"]) as pods:
        pods.sshd.terminate()
        pods.sshd.wait(PATIENCE)
        env = {**pods.env, "LWS_LEADER_ADDRESS": "tandem-0.tandem.default", "LWS_GROUP_SIZE": "2"}
        with open(tmp_path / "out", "wb") as out:
            group = subprocess.Popen([CONF / "tandem-group", "sh", "-c", "echo rank $OMPI_COMM_WORLD_RANK"], stdout=out, stderr=out, env=env)
        wait_for(lambda: "waiting for tandem-0-1.tandem.default" in (tmp_path / "out").read_text(), what="that it waits")
        assert group.poll() is None
        pods.sshd = subprocess.Popen([SSHD, "-De", "-f", tmp_path / "sshd_config"], stderr=pods.log)
        assert group.wait(PATIENCE) == 0
        assert {"rank 0", "rank 1"} <= set((tmp_path / "out").read_text().splitlines())


def test_a_job_trains_on_its_workers(tmp_path):
    """As mpi-operator starts it: hosts in a file, named by a variable; the launcher is none of the ranks."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"Number {i}", "completion": f" is {i + 1}."}) + "\n" for i in range(40)))
    train = [BINARY, "train", "--model", SMALL, "--data", rows, "--max-steps", "3", "--max-length", "64", "--batch-tokens", "256", *OPTIONS]
    with Pods(tmp_path, ["job-worker-0.job", "job-worker-1.job"]) as pods:
        (tmp_path / "hostfile").write_text("job-worker-0.job slots=1\njob-worker-1.job slots=1\n")
        env = {**pods.env, "OMPI_MCA_orte_default_hostfile": str(tmp_path / "hostfile"), "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
               "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10"}
        two = subprocess.run(["mpirun", "-n", "2", "--bind-to", "none", *train, "--out", tmp_path / "two"], env=env, cwd=ROOT,
                             capture_output=True, text=True, timeout=300)
        assert two.returncode == 0, two.stderr
        assert pods.logins() == 2
    one = subprocess.run([*train, "--out", tmp_path / "one", "--grad-slots", "8"], env=ENV, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert one.returncode == 0, one.stderr
    assert json.loads((tmp_path / "two/training_record.json").read_text())["ranks"] == 2
    weights = "adapter_model.safetensors"
    assert (tmp_path / "two" / weights).read_bytes() == (tmp_path / "one" / weights).read_bytes()
