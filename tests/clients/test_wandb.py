"""scripts/wandb-import with the real wandb, offline: the run's file has a job of `tandem train`, and `wandb sync` finds it.

wandb 0.31 wants another version of click than tests/requirements-clients.txt has: it is installed by hand, or this is skipped."""
import json
import os
import struct
import subprocess
import sys

import pytest
from client_rig import BINARY, ROOT

pytest.importorskip("wandb", reason="wandb is not installed")
from wandb.proto import wandb_internal_pb2 as pb  # noqa: E402

SMALL = ROOT / "tests/fixtures/models/tinystories-656k"


def run_records(path):
    """The records of a .wandb file: seven bytes, then LevelDB's log format, in which a record may be several pieces."""
    data, at, record = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        n, kind = struct.unpack_from("<HB", data, at + 4)
        record += data[at + 7:at + 7 + n]
        at += 7 + n
        if kind in (1, 4):  # whole, or the last piece
            yield pb.Record.FromString(record)
            record = b""


def items(list_of_items):
    return {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in list_of_items}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    (folder / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"the cat {i}", "completion": f" sat on {i}"}) + "\n" for i in range(30)))
    done = subprocess.run([BINARY, "train", "--model", SMALL, "--data", "rows.jsonl", "--out", "out", "--tensorboard", "board", "--max-steps", "4", "--batch-tokens",
                           "128", "--max-length", "64", "--eval-fraction", "0.2", "--eval-steps", "2", "--threads", "1"], cwd=folder, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return folder


def test_a_run(job):
    env = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_CONFIG_DIR": str(job), "WANDB_CACHE_DIR": str(job), "WANDB_DATA_DIR": str(job)}
    done = subprocess.run([sys.executable, ROOT / "scripts/wandb-import", "board", "--record", "out/training_record.json", "--project", "tales", "--name", "first"],
                          cwd=job, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "4 steps of board" in done.stdout, done.stdout + done.stderr
    path, = job.glob("wandb/offline-run-*/run-*.wandb")
    found = subprocess.run([sys.executable, "-m", "wandb", "sync", "--dry-run"], cwd=job, env={**env, "WANDB_SILENT": "false"}, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0 and path.name in found.stdout + found.stderr, found.stdout + found.stderr
    records = list(run_records(path))
    run = next(r.run for r in records if r.HasField("run"))
    assert run.project == "tales" and run.display_name == "first"
    config = {k: v for r in records if r.HasField("run") for k, v in items(r.run.config.update).items()}
    for r in records:
        if r.HasField("config"):
            config.update(items(r.config.update))
    assert config["method"] == "lora" and config["hyperparameters"]["batch_tokens"] == 128
    steps = {int(h["_step"]): h for h in (items(r.history.item) for r in records if r.HasField("history"))}
    assert sorted(s for s in steps if "train/loss" in steps[s]) == [1, 2, 3, 4]
    assert [s for s in sorted(steps) if "eval/loss" in steps[s]] == [2, 4]
    record = json.loads((job / "out/training_record.json").read_text())
    assert steps[4]["train/loss"] == pytest.approx(record["loss"], rel=1e-5)
    assert steps[4]["grad_norm/layer.1"] == pytest.approx(record["grad_norms"]["layer.1"], rel=1e-5)
    summary = {k: v for r in records if r.HasField("summary") for k, v in items(r.summary.update).items()}
    assert summary["best_eval_loss"] == pytest.approx(record["best_eval_loss"])


def test_damaged_files_are_named(job, tmp_path):
    script = [sys.executable, ROOT / "scripts/wandb-import"]
    nothing = subprocess.run([*script, tmp_path], capture_output=True, text=True, timeout=300)
    assert nothing.returncode == 1 and "no event files" in nothing.stderr
    good, = (job / "board").iterdir()
    data = bytearray(good.read_bytes())
    data[12] = 0x0f  # the first field's type
    (tmp_path / good.name).write_bytes(data)
    bad = subprocess.run([*script, tmp_path], capture_output=True, text=True, timeout=300)
    assert bad.returncode == 1 and "record 0 is damaged" in bad.stderr
