"""/v1/batches with the openai package: every line is answered once, as its route would answer it, whatever happens to the daemon."""
import json
import resource
import signal
import sqlite3

import openai
import pytest
import requests
from conftest import DEVICE, wait_for
from faults import DAEMON, LIBRARY, Faults
from keys import bearer, new_key

OVER = ("completed", "failed", "expired", "cancelled")
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def talk(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300)


@pytest.fixture(scope="module")
def daemon(start):
    with start("--chat-template", "plain", "--threads", "2", "--max-seqs", "8") as s:
        yield s
        s.wait_idle()


@pytest.fixture(scope="module")
def client(daemon):
    return talk(daemon)


def line(custom_id, body, url=COMPLETIONS):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def completion(i, most=8, **kw):
    return line(f"line-{i}", {"prompt": f"Once upon a time there were {i} dogs", "max_tokens": most, "temperature": 0, **kw})


def upload(client, lines):
    text = "".join((v if isinstance(v, str) else json.dumps(v)) + "\n" for v in lines)
    return client.files.create(file=("lines.jsonl", text.encode()), purpose="batch")


def create(client, lines, endpoint=COMPLETIONS, window="24h", **kw):
    return client.batches.create(input_file_id=upload(client, lines).id, endpoint=endpoint, completion_window=window, **kw)


def wait(client, batch, states=OVER, seconds=120):
    def over():
        b = client.batches.retrieve(batch.id)
        return b if b.status in states else None
    return wait_for(over, seconds, f"{batch.id} in {states}")


def content(client, file_id):
    return [json.loads(v) for v in client.files.content(file_id).text.splitlines()] if file_id else []


def counts(batch):
    return batch.request_counts.completed, batch.request_counts.failed, batch.request_counts.total


def essence(body):
    """What two answers to one request share."""
    return {k: v for k, v in body.items() if k not in ("id", "created")}


@pytest.mark.smoke
def test_answers_as_the_route_does(daemon, client):
    n = 4 if DEVICE == "simt" else 20  # each is computed twice
    lines = [completion(i) for i in range(n)]
    batch = create(client, lines, metadata={"who": "me"})
    assert batch.id.startswith("batch_") and batch.object == "batch" and batch.status == "validating" and batch.metadata == {"who": "me"}
    assert batch.endpoint == COMPLETIONS and batch.completion_window == "24h" and batch.expires_at == batch.created_at + 86400
    assert batch.output_file_id is None and batch.errors is None and counts(batch) == (0, 0, 0)
    done = wait(client, batch)
    assert done.status == "completed" and counts(done) == (n, 0, n) and done.error_file_id is None
    assert done.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at
    output = content(client, done.output_file_id)
    assert sorted(v["custom_id"] for v in output) == sorted(v["custom_id"] for v in lines)
    asked = {v["custom_id"]: v["body"] for v in lines}
    for v in output:
        response = v["response"]
        assert v["error"] is None and response["status_code"] == 200 and response["request_id"] == response["body"]["id"]
        direct = daemon.post(COMPLETIONS, asked[v["custom_id"]])
        assert essence(response["body"]) == essence(direct.json())
    file = client.files.retrieve(done.output_file_id)
    assert file.purpose == "batch_output" and file.filename == f"{batch.id}_output.jsonl"
    assert daemon.metric("tandem_batch_lines_total", outcome="completed") >= n and daemon.metric("tandem_batch_running") == 0
    assert f"batch={batch.id} endpoint={COMPLETIONS} status=completed lines={n}" in daemon.log()


