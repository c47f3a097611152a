"""KV pages on disk over HTTP: a conversation goes on after a restart, with the same answers; damage, kills and other clients."""
import contextlib
import random
import stat
import threading

import pytest
import requests

from conftest import wait_for

STORY = ("Once upon a time there was a little girl who had a red ball. She liked to play with the ball in the park. "
         "One day a big dog came and took the ball. The girl was sad. Tom saw the dog and said, \"Give me the ball!\" ")


def ask(server, text, n=24, **more):
    answer = server.post("/v1/completions", {"prompt": text, "max_tokens": n, "temperature": 0, "logprobs": 2, **more})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    cached = body["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached, (body["choices"][0]["text"], body["choices"][0]["logprobs"])


def stop(server):
    """By one signal, which waits until what is in memory is on the disk; the second of `with` would not."""
    server.signal()
    assert server.wait() == 0


@pytest.fixture(scope="module")
def want(start):
    """The answers without a disk, to the story, to it and its continuation, and so on."""
    with start("--no-prefix-cache") as server:
        texts, answers = [STORY], []
        for _ in range(3):
            answers.append(ask(server, texts[-1])[1])
            texts.append(texts[-1] + answers[-1][0] + " Then ")
    return texts[:3], answers


def test_a_conversation_goes_on(start, tmp_path, want):
    disk = tmp_path / "kv"
    for turn, (text, answer) in enumerate(zip(*want)):
        with start("--kv-disk", disk) as server:  # each turn in a process of its own
            cached, got = ask(server, text)
            assert got == answer
            assert cached == 0 if turn == 0 else cached >= 64
            assert (server.metric("tandem_kv_disk_hit_pages_total") > 0) == (turn > 0)
            assert server.metric("tandem_kv_disk_pages") > 0 or turn == 0
            stop(server)
    assert stat.S_IMODE(disk.stat().st_mode) == 0o700
    for path in disk.glob("*/*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_options(start, tmp_path):
    with start("--kv-disk", tmp_path / "kv", "--kv-disk-size", "1M", "--kv-disk-ttl", "60") as server:
        assert server.metric("tandem_kv_disk_limit_bytes") <= 1 << 20
        with pytest.raises(AssertionError):  # the same model and directory
            start("--kv-disk", tmp_path / "kv")
        ask(server, STORY)


def test_clients_are_apart_after_a_restart(start, tmp_path, want):
    disk = tmp_path / "kv"
    flags = ["--kv-disk", disk, "--cache-per-key"]
    with start(*flags) as server:
        assert ask(server, STORY)[0] == 0
        assert ask(server, STORY, cache_salt="a")[0] == 0
        stop(server)
    with start(*flags) as server:  # this address has the same number again
        assert ask(server, STORY, cache_salt="b")[0] == 0
        for salt in ({}, {"cache_salt": "a"}):
            cached, got = ask(server, STORY, **salt)
            assert cached >= 48
            assert got == want[1][0]
    with start("--kv-disk", disk) as server:
        assert ask(server, STORY)[0] == 0  # what a client's own cache holds is nobody else's


def damage(disk, chance, cut):
    path = chance.choice([p for p in sorted(disk.rglob("*")) if p.name in ("pages", "index") and p.stat().st_size])
    data = bytearray(path.read_bytes())
    for _ in range(20):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data[:chance.randrange(len(data))] if cut else data)


def all_right(server, want):
    """Asks for every text. How many were on disk."""
    hits = 0
    for text, answer in zip(*want):
        cached, got = ask(server, text)
        assert got == answer
        hits += cached > 0
    return hits


def damage_rounds(start, disk, want, n):
    chance, hits = random.Random(5), 0
    for turn in range(n):
        if turn:
            damage(disk, chance, turn % 10 == 9)
        with start("--kv-disk", disk) as server:
            hits += all_right(server, want)
    assert hits > 0


def kill_rounds(start, disk, want, n):
    chance, hits = random.Random(5), 0
    for turn in range(n):
        server = start("--kv-disk", disk)
        timer = threading.Timer(chance.random() / 2, server.process.kill)
        try:
            if turn % 2:  # while it answers and writes
                timer.start()
                with contextlib.suppress(requests.RequestException):
                    hits += all_right(server, want)
            else:
                hits += all_right(server, want)
                wait_for(lambda: server.metric("tandem_kv_disk_pages") > 0, what="pages on disk")
        finally:
            timer.cancel()
            server.process.kill()
            server.process.wait()
    assert hits > 0


ROUNDS = pytest.mark.parametrize("rounds", [kill_rounds, damage_rounds])


@ROUNDS
def test_no_wrong_token(start, tmp_path, want, rounds):
    rounds(start, tmp_path / "kv", want, 3)


@pytest.mark.full
@ROUNDS
def test_no_wrong_token_sixty_times(start, tmp_path, want, rounds):
    rounds(start, tmp_path / "kv", want, 60)


def test_a_directory_that_cannot_be_used(start, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AssertionError):
        start("--kv-disk", tmp_path / "file" / "kv")
