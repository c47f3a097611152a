"""tandem batch: the same answers as the daemon's, to lines in a file; broken off at any point, the same command goes on."""
import json
import signal
import subprocess

import pytest
from conftest import BINARY, DEMO, ENV, MODEL, ROOT, wait_for
from test_batches import CHAT, COMPLETIONS, FEW, completion, essence, line, prompts


@pytest.fixture
def batch(run, tmp_path):
    """batch(lines, *flags) -> (CompletedProcess, the lines of the output)"""
    def call(lines, *flags, out=tmp_path / "out.jsonl"):
        write(tmp_path / "in.jsonl", lines)
        done = run("batch", tmp_path / "in.jsonl", out, "--model", MODEL, "--threads", "2", *flags)
        return done, read(out)
    return call


def write(path, lines):
    path.write_text("".join((v if isinstance(v, str) else json.dumps(v)) + "\n" for v in lines))


def read(path):
    return [json.loads(v) for v in path.read_text().splitlines()] if path.exists() else []


def ids(lines):
    return sorted(v["custom_id"] for v in lines)


def test_answers_as_the_daemon_does(batch, server):
    lines = [completion(i) for i in range(12)] + [line("chat", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}, CHAT),
                                                 line("vector", {"input": "a dog"}, "/v1/embeddings"), completion(12, temperature="hot")]
    done, answers = batch(lines, "--chat-template", "plain")
    assert done.returncode == 0 and b"15 of 15 lines are answered, 1 of them with an error" in done.stderr, done.stderr
    assert ids(answers) == ids(lines)
    by_id = {v["custom_id"]: v["response"] for v in answers}
    assert {k for k, v in by_id.items() if v["status_code"] != 200} == {"line-12"} and by_id["line-12"]["status_code"] == 400
    for v in lines[:12]:
        assert essence(by_id[v["custom_id"]]["body"]) == essence(server.post(COMPLETIONS, v["body"]).json())


def test_goes_on_where_it_ended(batch, tmp_path):
    out = tmp_path / "out.jsonl"
    done, first = batch(prompts(10))
    assert done.returncode == 0 and len(first) == 10
    whole = out.read_bytes()
    assert batch(prompts(10))[0].returncode == 0 and out.read_bytes() == whole  # nothing is left to do
    out.write_bytes(whole + whole[:50])  # torn
    done, answers = batch(prompts(20))  # with more lines
    assert done.returncode == 0 and b"10 of 20 lines are answered already" in done.stderr
    assert answers[:10] == first and ids(answers) == ids(prompts(20))


def test_killed_three_times(tmp_path, server):
    lines, out = prompts(1000), tmp_path / "out.jsonl"
    write(tmp_path / "in.jsonl", lines)
    command = [BINARY, "batch", tmp_path / "in.jsonl", out, "--model", MODEL, *FEW]
    for kill in range(3):
        p = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=ROOT, env=ENV)
        wait_for(lambda k=kill: out.exists() and out.read_bytes().count(b"\n") >= 150 * (k + 1), 120, "answers")
        p.kill()
        p.wait()
    assert 450 <= out.read_bytes().count(b"\n") < 1000
    assert subprocess.run(command, capture_output=True, cwd=ROOT, env=ENV, timeout=300).returncode == 0
    answers = read(out)
    assert ids(answers) == ids(lines) and all(v["response"]["status_code"] == 200 for v in answers)
    asked = {v["custom_id"]: v["body"] for v in lines}
    for v in answers[::50]:
        assert essence(v["response"]["body"]) == essence(server.post(COMPLETIONS, asked[v["custom_id"]]).json())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals(tmp_path, number):
    out = tmp_path / "out.jsonl"
    write(tmp_path / "in.jsonl", [completion(i, most=200, ignore_eos=True) for i in range(2000)])
    p = subprocess.Popen([BINARY, "batch", tmp_path / "in.jsonl", out, "--model", MODEL, "--threads", "2"], stderr=subprocess.PIPE, cwd=ROOT, env=ENV)
    wait_for(lambda: out.exists() and out.stat().st_size, 60, "answers")
    p.send_signal(number)
    _, err = p.communicate(timeout=300)
    assert p.returncode == 130 and b"the same command goes on" in err
    assert 0 < len(read(out)) < 2000


