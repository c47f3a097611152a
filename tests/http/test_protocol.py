"""The HTTP protocol, from outside: raw bytes in, what comes back, and does the server still serve afterwards.

Needs TANDEM_BUILD_DIR (the meson build directory); runs echo_server from there on a free port.
"""

import json
import socket
import subprocess
import threading
import time

import pytest
import requests
from echo import (  # noqa: F401 (fixtures)
    CHUNKED, HOST, Reader, binary, exchange, get, post, read_all, serves, server, start,
)

# ---- hostile and odd requests: raw bytes, expected status; all of these close ------------------------------------------

BAD = {
    # framing: smuggling
    "cl and te": (post(b"Content-Length: 5\r\n" + CHUNKED, b"0\r\n\r\n"), 400),
    "te and cl": (post(CHUNKED + b"Content-Length: 5\r\n", b"0\r\n\r\n"), 400),
    "two different cl": (post(b"Content-Length: 5\r\nContent-Length: 6\r\n", b"hello"), 400),
    "two equal cl": (post(b"Content-Length: 5\r\nContent-Length: 5\r\n", b"hello"), 400),
    "cl list": (post(b"Content-Length: 5, 5\r\n", b"hello"), 400),
    "cl plus": (post(b"Content-Length: +5\r\n", b"hello"), 400),
    "cl minus": (post(b"Content-Length: -5\r\n", b"hello"), 400),
    "cl hex": (post(b"Content-Length: 0x5\r\n", b"hello"), 400),
    "cl words": (post(b"Content-Length: five\r\n", b"hello"), 400),
    "cl empty": (post(b"Content-Length:\r\n", b"hello"), 400),
    "cl inner space": (post(b"Content-Length: 1 2\r\n", b"hello"), 400),
    "cl float": (post(b"Content-Length: 5.0\r\n", b"hello"), 400),
    "cl overflow": (post(b"Content-Length: 18446744073709551621\r\n", b"hello"), 400),
    "cl overflow far": (post(b"Content-Length: " + b"9" * 60 + b"\r\n", b"hello"), 400),
    "te gzip": (post(b"Transfer-Encoding: gzip\r\n"), (400, 501)),
    "te gzip, chunked": (post(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"), 501),
    "te chunked, gzip": (post(b"Transfer-Encoding: chunked, gzip\r\n"), (400, 501)),
    "te chunked twice": (post(CHUNKED + CHUNKED, b"0\r\n\r\n"), (400, 501)),
    "te chunked, chunked": (post(b"Transfer-Encoding: chunked, chunked\r\n", b"0\r\n\r\n"), (400, 501)),
    "te identity": (post(b"Transfer-Encoding: identity\r\n"), (400, 501)),
    "te xchunked": (post(b"Transfer-Encoding: xchunked\r\n"), (400, 501)),
    "te quoted": (post(b'Transfer-Encoding: "chunked"\r\n'), (400, 501)),
    "te vertical tab": (post(b"Transfer-Encoding: \x0bchunked\r\n"), 400),
    "te in 1.0": (post(CHUNKED, b"0\r\n\r\n", version=b"HTTP/1.0"), 400),
    "te space before colon": (post(b"Transfer-Encoding : chunked\r\n", b"0\r\n\r\n"), 400),
    "te folded": (post(b"Transfer-Encoding:\r\n chunked\r\n", b"0\r\n\r\n"), 400),
    # lines
    "obs-fold": (get(headers=b"X-Test: a\r\n b\r\n"), 400),
    "fold first": (b"GET / HTTP/1.1\r\n Host: x\r\n\r\n", 400),
    "space before colon": (get(headers=b"X-Test : a\r\n"), 400),
    "tab before colon": (get(headers=b"X-Test\t: a\r\n"), 400),
    "no colon": (get(headers=b"X-Test\r\n"), 400),
    "empty name": (get(headers=b": a\r\n"), 400),
    "bare lf everywhere": (b"GET / HTTP/1.1\nHost: x\n\n", 400),
    "bare lf in header": (get(headers=b"X-Test: a\nX-Other: b\r\n"), 400),
    "bare cr in header": (get(headers=b"X-Test: a\rX-Other: b\r\n"), 400),
    "bare lf ends the head": (b"GET / HTTP/1.1\r\nHost: x\r\n\n", 400),
    "nul in name": (get(headers=b"X-\0Test: a\r\n"), 400),
    "nul in value": (get(headers=b"X-Test: a\0b\r\n"), 400),
    "control in value": (get(headers=b"X-Test: a\x01b\r\n"), 400),
    "delete in value": (get(headers=b"X-Test: a\x7fb\r\n"), 400),
    "utf-8 in name": (get(headers="X-Tést: a\r\n".encode()), 400),
    "quoted name": (get(headers=b'"X": a\r\n'), 400),
    # the request line
    "http/0.9": (b"GET /\r\n\r\n", 400),
    "two spaces": (get(b"GET  / HTTP/1.1"), 400),
    "space in target": (get(b"GET /a b HTTP/1.1"), 400),
    "space after version": (get(b"GET / HTTP/1.1 "), 400),
    "tab as separator": (get(b"GET\t/\tHTTP/1.1"), 400),
    "http/2.0": (get(b"GET / HTTP/2.0"), 505),
    "http/1.2": (get(b"GET / HTTP/1.2"), 505),
    "http/3": (get(b"GET / HTTP/3"), 400),
    "lower case version": (get(b"GET / http/1.1"), 400),
    "other protocol": (get(b"GET / ICE/1.0"), 400),
    "unknown method": (get(b"BREW / HTTP/1.1"), 501),
    "lower case method": (get(b"get / HTTP/1.1"), (400, 501)),
    "method of symbols": (get(b"@@ / HTTP/1.1"), 400),
    "nul in target": (get(b"GET /\0 HTTP/1.1"), 400),
    "raw utf-8 in target": (get("GET /é HTTP/1.1".encode()), 400),
    "delete in target": (get(b"GET /\x7f HTTP/1.1"), 400),
    "fragment": (get(b"GET /#a HTTP/1.1"), 400),
    "percent at end": (get(b"GET /info% HTTP/1.1"), 400),
    "percent short": (get(b"GET /info%4 HTTP/1.1"), 400),
    "percent not hex": (get(b"GET /%zz HTTP/1.1"), 400),
    "percent nul": (get(b"GET /%00 HTTP/1.1"), 400),
    "relative target": (get(b"GET info HTTP/1.1"), 400),
    "star with get": (get(b"GET * HTTP/1.1"), 400),
    "empty authority": (get(b"GET http:///info HTTP/1.1"), 400),
    "other scheme": (get(b"GET ftp://x/info HTTP/1.1"), 400),
    "connect": (get(b"CONNECT example.org:443 HTTP/1.1"), 405),
    # Host
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (get(headers=b"Host: other\r\n"), 400),
    "two equal hosts": (get(headers=HOST), 400),
    "host list": (b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400),
    "host with path": (b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
    # chunks
    "chunk size not hex": (post(CHUNKED, b"xyz\r\n"), 400),
    "chunk size empty": (post(CHUNKED, b"\r\n"), 400),
    "chunk size minus": (post(CHUNKED, b"-5\r\nhello\r\n"), 400),
    "chunk size 0x": (post(CHUNKED, b"0x5\r\nhello\r\n"), 400),
    "chunk size space": (post(CHUNKED, b" 5\r\nhello\r\n"), 400),
    "chunk size overflow": (post(CHUNKED, b"fffffffffffffffff\r\n"), 400),
    "chunk size wraps": (post(CHUNKED, b"5\r\nhello\r\nffffffffffffffff\r\n"), 413),
    "chunk bare lf": (post(CHUNKED, b"5\nhello\r\n0\r\n\r\n"), 400),
    "chunk too long": (post(CHUNKED, b"5\r\nhello!\r\n0\r\n\r\n"), 400),
    "chunk data bare lf": (post(CHUNKED, b"5\r\nhello\n0\r\n\r\n"), 400),
    "chunk extension control": (post(CHUNKED, b"5;a=\x01\r\nhello\r\n0\r\n\r\n"), 400),
    "chunk extension lf": (post(CHUNKED, b"5;a\nhello\r\n0\r\n\r\n"), 400),
    "chunk extension long": (post(CHUNKED, b"5;" + b"a" * 20000 + b"\r\nhello\r\n0\r\n\r\n"), 431),
    "trailer no colon": (post(CHUNKED, b"0\r\nbad\r\n\r\n"), 400),
    "trailer folded": (post(CHUNKED, b"0\r\n x: y\r\n\r\n"), 400),
    "trailers long": (post(CHUNKED, b"0\r\nx: " + b"a" * 20000 + b"\r\n\r\n"), 431),
    "trailers many": (post(CHUNKED, b"0\r\n" + b"x: y\r\n" * 101 + b"\r\n"), 431),
    # limits
    "long target": (get(b"GET /" + b"a" * 20000 + b" HTTP/1.1"), 414),
    "long request line, no end": (b"GET /" + b"a" * 40000, 414),
    "long header": (get(headers=b"X-Test: " + b"a" * 20000 + b"\r\n"), 431),
    "long header name": (get(headers=b"X" * 20000 + b": a\r\n"), 431),
    "many headers": (get(headers=b"X: y\r\n" * 101), 431),
    "empty lines for ever": (b"\r\n" * 20000, 414),
    "body too large": (post(b"Content-Length: 100001\r\n"), 413),
    "body far too large": (post(b"Content-Length: 18446744073709551615\r\n"), 413),
    "body over the route's limit": (post(b"Content-Length: 101\r\n", path=b"/small"), 413),
    "chunks too large": (post(CHUNKED, b"186a1\r\n"), 413),
    "chunks add up": (post(CHUNKED, b"40\r\n" + b"a" * 64 + b"\r\n40\r\n", path=b"/small"), 413),
    # Expect
    "expectation unknown": (post(b"Expect: coffee\r\nContent-Length: 5\r\n"), 417),
    "expect twice": (post(b"Expect: 100-continue\r\nExpect: 100-continue\r\nContent-Length: 5\r\n"), 417),
    "expect, too large": (post(b"Expect: 100-continue\r\nContent-Length: 100001\r\n"), 413),
    "expect, no such path": (post(b"Expect: 100-continue\r\nContent-Length: 5\r\n", path=b"/nope"), 404),
    "expect, method not allowed": (post(b"Expect: 100-continue\r\nContent-Length: 5\r\n", path=b"/hello"), 405),
    # what nobody decompresses
    "gzip": (post(b"Content-Encoding: gzip\r\nContent-Length: 5\r\n", b"\x1f\x8b\x08\0\0"), 415),
    "gzip, chunked": (post(CHUNKED + b"Content-Encoding: br\r\n", b"0\r\n\r\n"), 415),
    "gzip over an identity": (post(b"Content-Encoding: identity\r\ncontent-encoding: x-gzip\r\nContent-Length: 5\r\n"), 415),
    "gzip, expect": (post(b"Content-Encoding: gzip\r\nExpect: 100-continue\r\nContent-Length: 5\r\n"), 415),
    # not HTTP/1.1 at all
    "http/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "tls hello": (bytes.fromhex("16030100c8010000c40303") + bytes(range(256)), 400),
    "ssh": (b"SSH-2.0-OpenSSH_9.2\r\n", 400),
    "zeroes": (b"\0" * 64, 400),
    "high bytes": (b"\xff" * 64, 400),
    "blank": (b" \r\n\r\n", 400),
    "json": (b'{"inputs": "x"}\r\n\r\n', 400),
}

ERROR_TYPES = {415: "unsupported", 400: "validation", 404: "not_found", 405: "method_not_allowed", 413: "too_large", 414: "too_large",
               417: "validation", 431: "too_large", 501: "unsupported", 505: "unsupported"}


@pytest.mark.parametrize("name", BAD)
def test_refused(server, name):
    raw, expected = BAD[name]
    status, headers, body, closed = exchange(server, raw)
    assert status in (expected if isinstance(expected, tuple) else (expected,)), body
    assert headers[b"content-type"] == b"application/json"
    answer = json.loads(body)
    assert set(answer) == {"error", "error_type"} and len(answer["error"]) > 8
    assert answer["error_type"] == ERROR_TYPES[status]
    assert status != 405 or b"GET" in headers[b"allow"]
    assert closed
    serves(server)


@pytest.mark.parametrize("name", [n for n in BAD if len(BAD[n][0]) < 400])
def test_refused_byte_by_byte(server, name):
    """The verdict does not depend on how the bytes are cut."""
    raw, expected = BAD[name]
    with server.connect() as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(len(raw)):
            try:
                s.send(raw[i:i + 1])
            except (BrokenPipeError, ConnectionResetError):
                break
        status, _, _ = Reader(s).answer()
        assert status in (expected if isinstance(expected, tuple) else (expected,))


# ---- odd but good requests: the connection goes on -----------------------------------------------------------------------

GOOD = {
    "plain": (get(), {"method": "GET", "path": "/info", "query": "", "host": "test"}),
    "query": (get(b"GET /info?a=b%20c&d=? HTTP/1.1"), {"path": "/info", "query": "a=b%20c&d=?"}),
    "bad percent in query": (get(b"GET /info?%zz%00 HTTP/1.1"), {"query": "%zz%00"}),
    "percent decoding": (get(b"GET /%69nfo HTTP/1.1"), {"path": "/info"}),
    "decoded once": (get(b"GET /files/%2525 HTTP/1.1"), {"path": "/files/%25"}),
    "decoded utf-8": (get(b"GET /files/%C3%A9 HTTP/1.1"), {"path": "/files/é"}),
    "decoded bad utf-8": (get(b"GET /files/%ff HTTP/1.1"), {"path": "/files/\ufffd"}),
    "decoded question mark": (get(b"GET /files/%3fa?b HTTP/1.1"), {"path": "/files/?a", "query": "b"}),
    "dot segments": (get(b"GET /files/../info/./x HTTP/1.1"), {"path": "/files/../info/./x"}),
    "decoded slash": (get(b"GET /files/..%2f..%2fetc HTTP/1.1"), {"path": "/files/../../etc"}),
    "absolute form": (get(b"GET http://example.org:80/info?x HTTP/1.1"), {"path": "/info", "query": "x"}),
    "absolute form, upper case": (get(b"GET HTTP://example.org/info HTTP/1.1"), {"path": "/info"}),
    "header case": (get(headers=b"x-tEsT: Value\r\n"), {"x_test": "Value"}),
    "header white space": (get(headers=b"X-Test: \t a  b \t \r\n"), {"x_test": "a  b"}),
    "header no space": (get(headers=b"X-Test:a\r\n"), {"x_test": "a"}),
    "header empty": (get(headers=b"X-Test:\r\n"), {"x_test": ""}),
    "header only white space": (get(headers=b"X-Test:   \r\n"), {"x_test": ""}),
    "header with colon": (get(headers=b"X-Test: a:b\r\n"), {"x_test": "a:b"}),
    "header repeated": (get(headers=b"X-Test: 1\r\nX-Test: 2\r\n"), {"x_test": "1"}),
    "header latin-1": (get(headers=b"X-Test: \xe9\r\n"), {"x_test": "\ufffd"}),
    "empty host": (b"GET /info HTTP/1.1\r\nHost:\r\n\r\n", {"host": ""}),
    "100 headers": (get(headers=b"X: y\r\n" * 99), {"path": "/info"}),
    "leading empty lines": (b"\r\n\r\n" + get(), {"path": "/info"}),
    "upgrade ignored": (get(headers=b"Connection: Upgrade\r\nUpgrade: h2c\r\n"), {"path": "/info"}),
    "websocket ignored": (get(headers=b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"), {"path": "/info"}),
    "upgrade with body": (post(b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n", b"ab", b"/info"),
                          {"body": "ab"}),
    "get with body": (get(headers=b"Content-Length: 3\r\n") + b"abc", {"body": "abc"}),
    "length zero": (post(b"Content-Length: 0\r\n", path=b"/info"), {"body": ""}),
    "length leading zeros": (post(b"Content-Length: 0003\r\n", b"abc", b"/info"), {"body": "abc"}),
    "length trailing space": (post(b"Content-Length: 3  \r\n", b"abc", b"/info"), {"body": "abc"}),
    "no length": (post(b"", path=b"/info"), {"body": ""}),
    "chunked": (post(CHUNKED, b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", b"/info"), {"body": "abcde"}),
    "chunked upper case": (post(b"TRANSFER-ENCODING: Chunked\r\n", b"A\r\n0123456789\r\n0\r\n\r\n", b"/info"),
                           {"body": "0123456789"}),
    "chunked leading zeros": (post(CHUNKED, b"0003\r\nabc\r\n000\r\n\r\n", b"/info"), {"body": "abc"}),
    "chunked empty": (post(CHUNKED, b"0\r\n\r\n", b"/info"), {"body": ""}),
    "chunk extensions": (post(CHUNKED, b'3;a=b;c="d"\r\nabc\r\n0;last\r\n\r\n', b"/info"), {"body": "abc"}),
    "trailers": (post(CHUNKED, b"3\r\nabc\r\n0\r\nX-Test: no\r\nX: y\r\n\r\n", b"/info"), {"body": "abc", "x_test": None}),
    "body is a request": (post(b"Content-Length: 29\r\n", b"GET /smuggled HTTP/1.1\r\nA: b\r\n"[:29], b"/info"),
                          {"body": "GET /smuggled HTTP/1.1\r\nA: b\r\n"[:29]}),
    "put": (get(b"PUT /info HTTP/1.1"), {"method": "PUT"}),
    "delete": (get(b"DELETE /info HTTP/1.1"), {"method": "DELETE"}),
}


@pytest.mark.parametrize("name", GOOD)
def test_accepted(server, name):
    raw, expected = GOOD[name]
    with server.connect() as s:
        reader = Reader(s)
        for pieces in ([raw], [raw[i:i + 1] for i in range(len(raw))]):
            for piece in pieces:
                s.send(piece)
            status, headers, body = reader.answer()
            assert status == 200, body
            got = json.loads(body)
            assert {k: got[k] for k in expected} == expected
            assert headers[b"x-odd"] == b"ab" and b"date" in headers
            assert headers[b"access-control-allow-origin"] == b"*"
            assert b"connection" not in headers


@pytest.mark.parametrize("raw, status, allow", [
    (get(b"GET /nope HTTP/1.1"), 404, None),
    (get(b"GET /info/ HTTP/1.1"), 404, None),
    (get(b"GET /INFO HTTP/1.1"), 404, None),
    (get(b"GET /files HTTP/1.1"), 404, None),
    (post(b"Content-Length: 5\r\n", b"hello", b"/nope"), 404, None),
    (post(b"Content-Length: 5\r\n", b"hello", b"/hello"), 405, b"GET, HEAD, OPTIONS"),
    (get(b"GET /echo HTTP/1.1"), 405, b"POST, OPTIONS"),
    (get(b"HEAD /echo HTTP/1.1"), 405, b"POST, OPTIONS"),
    (get(b"PATCH /info HTTP/1.1"), 405, b"GET, HEAD, POST, PUT, DELETE, OPTIONS"),
    (get(b"TRACE /info HTTP/1.1"), 405, b"GET, HEAD, POST, PUT, DELETE, OPTIONS"),
    (get(b"GET /fail HTTP/1.1"), 422, None),
])
def test_errors_that_keep_the_connection(server, raw, status, allow):
    with server.connect() as s:
        reader = Reader(s)
        for _ in range(2):
            s.sendall(raw)
            got, headers, body = reader.answer(head_only=raw.startswith(b"HEAD"))
            assert got == status and headers.get(b"allow") == allow
            assert raw.startswith(b"HEAD") or set(json.loads(body)) == {"error", "error_type"}


# ---- keep-alive, versions, methods -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version, connection, keeps, says", [
    (b"HTTP/1.1", b"", True, None),
    (b"HTTP/1.1", b"Connection: close\r\n", False, b"close"),
    (b"HTTP/1.1", b"Connection: Close\r\n", False, b"close"),
    (b"HTTP/1.1", b"Connection: foo, close\r\n", False, b"close"),
    (b"HTTP/1.0", b"", False, b"close"),
    (b"HTTP/1.0", b"Connection: keep-alive\r\n", True, b"keep-alive"),
    (b"HTTP/1.0", b"Connection: close\r\n", False, b"close"),
])
def test_keep_alive(server, version, connection, keeps, says):
    with server.connect() as s:
        reader = Reader(s)
        for _ in range(2 if keeps else 1):
            s.sendall(b"GET /hello " + version + b"\r\n" + HOST + connection + b"\r\n")
            status, headers, body = reader.answer()
            assert (status, body, headers.get(b"connection")) == (200, b"hello\n", says)
        assert keeps or reader.at_end()


def test_http10_without_host(server):
    status, _, body, closed = exchange(server, b"GET /hello HTTP/1.0\r\n\r\n")
    assert (status, body, closed) == (200, b"hello\n", True)


def test_http10_stream_ends_with_the_connection(server):
    with server.connect() as s:
        s.sendall(b"GET /burst?n=3 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        head, body = read_all(s).split(b"\r\n\r\n", 1)
        assert b"chunked" not in head and b"Connection: close" in head
        assert body == b"data: x\n\n" * 3


@pytest.mark.parametrize("path, length", [(b"/hello", b"6"), (b"/info", None), (b"/burst", None), (b"/nope", None)])
def test_head(server, path, length):
    with server.connect() as s:
        reader = Reader(s)
        s.sendall(get(b"HEAD " + path + b" HTTP/1.1") + get(b"GET /hello HTTP/1.1"))
        status, headers, _ = reader.answer(head_only=True)
        assert status == (404 if path == b"/nope" else 200)
        assert length is None or headers[b"content-length"] == length
        assert reader.answer()[2] == b"hello\n"


def test_no_content(server):
    with server.connect() as s:
        reader = Reader(s)
        s.sendall(get(b"GET /empty HTTP/1.1") * 2)
        for _ in range(2):
            status, headers, _ = reader.answer()
            assert status == 204 and b"content-length" not in headers and b"transfer-encoding" not in headers


def test_error_text_is_escaped(server):
    answer = requests.get(server.url("/fail"), timeout=300)
    assert answer.status_code == 422
    assert answer.json() == {"error": 'bad "/fail"\n', "error_type": "validation"}
    assert requests.get(server.url("/%22%0a%ff"), timeout=300).json()["error"] == '/"\n\ufffd: no such path'


def test_content_encoding(server):
    """Named in the shape of the route's errors, with what is accepted; and no reason to refuse where there is no body."""
    status, headers, body, _ = exchange(server, post(b"Content-Encoding: gzip\r\nContent-Length: 2\r\n", b"\x1f\x8b", path=b"/v1/x"))
    assert status == 415 and headers[b"accept-encoding"] == b"identity"
    assert json.loads(body)["error"]["message"].startswith('Content-Encoding: "gzip" is not supported')
    assert exchange(server, post(b"Content-Encoding: identity\r\nContent-Length: 2\r\n", b"ab"))[0] == 200
    assert exchange(server, get(headers=b"Content-Encoding: gzip\r\n"))[0] == 200


# ---- OPTIONS and CORS -----------------------------------------------------------------------------------------------------


def test_preflight(server):
    status, headers, _, _ = exchange(server, get(
        b"OPTIONS /echo HTTP/1.1", b"Origin: http://a.example\r\nAccess-Control-Request-Method: POST\r\n"
        b"Access-Control-Request-Headers: authorization, x-thing\r\n"))
    assert status == 204
    assert headers[b"access-control-allow-origin"] == b"*"
    assert headers[b"access-control-allow-methods"] == b"POST, OPTIONS"
    assert headers[b"access-control-allow-headers"] == b"authorization, x-thing"
    assert int(headers[b"access-control-max-age"]) > 0
    assert headers[b"allow"] == b"POST, OPTIONS"


def test_preflight_does_not_echo_rubbish(server):
    _, headers, _, _ = exchange(server, get(b"OPTIONS /echo HTTP/1.1", b"Access-Control-Request-Headers: <b>\r\n"))
    assert headers[b"access-control-allow-headers"] == b"Authorization, Content-Type"


def test_options_star_and_unknown(server):
    status, headers, _, _ = exchange(server, get(b"OPTIONS * HTTP/1.1"))
    assert status == 204 and b"POST" in headers[b"allow"]
    assert exchange(server, get(b"OPTIONS /nope HTTP/1.1"))[0] == 404


@pytest.mark.parametrize("origin, vary", [("https://a.example", b"Origin"), ("", None)])
def test_cors_origin(start, origin, vary):
    server = start("--cors", origin)
    _, headers, _, _ = exchange(server, get(b"GET /hello HTTP/1.1"))
    assert headers.get(b"access-control-allow-origin", b"").decode() == origin
    assert headers.get(b"vary") == vary
    assert (b"access-control-max-age" in exchange(server, get(b"OPTIONS /hello HTTP/1.1"))[1]) == bool(origin)


# ---- Expect: 100-continue -------------------------------------------------------------------------------------------------


def test_continue(server):
    with server.connect() as s:
        reader = Reader(s)
        for _ in range(2):
            s.sendall(post(b"Expect: 100-continue\r\nContent-Length: 5\r\n"))
            assert reader.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue"
            s.sendall(b"hello")
            status, _, body = reader.answer()
            assert (status, body) == (200, b"hello")


def test_continue_chunked(server):
    with server.connect() as s:
        reader = Reader(s)
        s.sendall(post(b"expect: 100-Continue\r\n" + CHUNKED))
        assert reader.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue"
        s.sendall(b"5\r\nhello\r\n0\r\n\r\n")
        assert reader.answer()[2] == b"hello"


@pytest.mark.parametrize("raw", [
    post(b"Expect: 100-continue\r\nContent-Length: 5\r\n", b"hello"),                           # the body came along
    post(b"Expect: 100-continue\r\nContent-Length: 0\r\n"),                                     # there is none
    post(b"Expect: 100-continue\r\nContent-Length: 5\r\n", b"hello", version=b"HTTP/1.0"),      # 1.0 knows no 100
])
def test_no_needless_continue(server, raw):
    assert exchange(server, raw)[0] == 200


def test_curl_sends_a_large_body(server, tmp_path):
    body = tmp_path / "body"
    body.write_bytes(b"z" * 99999)
    command = ["curl", "-sS", "-m", "10", "-H", "Expect: 100-continue", "--data-binary", f"@{body}", server.url("/echo")]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b"z" * 99999
    body.write_bytes(b"z" * 200000)
    command += ["-o", "/dev/null", "-w", "%{http_code}"]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b"413"


# ---- pipelining ----------------------------------------------------------------------------------------------------------


def test_pipelined_answers_keep_their_order(server):
    with server.connect() as s:
        reader = Reader(s)
        requests_ = [get(b"GET /later?ms=30 HTTP/1.1"), get(b"GET /hello HTTP/1.1"), post(b"Content-Length: 3\r\n", b"abc"),
                     get(b"GET /slow?n=2&ms=5 HTTP/1.1"), post(CHUNKED, b"3\r\ndef\r\n0\r\n\r\n"),
                     get(b"GET /burst?n=1 HTTP/1.1")]
        s.sendall(b"".join(requests_))
        assert [reader.answer()[2] for _ in requests_] == [
            b"later\n", b"hello\n", b"abc", b"data: 2\n\ndata: 1\n\n", b"def", b"data: x\n\n"]


def test_many_pipelined(server):
    n = 3000
    with server.connect() as s:
        reader = Reader(s)
        sender = threading.Thread(target=s.sendall, args=(get(b"GET /hello HTTP/1.1") * n,))
        sender.start()
        for _ in range(n):
            assert reader.answer()[2] == b"hello\n"
        sender.join()


def test_pipelined_large_answers_do_not_pile_up(server):
    n = 200
    with server.connect(rcvbuf=4096) as s:
        reader = Reader(s)
        s.sendall(get(b"GET /blob?bytes=300000 HTTP/1.1") * n)
        time.sleep(0.1)
        assert server.stats()["most_queued"] < 1000000
        assert len(reader.answer()[2]) == 300000


def test_pipelined_bytes_are_bounded(start):
    """While a request runs the server takes 64 KiB of what follows, then the client has to wait."""
    server = start()
    with server.connect() as s:
        s.sendall(get(b"GET /never HTTP/1.1"))
        time.sleep(0.05)
        s.setblocking(False)
        sent = 0
        end = time.monotonic() + 0.5
        while time.monotonic() < end or sent <= 65536:
            try:
                sent += s.send(b"x" * 65536)
            except BlockingIOError:
                time.sleep(0.01)
        assert sent > 65536
        assert server.stats()["bytes_in"] < 65536 + 1000


def test_client_that_leaves_is_noticed_without_reading(start):
    server = start()
    with server.connect() as s:
        s.sendall(get(b"GET /never HTTP/1.1"))
        time.sleep(0.05)
        s.sendall(b"x" * 90000)
        time.sleep(0.1)
        assert server.stats()["bytes_in"] < 65536 + 1000
    server.wait_stats(lambda stats: stats["closed"] == 1 and stats["open"] == 1)


def test_bad_request_after_good_one(server):
    with server.connect() as s:
        reader = Reader(s)
        s.sendall(get(b"GET /later?ms=20 HTTP/1.1") + b"rubbish\r\n\r\n" + get())
        assert reader.answer()[2] == b"later\n"
        status, headers, _ = reader.answer()
        assert status == 400 and headers[b"connection"] == b"close"
        assert reader.at_end()


def test_nothing_is_read_after_close(server):
    with server.connect() as s:
        reader = Reader(s)
        s.sendall(get(headers=b"Connection: close\r\n") + get())
        assert reader.answer()[0] == 200
        assert reader.at_end()
