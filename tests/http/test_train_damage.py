"""Damaged rows in jobs.sqlite. The daemon starts and says what is damaged, every other row is shown as before, and the next
job runs; what is optional at a job's end does not keep its state from being stored."""
import json
import sqlite3

import pytest
from conftest import PATIENCE, wait_for
from training import OVER, events, job, request, rows, stream, submit, wait_over, wait_step

TEXTS = ['{"a":\n"', b"\xff\"\xfe", "[1]"]  # no JSON, no UTF-8, JSON of another shape
WHOLE = [0, -1, 2**62]
NAMED = {"jobs": {"id", "status", "spec", "openai", "last", "plan", "report", "eval"},  # what is damaged can be seen there
         "events": {"kind", "level", "data"}, "checkpoints": {"data"}, "files": set()}
KEYS = {"jobs": ("seq",), "events": ("id", "job"), "checkpoints": ("id", "job"), "files": ("seq",)}


def open_db(folder):
    db = sqlite3.connect(folder / "jobs.sqlite", isolation_level=None, timeout=PATIENCE)
    db.row_factory = sqlite3.Row
    return db


def columns(db, table):
    return [(c["name"], c["type"]) for c in db.execute(f"PRAGMA table_info({table})") if c["name"] not in KEYS[table]]


def spoil(db, table, column, value, where, *args):
    as_text = "CAST(CAST(? AS BLOB) AS TEXT)" if isinstance(value, bytes) else "?"
    assert db.execute(f"UPDATE {table} SET {column} = {as_text} WHERE {where}", (value, *args)).rowcount


def insert(db, table, row, **changes):
    row = {**row, **changes}
    return db.execute(f"INSERT INTO {table}({','.join(row)}) VALUES({','.join('?' * len(row))})", list(row.values())).lastrowid


def copy(db, job_id, new_id, **changes):
    """The job with its events and checkpoints under another id."""
    row = dict(db.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone())
    old = row.pop("seq")
    seq = insert(db, "jobs", row, id=new_id, idem_key=None, **changes)
    for table in ("events", "checkpoints"):
        for r in db.execute(f"SELECT * FROM {table} WHERE job = ?", (old,)).fetchall():
            r = dict(r)
            r.pop("id")
            insert(db, table, r, job=seq)
    return seq


def strict(answer):
    """The body as JSON by the letter of the RFC, which has no Infinity and no broken UTF-8."""
    assert answer.status_code == 200, (answer.url, answer.text)

    def constant(text):
        raise AssertionError(text)
    return json.loads(answer.content.decode(), parse_constant=constant)


ROUTES = ["/train/{}", "/train/{}/events?limit=100", "/train/{}/metrics", "/train/{}/checkpoints", "/v1/fine_tuning/jobs/ft{}",
          "/v1/fine_tuning/jobs/ft{}/events?limit=100", "/v1/fine_tuning/jobs/ft{}/checkpoints"]
LISTS = ["/train?limit=100", "/v1/fine_tuning/jobs?limit=100", "/v1/fine_tuning/jobs?metadata[who]=me", "/v1/files"]


@pytest.fixture(scope="module")
def damaged(start, tmp_path_factory):
    """A daemon on a store in which each job has one damaged value; (server, [(job, table, column, value)])."""
    folder, cases = tmp_path_factory.mktemp("damaged"), []
    with start("--data-dir", folder) as s:
        body = request("whole", n=8, max_steps=2, eval_fraction=0.3)
        made = s.post("/train", {**body, "metadata": {"who": "me"}})
        assert wait_over(s, made.json()["id"])["status"] == "succeeded"
        whole = made.json()["id"]
    db = open_db(folder)
    db.execute("BEGIN")  # no daemon runs
    for table in ("jobs", "events", "checkpoints", "files"):
        for column, kind in columns(db, table):
            for i, value in enumerate({"TEXT": TEXTS, "INTEGER": WHOLE, "REAL": [float("inf"), -1.0]}[kind]):
                unique = column in ("id", "idem_key") and table in ("jobs", "files")
                name = f"job-{table}-{column.replace('_', '')}-{i}"
                value = value + (b"%d" % len(cases) if isinstance(value, bytes) else str(len(cases))) if unique else value
                if table == "files":
                    insert(db, "files", {"id": "file-" + name, "created": 1, "bytes": 1, "filename": "f", "purpose": "fine-tune"})
                    spoil(db, table, column, value, "id = ?", "file-" + name)
                    continue
                seq = copy(db, whole, name, serve_as=name)
                where = {"jobs": "seq = ?", "events": "job = ?", "checkpoints": "id = (SELECT max(id) FROM checkpoints WHERE job = ?)"}
                spoil(db, table, column, value, where[table], seq)
                cases.append((name, table, column, value))
    db.execute("COMMIT")
    db.close()
    with start("--data-dir", folder) as s:
        yield s, cases