@pytest.mark.parametrize("lines, message", [
    (["{"], b"line 1: malformed JSON"), ([completion(0), completion(0)], b"line 2: custom_id: line-0 is that of line 1"),
    ([line("a", {}, "/generate")], b"/generate cannot be asked in a batch"), ([], b"no lines"),
])
def test_an_input_that_is_wrong(batch, lines, message):
    done, answers = batch(lines)
    assert done.returncode == 1 and message in done.stderr and not answers, done.stderr


@pytest.mark.parametrize("content, message", [
    (b"notes\n", b"line 1: malformed JSON"), (b'{"custom_id": "other", "response": {}}\n', b"the input has no line with other"),
    (2 * b'{"custom_id": "line-0", "response": {"status_code": 200}}\n', b"line-0 is answered twice"),
    (b'{"custom_id": "line-0"}\n', b"response: the field is missing"), (b"no line", b"is no answer"),
])
def test_an_output_of_something_else(batch, tmp_path, content, message):
    (tmp_path / "out.jsonl").write_bytes(content)
    write(tmp_path / "in.jsonl", [completion(0)])
    done = subprocess.run([BINARY, "batch", tmp_path / "in.jsonl", tmp_path / "out.jsonl", "--model", MODEL], capture_output=True, timeout=300,
                          cwd=ROOT, env=ENV)
    assert done.returncode == 1 and message in done.stderr and (tmp_path / "out.jsonl").read_bytes() == content, done.stderr


@pytest.mark.parametrize("out, message", [("/dev/full", b"not a regular file"), ("none/out.jsonl", b"No such file"), ("in.jsonl", b"response")])
def test_an_output_that_cannot_be(run, tmp_path, out, message):
    """The last is the input itself, which stays as it is."""
    write(tmp_path / "in.jsonl", [completion(0)])
    before = (tmp_path / "in.jsonl").read_bytes()
    done = run("batch", tmp_path / "in.jsonl", tmp_path / out, "--model", MODEL, timeout=300)
    assert done.returncode == 1 and message in done.stderr and (tmp_path / "in.jsonl").read_bytes() == before


@pytest.mark.skipif(MODEL != DEMO, reason="the demo model is not here")
def test_adapters(batch):
    lines = [line(name, {"model": name, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}) for name in ("demo", "pirate", "nobody")]
    done, answers = batch(lines, "--adapters", f"pirate={ROOT / 'models/demo-pirate'}")
    found = {v["custom_id"]: v["response"] for v in answers}
    assert done.returncode == 0 and found["nobody"]["status_code"] == 404
    assert found["pirate"]["body"]["model"] == "pirate" and found["pirate"]["body"]["choices"] != found["demo"]["body"]["choices"]


def test_arguments(run, tmp_path):
    assert run("batch").returncode == 2 and run("batch", "one").returncode == 2
    missing = run("batch", tmp_path / "none", tmp_path / "out", "--model", MODEL)
    assert missing.returncode == 1 and b"none" in missing.stderr


def test_two_processes_on_one_output(tmp_path):
    """The second one ends with an error, and leaves the output to the first."""
    write(tmp_path / "in.jsonl", [completion(i, most=200, ignore_eos=True) for i in range(2000)])
    out = tmp_path / "out.jsonl"
    command = [BINARY, "batch", tmp_path / "in.jsonl", out, "--model", MODEL, "--threads", "1"]
    p = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=ROOT, env=ENV)
    try:
        wait_for(lambda: out.exists() and out.stat().st_size, 60, "answers")
        second = subprocess.run(command, capture_output=True, cwd=ROOT, env=ENV, timeout=300)
        assert second.returncode == 1 and b"out.jsonl: another process writes it" in second.stderr, second.stderr
        assert p.poll() is None
    finally:
        p.send_signal(signal.SIGINT)
        p.wait(300)
    answers = read(out)
    assert len(answers) == len({v["custom_id"] for v in answers}) > 0