def test_chat_responses_and_embeddings(client):
    responses = create(client, [line("r", {"input": "Tell me of cats", "max_output_tokens": 4}, "/v1/responses")], "/v1/responses")
    chat = create(client, [line(f"c{i}", {"messages": [{"role": "user", "content": f"Tell me of {i} cats"}], "max_tokens": 4}, CHAT)
                           for i in range(3)], CHAT)
    embed = create(client, [line("one", {"input": "a dog"}, "/v1/embeddings"),
                            line("many", {"input": [f"{i} birds" for i in range(100)]}, "/v1/embeddings")], "/v1/embeddings")
    (answer,) = content(client, wait(client, responses).output_file_id)
    assert answer["response"]["body"]["object"] == "response" and answer["response"]["body"]["usage"]["output_tokens"] == 4
    answers = content(client, wait(client, chat).output_file_id)
    assert len(answers) == 3 and all(v["response"]["body"]["object"] == "chat.completion" for v in answers)
    answers = {v["custom_id"]: v["response"]["body"]["data"] for v in content(client, wait(client, embed).output_file_id)}
    assert len(answers["one"]) == 1 and len(answers["many"]) == 100  # the answer of many is written in pieces


def test_a_line_that_its_route_refuses(client):
    lines = [completion(0), completion(1, temperature="hot"), completion(2, model="nobody"), line("long", {"prompt": "a " * 20000, "max_tokens": 4})]
    done = wait(client, create(client, lines))
    assert done.status == "completed" and counts(done) == (1, 3, 4)
    assert [v["custom_id"] for v in content(client, done.output_file_id)] == ["line-0"]
    wrong = {v["custom_id"]: v["response"] for v in content(client, done.error_file_id)}
    assert {k: v["status_code"] for k, v in wrong.items()} == {"line-1": 400, "line-2": 404, "long": 400}
    assert wrong["line-2"]["body"]["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("lines, code, number", [
    (['{"custom_id": "a"'], "invalid_json_line", 1),
    (["[]"], "invalid_json_line", 1),
    ([completion(0), {**completion(1), "custom_id": None}], "missing_required_parameter", 2),
    ([{**completion(0), "custom_id": 5}], "invalid_type", 1),
    ([{**completion(0), "custom_id": "x" * 513}], "invalid_value", 1),
    ([{**completion(0), "method": "GET"}], "invalid_method", 1),
    ([{**completion(0), "url": CHAT}], "mismatched_endpoint", 1),
    (["", completion(0), {k: v for k, v in completion(1).items() if k != "body"}], "missing_required_parameter", 3),
    ([completion(0), completion(1), completion(0)], "duplicate_custom_id", 3),
    ([completion(0, stream=True)], "invalid_value", 1),
    ([" "], "empty_file", None),
], ids=lambda v: v if isinstance(v, str) else "")
def test_a_file_that_is_wrong(client, lines, code, number):
    done = wait(client, create(client, lines))
    assert done.status == "failed" and done.failed_at and done.output_file_id is None and done.error_file_id is None
    assert [(e.code, e.line) for e in done.errors.data] == [(code, number)], done.errors


def test_errors_are_listed_up_to_a_limit(client):
    done = wait(client, create(client, ["{"] * 300))
    assert done.status == "failed" and [e.line for e in done.errors.data] == list(range(1, 101))


@pytest.mark.parametrize("change, field", [
    ({"endpoint": "/generate"}, "endpoint"), ({"completion_window": "soon"}, "completion_window"), ({"completion_window": "31d"}, "completion_window"),
    ({"metadata": {"a": 5}}, "metadata"), ({"output_expires_after": {"seconds": 5}}, "output_expires_after"), ({"surprise": 1}, "surprise"),
    ({"input_file_id": None}, "input_file_id"),
])
def test_a_request_that_is_wrong(daemon, client, change, field):
    good = {"input_file_id": upload(client, [completion(0)]).id, "endpoint": COMPLETIONS, "completion_window": "24h"}
    answer = daemon.post("/v1/batches", {**good, **change})
    assert answer.status_code == 400 and field in answer.json()["error"]["message"], answer.text


def test_files_of_other_purposes_and_unknown_ids(daemon, client):
    other = client.files.create(file=("a.jsonl", b"{}\n"), purpose="fine-tune")
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.batches.create(input_file_id=other.id, endpoint=COMPLETIONS, completion_window="24h")
    with pytest.raises(openai.NotFoundError):
        client.batches.create(input_file_id="file-nothing", endpoint=COMPLETIONS, completion_window="24h")
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("batch_nothing")
    with pytest.raises(openai.NotFoundError):
        client.batches.cancel("batch_nothing")


