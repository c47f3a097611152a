"""Many clients at once: each gets its own text whatever the others do, and what a client left is given back."""
import json
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from conftest import at_some_pace, wait_for
from sse import events, stream, text_of

PROMPTS = ["Once upon a time", "The little dog", "A boy named Tim", "One day, a girl", "In the garden there was", "Mom said", "The sun", "She saw a big red ball and"]


def raw_stream(server, body, receive_buffer=None, count=1):
    """A socket that has sent a streaming request (count times) and reads nothing yet."""
    s = socket.socket()
    if receive_buffer:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    s.connect(("127.0.0.1", server.port))
    data = json.dumps(body).encode()
    head = b"POST /generate_stream HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data)
    s.sendall((head + data) * count)
    return s


@pytest.mark.concurrent
@pytest.mark.parametrize("weights", ["none", "int8", "int4", "nf4"])
def test_32_streams_equal_to_alone(start, quantised, weights):
    """They start at different moments, have different lengths, stop independently; greedy text is as alone."""
    def parameters(i):
        return {"max_new_tokens": 5 + 7 * (i % 12), "ignore_eos": i % 3 == 0, **({"stop": [" the"]} if i % 5 == 0 else {})}

    def prompt(i):
        return PROMPTS[i % len(PROMPTS)] + " and" * (i % 4)

    with start("--kv-cache-bytes", "16M", model=quantised(weights)) as s:
        alone = [s.generate(prompt(i), **parameters(i))["generated_text"] for i in range(32)]
        order = list(range(32))
        random.Random(1).shuffle(order)

        def one(i):
            time.sleep(0.003 * order[i])
            got = stream(s, prompt(i), details=True, **parameters(i))
            return text_of(got), got[-1]["details"]["generated_tokens"], len(got)
        with ThreadPoolExecutor(32) as pool:
            together = list(pool.map(one, range(32)))
        assert [t[0] for t in together] == alone
        assert all(n == count for _, n, count in together)
        s.wait_idle()


@pytest.mark.concurrent
def test_seeds_do_not_depend_on_the_batch(server):
    def one(i):
        return server.generate(PROMPTS[i % 8], do_sample=True, temperature=1.1, top_k=50, seed=i, max_new_tokens=20, ignore_eos=True)["generated_text"]
    alone = [one(i) for i in range(16)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(one, range(16))) == alone


@pytest.mark.smoke
def test_disconnect_cancels(start):
    """The reference device is slow: without cancelling, these would run for a minute."""
    with start("--device", "ref") as s:
        body = {"inputs": "Once", "parameters": {"max_new_tokens": 500, "ignore_eos": True}}
        sockets = [raw_stream(s, body) for _ in range(4)]
        plain = socket.create_connection(("127.0.0.1", s.port))
        data = json.dumps(body).encode()
        plain.sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        wait_for(lambda: s.metric("tandem_requests_running") == 5, what="running")
        assert s.metric("tandem_kv_pages_used") > 0
        for client in [*sockets, plain]:
            client.close()
        s.wait_idle(20)
        assert s.metric("tandem_requests_finished_total", reason="cancelled") == 5
        assert s.generate(max_new_tokens=2)["generated_text"]


@pytest.mark.concurrent
def test_disconnect_in_every_state(server):
    """Gone while sending, while the text is tokenised, while waiting, in mid-stream, after the end."""
    long = json.dumps({"inputs": "word and word " * 20000, "parameters": {"truncate": 100, "max_new_tokens": 50}}).encode()
    head = b"POST /generate_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(long)
    for cut, delay in [(10, 0), (len(head), 0), (len(head) + 1000, 0), (None, 0), (None, 0.002), (None, 0.01), (None, 0.05), (None, 0.2)]:
        for _ in range(5):
            s = socket.create_connection(("127.0.0.1", server.port))
            s.sendall((head + long)[:cut])
            time.sleep(delay)
            s.close()
    server.wait_idle()
    assert server.generate(max_new_tokens=3)["generated_text"]


@pytest.mark.full
def test_1000_random_disconnects_give_everything_back(start):
    """Pages return to zero and, once every page was touched, memory stays where it is."""
    with start("--kv-cache-bytes", "8M") as s:
        def one(seed):
            r = random.Random(seed)
            body = {"inputs": r.choice(PROMPTS) + " word" * r.randrange(60), "parameters": {"max_new_tokens": r.randrange(1, 60), "ignore_eos": True,
                                                                                           "do_sample": r.random() < 0.5}}
            client = raw_stream(s, body)
            client.settimeout(300)
            try:
                if r.random() < 0.7:
                    time.sleep(r.random() * 0.02)
                    if r.random() < 0.5:
                        client.recv(r.randrange(1, 4000))
                else:
                    while b"0\r\n\r\n" not in client.recv(65536):
                        pass
            finally:
                client.close()

        def round_of(n, base):
            with ThreadPoolExecutor(24) as pool:
                list(pool.map(one, range(base, base + n)))
            s.wait_idle()
            return s.resident_bytes()
        round_of(1000, 0)
        second = round_of(500, 1000)
        third = round_of(500, 2000)
        assert third - second < 8 << 20, f"{second} -> {third}"
        assert s.metric("tandem_kv_pages_used") == 0 and s.metric("tandem_connections") <= 2
        assert s.metric("tandem_requests_finished_total", reason="cancelled") > 50


def read_answers(client, count):
    """Everything a raw_stream of `count` requests brings."""
    data, end = bytearray(), 0
    client.settimeout(300)
    while end < count:
        got = client.recv(1 << 20)
        assert got
        end += (data[-6:] + got).count(b"\r\n0\r\n\r\n")
        data += got
    return bytes(data)


