"""Tinker's wire format by hand: malformed protobufs, calls out of order, calls that come again, clients that leave."""
import socket
import time

import pytest
import requests
from client_rig import NEEDS_DEMO, package, start  # noqa: F401
from tinker_rig import PATIENCE, server  # noqa: F401

np = package("numpy")
from tinker.proto import tinker_public_pb2 as pb  # noqa: E402

pytestmark = NEEDS_DEMO
IDS = [5, 6, 7, 8]


def call(server, path, body):
    return requests.post(f"{server.url}/api/v1/{path}", json=body, timeout=PATIENCE)


def result(server, answer):
    assert answer.status_code == 200, answer.text
    return call(server, "retrieve_future", {"request_id": answer.json()["request_id"]})


def send(server, message):
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return requests.post(f"{server.url}/api/v1/forward_backward", data=data, headers={"Content-Type": "application/x-protobuf"}, timeout=PATIENCE)


@pytest.fixture
def model(server):
    session = call(server, "create_session", {}).json()["session_id"]
    made = result(server, call(server, "create_model", {"session_id": session, "model_seq_id": 0, "base_model": "demo", "lora_config": {"rank": 4}})).json()
    assert made["model_id"] == f"{session}:train:0"
    yield made["model_id"]
    call(server, f"sessions/{session}/finish", {})


def message(model, seq=1, loss="cross_entropy"):
    m = pb.ForwardBackwardRequest(model_id=model, seq_id=seq, loss_fn=loss)
    d = m.data.add()
    d.model_input.add().encoded_text.tokens = np.array(IDS, "<i4").tobytes()
    put(d, "target_tokens", np.array([6, 7, 8, 9], "<i8"), pb.DTYPE_INT64)
    return m


def put(d, name, values, dtype, shape=None):
    t = d.loss_fn_inputs[name]
    t.dense, t.dtype = values.tobytes(), dtype
    t.shape[:] = shape or [len(values)]


def step(server, model, seq):
    return call(server, "optim_step", {"model_id": model, "seq_id": seq, "adam_params": {"learning_rate": 1e-3}})


def edit(change):
    def make(model):
        m = message(model)
        change(m, m.data[0] if m.data else None)
        return m.SerializeToString()
    return make


def f32(*v):
    return np.array(v, "<f4")


def csr(d, rows, columns, values, shape, name="target_tokens", dtype=pb.DTYPE_INT64):
    t = d.loss_fn_inputs[name]
    t.Clear()
    t.sparse_csr.values = np.array(values, {pb.DTYPE_INT64: "<i8", pb.DTYPE_FLOAT32: "<f4"}[dtype]).tobytes()
    t.sparse_csr.crow_indices, t.sparse_csr.col_indices = np.array(rows, "<i8").tobytes(), np.array(columns, "<i8").tobytes()
    t.dtype = dtype
    t.shape[:] = shape


