"""Weights of Tinker's client under a name: saved, loaded, sampled from, after restarts and kill -9 (docs/tinker.md)."""
import os
import random
import time
from pathlib import Path

import numpy
import pytest
import requests
from client_rig import NEEDS_DEMO, start  # noqa: F401
from keys import Keys
from tinker_rig import PATIENCE, encode, service, settled, tinker, types  # noqa: F401

pytestmark = NEEDS_DEMO
TEXT = "Once upon a time there was a red fox."


@pytest.fixture
def boot(start, tmp_path):  # noqa: F811
    return lambda: start("--served-model-name", "demo", "--threads", "2", "--data-dir", str(tmp_path / "data"))


@pytest.fixture(scope="module")
def server(start, tmp_path_factory):  # noqa: F811
    with start("--served-model-name", "demo", "--threads", "2", "--data-dir", str(tmp_path_factory.mktemp("data"))) as s:
        yield s
        s.wait_idle()


def kill(server):
    server.process.kill()
    server.process.wait()


def rows(server):
    ids = encode(server, TEXT)
    target = types.TensorData.from_numpy(numpy.asarray(ids[1:], "int64"))
    return [types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs={"target_tokens": target})]


def step(server, client, n=1):
    """The log-probabilities before each step, as bytes."""
    seen = []
    for _ in range(n):
        output = client.forward_backward(rows(server), "cross_entropy")
        settled(client.optim_step(types.AdamParams(learning_rate=1e-2)))
        seen.append(settled(output).loss_fn_outputs[0]["logprobs"].to_numpy().tobytes())
    return seen


def new(service, rank=4, seed=1, **kw):
    return settled(service.create_lora_training_client(base_model="demo", rank=rank, seed=seed, **kw))


def save(client, name, **kw):
    return settled(client.save_state(name, **kw)).path


def test_a_run_that_is_resumed_has_the_bits_of_one_that_was_not_interrupted(boot):
    server = boot()
    service = tinker.ServiceClient(base_url=server.url)
    client = new(service)
    step(server, client, 3)
    path = save(client, "third")
    sampled = settled(client.save_weights_for_sampler("third")).path
    assert path.endswith("/weights/third") and sampled.endswith("/sampler_weights/third")
    want = step(server, client, 3)
    before = settled(settled(service.create_sampling_client(model_path=sampled)).compute_logprobs(types.ModelInput.from_ints(encode(server, TEXT))))
    service.holder.close()
    kill(server)
    with boot() as server:
        service = tinker.ServiceClient(base_url=server.url)
        client = settled(service.create_training_client_from_state_with_optimizer(path))
        assert step(server, client, 3) == want
        into = new(service, seed=9)
        settled(into.load_state_with_optimizer(path))
        assert step(server, into, 3) == want
        other = settled(service.create_training_client_from_state(path))
        got = step(server, other, 3)
        assert got[0] == want[0] and got[1:] != want[1:]  # the weights without the moments
        sampler = settled(service.create_sampling_client(model_path=sampled))
        assert settled(sampler.compute_logprobs(types.ModelInput.from_ints(encode(server, TEXT)))) == before
        service.holder.close()


def test_names_and_what_there_is_under_them(server, service):
    client = new(service)
    step(server, client)
    path = save(client, "a.b-c_d:1")
    assert path == f"tinker://{client.model_id}/weights/a.b-c_d:1"
    with pytest.raises(tinker.RequestFailedError, match="already"):
        save(client, "a.b-c_d:1")
    old = step(server, client)[0]
    assert save(client, "a.b-c_d:1", overwrite=True) == path
    now = step(server, client)[0]
    assert step(server, settled(service.create_training_client_from_state(path)))[0] == now != old
    info = settled(service.create_rest_client().get_weights_info_by_tinker_path(path))
    assert (info.base_model, info.lora_rank, info.train_attn, info.train_unembed) == ("demo", 4, True, True)
    with pytest.raises(tinker.NotFoundError):
        settled(service.create_training_client_from_state(path + "2"))
    with pytest.raises(tinker.RequestFailedError, match="rank 4"):
        settled(new(service, rank=8).load_state(path))
    sampled = settled(client.save_weights_for_sampler("s")).path
    with pytest.raises(tinker.RequestFailedError, match="optimizer"):
        settled(service.create_training_client_from_state_with_optimizer(sampled))
    assert step(server, settled(service.create_training_client_from_state(sampled)))


