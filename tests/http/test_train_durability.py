"""What a crash, a full disk or a wrong directory may do to jobs and files: nothing that was acknowledged is lost, a job
that was broken off ends with the bytes of an unbroken one, and serving goes on.

TANDEM_KILLS=50 for the long run; a handful otherwise."""
import contextlib
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import threading
import time

import pytest
import requests
from conftest import MODEL, wait_for
from training import OVER, events, job, jsonl, request, stream, submit, wait_over, wait_step

KILLS = int(os.environ.get("TANDEM_KILLS", 5))
LONG = {"max_steps": 60 + 25 * min(KILLS, 10), "n": 40, "save_steps": 8, "lora_dropout": 0.1}


def adapter(folder, name):
    return {p.name: p.read_bytes() for p in sorted((folder / "adapters" / name).iterdir()) if p.name != "tandem.json"}


class Client(threading.Thread):
    """Uploads, starts jobs and reads events as fast as it can, and remembers what was acknowledged."""

    def __init__(self, server, job_id, number):
        super().__init__()
        self.server, self.job_id, self.number = server, job_id, number
        self.files, self.jobs, self.events, self.deleted = {}, [], {}, []

    def run(self):
        try:
            for i in range(10000):
                content = f"{self.number}-{i}-".encode() * 200
                made = requests.post(self.server.url + "/v1/files", files={"file": ("f", content)}, data={"purpose": "fine-tune"}, timeout=300)
                if made.status_code == 200:
                    self.files[made.json()["id"]] = content
                if i == 2:
                    made = self.server.post("/train", request(f"small-{self.number}", n=4, max_steps=1))
                    if made.status_code == 202:
                        self.jobs.append(made.json()["id"])
                last = max(self.events, default=0)
                for e in requests.get(f"{self.server.url}/train/{self.job_id}/events?after={last}", timeout=300).json()["data"]:
                    self.events[e["id"]] = e
        except (requests.RequestException, ValueError):
            pass  # killed


def check(server, job_id, clients):
    """Everything that was acknowledged to anybody is there, as it was."""
    there = {e["id"]: e for e in events(server, job_id)}
    for c in clients:
        for file_id, content in c.files.items():
            assert server.get(f"/v1/files/{file_id}/content").content == content
        for small in c.jobs:
            assert job(server, small)["status"] in (*OVER, "queued", "running")
        for event_id, e in c.events.items():
            assert there.get(event_id) == e
    listed = {f["id"] for f in server.get("/v1/files").json()["data"]}
    assert {p.name for p in (server.data / "files").glob("*") if not p.name.endswith(".tmp")} <= listed


def wait_over_revived(server, job_id, seconds):
    """A job that was killed early again and again is taken for one that crashes: it is resumed by hand."""
    found = wait_over(server, job_id, seconds)
    if found["status"] == "failed" and found["error"]["code"] == "crashed":
        assert server.post(f"/train/{job_id}/resume", {}).status_code == 200
        found = wait_over(server, job_id, seconds)
    return found


@pytest.mark.full
def test_kill_9(start, tmp_path):
    seed = int(os.environ.get("TANDEM_KILL_SEED", time.time()))
    print("TANDEM_KILL_SEED", seed)
    rng, clients = random.Random(seed), []
    with start("--data-dir", tmp_path / "whole") as s:
        begun = time.monotonic()
        found = wait_over(s, submit(s, "long", **LONG), 600)
        assert found["status"] == "succeeded"
        each = (time.monotonic() - begun) / (KILLS + 2)
    job_id = None
    for number in range(KILLS):
        s = start("--data-dir", tmp_path / "broken")
        try:
            if not job_id:
                job_id = submit(s, "long", **LONG)
            wait_for(lambda s=s: not list((s.data / "files").glob("*.tmp")) if (s.data / "files").exists() else True, 10, "the sweep")
            check(s, job_id, clients)
            clients.append(Client(s, job_id, number))
            clients[-1].start()
            time.sleep(rng.uniform(0, 1.5 * each) if rng.random() < 0.8 else rng.uniform(0, 0.05))
        finally:
            s.process.send_signal(signal.SIGKILL)
            s.process.wait()
        clients[-1].join()
    with start("--data-dir", tmp_path / "broken") as s:
        found = wait_over_revived(s, job_id, 600)
        assert found["status"] == "succeeded", found
        for c in clients:
            for small in c.jobs:
                assert wait_over_revived(s, small, 100)["status"] == "succeeded"
        check(s, job_id, clients)
        steps = [e["step"] for e in events(s, job_id) if e["type"] == "step"]
        assert set(steps) == set(range(1, LONG["max_steps"] + 1))
        history = s.get(f"/train/{job_id}/metrics").json()["metrics"]["train_loss"]
        assert [p["step"] for p in history] == list(range(1, LONG["max_steps"] + 1))
        assert all(len(list(p.glob("checkpoints/*"))) <= 4 for p in (s.data / "checkpoints").iterdir())
        assert len(list((s.data / "checkpoints").iterdir())) <= 11  # of the jobs that ended last
    assert adapter(tmp_path / "broken", "long") == adapter(tmp_path / "whole", "long")
    assert sum(len(c.files) for c in clients) > 0