def test_list_in_pages(client):
    ids = [create(client, [completion(i)]).id for i in range(3)]
    listed = [b.id for b in client.batches.list(limit=2)]  # the client asks for page after page
    assert listed[:3] == ids[::-1] and len(set(listed)) == len(listed)
    assert [b.id for b in client.batches.list(limit=1, after=ids[1]).data] == [ids[0]]
    for i in ids:
        wait(client, client.batches.retrieve(i))


def test_cancel_keeps_the_answers(daemon, client):
    batch = create(client, [completion(i, most=200, ignore_eos=True) for i in range(200)])
    waiting = create(client, [completion(0)])
    wait_for(lambda: client.batches.retrieve(batch.id).request_counts.completed > 0, 60, "an answer")
    with pytest.raises(openai.ConflictError):
        client.files.delete(batch.input_file_id)
    assert client.batches.cancel(batch.id).status == "cancelling"
    done = wait(client, batch)
    assert done.status == "cancelled" and done.cancelling_at <= done.cancelled_at and done.completed_at is None
    output = content(client, done.output_file_id)
    assert 0 < len(output) == done.request_counts.completed < 200 and len({v["custom_id"] for v in output}) == len(output)
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)
    assert wait(client, waiting).status == "completed"
    client.files.delete(batch.input_file_id)


def test_cancel_one_that_waits(client):
    first = create(client, [completion(i, most=200, ignore_eos=True) for i in range(500)])
    second = create(client, [completion(0)])
    client.batches.cancel(second.id)
    done = wait(client, second)
    assert done.status == "cancelled" and done.output_file_id is None
    assert client.batches.retrieve(first.id).status == "in_progress"
    client.batches.cancel(first.id)
    assert wait(client, first).status == "cancelled"


def test_the_window_closes(client):
    done = wait(client, create(client, [completion(i, most=200, ignore_eos=True) for i in range(1500)], window="2s"))
    assert done.status == "expired" and done.expired_at >= done.expires_at
    good, bad = content(client, done.output_file_id), content(client, done.error_file_id)
    assert bad and len(good) + len(bad) == 1500 and counts(done) == (len(good), len(bad), 1500)
    assert all(v["error"]["code"] == "batch_expired" and v["response"] is None for v in bad)
    assert len({v["custom_id"] for v in good + bad}) == 1500


def test_requests_go_first(daemon, client):
    """The batch fills every place; a request that comes then is answered while most of the batch waits."""
    batch = create(client, [completion(i, most=200, ignore_eos=True) for i in range(500)])
    wait_for(lambda: daemon.metric("tandem_requests_running") == 8, 30, "all places are taken")
    for i in range(3):
        before = client.batches.retrieve(batch.id).request_counts.completed
        direct = daemon.post(COMPLETIONS, {"prompt": f"The {i} birds", "max_tokens": 20, "temperature": 0})
        assert direct.status_code == 200
        after = client.batches.retrieve(batch.id)
        assert after.status == "in_progress" and after.request_counts.completed - before < 60
    assert daemon.metric("tandem_preemptions_total") > 0
    client.batches.cancel(batch.id)
    wait(client, batch)


def test_the_queue_of_requests_is_their_own(start):
    """A batch with more lines than may wait takes no request's place in the queue."""
    with start("--threads", "2", "--max-seqs", "2", "--max-queue", "1") as s:
        client = talk(s)
        batch = create(client, [completion(i, most=100, ignore_eos=True) for i in range(30)])
        wait_for(lambda: s.metric("tandem_requests_running") == 2, 30, "all places are taken")
        for _ in range(5):
            assert s.post(COMPLETIONS, {"prompt": "The dog", "max_tokens": 4}).status_code == 200
        assert counts(wait(client, batch)) == (30, 0, 30)


def test_keys_and_roles(start, tmp_path):
    file = tmp_path / "keys"
    user, trainer = new_key(file, "u", "user"), new_key(file, "t", "train")
    with start("--threads", "2", "--api-keys", file, key=trainer) as s:
        assert requests.get(s.url + "/v1/batches", headers=bearer(user), timeout=300).status_code == 403
        client = openai.OpenAI(base_url=s.url + "/v1", api_key=trainer, max_retries=0, timeout=300)
        assert wait(client, create(client, [completion(0)])).status == "completed"