def test_many_samplers_of_saved_weights(server, service):
    client = new(service)
    paths = [settled(client.save_weights_for_sampler(f"s{i}")).path for i in range(10)]
    samplers = [settled(service.create_sampling_client(model_path=p)) for p in paths]
    prompt = types.ModelInput.from_ints([5, 6, 7])
    assert len(settled(samplers[-1].compute_logprobs(prompt))) == 3
    with pytest.raises(tinker.NotFoundError, match="gone"):
        settled(samplers[0].compute_logprobs(prompt))


def files(data):
    return sorted(p for p in Path(data, "tinker").rglob("*") if p.is_file())


@pytest.mark.parametrize("how", ["a bit", "short", "missing"])
def test_damage_is_noticed(boot, how):
    with boot() as server:
        service = tinker.ServiceClient(base_url=server.url)
        client = new(service)
        step(server, client)
        path = save(client, "x")
        for file in files(server.data):
            whole = file.read_bytes()
            if file.name == "expires":
                continue
            if how == "missing":
                file.unlink()
            else:
                file.write_bytes(whole[:-1] if how == "short" else whole[:-1] + bytes([whole[-1] ^ 1]))
            with pytest.raises((tinker.RequestFailedError, tinker.APIStatusError)):
                settled(service.create_training_client_from_state_with_optimizer(path))
            file.write_bytes(whole)
        step(server, settled(service.create_training_client_from_state_with_optimizer(path)))
        service.holder.close()


def call(server, path, body, method="POST"):
    return requests.request(method, f"{server.url}/api/v1/{path}", json=body, timeout=PATIENCE)


def result(server, answer):
    assert answer.status_code == 200, answer.text
    return call(server, "retrieve_future", {"request_id": answer.json()["request_id"]}).json()


@pytest.fixture
def model(server):
    session = call(server, "create_session", {}).json()["session_id"]
    made = call(server, "create_model", {"session_id": session, "model_seq_id": 0, "base_model": "demo", "lora_config": {"rank": 4}})
    yield result(server, made)["model_id"]
    call(server, f"sessions/{session}/finish", {})


NAMES = ["", ".", "..", "../x", "a/b", "/etc/x", "a\\b", "a b", "a\nb", "%2e%2e", ".tmp-a", "-a", "x.old", "a" * 101, "é", "a\x00b", 5, [], {}]


@pytest.mark.parametrize("name", NAMES, ids=[ascii(n)[:20] for n in NAMES])
def test_a_hostile_name_is_refused_and_makes_no_file(server, model, name):
    before = files(server.data)
    for path in "save_weights", "save_weights_for_sampler":
        answer = call(server, path, {"model_id": model, "seq_id": 1, "path": name})
        assert answer.status_code in (400, 422), answer.text
    paths = [f"tinker://{model}/weights/{name}", f"tinker://{name}/weights/x", f"tinker://{model}/{name}/x", f"{name}"]
    for path in paths:
        for body in {"session_id": model.split(":")[0], "model_seq_id": 7}, {"model_id": model, "seq_id": 1}:
            answer = call(server, "load_weights", {**body, "path": path, "optimizer": True})
            if answer.status_code == 200:  # of that form, and there is nothing
                assert result(server, answer)["category"] == "user"
            else:
                assert answer.status_code in (400, 404, 422), answer.text
        assert call(server, "weights_info", {"tinker_path": path}).status_code in (400, 404, 422)
    assert files(server.data) == before


BAD = [("save_weights", {"seq_id": 0}), ("save_weights", {"seq_id": None}), ("save_weights", {"model_id": None}), ("save_weights", {"ttl_seconds": 0}),
       ("save_weights", {"ttl_seconds": 10**12}), ("save_weights", {"overwrite": "yes"}), ("save_weights", {"user_metadata": {"a": 1}}),
       ("save_weights", {"user_metadata": {"a": "b" * 10000}}), ("save_weights", {"user_metadata": []}), ("load_weights", {"path": None}),
       ("load_weights", {"optimizer": 3}), ("load_weights", {"session_id": "0-0"}), ("load_weights", {"seq_id": 0}),
       ("load_weights", {"seq_id": None}), ("load_weights", {"seq_id": "1"}), ("load_weights", {"model_id": 5}), ("load_weights", {"path": 5}),
       ("load_weights", {"path": "tinker://a/weights/b"})]


