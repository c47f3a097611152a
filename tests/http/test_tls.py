"""TLS, from outside: real clients, odd clients, slow ones, ones that leave; large bodies and streams; certificates that
change.  The daemon where it matters who is served, echo_server (the same HTTP code) where limits are to be reached."""
import json
import signal
import socket
import ssl
import subprocess
import threading
import time

import httpx
import openai
import pytest
import requests
from conftest import MODEL, at_some_pace, wait_for
from echo import Reader, get
from echo import start as echo_start  # noqa: F401 (a fixture)
from keys import certificate, new_key
from sse import events, text_of

BODY = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 20, "ignore_eos": True}}


@pytest.fixture(scope="module")
def cert(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("tls") / "cert.pem")


@pytest.fixture(scope="module")
def https(start, cert):
    # hours: what opens hundreds of connections one by one may take long
    with start("--tls-cert", cert, "--tls-key", cert, "--header-timeout", 3600, "--idle-timeout", 3600, verify=cert) as s:
        assert s.url.startswith("https://") and f"curl -N {s.url}" in s.log()
        yield s
        assert s.process.poll() is None, s.log()[-4000:]
        s.wait_idle()


@pytest.fixture
def echo(echo_start, cert):  # noqa: F811
    return lambda *flags: echo_start(*flags, tls=cert)


def context(cert, **kw):
    c = ssl.create_default_context(cafile=cert)
    for name, value in kw.items():
        setattr(c, name, value)
    return c


def connect(server, cert, **kw):
    s = socket.create_connection(("127.0.0.1", server.port), timeout=300)
    return context(cert, **kw).wrap_socket(s, server_hostname="localhost")