def set_running(folder, job_id):
    db = sqlite3.connect(folder / "jobs.sqlite")
    with db:
        assert db.execute("UPDATE jobs SET status = 'running', finished = NULL, adapter_dir = NULL WHERE id = ?", (job_id,)).rowcount == 1
    db.close()


def test_a_crash_between_publishing_and_its_row(start, tmp_path):
    with start("--data-dir", tmp_path) as s:
        job_id = submit(s, "twice", max_steps=5)
        assert wait_over(s, job_id)["status"] == "succeeded"
    before, inode = adapter(tmp_path, "twice"), (tmp_path / "adapters/twice").stat().st_ino
    set_running(tmp_path, job_id)
    with start("--data-dir", tmp_path) as s:
        assert wait_over(s, job_id)["status"] == "succeeded"
        assert s.generate(max_new_tokens=2, adapter_id="twice")
    assert adapter(tmp_path, "twice") == before and (tmp_path / "adapters/twice").stat().st_ino == inode


def test_a_crash_before_publishing(start, tmp_path):
    """The trainer has written its result, and nobody has put it in its place."""
    with start("--data-dir", tmp_path) as s:
        job_id = submit(s, "once", dataset={"text": "A ship. It was big.\n\nThe sea was calm all day.\n\nThey went home late."}, max_steps=3)
        assert wait_over(s, job_id)["status"] == "succeeded"
    before = adapter(tmp_path, "once")
    shutil.move(tmp_path / "adapters/once", tmp_path / "checkpoints" / job_id / "result")
    set_running(tmp_path, job_id)
    (tmp_path / "inline").mkdir(exist_ok=True)
    (tmp_path / "inline" / f"{job_id}.txt").write_text("A ship. It was big.\n\nThe sea was calm all day.\n\nThey went home late.")
    with start("--data-dir", tmp_path) as s:
        assert wait_over(s, job_id)["status"] == "succeeded", job(s, job_id)
    assert adapter(tmp_path, "once") == before


# ---- disks that do not take it ---------------------------------------------------------------------------------------

def limit(server, size):
    """No file of the daemon may grow beyond size; -1 lifts it.  What a write beyond it gets is what a full disk gives."""
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_files_that_cannot_grow(start, tmp_path):
    with start("--data-dir", tmp_path) as s:
        (tmp_path / "data.jsonl").write_text(jsonl(40))
        job_id = submit(s, "unlucky", dataset={"path": "data.jsonl"}, max_steps=4000, save_steps=5)
        wait_step(s, job_id, 3)
        limit(s, 20000)
        refused = requests.post(s.url + "/v1/files", files={"file": ("f", b"x" * 1_000_000)}, data={"purpose": "fine-tune"}, timeout=300)
        assert refused.status_code == 507 and "too large" in refused.json()["error"]["message"].lower()
        found = wait_over(s, job_id)  # readers see it although it cannot be written
        assert found["status"] == "failed" and found["error"]["message"], found
        refused = s.post("/train", request("later"))
        assert refused.status_code == 507 and refused.json()["error"]
        assert s.generate(max_new_tokens=4) and s.get("/ready").status_code == 200
        assert not list((tmp_path / "files").glob("*.tmp"))
        limit(s, resource.RLIM_INFINITY)
        wait_for(lambda: s.post("/train", request("later", max_steps=2)).status_code == 202, 20, "the store works again")
        wait_for(lambda: s.metric("tandem_train_jobs", status="failed") == 1, 20, "the last word is written")
        assert s.post(f"/train/{job_id}/resume", {}).status_code == 200  # and the job can go on
        wait_for(lambda: job(s, job_id)["step"] > 5, 60, "it goes on")
        s.post(f"/train/{job_id}/cancel", {})
        wait_over(s, job_id)