def test_every_column(damaged):
    server, cases = damaged
    for name, table, column, value in cases:
        gone = (table, column) == ("jobs", "id")
        for route in ROUTES:
            answer = server.get(route.format(name))
            if gone:
                assert answer.status_code == 404, answer.text
            else:
                strict(answer)
        if not gone and table == "events":
            strict_events = list(stream(server, name))
            assert len(strict_events) == len(events(server, name))
    for route in LISTS:
        strict(server.get(route))
    assert len(strict(server.get("/v1/fine_tuning/jobs?limit=100"))["data"]) == 100
    log = [line for line in server.log().splitlines() if "a damaged value is left out" in line]
    for table, names in NAMED.items():
        for column in names:
            assert any(f"table={table} " in line and f" column={column}" in line for line in log), (table, column)
    assert len(log) == len(set(line.split("msg=")[1] for line in log)) <= 64  # each once, however often it is read
    assert strict(server.post("/train/validate", request(n=8))) and server.post("/train", request("next", n=8, max_steps=1)).status_code == 202
    wait_for(lambda: not any(j["status"] in ("queued", "running") for j in server.get("/train?status=queued").json()["data"]), 90)


def test_an_unknown_state_is_a_failed_job(damaged):
    server, cases = damaged
    name = next(n for n, table, column, _ in cases if (table, column) == ("jobs", "status"))
    found = job(server, name)
    assert found["status"] == "failed" and found["error"]["code"] == "damaged" and "damaged" in found["error"]["message"]
    assert server.post(f"/train/{name}/cancel", {}).json()["status"] == "cancelled"


