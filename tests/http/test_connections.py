"""Connections, from outside: time-outs, streams and slow readers, clients that leave, crowds, the server's end.

Needs TANDEM_BUILD_DIR (the meson build directory); runs echo_server from there on a free port.
"""

import http.client
import json
import os
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest
import requests
from conftest import PATIENCE, at_some_pace
from echo import (  # noqa: F401 (fixtures)
    CHUNKED, HOST, Reader, binary, exchange, get, post, read_all, serves, server, start,
)

# ---- time-outs -------------------------------------------------------------------------------------------------------------


LONG = 3_600_000  # ms: a time-out that would fail the test at its own bound


def closes_after(s, begin, least):
    """What came until the server closed, no sooner than `least` seconds after `begin`, which is before it could count."""
    data = read_all(s)
    assert time.monotonic() - begin >= least
    return data


def trickle(s, data, begin, least):
    """Sends data and then a byte now and then until the server answers, no sooner than `least` seconds after `begin`."""
    s.sendall(data)
    while not select.select([s], [], [], 0.03)[0]:
        s.send(b"a")
        assert time.monotonic() - begin < PATIENCE
    assert time.monotonic() - begin >= least
    assert Reader(s).answer()[0] == 408


def test_header_timeout(start):
    server = start("--header-timeout", 300, "--idle-timeout", 100, "--body-timeout", LONG)
    begin = time.monotonic()
    with server.connect() as s:
        s.sendall(b"GET / HTTP/1.1\r\n")
        data = closes_after(s, begin, 0.29)
        assert data.startswith(b"HTTP/1.1 408 ") and b'"timeout"' in data
    serves(server)


def test_header_timeout_is_not_extended_by_bytes(start):
    """Slow loris: a header byte now and then."""
    server, begin = start("--header-timeout", 300, "--idle-timeout", LONG, "--body-timeout", LONG), time.monotonic()
    with server.connect() as s:
        trickle(s, b"GET / HTTP/1.1\r\nX: ", begin, 0.29)


def test_body_timeout(start):
    server, begin = start("--body-timeout", 300, "--idle-timeout", LONG, "--header-timeout", LONG), time.monotonic()
    with server.connect() as s:
        trickle(s, post(b"Content-Length: 100000\r\n", b"a"), begin, 0.29)


def test_idle_timeout_closes_silently(start):
    server, begin = start("--idle-timeout", 300, "--header-timeout", LONG), time.monotonic()
    with server.connect() as s:
        reader = Reader(s)
        s.sendall(get(b"GET /hello HTTP/1.1"))
        reader.answer()
        assert closes_after(s, begin, 0.29) == b"" and reader.data == b""


def test_silent_connection_is_closed(start):
    server, begin = start("--header-timeout", 300, "--idle-timeout", LONG), time.monotonic()
    with server.connect() as s:
        assert closes_after(s, begin, 0.29) == b""


def test_timeouts_do_not_touch_a_running_request(start):
    def test(pace):  # the head itself has to come in time
        server = start(*(x for name in ("header", "body", "idle", "write") for x in (f"--{name}-timeout", 100 * pace)))
        with server.connect() as s:
            s.sendall(get(b"GET /later?ms=%d HTTP/1.1" % (400 * pace)))
            assert Reader(s).answer()[2] == b"later\n"
    at_some_pace(test)


def test_client_that_does_not_read_is_closed(start):
    server = start("--write-timeout", 300)
    with server.connect(rcvbuf=4096) as s:
        s.sendall(get(b"GET /big?bytes=100000000 HTTP/1.1"))
        server.wait_stats(lambda stats: stats["closed"] == 1)
        with pytest.raises((ConnectionResetError, EOFError)):
            Reader(s).answer()
    assert server.stats()["open"] == 1


def test_client_that_reads_slowly_is_served(start):
    def test(pace):  # a reader that this machine halts for longer than the limit is closed
        server = start("--write-timeout", 400 * pace, "--high-water", 20000, "--low-water", 5000)
        with server.connect(rcvbuf=4096) as s:
            s.sendall(get(b"GET /blob?bytes=12000000 HTTP/1.1"))
            got, begin = 0, time.monotonic()
            while time.monotonic() - begin < 1.5 * pace:  # the kernel's buffers have no news for the server in this time
                got += len(s.recv(20000))
                time.sleep(0.05)
            while part := s.recv(1 << 20):
                got += len(part)
                if got > 12000000:
                    break
            assert got > 12000000
    at_some_pace(test)