def test_streams_show_what_is_stored(start, tmp_path):
    """And all of it, under its own id, while transactions fail: a stream may break off then, and is taken up again."""
    with start("--data-dir", tmp_path) as s:
        job_id = submit(s, "shown", max_steps=100000, batch_tokens=16, save_steps=100000)
        seen, stop = [[] for _ in range(12)], threading.Event()

        def follow(mine):
            while not stop.is_set():
                with contextlib.suppress(AssertionError):  # 507 while the store cannot write
                    for event in stream(s, job_id, last=mine[-1][0] if mine else 0):
                        mine.append(event)
                if mine and mine[-1][1] == "state" and mine[-1][2]["status"] == "cancelled":
                    return
        readers = [threading.Thread(target=follow, args=(mine,)) for mine in seen]
        for r in readers:
            r.start()
        wait_step(s, job_id, 3)
        for _ in range(4):
            limit(s, 4096)
            time.sleep(0.2)
            limit(s, resource.RLIM_INFINITY)
            time.sleep(0.4)
        wait_for(lambda: s.post(f"/train/{job_id}/cancel", {}).status_code == 200, 20, "it is taken")
        wait_over(s, job_id)
        for r in readers:
            r.join(300)
        alive = [r.is_alive() for r in readers]
        stop.set()
        stored = {e["id"]: e for e in events(s, job_id)}
    assert not any(alive)
    for mine in seen:
        assert {e[0]: e[2] for e in mine} == stored and len(mine) == len(stored)