@pytest.mark.full
def test_slow_readers_slow_only_themselves(start):
    """They ask for more than the kernel buffers and read nothing: paused, while others go on; in the end they get all.

    Each connection pipelines requests of another size, so that in some of them the buffers fill up in mid-answer."""
    with start("--max-top-n-tokens", 32) as s:
        count, slow = 8, {}
        expected = s.generate("Once", max_new_tokens=480, ignore_eos=True)["generated_text"]
        for top_n in (32, 29, 26, 23, 20):
            parameters = {"max_new_tokens": 480, "ignore_eos": True, "top_n_tokens": top_n}
            slow[top_n] = raw_stream(s, {"inputs": "Once", "parameters": parameters}, receive_buffer=4096, count=count)

        def stalled():
            before = s.metric("tandem_generated_tokens_total")
            time.sleep(0.2)
            return s.metric("tandem_requests_paused") == s.metric("tandem_requests_running") >= 1 and s.metric("tandem_generated_tokens_total") == before
        wait_for(stalled, what="a standstill")
        assert len(stream(s, "Once", max_new_tokens=100, ignore_eos=True)) == 100
        whole = b'"generated_text":' + json.dumps(expected, ensure_ascii=False).encode() + b","
        with ThreadPoolExecutor(5) as pool:
            for top_n, data in zip(slow, pool.map(read_answers, slow.values(), [count] * 5)):
                assert data.count(b'{"index":') == 480 * count and data.count(whole) == count
                assert data.count(b'"logprob"') == 480 * count * (1 + top_n)
        for client in slow.values():
            client.close()
        s.wait_idle()


@pytest.mark.concurrent
def test_overload_is_refused_with_a_time(start):
    with start("--max-seqs", 2, "--max-queue", 4, "--device", "ref") as s:
        body = {"inputs": "Once", "parameters": {"max_new_tokens": 60, "ignore_eos": True}}
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda _: s.post("/generate", body), range(20)))
        codes = [a.status_code for a in answers]
        assert set(codes) == {200, 429} and codes.count(200) >= 4
        for a in answers:
            if a.status_code == 429:
                assert a.json() == {"error": "Model is overloaded", "error_type": "overloaded"}
                assert 1 <= int(a.headers["retry-after"]) <= 120
        assert s.metric("tandem_requests_rejected_total", reason="queue_full") == codes.count(429)
        assert s.get("/health").status_code == 200  # full is not unhealthy
        assert s.post("/generate", body).status_code == 200


def test_overload_is_decided_before_the_text_is_tokenised(start):
    with start("--max-seqs", 1, "--max-queue", 1, "--device", "ref") as s:
        clients = []
        for name in ("running", "waiting"):
            clients.append(raw_stream(s, {"inputs": "Once", "parameters": {"max_new_tokens": 400, "ignore_eos": True}}))
            wait_for(lambda: s.metric("tandem_requests_" + name) == 1, what=name)
        long = {"inputs": "word and word " * 100_000, "parameters": {"truncate": 100}}
        before = s.cpu_seconds()
        assert all(s.post("/generate", {"inputs": "a", "parameters": {"temperature": -1}}).status_code == 429 for _ in range(3))
        assert s.post("/generate", long).status_code == 429
        assert s.cpu_seconds() - before < 30  # the reference device is busy meanwhile; only that it answers counts
        for c in clients:
            c.close()
        s.wait_idle()


def test_best_of_needs_room_for_all(start):
    with start("--max-seqs", 1, "--max-queue", 3) as s:
        for _ in range(20):
            assert s.generate(max_new_tokens=2, best_of=4, do_sample=True)["generated_text"]


def test_streams_on_one_connection(server):
    with requests.Session() as session:
        expected = server.generate(max_new_tokens=6)["generated_text"]
        for _ in range(5):
            assert text_of(stream(server, session=session, max_new_tokens=6)) == expected


def test_pages_run_out(start):
    """Eight requests that need more pages than there are: preempted, recomputed, the same text."""
    with start("--kv-cache-bytes", "2M", "--max-seqs", 8) as s:
        def one(i):
            return s.generate(PROMPTS[i], max_new_tokens=200, ignore_eos=True)["generated_text"]
        alone = [one(i) for i in range(8)]
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(one, range(8))) == alone
        s.wait_idle()


def test_stream_tokens_arrive_one_by_one(start):
    """The first token is there long before the last."""
    with start("--device", "ref") as s:
        def test(pace):  # a reader that this machine halts finds many at once
            times = []
            with requests.post(s.url + "/generate_stream", stream=True, timeout=300,
                               json={"inputs": "Once", "parameters": {"max_new_tokens": 30 * pace, "ignore_eos": True}}) as answer:
                for _ in events(answer):
                    times.append(time.monotonic())
            assert len(times) == 30 * pace
            assert len({round(t, 4) for t in times}) > 10
        at_some_pace(test)


@pytest.mark.full
def test_threads_of_a_crowd(server):
    """Plain, streamed, sampled, refused: mixed from 24 threads, nothing mixed up."""
    expected = {p: server.generate(p, max_new_tokens=15)["generated_text"] for p in PROMPTS}
    failures = []

    def one(seed):
        r = random.Random(seed)
        for _ in range(20):
            p = r.choice(PROMPTS)
            kind = r.randrange(4)
            if kind == 0 and server.generate(p, max_new_tokens=15)["generated_text"] != expected[p]:
                failures.append(p)
            elif kind == 1 and text_of(stream(server, p, max_new_tokens=15)) != expected[p]:
                failures.append(p)
            elif kind == 2:
                server.generate(p, max_new_tokens=5, do_sample=True, top_p=0.9)
            elif kind == 3:
                server.post("/generate", {"inputs": p, "parameters": {"top_k": 0}})
    threads = [threading.Thread(target=one, args=(i,)) for i in range(24)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