class Link:
    """A TLS client whose bytes can be held back, cut and left out."""

    def __init__(self, server, cert, rcvbuf=None):
        self.sock = socket.socket()
        if rcvbuf:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        self.sock.settimeout(300)
        self.sock.connect(("127.0.0.1", server.port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.cut = False  # the end came without close_notify
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        asked = context(cert)
        asked.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF  # Python 3.11.2 (Debian 12) sets it: a cut would look like an end
        self.tls = asked.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def send_raw(self, piece=None):
        data = self.outgoing.read()
        for at in range(0, len(data), piece or len(data) or 1):
            self.sock.sendall(data[at:at + (piece or len(data))])

    def receive(self):
        data = self.sock.recv(65536)
        if data:
            self.incoming.write(data)
        else:
            self.incoming.write_eof()
        return bool(data)

    def handshake(self, piece=None):
        while True:
            try:
                self.tls.do_handshake()
                self.send_raw(piece)
                return
            except ssl.SSLWantReadError:
                self.send_raw(piece)
                self.receive()

    def sendall(self, data, piece=None):
        self.tls.write(data)
        self.send_raw(piece)

    def recv(self, n):
        while True:
            try:
                return self.tls.read(n)
            except ssl.SSLWantReadError:
                self.receive()
            except ssl.SSLError as e:  # SSLEOFError, but in Python 3.11.2
                if e.reason != "UNEXPECTED_EOF_WHILE_READING":
                    raise
                self.cut = True
                return b""

    def close(self):
        self.sock.close()


def alive(server):
    assert server.get("/health").status_code == 200


# ---- clients ---------------------------------------------------------------------------------------------------------

@pytest.mark.smoke
def test_requests_and_a_stream(https):
    whole = https.generate(**BODY["parameters"])["generated_text"]
    with requests.post(https.url + "/generate_stream", json=BODY, stream=True, timeout=300, verify=https.options["verify"]) as answer:
        got = list(events(answer))
    assert text_of(got) == whole and len(got) == 20


@pytest.mark.parametrize("flags", [[], ["--tls-max", "1.2"], ["--http1.0"], ["--no-alpn"], ["--http2"]])
def test_curl(https, cert, flags):
    """curl offers h2 beside http/1.1 where it can, and is content with the latter."""
    out = subprocess.run(["curl", "-sS", "-N", "--cacert", cert, *flags, https.url + "/generate", "-d", json.dumps({**BODY, "stream": True})],
                         capture_output=True, timeout=300, check=True).stdout
    assert out.count(b"data:") == 20 and b"generated_text" in out


def test_openai_client(https, cert):
    with openai.OpenAI(base_url=https.url + "/v1", api_key="none", max_retries=0,
                       http_client=httpx.Client(verify=context(cert))) as client:
        stream = client.completions.create(model=MODEL.name, prompt="Once", max_tokens=8, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream)


def test_keys_behind_tls(start, cert, tmp_path):
    key = new_key(tmp_path / "keys", "a", "admin")
    with start("--tls-cert", cert, "--tls-key", cert, "--api-keys", tmp_path / "keys", "--host", "0.0.0.0", key=key, verify=cert) as s:
        assert s.generate(max_new_tokens=2)
        assert requests.get(s.url + "/info", verify=str(cert), timeout=300).status_code == 401


def test_a_client_that_does_not_trust_us(https):
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(https.url + "/health", timeout=300)
    alive(https)


def s_client(server, *flags, text="", seconds=20):
    done = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", *flags], input=text, capture_output=True, text=True,
                          timeout=seconds)
    return done.stdout + done.stderr


@pytest.mark.parametrize("flags, says", [
    (["-tls1_3"], "TLSv1.3"), (["-tls1_2"], "TLSv1.2"), (["-alpn", "h2,http/1.1"], "ALPN protocol: http/1.1"),
    (["-alpn", "h2"], "no application protocol"), (["-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"], "alert protocol version"),
    (["-tls1_2", "-cipher", "AES128-SHA"], "handshake failure"), (["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA"], "handshake failure")])
def test_what_is_agreed_on(https, flags, says):
    assert says in s_client(https, *flags)
    alive(https)


def test_renegotiation_is_refused(https):
    """"R" makes s_client ask for it."""
    said = s_client(https, "-tls1_2", text="R\n")
    assert "RENEGOTIATING" in said and "no renegotiation" in said, said[-1000:]
    alive(https)


# ---- odd bytes -------------------------------------------------------------------------------------------------------

@pytest.mark.smoke
@pytest.mark.parametrize("text", [b"\x16\x03\x01\xff\xff" + b"x" * 100, b"\x00" * 50, b"SSH-2.0-x\r\n", b"\x16\x03\x01\x00\x05hello", b"\x15\x03\x03\x00\x02\x02\x28"])
def test_garbage(https, text):
    with socket.create_connection(("127.0.0.1", https.port), timeout=300) as s:
        s.sendall(text)
        try:
            while s.recv(1000):
                pass
        except ConnectionResetError:
            pass
    alive(https)


def test_plain_http_is_told_so(https):
    """In plain HTTP, since that is what it understands."""
    answer = requests.get(https.url.replace("https", "http") + "/health", timeout=300)
    assert answer.status_code == 400 and "HTTPS" in answer.text
    alive(https)


def test_garbage_after_the_handshake(https, cert):
    link = Link(https, cert)
    link.handshake()
    link.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
    link.sock.sendall(b"\x17\x03\x03\x00\x20" + b"z" * 32)
    with pytest.raises((ssl.SSLError, ConnectionResetError)):  # an alert: the record is forged
        while link.tls.read(100) if link.receive() else False:
            pass
    link.close()
    alive(https)


@pytest.mark.parametrize("piece", [1, 3])
def test_a_byte_at_a_time(https, cert, piece):
    link = Link(https, cert)
    link.handshake(piece)
    link.sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 44\r\n\r\n" + b'{"inputs":"a","parameters":{"seed":1}}'.ljust(44), piece)
    assert Reader(link).answer()[0] == 200
    link.close()


def test_leaving_in_the_middle_of_a_handshake(https, cert):
    link = Link(https, cert)
    with pytest.raises(ssl.SSLWantReadError):
        link.tls.do_handshake()
    hello = link.outgoing.read()
    link.close()
    for n in (0, 1, 5, 6, len(hello) // 2, len(hello) - 1, len(hello)):
        for reset in (False, True):
            s = socket.create_connection(("127.0.0.1", https.port), timeout=300)
            s.sendall(hello[:n])
            if reset:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            s.close()
    wait_for(lambda: https.metric("tandem_connections") <= 2, what="no connection is left")


def test_many_connections(https, cert):
    """Three hundred that have shaken hands, quiet; work goes on beside them."""
    opened = [connect(https, cert) for _ in range(300)]
    assert https.metric("tandem_connections") >= 300
    assert https.generate(max_new_tokens=4)
    for s in opened[::50]:
        s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert s.recv(1000).startswith(b"HTTP/1.1 200")
    for s in opened:
        s.close()
    wait_for(lambda: https.metric("tandem_connections") <= 2, what="no connection is left")


@pytest.mark.concurrent
def test_many_at_once(https):
    def work():
        for _ in range(5):
            assert https.generate(**BODY["parameters"])["generated_text"] == expected
    expected = https.generate(**BODY["parameters"])["generated_text"]
    threads = [threading.Thread(target=work) for _ in range(8)]
    failed = []
    threading.excepthook, before = (lambda args: failed.append(args.exc_value)), threading.excepthook
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    threading.excepthook = before
    assert not failed


def test_a_client_that_leaves_frees_its_place(https, cert):
    link = Link(https, cert)
    link.handshake()
    body = json.dumps({"inputs": "Once", "parameters": {"max_new_tokens": 400, "ignore_eos": True}, "stream": True})
    link.sendall(f"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    assert link.recv(100)
    link.close()
    https.wait_idle()


# ---- time and size ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("hello", [0, 50, None])
def test_a_handshake_has_a_time_limit(echo, cert, hello):
    server, begin = echo("--header-timeout", 300, "--idle-timeout", 3600000, "--write-timeout", 3600000), time.monotonic()
    link = Link(server, cert)
    with pytest.raises(ssl.SSLWantReadError):
        link.tls.do_handshake()
    link.sock.sendall(link.outgoing.read()[:hello])
    while link.receive():
        pass
    assert time.monotonic() - begin > 0.29
    link.close()


@pytest.mark.smoke
def test_a_large_body_and_answer(echo, cert):
    server = echo("--max-body", 5000000)
    body = bytes(range(256)) * 12000
    for _ in range(2):
        assert requests.post(server.url("/echo"), data=body, timeout=300, verify=str(cert)).content == body
    chunks = requests.post(server.url("/echo"), data=iter([body[:100000]] * 20), timeout=300, verify=str(cert)).content
    assert chunks == body[:100000] * 20


def test_pipelined_requests(echo, cert):
    server = echo()
    with connect(server, cert) as s:
        s.sendall(get(b"GET /hello HTTP/1.1") * 50)
        reader = Reader(s)
        for _ in range(50):
            assert reader.answer()[2] == b"hello\n"


def test_back_pressure(echo, cert):
    """A stream of 20 MB to a client that reads when it likes: what waits is bounded, and every byte comes."""
    server = echo("--high-water", 100000, "--low-water", 20000)
    link = Link(server, cert, rcvbuf=4096)
    link.handshake()
    link.sendall(get(b"GET /big?bytes=20000000 HTTP/1.1"))
    time.sleep(0.3)
    assert server.stats()["most_queued"] < 400000
    status, _, body = Reader(link).answer()
    assert status == 200 and len(body) == 20000000 and server.stats()["drains"] > 10
    assert server.stats()["most_queued"] < 400000
    link.close()


def test_an_answer_in_one_piece(echo, cert):
    """12 MB given to the socket at once, read slowly at first."""
    def test(pace):
        server = echo("--write-timeout", 2000 * pace)
        link = Link(server, cert, rcvbuf=4096)
        link.handshake()
        link.sendall(get(b"GET /blob?bytes=12000000 HTTP/1.1"))
        for _ in range(5):
            time.sleep(0.05)
            link.receive()
        assert len(Reader(link).answer()[2]) == 12000000
        link.close()
    at_some_pace(test)


def test_a_client_that_does_not_read_is_closed(echo, cert):
    server = echo("--write-timeout", 300)
    link = Link(server, cert, rcvbuf=4096)
    link.handshake()
    link.sendall(get(b"GET /big?bytes=100000000 HTTP/1.1"))
    server.wait_stats(lambda stats: stats["closed"] == 1)
    link.close()


# ---- ends ------------------------------------------------------------------------------------------------------------

def test_our_end_is_said(echo, cert):
    """close_notify, so that an answer without a length cannot be cut unseen; and at the end of an idle connection."""
    server = echo("--idle-timeout", 200)
    for request in (b"GET /big?bytes=100000 HTTP/1.0\r\n\r\n", get(b"GET /hello HTTP/1.1"), get(b"GET /hello HTTP/1.1", b"Connection: close\r\n")):
        link = Link(server, cert)
        link.handshake()
        link.sendall(request)
        while link.recv(65536):
            pass
        assert not link.cut, request
        link.close()


def test_an_answer_that_is_given_up_does_not_end_well(echo, cert):
    server = echo()
    link = Link(server, cert)
    link.handshake()
    link.sendall(b"GET /abort HTTP/1.0\r\n\r\n")
    try:
        while link.recv(65536):
            pass
        assert link.cut
    except ConnectionResetError:
        pass
    link.close()


def test_the_clients_end_in_one_piece_with_its_request(echo, cert):
    """The exchange ends once, though the connection cannot linger."""
    server = echo()
    link = Link(server, cert)
    link.handshake()
    link.tls.write(get(b"GET /hello HTTP/1.1", b"Connection: close\r\n"))
    with pytest.raises(ssl.SSLWantReadError):
        link.tls.unwrap()
    link.send_raw()
    while link.receive():
        pass
    link.close()
    stats = server.wait_stats(lambda stats: stats["open"] == 1)
    assert stats["done"] == stats["requests"] - 1 and stats["gone"] == 0  # but for that of the stats


def test_the_clients_end(echo, cert):
    """A client that says it sends no more while it is owed an answer counts as gone, as it does without TLS; one that says so
    after its answer ends well."""
    server = echo()
    for path, gone in ((b"GET /never HTTP/1.1", 1), (b"GET /hello HTTP/1.1", 1)):
        link = Link(server, cert)
        link.handshake()
        link.sendall(get(path))
        if b"hello" in path:
            assert Reader(link).answer()[2] == b"hello\n"
        else:
            server.wait_stats(lambda stats: stats["open"] == 2)
        with pytest.raises(ssl.SSLWantReadError):
            link.tls.unwrap()
        link.send_raw()
        server.wait_stats(lambda stats: stats["gone"] == gone and stats["open"] == 1)  # noqa: B023
        link.close()


def test_drain(https, start, cert):
    with start("--tls-cert", cert, "--tls-key", cert, "--device", "ref", verify=cert) as s:
        idle = connect(s, cert)
        body = {**BODY, "parameters": {"max_new_tokens": 100, "ignore_eos": True}}
        with requests.post(s.url + "/generate_stream", json=body, stream=True, timeout=300, verify=str(cert)) as answer:
            lines = answer.iter_lines()
            next(lines)
            s.signal(signal.SIGTERM)
            assert sum(line.startswith(b"data:") for line in lines) == 99
        assert s.wait() == 0
        idle.close()


# ---- certificates ----------------------------------------------------------------------------------------------------

def subject(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=300) as s:
        c = ssl.create_default_context()
        c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
        with c.wrap_socket(s) as t:
            return t.getpeercert(binary_form=True)


def test_reload(start, tmp_path):
    """New connections get the new certificate, one that is open goes on with the old; a broken one changes nothing."""
    cert = certificate(tmp_path / "cert.pem", "first")
    first = cert.read_bytes()
    with start("--tls-cert", cert, "--tls-key", cert, ready=False) as s:
        open_before = connect(s, cert)
        one = subject(s)

        def hang_up(says):
            before = len(s.log())
            s.signal(signal.SIGHUP)
            wait_for(lambda: says in s.log()[before:], what=f"{says}\n{s.log()[-2000:]}")

        certificate(tmp_path / "cert.pem", "second")
        hang_up("certificate read again")
        two = subject(s)
        assert one != two
        cert.write_text("no certificate")
        hang_up("the certificate stays as it was")
        assert subject(s) == two
        cert.write_bytes(first)
        hang_up("certificate read again")
        assert subject(s) == one
        open_before.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert open_before.recv(1000).startswith(b"HTTP/1.1 200")
        open_before.close()


def test_certificates_that_cannot_be(run, cert, tmp_path):
    other = certificate(tmp_path / "other.pem")
    locked = tmp_path / "locked.key"
    subprocess.run(["openssl", "ec", "-in", cert, "-aes256", "-passout", "pass:x", "-out", locked], check=True, capture_output=True)
    for flags, says in ((["--tls-cert", cert], b"the key is missing"), (["--tls-key", cert], b"the certificate is missing"),
                        (["--tls-cert", tmp_path / "none", "--tls-key", cert], b"none: no certificate"),
                        (["--tls-cert", cert, "--tls-key", other], b"private key"), (["--tls-cert", cert, "--tls-key", locked], b"passphrase"),
                        (["--tls-cert", cert.with_suffix(".key"), "--tls-key", cert], b"no certificate")):
        got = run("serve", "--model", MODEL, "--port", 0, *flags)
        assert got.returncode == 1 and says in got.stderr, (flags, got.stderr)


def test_an_old_certificate_is_named(start, tmp_path, cert):
    """Soon to expire: said at the start, not refused."""
    old = tmp_path / "old.pem"
    subprocess.run(["openssl", "req", "-x509", "-key", cert, "-days", "1", "-subj", "/CN=old", "-out", old], check=True, capture_output=True)
    with start("--tls-cert", old, "--tls-key", cert, ready=False) as s:
        assert "expires soon" in s.log()
        subject(s)


def test_its_end_is_in_the_metrics(https, cert):
    end = subprocess.run(["openssl", "x509", "-in", cert, "-noout", "-enddate"], check=True, capture_output=True, text=True).stdout
    assert https.metric("tandem_tls_certificate_expiry_timestamp_seconds") == ssl.cert_time_to_seconds(end.strip().split("=")[1])


def test_rsa(start, tmp_path):
    rsa = certificate(tmp_path / "rsa.pem", kind=("rsa:2048",))
    with start("--tls-cert", rsa, "--tls-key", rsa, ready=False, verify=rsa) as s:
        assert s.get("/health").status_code == 200
        assert "ECDHE-RSA" in s_client(s, "-tls1_2")