def test_the_head_of_a_stream(start, tmp_path):
    with start("--data-dir", tmp_path) as s, requests.Session() as session:
        job_id = submit(s, "headed", max_steps=100000)
        head = session.head(f"{s.url}/train/{job_id}/events?stream=1", timeout=300)
        assert head.status_code == 200 and head.headers["content-type"].startswith("text/event-stream")
        assert session.get(s.url + "/health", timeout=300).status_code == 200


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "none", folder], capture_output=True).returncode == 0
    if not mounted:
        pytest.skip("cannot mount a small tmpfs here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk(start, small_disk):
    with start("--data-dir", small_disk) as s:
        done = submit(s, "first", max_steps=1)
        wait_over(s, done)
        with open(small_disk / "ballast", "wb", buffering=0) as ballast:
            with contextlib.suppress(OSError):
                while ballast.write(b"x" * 65536) == 65536:
                    pass
            ballast.truncate(max(0, ballast.tell() - (400 << 10)))
        refused = requests.post(s.url + "/v1/files", files={"file": ("f", b"x" * 3_000_000)}, data={"purpose": "fine-tune"}, timeout=300)
        assert refused.status_code == 507 and "No space left" in refused.json()["error"]["message"]
        answer = s.post("/train", request("second", n=4000, max_steps=3000))
        if answer.status_code == 202:
            found = wait_over(s, answer.json()["id"])
            assert found["status"] == "failed" and found["error"]["message"]
        else:
            assert answer.status_code == 507
        assert job(s, done)["status"] == "succeeded" and s.generate(max_new_tokens=2)
        (small_disk / "ballast").unlink()
        wait_for(lambda: s.post("/train", request("third", max_steps=1)).status_code == 202, 20, "room again")


@pytest.mark.parametrize("folder", ["/proc/tandem-data", "/dev/null/tandem"])
def test_a_directory_that_cannot_be_made(start, folder):
    with start("--data-dir", folder) as s:
        for _ in range(2):
            refused = s.post("/train", request("nowhere"))
            assert refused.status_code == 507 and folder in refused.json()["error"]
        refused = requests.post(s.url + "/v1/files", files={"file": ("f", b"x")}, data={"purpose": "fine-tune"}, timeout=300)
        assert refused.status_code == 507 and folder in refused.json()["error"]["message"]
        assert s.get("/train").status_code == 507 and s.generate(max_new_tokens=2)


def test_a_database_that_is_none(start, tmp_path):
    (tmp_path / "jobs.sqlite").write_bytes(b"this is no database" * 100)
    with start("--data-dir", tmp_path) as s:
        refused = s.post("/train", request("nothing"))
        assert refused.status_code == 507 and "not a database" in refused.json()["error"]
        assert s.generate(max_new_tokens=2)


def test_a_database_of_a_newer_version(start, tmp_path):
    with start("--data-dir", tmp_path) as s:
        wait_over(s, submit(s, "old", max_steps=1))
    db = sqlite3.connect(tmp_path / "jobs.sqlite")
    db.execute("PRAGMA user_version = 1000")
    db.close()
    with start("--data-dir", tmp_path) as s:
        assert "newer tandem" in s.get("/train").json()["error"]


def test_a_job_whose_rows_were_taken_away(start, tmp_path):
    """Between a crash and the restart somebody removed what the job needs: it fails, and the next one runs."""
    s = start("--data-dir", tmp_path)
    try:
        first = submit(s, "robbed", max_steps=3000)
        second = submit(s, "next", max_steps=1)
        wait_step(s, first)
    finally:
        s.process.send_signal(signal.SIGKILL)
        s.process.wait()
    for p in (tmp_path / "inline").glob(f"{first}*"):
        p.unlink()
    with start("--data-dir", tmp_path) as again:
        assert wait_over(again, first)["status"] == "failed"
        assert wait_over(again, second)["status"] == "succeeded"


def test_ids_of_events_do_not_come_back(start, tmp_path):
    """Deleting a job does not make its events' ids free: Last-Event-ID means the same for ever."""
    with start("--data-dir", tmp_path) as s:
        first = submit(s, "gone", max_steps=2)
        wait_over(s, first)
        last = events(s, first)[-1]["id"]
        requests.delete(f"{s.url}/train/{first}", timeout=300)
        second = submit(s, "new", max_steps=1)
        wait_over(s, second)
        assert events(s, second)[0]["id"] > last


def test_a_job_that_crashes_the_daemon_is_given_up(start, tmp_path):
    def ended():
        """As a crash leaves it, with how often it was taken up in vain."""
        db = sqlite3.connect(tmp_path / "jobs.sqlite")
        with db:
            db.execute("UPDATE jobs SET status = 'running'")
        attempts = db.execute("SELECT attempts FROM jobs").fetchone()[0]
        db.close()
        return attempts
    with start("--data-dir", tmp_path) as s:
        s.data.mkdir(exist_ok=True)
        (s.data / "data.jsonl").write_text(jsonl())
        job_id = submit(s, "crashes", max_steps=100000, dataset={"path": "data.jsonl"})
        wait_step(s, job_id)
    assert ended() == 0
    db = sqlite3.connect(tmp_path / "jobs.sqlite")
    with db:
        db.execute("UPDATE jobs SET attempts = 5")
    db.close()
    with start("--data-dir", tmp_path) as s:
        found = wait_over(s, job_id)
        assert found["status"] == "failed" and found["error"]["code"] == "crashed"
        assert s.post(f"/train/{job_id}/resume", {}).status_code == 200
        wait_for(lambda: job(s, job_id)["step"] > found["step"], 60, "it goes on")
    assert ended() == 0


def test_another_model_takes_no_job_over(start, tmp_path):
    """A job remembers its base: on another model it fails and says so, and goes on where that is served again."""
    other = tmp_path / "another-model"
    shutil.copytree(MODEL, other)
    with start("--data-dir", tmp_path / "d") as s:
        job_id = submit(s, "based", max_steps=100000)
        s.post(f"/train/{job_id}/pause", {})
        base = wait_over(s, job_id, states=("paused",))["base"]
        assert base == s.get("/info").json()["model_id"]
    with start("--data-dir", tmp_path / "d", model=other) as s:
        s.post(f"/train/{job_id}/resume", {})
        found = wait_over(s, job_id)
        assert found["status"] == "failed" and found["base"] == base
        assert base in found["error"]["message"] and "another-model" in found["error"]["message"]
        assert s.get(f"/v1/fine_tuning/jobs/ft{job_id}").json()["model"] == base
    with start("--data-dir", tmp_path / "d") as s:
        s.post(f"/train/{job_id}/resume", {})
        wait_step(s, job_id)
        assert job(s, job_id)["status"] == "running"


def test_the_trained_adapter_is_served_again(start, tmp_path):
    """Whatever has its name in --adapter-dir; and a name that --adapters gives is not free."""
    data, folder = tmp_path / "d", tmp_path / "own"

    def rank(s):
        return {a["name"]: a["r"] for a in s.get("/adapters").json()["adapters"]}
    with start("--data-dir", data) as s:
        assert wait_over(s, submit(s, "pirate", max_steps=1, lora_r=4))["status"] == "succeeded"
    folder.mkdir()
    shutil.move(data / "adapters/pirate", folder / "pirate")
    flags = ("--data-dir", data, "--adapter-dir", folder, "--adapters", f"fixed={folder / 'pirate'}")
    with start(*flags) as s:
        assert rank(s) == {"fixed": 4, "pirate": 4}
        assert s.post("/train", request("fixed", max_steps=1)).status_code == 409
        assert wait_over(s, submit(s, "pirate", max_steps=1, lora_r=8))["status"] == "succeeded"
        assert rank(s) == {"fixed": 4, "pirate": 8}
    with start(*flags) as s:
        assert rank(s) == {"fixed": 4, "pirate": 8}


# ---- ends ------------------------------------------------------------------------------------------------------------

def test_an_event_stream_does_not_hold_the_end_up(start, tmp_path):
    """Draining ends the stream without an error, and it goes on after the restart where it was."""
    with start("--data-dir", tmp_path, "--drain-timeout", 60) as s:
        job_id, seen = submit(s, "streamed", max_steps=100000), []
        reader = threading.Thread(target=lambda: seen.extend(stream(s, job_id)))
        reader.start()
        wait_step(s, job_id, 3)
        s.signal()
        assert s.wait() == 0
        reader.join(300)
        assert not reader.is_alive() and seen
    with start("--data-dir", tmp_path) as s:
        s.post(f"/train/{job_id}/cancel", {})
        rest = list(stream(s, job_id, last=seen[-1][0]))
        assert rest[-1][2]["status"] == "cancelled"
        assert [e[0] for e in seen + rest] == [e["id"] for e in events(s, job_id)]


def test_the_end_waits_for_what_reads_the_model(start, tmp_path):
    """Two signals while data is prepared: nothing is closed under it, and nothing is left of rows that came inline."""
    tmp_path.joinpath("big.jsonl").write_text("".join('{"text":"Once upon a time there was a number %d in the garden. %s"}\n' % (i, "It played. " * 8) for i in range(60000)))
    for body in ({"dataset": {"path": "big.jsonl"}}, {"dataset": [{"text": f"The {i}. ship is big."} for i in range(20000)]}):
        with start("--data-dir", tmp_path) as s:
            def ask(s=s, body=body):
                with contextlib.suppress(requests.RequestException):
                    s.post("/train/validate", body)
            asker = threading.Thread(target=ask)
            asker.start()
            wait_for(lambda: list((tmp_path / "cache").glob("*")) or not asker.is_alive(), 30, "preparing")
            s.signal()
            time.sleep(0.1)
            s.signal()
            assert s.wait() == 0
            asker.join()
        shutil.rmtree(tmp_path / "cache")
        assert not list((tmp_path / "inline").glob("*")) if (tmp_path / "inline").exists() else True


@pytest.mark.parametrize("what", ["directory", "lock", "jobs.sqlite"])
def test_a_directory_that_is_deleted_takes_nothing(start, run, tmp_path, what):
    """What is acknowledged is kept; where it cannot be, nothing is acknowledged, and no second daemon comes in."""
    data = tmp_path / "data"
    with start("--data-dir", data) as s:
        with requests.Session() as session:
            def upload():
                return session.post(s.url + "/v1/files", files={"file": ("f", b'{"text":"x"}')}, data={"purpose": "fine-tune"}, timeout=300)
            kept = upload().json()["id"]
            gone = data if what == "directory" else data / what
            gone.rename(tmp_path / "aside")
            if what == "directory":
                data.mkdir()  # the path is there again, the files are not
            refused = upload()
            assert refused.status_code == 507 and "deleted or replaced" in refused.text
            refused = s.post("/train", request(n=4, max_steps=1))
            assert refused.status_code == 507 and "deleted or replaced" in refused.text
            wait_for(lambda: s.get("/ready").status_code == 503, what="not ready")
            assert s.get("/health").status_code == 200 and s.generate(max_new_tokens=2)
            if what == "lock":
                with start("--data-dir", data) as other:
                    refused = other.post("/train", request(n=4, max_steps=1))
                    assert refused.status_code == 507 and "in use by another tandem" in refused.text
                (data / "lock").unlink()
            if what == "directory":
                shutil.rmtree(data)
            (tmp_path / "aside").rename(gone)
            assert upload().status_code == 200
            assert {kept} < {f["id"] for f in s.get("/v1/files").json()["data"]}
            wait_for(lambda: s.get("/ready").status_code == 200, what="ready again")
        assert s.log().count("deleted or replaced") <= 4


def test_a_directory_that_cannot_be_used_is_told_at_the_start(start, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    for path in (blocked, blocked / "below"):
        with start("--data-dir", path) as s:
            assert "the data directory cannot be used" in s.log()
    with start("--data-dir", tmp_path / "new" / "one") as s:
        assert "data directory" not in s.log() and "--data-dir" not in s.log() and not (tmp_path / "new").exists()


def test_the_directory_that_nobody_named_is_told(run, tmp_path):
    done = run("serve", "--model", tmp_path / "nothing", "--port", 0, env={"STATE_DIRECTORY": str(tmp_path / "state")})
    assert done.returncode == 1 and f"dir={tmp_path / 'state'} exists=false\n" in done.stderr.decode()
    assert not (tmp_path / "state").exists()