FEW = ("--threads", "2", "--max-seqs", "4")  # places: a batch takes a while on a fast machine, too


def test_keys_take_turns(start, tmp_path):
    """A large batch of one key does not hold up another key's, which comes later; one key's own wait for each other."""
    file = tmp_path / "keys"
    first, second = new_key(file, "first", "train"), new_key(file, "second", "train")
    with start(*FEW, "--api-keys", file, key=first) as s:
        one, two = (openai.OpenAI(base_url=s.url + "/v1", api_key=key, max_retries=0, timeout=300) for key in (first, second))
        large = create(one, [completion(i, most=200, ignore_eos=True) for i in range(600)])
        wait_for(lambda: progress(one, large) > 0, 60, "an answer")
        later = create(one, [completion(0)])
        small = wait(two, create(two, [completion(i, most=60) for i in range(20)]))
        assert counts(small) == (20, 0, 20) and one.batches.retrieve(large.id).status == "in_progress"
        assert one.batches.retrieve(later.id).completed_at is None
        one.batches.cancel(large.id)
        assert wait(one, large).status == "cancelled" and wait(one, later).status == "completed"


def test_sent_again_with_its_key(daemon, client):
    file = upload(client, [completion(0)]).id
    body, key = {"input_file_id": file, "endpoint": COMPLETIONS, "completion_window": "24h"}, {"Idempotency-Key": "a batch"}
    one, again = (daemon.post("/v1/batches", body, headers=key) for _ in range(2))
    assert one.json()["id"] == again.json()["id"] and again.headers["Idempotent-Replayed"] == "true" and "Idempotent-Replayed" not in one.headers
    other = daemon.post("/v1/batches", {**body, "completion_window": "1h"}, headers=key)
    assert other.status_code == 409 and other.json()["error"]["code"] == "idempotency_key_reused"
    assert daemon.post("/v1/batches", body).json()["id"] != one.json()["id"]
    wait(client, client.batches.retrieve(one.json()["id"]))


def limit(server, size):
    """No file of the daemon may grow beyond size."""
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def prompts(n):
    return [completion(i, most=20 + i % 17) for i in range(n)]


def check_whole(s, client, batch, lines):
    """Each line is answered once, and as a request of its own is."""
    output = content(client, batch.output_file_id)
    assert batch.status == "completed" and counts(batch) == (len(lines), 0, len(lines))
    assert len(output) == len(lines) and {v["custom_id"] for v in output} == {v["custom_id"] for v in lines}
    asked = {v["custom_id"]: v["body"] for v in lines}
    for v in output[::20]:
        assert essence(v["response"]["body"]) == essence(s.post(COMPLETIONS, asked[v["custom_id"]]).json())


def kill(server):
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()


def progress(client, batch):
    return sum(counts(client.batches.retrieve(batch.id))[:2])


def test_killed_three_times(start, tmp_path):
    lines = prompts(1000)
    args = (*FEW, "--data-dir", tmp_path)
    batch = None
    for i in range(3):
        s = start(*args)
        try:
            client = talk(s)
            batch = batch or create(client, lines)
            wait_for(lambda: progress(client, batch) >= 150 * (i + 1), 120, "progress")
        finally:
            kill(s)
    with start(*args) as s:
        client = talk(s)
        assert 450 <= progress(client, batch)
        check_whole(s, client, wait(client, batch), lines)


def test_stopped_and_started(start, tmp_path):
    """SIGTERM: what is in flight is dropped, what is answered is kept, and no request waits for the batch."""
    lines = prompts(400)
    with start(*FEW, "--data-dir", tmp_path) as s:
        client = talk(s)
        batch = create(client, lines)
        wait_for(lambda: progress(client, batch) > 50, 60, "progress")
        s.signal(signal.SIGTERM)
        assert s.wait() == 0
    with start(*FEW, "--data-dir", tmp_path) as s:
        client = talk(s)
        check_whole(s, client, wait(client, batch), lines)