BAD = {
    "nothing": lambda m: b"", "zeros": lambda m: bytes(64), "ones": lambda m: b"\xff" * 64, "json": lambda m: b'{"model_id": "x"}',
    "endless varint": lambda m: b"\x10" + b"\x80" * 100, "a length beyond the end": lambda m: b"\x1a\xff\xff\xff\xff\x0f",
    "a group": lambda m: b"\x0b\x0c", "field 0": lambda m: b"\x02\x00", "wire type 7": lambda m: b"\x0f",
    "no rows": edit(lambda m, d: m.ClearField("data")), "no loss": edit(lambda m, d: setattr(m, "loss_fn", "")),
    "an unknown loss": edit(lambda m, d: setattr(m, "loss_fn", "x" * 5000)), "seq 0": edit(lambda m, d: setattr(m, "seq_id", 0)),
    "a negative seq": edit(lambda m, d: setattr(m, "seq_id", -5)), "no input": edit(lambda m, d: d.ClearField("model_input")),
    "an image": edit(lambda m, d: setattr(d.model_input.add().image, "format", "png")),
    "tokens of 3 bytes": edit(lambda m, d: setattr(d.model_input[0].encoded_text, "tokens", b"abc")),
    "a negative token": edit(lambda m, d: setattr(d.model_input[0].encoded_text, "tokens", np.array([-1, 6, 7, 8], "<i4").tobytes())),
    "a token beyond the vocabulary": edit(lambda m, d: setattr(d.model_input[0].encoded_text, "tokens", np.array([2**31 - 1, 6, 7, 8], "<i4").tobytes())),
    "more tokens than positions": edit(lambda m, d: (setattr(d.model_input[0].encoded_text, "tokens", np.zeros(10**6, "<i4").tobytes()),
                                                     put(d, "target_tokens", np.zeros(10**6, "<i8"), pb.DTYPE_INT64))),
    "no targets": edit(lambda m, d: d.loss_fn_inputs.pop("target_tokens")),
    "too few targets": edit(lambda m, d: put(d, "target_tokens", np.array([6], "<i8"), pb.DTYPE_INT64)),
    "a target below 0": edit(lambda m, d: put(d, "target_tokens", np.array([-1] * 4, "<i8"), pb.DTYPE_INT64)),
    "a huge target": edit(lambda m, d: put(d, "target_tokens", np.array([2**62] * 4, "<i8"), pb.DTYPE_INT64)),
    "half a target": edit(lambda m, d: put(d, "target_tokens", f32(1.5, 2, 3, 4), pb.DTYPE_FLOAT32)),
    "no dtype": edit(lambda m, d: put(d, "target_tokens", np.array([6] * 4, "<i8"), 0)),
    "an unknown dtype": edit(lambda m, d: put(d, "target_tokens", np.array([6] * 4, "<i8"), 99)),
    "a dtype of another size": edit(lambda m, d: put(d, "target_tokens", np.array([6] * 4, "<i8"), pb.DTYPE_FLOAT32)),
    "several targets, one too few": edit(lambda m, d: put(d, "target_tokens", np.array([6] * 7, "<i8"), pb.DTYPE_INT64, [4, 2])),
    "several targets, one weight each": edit(lambda m, d: (put(d, "target_tokens", np.array([6] * 8, "<i8"), pb.DTYPE_INT64, [4, 2]),
                                                           put(d, "weights", f32(1, 1, 1, 1), pb.DTYPE_FLOAT32))),
    "no target a position": edit(lambda m, d: put(d, "target_tokens", np.array([], "<i8"), pb.DTYPE_INT64, [4, 0])),
    "too many targets a position": edit(lambda m, d: put(d, "target_tokens", np.zeros(8000, "<i8"), pb.DTYPE_INT64, [4, 2000])),
    "a shape of other positions": edit(lambda m, d: put(d, "target_tokens", np.array([6] * 4, "<i8"), pb.DTYPE_INT64, [2, 2])),
    "three dimensions": edit(lambda m, d: put(d, "target_tokens", np.array([6] * 4, "<i8"), pb.DTYPE_INT64, [4, 1, 1])),
    "a negative dimension": edit(lambda m, d: put(d, "target_tokens", np.array([6] * 4, "<i8"), pb.DTYPE_INT64, [4, -1])),
    "several targets of ppo": edit(lambda m, d: (put(d, "target_tokens", np.array([6] * 8, "<i8"), pb.DTYPE_INT64, [4, 2]), setattr(m, "loss_fn", "ppo"))),
    "csr: a column beyond": edit(lambda m, d: csr(d, [0, 1, 1, 1, 1], [1], [6], [4, 1])),
    "csr: a negative column": edit(lambda m, d: csr(d, [0, 1, 1, 1, 1], [-1], [6], [4, 1])),
    "csr: too few rows": edit(lambda m, d: csr(d, [0, 1, 1], [0], [6], [4, 1])),
    "csr: rows that go back": edit(lambda m, d: csr(d, [0, 1, 0, 1, 1], [0], [6], [4, 1])),
    "csr: rows beyond": edit(lambda m, d: csr(d, [0, 9, 9, 9, 1], [0], [6], [4, 1])),
    "csr: rows below 0": edit(lambda m, d: csr(d, [0, -5, 0, 0, 1], [0], [6], [4, 1])),
    "csr: more columns than values": edit(lambda m, d: csr(d, [0, 2, 2, 2, 2], [0, 0], [6], [4, 1])),
    "sparse": edit(lambda m, d: setattr(d.loss_fn_inputs["weights"].sparse_csr, "values", b"")),
    "nan weights": edit(lambda m, d: put(d, "weights", f32(np.nan, 1, 1, 1), pb.DTYPE_FLOAT32)),
    "infinite weights": edit(lambda m, d: put(d, "weights", f32(1, 1, 1, np.inf), pb.DTYPE_FLOAT32)),
    "too many weights": edit(lambda m, d: put(d, "weights", f32(*range(5)), pb.DTYPE_FLOAT32)),
    "nan config": edit(lambda m, d: m.loss_fn_config.update({"beta": float("nan")})),
}


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_protobuf_is_refused_and_the_run_goes_on(server, model, name):
    answer = send(server, BAD[name](model))
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]
    assert b"loss:sum" in result(server, send(server, message(model))).content