def test_queued_jobs_with_damaged_rows(damaged):
    """Each runs, or fails and says why; none keeps the others from running."""
    server, _ = damaged
    (server.data / "small.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows(8)))
    first = submit(server, "first-of-them", dataset={"path": "small.jsonl"}, max_steps=1)
    assert wait_over(server, first)["status"] == "succeeded"
    db = open_db(server.data)
    db.execute("BEGIN IMMEDIATE")  # a transaction that began with reading could not write after the daemon had written
    names = {}
    for column, kind in columns(db, "jobs"):
        if column in ("id", "status", "idem_key"):
            continue
        name = f"job-queued-{column.replace('_', '')}"
        seq = copy(db, first, name)
        spec = json.loads(db.execute("SELECT spec FROM jobs WHERE seq = ?", (seq,)).fetchone()["spec"])
        db.execute("UPDATE jobs SET status = 'queued', finished = NULL, spec = ? WHERE seq = ?", (json.dumps({**spec, "serve_as": name}), seq))
        spoil(db, "jobs", column, {"TEXT": TEXTS[0], "INTEGER": 2**62 if column == "attempts" else 0, "REAL": float("inf")}[kind], "seq = ?", seq)
        names[column] = name
    db.execute("COMMIT")
    db.close()
    last = submit(server, "last-of-them", dataset={"path": "small.jsonl"}, max_steps=1)
    assert wait_over(server, last, 150)["status"] == "succeeded"
    for column, name in names.items():
        found = job(server, name)
        if column == "spec":
            assert found["status"] == "failed" and "spec" in found["error"]["message"]
            assert any("training failed" in line and f"job={name} " in line and "column spec" in line for line in server.log().splitlines())
        else:
            assert found["status"] == "succeeded", (column, found)


def test_damage_while_a_job_runs(damaged):
    """What optional things at its end cannot read does not keep its state from being stored, nor the next job waiting."""
    server, _ = damaged
    running = submit(server, "hurt", max_steps=60, n=8, eval_fraction=0.3, eval_steps=20)
    waiting = submit(server, "after-it", max_steps=1, n=8)
    wait_step(server, running)
    assert server.post(f"/train/{running}/pause", {}).status_code == 200
    wait_over(server, waiting)
    wait_over(server, running, states=(*OVER, "paused"))
    db = open_db(server.data)
    seq = db.execute("SELECT seq FROM jobs WHERE id = ?", (running,)).fetchone()["seq"]
    for column, value in {"stride": 0, "last": "[", "plan": "{", "report": '"', "eval": "x", "phase": "y"}.items():
        spoil(db, "jobs", column, value, "seq = ?", seq)
    spoil(db, "events", "data", '"step":', "job = ? AND kind = 'step'", seq)
    db.close()
    assert server.post(f"/train/{running}/resume", {}).status_code == 200
    after = submit(server, "after-that", max_steps=1, n=8)
    assert wait_over(server, running)["status"] == "succeeded"
    assert wait_over(server, after)["status"] == "succeeded"
    result = strict(server.get(f"/v1/fine_tuning/jobs/ft{running}"))["result_files"]
    lines = server.get(f"/v1/files/{result[0]}/content").text.splitlines()
    assert len(lines) > 3 and lines[-1].startswith("60,")  # the steps from the resumption on


@pytest.mark.full
def test_an_end_that_cannot_be_stored(damaged):
    """It is tried again, says why, and leaves no file behind for each attempt."""
    server, _ = damaged
    files = lambda: {p.name for p in (server.data / "files").iterdir()}  # noqa: E731
    db = open_db(server.data)
    db.execute("CREATE TRIGGER refuse BEFORE UPDATE OF status ON jobs WHEN NEW.status = 'succeeded' BEGIN SELECT RAISE(FAIL, 'not today'); END")
    before = files()
    last = submit(server, "at-last", max_steps=1, n=8)
    wait_for(lambda: server.log().count("not today") >= 2, 30, "two attempts")
    assert files() == before
    db.execute("DROP TRIGGER refuse")
    db.close()
    assert wait_over(server, last)["status"] == "succeeded"
    wait_for(lambda: files() != before, 30, "it is stored")  # its readers see the state before that
    assert len(files() - before) == 1 and "could not be stored, trying again" in server.log()


def test_a_result_file_that_cannot_be_written(damaged):
    """Not its row, by a trigger; and not its bytes, the folder being no folder."""
    server, _ = damaged
    db = open_db(server.data)
    db.execute("CREATE TRIGGER refuse BEFORE INSERT ON files BEGIN SELECT RAISE(FAIL, 'no more files'); END")
    before = {p.name for p in (server.data / "files").iterdir()}
    first = submit(server, "without-row", max_steps=1, n=8)
    assert wait_over(server, first)["status"] == "succeeded"
    db.execute("DROP TRIGGER refuse")
    db.close()
    assert {p.name for p in (server.data / "files").iterdir()} == before
    (server.data / "files").rename(server.data / "files-away")
    (server.data / "files").write_text("")
    second = submit(server, "without-bytes", max_steps=1, n=8)
    assert wait_over(server, second)["status"] == "succeeded"
    (server.data / "files").unlink()
    (server.data / "files-away").rename(server.data / "files")
    for name in (first, second):
        assert strict(server.get(f"/v1/fine_tuning/jobs/ft{name}"))["result_files"] == []
        assert sum("no result file" in line and f"job={name} " in line for line in server.log().splitlines()) == 1