def edit(folder, statement, *values):
    with sqlite3.connect(folder / "jobs.sqlite") as db:
        return db.execute(statement, values).fetchall()


def halt(start, folder, lines, least=50):
    """A batch in the middle, of a daemon that was killed."""
    s = start(*FEW, "--data-dir", folder)
    try:
        client = talk(s)
        batch = create(client, lines)
        wait_for(lambda: progress(client, batch) >= least, 60, "progress")
    finally:
        kill(s)
    return batch, folder / "files" / edit(folder, "SELECT output_id FROM batches")[0][0]


def test_what_is_behind_the_committed_end_is_cut_off(start, tmp_path):
    """Killed between the write of answers and the commit, or in the middle of the write."""
    lines = prompts(300)
    batch, output = halt(start, tmp_path, lines)
    end = edit(tmp_path, "SELECT output_bytes FROM batches")[0][0]
    whole = output.read_bytes()[:end]
    missing = next(v for v in lines if json.dumps(v["custom_id"]).encode() not in whole)
    answer = {"id": "batch_req_x", "custom_id": missing["custom_id"], "response": {"status_code": 200, "request_id": "x", "body": {}}, "error": None}
    output.write_bytes(whole + json.dumps(answer).encode() + b'\n{"id":"torn')
    with start(*FEW, "--data-dir", tmp_path) as s:
        client = talk(s)
        check_whole(s, client, wait(client, batch), lines)


@pytest.mark.parametrize("harm", ["shorter", "gone", "not JSON"])
def test_an_output_that_was_tampered_with(start, tmp_path, harm):
    batch, output = halt(start, tmp_path, prompts(300))
    if harm == "gone":
        output.unlink()
    else:
        whole = output.read_bytes()
        output.write_bytes(whole[:100] if harm == "shorter" else b"x" + whole[1:])
    with start(*FEW, "--data-dir", tmp_path) as s:
        client = talk(s)
        done = wait(client, batch)
        assert done.status == "failed" and done.errors.data[0].message
        assert wait(client, create(client, [completion(0)])).status == "completed"


def test_a_row_that_is_damaged(start, tmp_path):
    batch, _ = halt(start, tmp_path, prompts(300))
    edit(tmp_path, "UPDATE batches SET output_id = '../../evil', metadata = '{'")
    with start(*FEW, "--data-dir", tmp_path) as s:
        client = talk(s)
        assert wait(client, batch).errors.data[0].code == "damaged"
        assert len(client.batches.list().data) == 1


def test_a_batch_that_crashes_the_daemon_is_given_up(start, tmp_path):
    """Taken up five times without a new answer: the daemon would end with it for ever."""
    batch, _ = halt(start, tmp_path, [completion(i, most=200, ignore_eos=True) for i in range(300)])
    edit(tmp_path, "UPDATE batches SET attempts = 5")
    with start(*FEW, "--data-dir", tmp_path) as s:
        client = talk(s)
        done = wait(client, batch)
        assert done.status == "failed" and done.errors.data[0].code == "crashed"
        assert len(content(client, done.output_file_id)) == done.request_counts.completed >= 50


def test_a_disk_that_is_full_for_a_while(start, tmp_path):
    lines = [completion(i, most=100, ignore_eos=True) for i in range(300)]
    with start(*FEW, "--data-dir", tmp_path) as s:
        client = talk(s)
        batch = create(client, lines)
        wait_for(lambda: progress(client, batch) > 20, 60, "progress")
        limit(s, 1000)
        wait_for(lambda: s.metric("tandem_batch_lines_total", outcome="completed") >= progress(client, batch) + 40, 30, "answers that are not stored")
        assert s.generate(max_new_tokens=4)
        limit(s, resource.RLIM_INFINITY)
        check_whole(s, client, wait(client, batch), lines)