@pytest.mark.parametrize("part", range(1, 40, 3))
def test_a_message_that_is_cut_off(server, model, part):
    data = message(model).SerializeToString()
    assert send(server, data[:len(data) * part // 40]).status_code in (404, 422)


def test_calls_run_in_the_order_of_their_numbers(server, model):
    late = step(server, model, 2)
    first = send(server, message(model, 1))
    assert result(server, late).json()["metrics"]["grad_norm:mean"] > 0
    assert b"loss:sum" in result(server, first).content


def test_a_call_that_comes_again_is_computed_once(server, model):
    first, again = send(server, message(model, 1)), send(server, message(model, 1))
    assert first.json() == again.json()
    one = result(server, step(server, model, 2)).json()["metrics"]["grad_norm:mean"]
    result(server, send(server, message(model, 3)))
    assert result(server, step(server, model, 4)).json()["metrics"]["grad_norm:mean"] == pytest.approx(one, rel=0.2)


def test_another_clients_ids_are_of_no_use(server, model):
    assert send(server, message(model + "0")).status_code == 404
    assert call(server, "get_info", {"model_id": "0-" + "0" * 32}).status_code == 404
    assert call(server, "retrieve_future", {"request_id": "18446744073709551616-x"}).status_code == 410


def cut(server, path, data, part):
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        s.sendall(f"POST /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data[:part])


@pytest.mark.parametrize("path", ["forward_backward", "optim_step", "save_weights_for_sampler", "retrieve_future", "asample", "create_model"])
def test_a_client_that_leaves_in_the_middle_of_a_call(server, model, path):
    data = message(model).SerializeToString() if path == "forward_backward" else b'{"model_id": "%s", "seq_id": 1}' % model.encode()
    for part in (0, len(data) // 2, len(data)):
        cut(server, path, data, part)
    assert server.get("/health").status_code == 200
    first = result(server, send(server, message(model, 1)))  # of what the other client began, where that arrived
    assert first.status_code == 200 and b"error" not in first.content
    assert b"loss:sum" in result(server, send(server, message(model, 2))).content


def test_what_a_session_had_is_freed_with_it(server):
    def begin():
        session = call(server, "create_session", {}).json()["session_id"]
        model = result(server, call(server, "create_model", {"session_id": session, "model_seq_id": 0, "base_model": "demo"})).json()["model_id"]
        made = [call(server, "save_weights_for_sampler", {"model_id": model, "seq_id": i, "sampling_session_seq_id": i}) for i in range(1, 13)]
        for answer in made:
            assert "sampling_session_id" in result(server, answer).json()
        return session
    session = begin()
    assert server.metric("tandem_adapters") == 8
    call(server, f"sessions/{session}/finish", {})
    end = time.monotonic() + PATIENCE
    while server.metric("tandem_adapters") and time.monotonic() < end:
        time.sleep(0.05)
    assert server.metric("tandem_adapters") == 0