@pytest.mark.parametrize("path, change", BAD, ids=[f"{p} {c}"[:50] for p, c in BAD])
def test_a_bad_request_is_refused(server, model, path, change):
    body = {"model_id": model, "seq_id": 1, "path": "x" if path == "save_weights" else f"tinker://{model}/weights/x", **change}
    answer = call(server, path, body)
    if answer.status_code == 200:  # weights that there are not are the future's error
        assert path == "load_weights" and result(server, answer)["category"] == "user"
    else:
        assert answer.status_code in (400, 404, 422) and answer.json()["error"], answer.text


def test_weights_expire(server, model):
    made = result(server, call(server, "save_weights", {"model_id": model, "seq_id": 1, "path": "brief", "ttl_seconds": 1}))
    end = time.monotonic() + PATIENCE
    while call(server, "weights_info", {"tinker_path": made["path"]}).status_code == 200 and time.monotonic() < end:
        time.sleep(0.1)
    assert call(server, "weights_info", {"tinker_path": made["path"]}).status_code == 404


def test_kill_at_any_instant_leaves_the_old_weights_or_the_new(boot):
    """Saves over one name, again and again; the process is killed at a random instant of one.  What was answered is there."""
    random.seed(3)
    path, known = None, {}
    for turn in range(6):
        server = boot()
        session = call(server, "create_session", {}).json()["session_id"]
        body = {"session_id": session, "model_seq_id": 0}
        if path:
            run = result(server, call(server, "load_weights", {**body, "path": path, "optimizer": True}))["model_id"]
            assert path in known
        else:
            run = result(server, call(server, "create_model", {**body, "base_model": "demo", "lora_config": {"rank": 4}}))["model_id"]
        saved = result(server, call(server, "save_weights", {"model_id": run, "seq_id": 1, "path": "x"}))["path"]
        folder = Path(server.data, "tinker", run, "weights", "x")
        known[saved] = True
        answers = [call(server, "save_weights", {"model_id": run, "seq_id": i, "path": "x", "overwrite": True}) for i in range(2, 40)]
        assert all(a.status_code == 200 for a in answers)
        time.sleep(random.random() * 0.15)
        kill(server)
        assert (folder / "manifest").exists() and os.listdir(folder)
        path = saved
    with boot() as server:
        session = call(server, "create_session", {}).json()["session_id"]
        for i, path in enumerate(known):
            assert "model_id" in result(server, call(server, "load_weights", {"session_id": session, "model_seq_id": i, "path": path, "optimizer": True}))


def test_a_client_that_is_killed_between_its_calls_leaves_what_it_saved(server, service, model):
    path = result(server, call(server, "save_weights", {"model_id": model, "seq_id": 1, "path": "left"}))["path"]
    call(server, "save_weights", {"model_id": model, "seq_id": 3, "path": "never"})  # waits for 2, which never comes
    call(server, f"sessions/{model.split(':')[0]}/finish", {})
    assert call(server, "weights_info", {"tinker_path": path}).status_code == 200
    assert call(server, "weights_info", {"tinker_path": path.replace("left", "never")}).status_code == 404
    step(server, settled(service.create_training_client_from_state_with_optimizer(path)))


def test_lists_of_runs_and_weights(server, service):
    rest, client = service.create_rest_client(), new(service, rank=2)
    step(server, client)
    run = settled(rest.get_training_run(client.model_id))
    assert (run.base_model, run.is_lora, run.lora_rank, run.last_checkpoint) == ("demo", True, 2, None)
    path, sampled = save(client, "one"), settled(client.save_weights_for_sampler("two", ttl_seconds=3600)).path
    run = settled(rest.get_training_run(client.model_id))
    assert (run.last_checkpoint.tinker_path, run.last_sampler_checkpoint.tinker_path) == (path, sampled)
    assert settled(rest.get_training_run_by_tinker_path(path)).training_run_id == client.model_id
    listed = settled(rest.list_checkpoints(client.model_id)).checkpoints
    assert [(c.checkpoint_id, c.checkpoint_type, c.expires_at is None) for c in listed] == [
        ("weights/one", "training", True), ("sampler_weights/two", "sampler", False)]
    assert listed[0].size_bytes > listed[1].size_bytes > 1000 and listed[1].expires_at > listed[1].time
    runs = settled(rest.list_training_runs(limit=1))
    assert runs.training_runs[0].training_run_id == client.model_id and runs.cursor.total_count >= 1
    assert {path, sampled} <= {c.tinker_path for c in settled(rest.list_user_checkpoints(limit=1000)).checkpoints}
    settled(rest.set_checkpoint_ttl_from_tinker_path(sampled, None))
    assert settled(rest.list_checkpoints(client.model_id)).checkpoints[1].expires_at is None
    settled(rest.delete_checkpoint_from_tinker_path(path))
    assert [c.tinker_path for c in settled(rest.list_checkpoints(client.model_id)).checkpoints] == [sampled]
    session = client.model_id.split(":")[0]
    assert session in settled(rest.list_sessions(limit=1000)).sessions
    assert client.model_id in settled(rest.get_session(session)).training_run_ids
    sampler = settled(service.create_sampling_client(model_path=sampled))
    assert len(settled(sampler.compute_logprobs(types.ModelInput.from_ints([5, 6])))) == 2
    ids = settled(rest.get_session(session)).sampler_ids
    assert {settled(rest.get_sampler(i)).model_path for i in ids} >= {sampled}