# ---- streams and back-pressure ------------------------------------------------------------------------------------------


def test_stream_arrives_as_it_is_produced(server):
    def test(pace):  # a reader that this machine halts finds them all at once
        with server.connect() as s:
            reader = Reader(s)
            s.sendall(get(b"GET /slow?n=5&ms=%d HTTP/1.1" % (50 * pace)))
            reader.head()
            reader.until(b"data: 5\n\n")
            first = time.monotonic()
            reader.until(b"data: 1\n\n")
            assert time.monotonic() - first > 0.1 * pace  # of 0.2
    at_some_pace(test)


def test_burst_is_one_segment(server):
    """A hundred writes in one loop iteration are one send."""
    with server.connect() as s:
        s.sendall(get(b"GET /burst?n=100 HTTP/1.1"))
        data = s.recv(65536)
        assert data.count(b"data: x\n\n") == 100 and data.endswith(b"0\r\n\r\n")


def test_back_pressure_bounds_the_queue(start):
    server = start("--high-water", 65536, "--low-water", 16384)
    total = 60000000
    with server.connect() as s:
        s.sendall(get(b"GET /big?bytes=%d HTTP/1.1" % total))
        time.sleep(0.3)
        assert server.stats()["bytes_out"] < 40000000  # the kernel's buffers hold some megabytes
        _, _, body = Reader(s).answer()
        assert len(body) == total
    stats = server.stats()
    assert stats["most_queued"] < 65536 + 2 * 16384 and stats["drains"] > 10


def test_large_answer(server):
    assert requests.get(server.url("/blob?bytes=20000000"), timeout=300).content == b"y" * 20000000
    assert requests.get(server.url("/big?bytes=20000000"), timeout=300).content == b"x" * 20000000


def test_aborted_stream_is_seen_as_broken(server):
    with server.connect() as s:
        s.sendall(get(b"GET /abort HTTP/1.1"))
        data = read_all(s)
        assert not data.endswith(b"0\r\n\r\n")


# ---- clients that leave ----------------------------------------------------------------------------------------------------


def reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


@pytest.mark.parametrize("leave", [socket.socket.close, reset, lambda s: s.shutdown(socket.SHUT_WR)],
                         ids=["close", "reset", "half-close"])
@pytest.mark.parametrize("path, gone", [(b"/never", 1), (b"/slow?n=1000000&ms=5", 0), (b"/big?bytes=1000000000000", 0)])
def test_client_leaves_while_served(start, leave, path, gone):
    server = start()
    s = server.connect(rcvbuf=4096)
    s.sendall(get(b"GET " + path + b" HTTP/1.1"))
    server.wait_stats(lambda stats: stats["requests"] >= 2)
    time.sleep(0.05)
    leave(s)
    stats = server.wait_stats(lambda stats: stats["closed"] == 1 and stats["open"] == 1)
    assert stats["gone"] == gone
    s.close()


@pytest.mark.parametrize("raw", [b"", b"GET", b"GET / HTTP/1.1\r\nHost", post(b"Content-Length: 10\r\n", b"abc"),
                                 post(CHUNKED, b"5\r\nab"), post(b"Expect: 100-continue\r\nContent-Length: 10\r\n")])
@pytest.mark.parametrize("leave", [socket.socket.close, reset], ids=["close", "reset"])
def test_client_leaves_in_the_middle_of_a_request(server, raw, leave):
    s = server.connect()
    s.sendall(raw)
    time.sleep(0.01)
    leave(s)
    server.wait_stats(lambda stats: stats["open"] == 1)


def test_half_closed_client_gets_an_answer_that_is_ready(server):
    with server.connect() as s:
        s.sendall(get(b"GET /hello HTTP/1.1") + get(b"GET /blob?bytes=20000000 HTTP/1.1"))
        s.shutdown(socket.SHUT_WR)
        time.sleep(0.1)  # more than the kernel's buffers hold, so that some of it is still queued when the end is seen
        reader = Reader(s)
        assert reader.answer()[2] == b"hello\n"
        assert len(reader.answer()[2]) == 20000000
        assert reader.at_end()