@pytest.mark.full
@pytest.mark.skipif(not LIBRARY.exists() or not DAEMON.exists(), reason="built with the faults only")
@pytest.mark.parametrize("kind", ["write", "sync", "open", "map", "malloc", "op"])
def test_faults(start, tmp_path, kind):
    """Whatever fails on the way, each line is answered once in the end, and well unless the engine failed."""
    lines = prompts(60)
    faults, hit = Faults(tmp_path / "faults"), 0
    with start(*FEW, "--data-dir", tmp_path / "data", binary=DAEMON, env=faults.env()) as s:
        client = talk(s)
        for i in range(6):
            faults.arm(kind, first=1 + i * i * 3, count=2)
            batch = None
            while not batch:
                try:
                    batch = create(client, lines)
                except openai.APIError:
                    pass  # it says so, and can be tried again
            done = wait(client, batch)
            faults.off()
            hit += faults.failed(kind)
            answers = content(client, done.output_file_id) + content(client, done.error_file_id)
            assert done.status == "completed" and sorted(v["custom_id"] for v in answers) == sorted(v["custom_id"] for v in lines)
            assert kind == "op" or done.request_counts.failed == 0
    assert hit


def attempts(folder):
    return edit(folder, "SELECT attempts FROM batches")[0][0]


def test_ends_without_an_answer_are_counted(start, tmp_path):
    """Each kill while the batch has no new answer counts; a daemon that is stopped in between changes nothing."""
    args = ("--threads", "1", "--max-seqs", "64", "--data-dir", tmp_path)  # its first answers take a while
    lines = [completion(i, most=450, ignore_eos=True) for i in range(200)]
    batch = None
    for want, kind in enumerate((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGKILL, signal.SIGKILL)):
        s = start(*args)
        try:
            client = talk(s)
            batch = batch or create(client, lines)
            wait_for(lambda: s.metric("tandem_batch_running"), 60, "it runs")
            s.signal(kind)
            s.process.wait(300)
        finally:
            kill(s)
        assert attempts(tmp_path) == want + (want < 2)
    with start(*args) as s:
        client = talk(s)
        done = wait(client, batch)
        assert done.status == "failed" and done.errors.data[0].code == "crashed"
        assert f'"batch given up" batch={batch.id}' in s.log()


def test_a_limit_that_was_lowered(start, tmp_path):
    """A batch that was validated goes on with longer lines than new ones may have; what is answered is kept."""
    lines = [completion(i, most=20, user="x" * 3000) for i in range(300)]
    batch, _ = halt(start, tmp_path, lines)
    with start(*FEW, "--data-dir", tmp_path, "--max-body-size", "3500") as s:
        client = talk(s)
        done = wait(client, batch)
        assert done.status == "completed" and done.request_counts.total == 300 and progress(client, batch) == 300


def test_messages_name_files_by_their_ids(start, tmp_path):
    batch, output = halt(start, tmp_path, prompts(300))
    (tmp_path / "files" / batch.input_file_id).unlink()
    with start(*FEW, "--data-dir", tmp_path) as s:
        client = talk(s)
        done = wait(client, batch)
        assert done.status == "failed" and done.errors.data[0].message == f"{batch.input_file_id}: No such file or directory"
        assert str(tmp_path / "files" / batch.input_file_id) in s.log()
        assert len(content(client, done.output_file_id)) == done.request_counts.completed >= 50  # the answers so far are kept
        gone = upload(client, [completion(0)])
        (tmp_path / "files" / gone.id).unlink()
        done = wait(client, client.batches.create(input_file_id=gone.id, endpoint=COMPLETIONS, completion_window="24h"))
        assert done.errors.data[0].code == "unreadable_file" and done.errors.data[0].message == f"{gone.id}: No such file or directory"


def test_files_that_cannot_be_opened_for_a_while(start, tmp_path):
    """The system refuses to open the output: the batch waits, and goes on when it can be."""
    lines = prompts(300)
    batch, output = halt(start, tmp_path, lines)
    aside = tmp_path / "aside"
    output.rename(aside)
    output.mkdir()
    with start(*FEW, "--data-dir", tmp_path) as s:
        client = talk(s)
        wait_for(lambda: "a batch waits for its files" in s.log(), 60, "the refusal")
        assert client.batches.retrieve(batch.id).status == "in_progress" and s.generate(max_new_tokens=4)
        output.rmdir()
        aside.rename(output)
        check_whole(s, client, wait(client, batch), lines)
        assert attempts(tmp_path) == 0