@pytest.mark.parametrize("path", ["x/checkpoints/weights/y", "x/checkpoints/y", "x/checkpoints/", "x", "/checkpoints/weights/y", "../../checkpoints/weights/y",
                                  "x/checkpoints/weights/../../y", "x/checkpoints/weights/%2e%2e", "a" * 5000])
def test_weights_that_there_are_not(server, path):
    for method in "DELETE", "PUT":
        answer = call(server, f"training_runs/{path}" + "/ttl" * (method == "PUT"), {}, method)
        assert answer.status_code in (400, 404, 405, 414), answer.text
    assert call(server, f"training_runs/{path}", None, "GET").status_code in (400, 404, 405, 414)


def test_lists_refuse_what_is_no_page(server):
    for path in "training_runs", "checkpoints", "sessions":
        assert call(server, f"{path}?limit=-1", None, "GET").status_code == 422
        assert call(server, f"{path}?offset=x", None, "GET").status_code == 422
        assert call(server, f"{path}?limit=1000&offset=999999", None, "GET").status_code == 200


def test_no_other_route_has_the_adapters_of_samplers(server, service):
    """Neither of saved weights nor of snapshots: they are their session's."""
    client = new(service, rank=2)
    step(server, client)
    path = settled(client.save_weights_for_sampler("private")).path
    samplers = settled(service.create_sampling_client(model_path=path)), client.save_weights_and_get_sampling_client()
    prompt = types.ModelInput.from_ints([5, 6, 7])
    for sampler in samplers:
        assert len(settled(sampler.sample(prompt, 1, types.SamplingParams(max_tokens=2))).sequences[0].tokens)
    assert server.get("/adapters").json()["adapters"] == [] and "@" not in server.get("/v1/models").text
    for name in "@tinker-saved-0000000001", "@tinker-1-live", "@x":
        body = {"model": name, "prompt": "a", "max_tokens": 1}
        assert server.post("/v1/completions", body).status_code == 404
        assert server.post("/generate", {"inputs": "a", "parameters": {"adapter_id": name}}).status_code == 422
        assert server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": "x"}).status_code in (400, 404)
        assert requests.delete(server.url + "/adapters/" + name, timeout=PATIENCE).status_code == 404