def test_an_exchange_ends_once(start):
    """Also where its client sends no more and its answer is the last."""
    server = start()
    with server.connect() as s:
        s.sendall(get(b"GET /blob?bytes=20000000 HTTP/1.1", b"Connection: close\r\n"))
        s.shutdown(socket.SHUT_WR)
        time.sleep(0.1)  # as above
        assert len(Reader(s).answer()[2]) == 20000000
    stats = server.wait_stats(lambda stats: stats["open"] == 1)
    assert stats["done"] == stats["requests"] - 1 and stats["gone"] == 0  # but for that of the stats


def test_error_survives_unread_bytes(server):
    """An answer to a client that is still sending must not be lost to a reset."""
    for _ in range(5):
        with server.connect() as s:
            s.sendall(post(b"Content-Length: 5000000\r\n"))
            s.sendall(b"z" * 5000000)
            status, headers, _ = Reader(s).answer()
            assert status == 413 and headers[b"connection"] == b"close"


def test_linger_is_bounded(server):
    """A refused client that neither closes nor stops is cut off after a second or so."""
    with server.connect() as s:
        begin = time.monotonic()
        s.sendall(b"rubbish\r\n")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            while time.monotonic() - begin < PATIENCE:
                s.sendall(b"more")
                time.sleep(0.02)
        assert time.monotonic() - begin > 0.5


# ---- many connections ----------------------------------------------------------------------------------------------------


def test_a_thousand_connections_in_a_row(server):
    for i in range(1000):
        with server.connect() as s:
            s.sendall(get(b"GET /hello HTTP/1.1", b"Connection: close\r\n"))
            assert read_all(s).endswith(b"hello\n"), i
    server.wait_stats(lambda stats: stats["open"] == 1)


def test_a_thousand_connections_at_once(start):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    server = start()
    clients = [server.connect() for _ in range(1000)]
    for s in clients:
        s.sendall(get(b"GET /hello HTTP/1.1"))
    for s in clients:
        assert Reader(s).answer()[2] == b"hello\n"
    assert server.stats()["open"] == 1001
    for s in clients:
        s.close()
    server.wait_stats(lambda stats: stats["open"] == 1)


