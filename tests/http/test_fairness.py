"""Clients share: what one client does, allowed or refused, does not keep another out.

A client is its key, else its address: 127.0.0.1 and 127.0.0.2 are two."""
import http.client
import json
import socket
import threading
from contextlib import contextmanager

import pytest
from conftest import wait_for
from keys import bearer, new_key

SLOW = ("--device", "ref")
LONG = {"max_new_tokens": 400, "ignore_eos": True}
HOG, OTHER = "127.0.0.1", "127.0.0.2"


class Client:
    """A kept connection from an address."""

    def __init__(self, server, address=OTHER, headers=None):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300, source_address=(address, 0))
        self.headers = headers or {}

    def post(self, path, body):
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.connection.request("POST", path, text, {"Content-Type": "application/json", **self.headers})
        answer = self.connection.getresponse()
        return answer.status, answer.read()

    def ask(self, tokens, inputs="Once upon a time", **parameters):
        return self.post("/generate", {"inputs": inputs, "parameters": {"max_new_tokens": tokens, "ignore_eos": True, **parameters}})

    def close(self):
        self.connection.close()


def stream(server, address, parameters=LONG, headers="", inputs="Once"):
    """A stream whose answer is not read, beyond what says that it has begun."""
    s = socket.create_connection(("127.0.0.1", server.port), source_address=(address, 0))
    body = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    s.sendall(f"POST /generate_stream HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return s


def clients(server):
    return {c["client"]: c["sequences"] for c in server.get("/debug/state").json()["clients"]}


def close(held):
    for h in held:
        h.close()


@contextmanager
def hogs(server, *sends, address=HOG):
    """Calls each of them with a client of its own, in a thread, again and again; gives the list of how often."""
    stop, counts = threading.Event(), [0] * len(sends)

    def loop(i):
        client = Client(server, address)
        while not stop.is_set():
            sends[i](client)
            counts[i] += 1
        client.close()
    threads = [threading.Thread(target=loop, args=(i,)) for i in range(len(sends))]
    for t in threads:
        t.start()
    try:
        wait_for(lambda: sum(counts), what="a hog's first answer")
        yield counts
    finally:
        stop.set()
        for t in threads:
            t.join()


@pytest.mark.parametrize("path, body", [
    ("/generate", {"inputs": "word " * 200_000}),
    ("/v1/completions", {"prompt": "word " * 200_000, "max_tokens": 1}),
    ("/v1/embeddings", {"input": ["word " * 200_000]}),
])
def test_texts_that_are_refused_shut_nobody_out(server, path, body):
    """1 MB each, too long for the model: from another address and from the same one."""
    text = json.dumps(body).encode()

    refused = []

    def send(client):
        refused.append(client.post(path, text)[0])

    with hogs(server, send):
        for address in (OTHER, HOG):
            one = Client(server, address)
            before = len(refused)
            statuses = [one.ask(1)[0] for _ in range(120)]
            one.close()
            assert statuses == [200] * 120
        wait_for(lambda: len(refused) > before, what="another refusal")
    assert set(refused) <= {400, 422}


def test_large_bodies_with_short_prompts_teach_nobody(start):
    """What they make a client's own guess, neither opens the queue to its long texts nor changes another's guess."""
    with start("--max-seqs", 1, "--max-queue", 50, "--max-queue-tokens", 100, *SLOW) as s:
        hog, one = Client(s, HOG), Client(s, OTHER)
        for _ in range(3):
            assert hog.post("/generate", {"inputs": "Once", "parameters": {"max_new_tokens": 1}, "else": "x" * 500_000})[0] == 200
        held = [stream(s, HOG)]
        wait_for(lambda: s.metric("tandem_requests_running") == 1 and s.metric("tandem_queue_tokens") == 0, what="a stream")
        held.append(stream(s, HOG, inputs="word " * 50))
        wait_for(lambda: s.metric("tandem_requests_waiting") == 1, what="a prompt that waits")
        status, answer = hog.ask(1, "word " * 200)
        assert status == 429 and b"prompts" in answer
        close(held)
        s.wait_idle()
        assert one.ask(1)[0] == 200
        hog.close()
        one.close()


def test_a_full_queue_has_room_for_another_client(start):
    with start("--max-seqs", 2, "--max-queue", 4, *SLOW) as s:
        held = [stream(s, HOG) for _ in range(6)]
        wait_for(lambda: clients(s) == {f"address {HOG}": 6}, what="six texts of one client")
        hog, one = Client(s, HOG), Client(s, OTHER)
        status, answer = hog.ask(1)
        assert status == 429 and b"overloaded" in answer
        assert s.metric("tandem_queue_clients") == 1
        for _ in range(3):
            assert one.ask(2)[0] == 200  # it takes a slot at once: the other client's younger text gives way
        wait_for(lambda: s.metric("tandem_requests_running") == 2, what="the slot's return")
        assert clients(s)[f"address {HOG}"] == 6
        mine = [stream(s, OTHER) for _ in range(3)]
        wait_for(lambda: clients(s).get(f"address {OTHER}") == 3, what="its share")
        assert one.ask(1)[0] == 429  # half of six
        assert hog.ask(1)[0] == 429
        close(held + mine)
        hog.close()
        one.close()
        s.wait_idle()
        assert clients(s) == {}


def test_keys_are_clients(start, tmp_path):
    file = tmp_path / "keys"
    hog, one = new_key(file, "hog", "user"), new_key(file, "one", "user")
    admin = new_key(file, "admin", "admin")
    with start("--max-seqs", 2, "--max-queue", 2, "--api-keys", file, *SLOW, key=admin) as s:
        held = [stream(s, HOG, headers=f"Authorization: Bearer {hog}\r\n") for _ in range(4)]
        wait_for(lambda: clients(s) == {"key hog": 4}, what="four texts of one key")
        a, b = Client(s, HOG, bearer(hog)), Client(s, HOG, bearer(one))
        assert a.ask(1)[0] == 429
        assert b.ask(2)[0] == 200
        close([*held, a, b])
        s.wait_idle()


def test_an_answer_gives_its_places_back_before_it_is_read(start):
    with start("--max-seqs", 2, "--max-queue", 1) as s:
        body = json.dumps({"input": ["Once upon a time"] * 1000}).encode()
        c = socket.socket()
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.connect(("127.0.0.1", s.port))
        c.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert c.recv(12) == b"HTTP/1.1 200"
        assert clients(s) == {}
        assert s.metric("tandem_requests_total", route="/v1/embeddings", status="200") == 0  # it is not over
        c.close()
        s.wait_idle()


def test_a_hog_on_the_pool_is_waited_for_by_itself(start):
    """Its long jobs, tokenising and compiling, in eight lanes: another client's job is next, and nobody is refused."""
    with start("--max-queue", 8, "--max-seqs", 4) as s:
        text = json.dumps({"inputs": "word and another " * 20_000}).encode()
        number = iter(range(10**9))

        def tokenize(client):
            assert client.post("/tokenize", text)[0] in (200, 429)

        def schema(client):
            many = {"type": "object", "properties": {f"p{i}_{next(number)}": {"type": "string", "pattern": "[a-z]{1,20}"} for i in range(40)}}
            client.post("/generate", {"inputs": "Once", "parameters": {"max_new_tokens": 1, "grammar": {"type": "json", "value": many}}})

        with hogs(s, *[tokenize] * 5, *[schema] * 3):
            one = Client(s, OTHER)
            for i in range(30):
                assert one.post("/tokenize", {"inputs": "short words " * 500})[0] == 200
                assert one.ask(1, "short words " * (400 if i % 2 else 1), truncate=20)[0] == 200
            one.close()