def test_another_keys_weights_are_not_found(start, tmp_path):  # noqa: F811
    keys = Keys(tmp_path / "keys")
    with start("--served-model-name", "demo", "--api-keys", keys.file, key=keys.admin) as s:
        def ask(key, path, body, method="POST"):
            return requests.request(method, f"{s.url}/api/v1/{path}", json=body, headers={"X-API-Key": "tml-" + key}, timeout=PATIENCE)

        def done(key, answer):
            return ask(key, "retrieve_future", {"request_id": answer.json()["request_id"]}).json()

        sessions = {key: ask(key, "create_session", {}).json()["session_id"] for key in (keys.train, keys.admin)}
        made = ask(keys.train, "create_model", {"session_id": sessions[keys.train], "model_seq_id": 0, "base_model": "demo", "lora_config": {"rank": 2}})
        run = done(keys.train, made)["model_id"]
        path = done(keys.train, ask(keys.train, "save_weights", {"model_id": run, "seq_id": 1, "path": "x"}))["path"]
        for key, status in (keys.train, 200), (keys.admin, 404):
            assert ask(key, "weights_info", {"tinker_path": path}).status_code == status
            assert ask(key, f"training_runs/{run}/checkpoints", None, "GET").status_code == status
            load = {"session_id": sessions[key], "model_seq_id": 1, "path": path, "optimizer": False}
            assert ask(key, "load_weights", load).status_code == status
            sampler = {"session_id": sessions[key], "sampling_session_seq_id": 0, "model_path": path}
            assert ask(key, "create_sampling_session", sampler).status_code == status
        for method in "DELETE", "POST":
            assert ask(keys.admin, f"training_runs/{run}/checkpoints/weights/x/publish", None, method).status_code == 404
        assert ask(keys.admin, f"training_runs/{run}/checkpoints/weights/x", None, "DELETE").status_code == 404
        assert ask(keys.user, "weights_info", {"tinker_path": path}).status_code == 404
        assert ask(keys.user, "save_weights", {"model_id": run, "seq_id": 2}).status_code == 403
        assert len(ask(keys.admin, "checkpoints", None, "GET").json()["checkpoints"]) == 0
        assert ask(keys.train, f"training_runs/{run}/checkpoints/weights/x/publish", None).status_code == 200
        load = {"session_id": sessions[keys.admin], "model_seq_id": 2, "path": path, "optimizer": True}
        assert "model_id" in done(keys.admin, ask(keys.admin, "load_weights", load))  # others may read it, not change it
        assert ask(keys.user, "weights_info", {"tinker_path": path}).status_code == 200
        for end, body, method in ("", None, "DELETE"), ("/ttl", {"ttl_seconds": 9}, "PUT"), ("/publish", None, "DELETE"):
            assert ask(keys.admin, f"training_runs/{run}/checkpoints/weights/x{end}", body, method).status_code == 404
        assert ask(keys.train, f"training_runs/{run}/checkpoints/weights/x/publish", None, "DELETE").status_code == 200
        assert ask(keys.admin, "weights_info", {"tinker_path": path}).status_code == 404
        assert ask(keys.train, f"training_runs/{run}/checkpoints/weights/x", None, "DELETE").status_code == 200
        assert ask(keys.train, "weights_info", {"tinker_path": path}).status_code == 404


def test_publishing_outlives_the_process(boot):
    server = boot()
    service = tinker.ServiceClient(base_url=server.url)
    rest, client = service.create_rest_client(), new(service)
    paths = [save(client, name) for name in ("a", "publish")]
    for path in paths:
        settled(rest.publish_checkpoint_from_tinker_path(path))
    settled(rest.publish_checkpoint_from_tinker_path(paths[0]))  # what is so already is no error
    service.holder.close()
    kill(server)
    with boot() as server:
        service = tinker.ServiceClient(base_url=server.url)
        rest, run = service.create_rest_client(), client.model_id
        assert [c.public for c in settled(rest.list_checkpoints(run)).checkpoints] == [True, True]
        for _ in range(2):
            settled(rest.unpublish_checkpoint_from_tinker_path(paths[1]))
        assert {c.tinker_path: c.public for c in settled(rest.list_checkpoints(run)).checkpoints} == {paths[0]: True, paths[1]: False}
        settled(rest.delete_checkpoint_from_tinker_path(paths[1]))
        assert [c.tinker_path for c in settled(rest.list_checkpoints(run)).checkpoints] == paths[:1]
        service.holder.close()


def test_a_client_has_so_much_and_leaves_the_rest_to_others(start, tmp_path):  # noqa: F811
    keys = Keys(tmp_path / "keys")
    limits = ["--tinker-client-runs", "2", "--tinker-client-sessions", "1", "--tinker-client-weights", "2"]
    with start("--served-model-name", "demo", "--api-keys", keys.file, *limits, key=keys.admin) as s:
        def ask(key, path, body):
            return requests.post(f"{s.url}/api/v1/{path}", json=body, headers={"X-API-Key": "tml-" + key}, timeout=PATIENCE)

        def done(key, answer):
            return ask(key, "retrieve_future", {"request_id": answer.json()["request_id"]}).json()

        def run(key, session, number):
            return ask(key, "create_model", {"session_id": session, "model_seq_id": number, "base_model": "demo", "lora_config": {"rank": 2}})

        for key in keys.train, keys.admin:
            session = ask(key, "create_session", {}).json()["session_id"]
            more = ask(key, "create_session", {})
            assert more.status_code == 429 and "--tinker-client-sessions" in more.text
            models = [done(key, run(key, session, i))["model_id"] for i in range(2)]
            assert done(key, run(key, session, 1))["model_id"] == models[1]  # the same again is no other
            more = run(key, session, 2)
            assert more.status_code == 422 and "--tinker-client-runs" in more.text
            saved = [done(key, ask(key, "save_weights", {"model_id": m, "seq_id": 1, "path": "x"})) for m in models]
            assert all("path" in answer for answer in saved)
            again = done(key, ask(key, "save_weights", {"model_id": models[0], "seq_id": 2, "path": "x", "overwrite": True}))
            assert again == saved[0]
            more = done(key, ask(key, "save_weights_for_sampler", {"model_id": models[0], "seq_id": 3, "path": "y"}))
            assert "--tinker-client-weights" in more["error"] and more["category"] == "user"