def test_parallel_clients(server):
    failures = []

    def client(number):
        with requests.Session() as session:
            for i in range(50):
                text = f"{number} {i} " * 50
                if session.post(server.url("/echo"), data=text, timeout=300).text != text:
                    failures.append((number, i))

    threads = [threading.Thread(target=client, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == []


def test_connection_limit(start):
    server = start("--max-connections", 3)
    held = [server.connect() for _ in range(3)]
    for s in held:
        s.sendall(get(b"GET /hello HTTP/1.1") + b"GET /hello HTTP/1.1\r\n")  # an idle one would make room
        Reader(s).answer()
    for _ in range(5):
        with server.connect() as s:
            s.sendall(get(b"GET /hello HTTP/1.1"))
            reader = Reader(s)
            status, headers, body = reader.answer()
            assert status == 503 and headers[b"retry-after"] == b"1" and headers[b"connection"] == b"close"
            assert json.loads(body)["error_type"] == "overloaded"
            assert reader.at_end()
    held.pop().close()
    server.wait_stats(lambda stats: stats.get("rejected", 0) >= 5)  # this itself is refused until the place is free
    for s in held:  # those that were in are still served
        s.sendall(HOST + b"\r\n")
        assert Reader(s).answer()[2] == b"hello\n"
        s.close()


@pytest.mark.parametrize("framing", [b"Content-Length: 60000\r\n", CHUNKED])
def test_bodies_together(start, framing):
    """One body fits, two at a time do not; when the first is gone there is room again."""
    server = start("--max-buffered", 100000, "--max-body", 80000)
    begin = b"POST /echo HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n"
    if framing == CHUNKED:
        begin += b"ea60\r\n"
    end = b"\r\n0\r\n\r\n" if framing == CHUNKED else b""
    with server.connect() as first, server.connect() as second:
        first.sendall(begin + b"a" * 59999)
        server.wait_stats(lambda stats: stats["bytes_in"] >= len(begin) + 59999)
        second.sendall(begin + b"b" * 59999)
        status, headers, body = Reader(second).answer()
        assert status == 503 and headers[b"retry-after"] == b"1"
        assert json.loads(body)["error_type"] == "overloaded"
        first.sendall(b"a" + end)
        assert Reader(first).answer()[0] == 200
    with server.connect() as third:
        third.sendall(begin + b"c" * 60000 + end)
        assert Reader(third).answer()[0] == 200


def test_flood_beyond_the_limit(start):
    """More refusals at a time than the server is willing to write: it must not hold on to them."""
    server = start("--max-connections", 1)
    with server.connect() as held:
        held.sendall(get(b"GET /hello HTTP/1.1") + b"GET /hello HTTP/1.1\r\n")
        Reader(held).answer()
        clients = [server.connect() for _ in range(200)]
        outcomes = []
        for s in clients:
            try:
                outcomes.append(Reader(s).answer()[0])
            except (EOFError, ConnectionResetError):
                outcomes.append(0)
            s.close()
        assert set(outcomes) <= {503, 0} and outcomes.count(503) >= 64
        held.sendall(HOST + b"\r\n")
        assert Reader(held).answer()[0] == 200


def test_idle_connections_make_room(start):
    """The one that has been idle for longest; not one that has yet to say what it wants."""
    server = start("--max-connections", 3)
    held = [server.connect() for _ in range(3)]
    for s in [*held, held[0]]:
        s.sendall(get(b"GET /hello HTTP/1.1"))
        assert Reader(s).answer()[0] == 200
    with server.connect() as s:
        s.sendall(get(b"GET /hello HTTP/1.1"))
        assert Reader(s).answer()[0] == 200
        assert held[1].recv(1) == b""
        for other in (held[0], held[2]):
            other.sendall(get(b"GET /hello HTTP/1.1"))
            assert Reader(other).answer()[0] == 200
    for s in held:
        s.close()
    server = start("--max-connections", 1)
    with server.connect() as silent, server.connect() as s:
        assert Reader(s).answer()[0] == 503
        silent.sendall(get(b"GET /hello HTTP/1.1"))
        assert Reader(silent).answer()[0] == 200


def cpu_time(server):
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def switches(server):
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", text, re.M)[1])


def test_out_of_file_descriptors(start):
    server = start("--nofile", 32)
    clients = [server.connect() for _ in range(60)]
    time.sleep(0.2)
    before = cpu_time(server)
    time.sleep(1)
    assert cpu_time(server) - before < 0.3  # it does not spin
    for s in clients:
        s.close()
    time.sleep(0.1)
    serves(server)


def test_idle_connections_make_room_for_descriptors(start):
    """The last descriptors are not for those who hold connections: the longest idle ones go, and it is counted."""
    server = start("--nofile", 256)
    held = [server.connect() for _ in range(160)]  # 192 less what the process has open
    for s in held:
        s.sendall(get(b"GET /hello HTTP/1.1"))
        assert Reader(s).answer()[0] == 200
    more = [server.connect() for _ in range(60)]
    for s in more:
        s.sendall(get(b"GET /hello HTTP/1.1"))
        assert Reader(s).answer()[0] == 200  # each of them, and none is reset
    stats = server.stats()
    assert stats["evicted"] >= 10 and stats["rejected"] == 0
    assert held[0].recv(1) == b""
    for s in held + more:
        s.close()


def test_descriptors_that_are_all_at_work(start):
    """Nobody is idle: a client gets a 503 that says so, not a reset."""
    server = start("--nofile", 256, "--header-timeout", 60000)
    held = [server.connect() for _ in range(200)]
    for s in held:
        s.sendall(b"GET /hello HTTP/1.1\r\n")
    outcomes = []
    for s in held[-8:]:
        s.sendall(HOST + b"\r\n")
        outcomes.append(Reader(s).answer()[0])
    assert set(outcomes) == {503}
    held[0].sendall(HOST + b"\r\n")
    assert Reader(held[0]).answer()[0] == 200
    for s in held:
        s.close()
    server.wait_stats(lambda stats: stats["open"] <= 1)


def test_idle_connections_cost_nothing(start):
    server = start()
    clients = [server.connect() for _ in range(100)]
    for s in clients:
        s.sendall(get(b"GET /hello HTTP/1.1"))
        Reader(s).answer()
    def test(pace):  # of what it did before, some may be left, and its time be counted late
        time.sleep(0.2 * pace)
        before, woken = cpu_time(server), switches(server)
        time.sleep(1)
        assert cpu_time(server) == before
        assert switches(server) - woken <= 2
    at_some_pace(test)
    for s in clients:
        s.close()


# ---- the end -------------------------------------------------------------------------------------------------------------


def test_drain(start):
    def test(pace):  # the two that take a while have to be at work when it begins
        server = start("--idle-timeout", 60000)
        idle, running, streaming, reading = (server.connect() for _ in range(4))
        running.sendall(get(b"GET /later?ms=%d HTTP/1.1" % (400 * pace)))
        streaming.sendall(get(b"GET /slow?n=8&ms=%d HTTP/1.1" % (50 * pace)))
        reading.sendall(b"GET /hello HTTP/1.1\r\n")
        idle.sendall(get(b"GET /hello HTTP/1.1"))
        Reader(idle).answer()  # the others came before
        server.process.send_signal(signal.SIGTERM)
        assert read_all(idle) == b""
        with pytest.raises(ConnectionRefusedError):
            server.connect()
        reading.sendall(HOST + b"\r\n")
        status, headers, body = Reader(reading).answer()
        assert (status, headers[b"connection"], body) == (200, b"close", b"hello\n")
        status, headers, body = Reader(running).answer()
        assert (status, headers[b"connection"], body) == (200, b"close", b"later\n")
        reader = Reader(streaming)
        _, _, body = reader.answer()
        assert body.endswith(b"data: 1\n\n") and reader.at_end()
        for s in (idle, running, streaming, reading):
            s.close()
        assert server.process.stdout.readline() == "drained\n"
        server.process.wait(timeout=300)
    at_some_pace(test)


def test_drain_when_nobody_is_there(start):
    server = start()
    assert "drained" in server.stop(signal.SIGTERM)


def test_close_in_the_middle_of_everything(start):
    server = start()
    clients = [server.connect(rcvbuf=4096) for _ in range(7)]
    for s, raw in zip(clients, [b"", b"GET /", post(b"Content-Length: 9\r\n", b"a"), get(b"GET /never HTTP/1.1"),
                                get(b"GET /slow?n=1000 HTTP/1.1"), get(b"GET /big?bytes=1000000000 HTTP/1.1"),
                                b"rubbish\r\n\r\n"]):
        s.sendall(raw)
    time.sleep(0.1)
    server.stop(signal.SIGINT)
    for s in clients:
        s.close()


# ---- addresses and clients -------------------------------------------------------------------------------------------------


def test_ipv6(start):
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    server = start(host="::1")
    status, _, body, _ = exchange(server, get(b"GET /hello HTTP/1.1"))
    assert (status, body) == (200, b"hello\n")


@pytest.mark.parametrize("host, port, message", [("not-a-host.invalid", 0, "cannot listen on \"not-a-host.invalid\""),
                                                 ("127.0.0.1", None, "Address already in use"),
                                                 ("192.0.2.1", 0, "Cannot assign requested address")])
def test_cannot_listen(server, host, port, message):
    command = [binary(), "--host", host, "--port", str(server.port if port is None else port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and message in done.stderr


def test_http_client(server):
    connection = http.client.HTTPConnection(server.host, server.port, timeout=300)
    for _ in range(3):
        connection.request("POST", "/echo", body=iter([b"ab", b"c"]), encode_chunked=True,
                           headers={"Transfer-Encoding": "chunked"})
        assert connection.getresponse().read() == b"abc"
    connection.close()


def test_http_client_reads_the_error_after_sending_too_much(server):
    connection = http.client.HTTPConnection(server.host, server.port, timeout=300)
    connection.request("POST", "/echo", body=b"z" * 3000000)
    assert connection.getresponse().status == 413
    connection.close()