@pytest.mark.skipif(not hasattr(tinker.ServiceClient, "copy_weights"), reason="this version of tinker does not copy")
def test_a_copy_outlives_its_source(boot):
    server = boot()
    service = tinker.ServiceClient(base_url=server.url, project_id="any")
    rest, client = service.create_rest_client(), new(service)
    step(server, client, 2)
    path = save(client, "x")
    copies = [settled(service.copy_weights(path)), settled(service.copy_weights(path, ttl_seconds=3600))]
    assert len({path, *copies}) == 3 and all(c.endswith("/weights/x") for c in copies)
    want = step(server, client, 2)
    settled(rest.delete_checkpoint_from_tinker_path(path))
    service.holder.close()
    kill(server)
    with boot() as server:
        service = tinker.ServiceClient(base_url=server.url, project_id="any")
        rest = service.create_rest_client()
        listed = {c.tinker_path: c.expires_at for c in settled(rest.list_user_checkpoints()).checkpoints}
        assert set(listed) == set(copies) and [listed[c] is None for c in copies] == [True, False]
        for copy in copies:
            assert step(server, settled(service.create_training_client_from_state_with_optimizer(copy)), 2) == want
        with pytest.raises(tinker.NotFoundError):
            settled(service.copy_weights(path))
        service.holder.close()


def test_copies_of_what_others_publish(start, tmp_path):  # noqa: F811
    keys = Keys(tmp_path / "keys")
    with start("--served-model-name", "demo", "--api-keys", keys.file, "--tinker-client-weights", "1", key=keys.admin) as s:
        def ask(key, path, body, **head):
            return requests.post(f"{s.url}/api/v1/{path}", json=body, headers={"X-API-Key": "tml-" + key, **head}, timeout=PATIENCE)

        def done(answer):
            return ask(keys.train, "retrieve_future", {"request_id": answer.json()["request_id"]}).json()

        session = ask(keys.train, "create_session", {}).json()["session_id"]
        run = done(ask(keys.train, "create_model", {"session_id": session, "model_seq_id": 0, "base_model": "demo", "lora_config": {"rank": 2}}))["model_id"]
        path = done(ask(keys.train, "save_weights", {"model_id": run, "seq_id": 1, "path": "x"}))["path"]
        order = {"source_path": path, "destination_project_id": "p"}
        assert ask(keys.admin, "copy_weights", order).status_code == 404
        assert ask(keys.train, f"training_runs/{run}/checkpoints/weights/x/publish", None).status_code == 200
        copy = ask(keys.admin, "copy_weights", order, **{"X-Idempotency-Key": "k"}).json()["tinker_path"]
        assert ask(keys.admin, "copy_weights", order, **{"X-Idempotency-Key": "k"}).json()["tinker_path"] == copy  # the same request again
        assert ask(keys.admin, "weights_info", {"tinker_path": copy}).json()["lora_rank"] == 2
        assert ask(keys.train, "weights_info", {"tinker_path": copy}).status_code == 404  # a copy is not published
        more = ask(keys.admin, "copy_weights", order)
        assert more.status_code == 422 and "--tinker-client-weights" in more.text
        for bad, says in (({"source_path": "x"}, "destination_project_id"), ({**order, "source_path": "x"}, "tinker://"), ({**order, "ttl_seconds": -1}, "ttl"),
                          ({"source_path": path, "session_id": "0-x"}, "model_seq_id"), ({"destination_project_id": "p"}, "source_path")):
            answer = ask(keys.admin, "copy_weights", bad)
            assert answer.status_code == 422 and says in answer.text, answer.text
        assert ask(keys.train, "copy_weights", {"source_path": path, "session_id": session, "model_seq_id": 0}).status_code == 422
        assert ask(keys.admin, "copy_weights", {"source_path": path, "session_id": session, "model_seq_id": 5}).status_code == 404
