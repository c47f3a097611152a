"""KV events: a router that reads them knows what each request will find in the prefix cache, to the token.

The router (kv_router.py) learns only from the sockets. Before each request it says how many tokens will be found; the answer's
`cached_tokens` must be the same: after evictions, for adapters, after a restart, and for what it missed and asked for again."""
import random
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from conftest import BINARY, BUILD, DEMO, ENV, PATIENCE, ROOT, wait_for

zmq = pytest.importorskip("zmq")
from kv_router import END, PAGE, Router  # noqa: E402

pytestmark = pytest.mark.skipif(not (BUILD / "server/libtandem_zmq.so").exists(), reason="built without kv_events")
PIRATE = ROOT / "models/demo-pirate"
SMALL = "3M"  # of KV cache: some hundred pages


def options(folder, **more):
    return ["--kv-events", f"ipc://{folder}/events", "--kv-events-replay", f"ipc://{folder}/replay",
            *(x for k, v in more.items() for x in ("--" + k.replace("_", "-"), v))]


def router(folder, **kw):
    return Router(f"ipc://{folder}/events", f"ipc://{folder}/replay", **kw)


def ask(server, tokens, model="demo", **more):
    """-> tokens of the prompt that were found."""
    answer = server.post("/v1/completions", {"model": model, "prompt": tokens, "max_tokens": 4, "ignore_eos": True, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def check(server, r, tokens, adapter=None):
    """The request finds what the router says."""
    r.catch_up()
    said = r.hits(tokens, adapter)
    assert ask(server, tokens, adapter or "demo") == said
    return said


def texts(seed, n=12):
    """Prompts that begin alike in pages of their own choice, and end anywhere."""
    draw = random.Random(seed)
    pages = [[draw.randrange(300, 2000) for _ in range(PAGE)] for _ in range(5)]
    for _ in range(n):
        text = [t for _ in range(draw.randrange(1, 9)) for t in draw.choice(pages[:2 + draw.randrange(4)])]
        yield text + pages[4][:draw.randrange(PAGE)] if draw.random() < 0.7 else text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kv")


@pytest.fixture(scope="module")
def server(start, folder):
    with start(*options(folder), "--adapter-dir", PIRATE.parent, "--adapters", f"pirate={PIRATE}", "--kv-cache-bytes", SMALL, "--max-total-tokens", "400", model=DEMO) as s:
        yield s


def test_the_router_knows_every_hit(server, folder):
    """With evictions: prompts of many kinds, one after another."""
    with router(folder) as r:
        found = 0
        for seed in range(12):
            for i, text in enumerate(texts(seed % 9)):
                found += check(server, r, text, "pirate" if (seed + i) % 3 == 0 else None)
        assert found > 1000 and r.largest > 1
        assert "removed" in r.kinds, "nothing was evicted"
        assert r.batches == list(range(r.batches[0], r.next)), "every batch once, in order"
        assert r.topics and all(topic.startswith("kv@") and topic.endswith("@demo") for topic in r.topics)


def test_a_router_that_only_hears_knows_every_hit(start, tmp_path):
    """As llm-d's, which asks for nothing: what was posted before an answer comes to it by itself, after a while."""
    with start(*options(tmp_path), "--kv-cache-bytes", SMALL, "--max-total-tokens", "400", model=DEMO) as s, \
            Router(f"ipc://{tmp_path}/events") as r, router(tmp_path) as other:
        def hear_all():
            other.earlier(END - 1)  # is answered when all that was posted is sent
            published = s.metric("tandem_kv_event_batches_total")
            wait_for(lambda: r.hear(100) >= 0 and r.next == published, what="all that was published")

        def told():
            ask(s, [random.randrange(300, 2000) for _ in range(20)])
            return r.hear(100) and not r.lost
        wait_for(told, what="everything, for a new subscriber")
        gaps, found = r.gaps, 0
        for seed in range(6):
            for text in texts(seed % 5):
                hear_all()
                said = r.hits(text)
                assert ask(s, text) == said
                found += said
        assert found > 1000 and "removed" in r.kinds and r.gaps == gaps


def test_of_many_at_once(server, folder):
    """Requests that run together, of which several compute the same pages, some with a text of their own."""
    with router(folder) as r, ThreadPoolExecutor(16) as pool:
        for seed in range(4):
            many = [t for text in texts(50 + seed, 8) for t in (text, text, text + text)]
            list(pool.map(lambda t: ask(server, t, max_tokens=40), many))
            server.wait_idle()
            for text in many[::3]:
                check(server, r, text)


def test_texts_that_were_generated_are_known(server, folder):
    with router(folder) as r:
        prompt = [400 + i for i in range(20)]
        answer = server.post("/generate", {"inputs": "Once upon a time there was a fish", "parameters": {
            "max_new_tokens": 60, "ignore_eos": True, "details": True, "decoder_input_details": True}}).json()["details"]
        text = [t["id"] for t in answer["prefill"] + answer["tokens"]]
        r.catch_up()
        assert r.pages(text) == (len(text) - 1) // PAGE > 3  # the last token was never computed
        assert check(server, r, text + prompt) > 48


def test_an_adapter_that_is_replaced_or_removed_is_forgotten(server, folder):
    text = [500 + i for i in range(50)]
    with router(folder) as r:
        def known(name):
            r.catch_up()
            return r.pages(text, name)
        assert server.post("/adapters", {"name": "captain", "path": PIRATE.name}).status_code == 201
        check(server, r, text, "captain")
        assert known("captain") == 3 and known("pirate") == 0 and known(None) == 0
        assert server.post("/adapters", {"name": "captain", "path": PIRATE.name}).status_code == 201  # a new version
        wait_for(lambda: known("captain") == 0, what="the old version's pages are removed")
        assert check(server, r, text, "captain") == 0 and check(server, r, text, "captain") == 48
        assert requests.delete(server.url + "/adapters/captain", timeout=300).ok
        wait_for(lambda: known("captain") == 0, what="the adapter's pages are removed")


def test_what_is_private_is_not_told(server, folder):
    text = [600 + i for i in range(50)]
    with router(folder) as r:
        assert [ask(server, text, cache_salt="mine") for _ in range(2)] == [0, 48]
        r.catch_up()
        assert r.pages(text) == 0 and check(server, r, text) == 0 and check(server, r, text) == 48


def test_forgetting_is_told(server, folder):
    text = [700 + i for i in range(50)]
    with router(folder) as r:
        ask(server, text)
        r.catch_up()
        assert r.pages(text) == 3
        r.passes_over_cleared = True  # as llm-d-kv-cache 0.8
        assert server.post("/reset_prefix_cache", {}).status_code == 200
        wait_for(lambda: r.catch_up() or not r.blocks, what="nothing is known")
        r.passes_over_cleared = False
        assert r.kinds[-2:] == ["removed", "cleared"] and check(server, r, text) == 0 and check(server, r, text) == 48


def test_earlier_batches_are_sent_again(server, folder):
    """One that came late knows as much as one that was there."""
    with router(folder) as early, router(folder) as late:
        ask(server, [800 + i for i in range(50)])
        early.catch_up()
        got = late.earlier(0)
        assert [n for n, _ in got] == list(range(early.next))
        assert late.earlier(early.next) == [] and [n for n, _ in late.earlier(early.next - 3)] == list(range(early.next - 3, early.next))
        late.catch_up()
        assert late.blocks == early.blocks and late.blocks
        for nonsense in ([b"", b"short"], [b"x", b"12345678"], [b""], [b"", b"12345678", b""], [b"", b"x" * 900]):
            late.replay.send_multipart(nonsense)  # is dropped, and nothing else happens
        assert late.earlier(early.next) == []
        replays = server.metric("tandem_kv_event_replays_total")
        assert replays > 5 and server.metric("tandem_kv_event_batches_total") == early.next
        assert server.metric("tandem_kv_event_batches_refused_total") == 0


def test_what_is_too_long_is_not_read(server, folder):
    """A subscription of many bytes would be kept in memory: its connection is closed."""
    with router(folder) as r:
        lost = r.sub.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        r.sub.setsockopt(zmq.SUBSCRIBE, b"x" * 1000)
        assert check(server, r, [830] * 20) == 0 and not lost.poll(0)
        r.sub.setsockopt(zmq.SUBSCRIBE, b"x" * 2000)
        assert lost.poll(1000 * PATIENCE), "it was closed"
        r.sub.disable_monitor()
    with router(folder) as r:
        check(server, r, [840] * 20)


def test_a_new_subscriber_is_told_everything(start, tmp_path):
    """Also one that cannot ask, like llm-d's: with the steps of other requests."""
    text = [850 + i for i in range(50)]
    with start(*options(tmp_path), model=DEMO) as s, router(tmp_path) as early:
        ask(s, text)
        early.catch_up()
        with Router(f"ipc://{tmp_path}/events") as late:
            def told():
                ask(s, [random.randrange(300, 2000) for _ in range(20)])
                early.catch_up()
                return late.hear(100) and not late.lost and late.blocks == early.blocks
            wait_for(told, what="the late one knows what the early one knows")
            assert late.pages(text) == 3 and late.gaps == 1 and s.metric("tandem_kv_event_resyncs_total") > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart(start, tmp_path, number):
    """Numbers begin again, and so does what is known."""
    text, others = [900 + i for i in range(100)], iter(range(300, 2000))
    with router(tmp_path) as r:
        def heard(s):
            ask(s, [next(others)] * 20)  # so that there is something to hear
            return r.hear(100) and r.pages(text) == 6
        for _ in range(2):
            s = start(*options(tmp_path), model=DEMO)
            with s if number == signal.SIGTERM else s.process:
                assert ask(s, text) == 0
                wait_for(lambda s=s: heard(s), what="the pages of this process")
                assert r.batches[0] == 0
                s.signal(number)
            if number == signal.SIGTERM:
                wait_for(lambda: r.hear(100) >= 0 and not r.blocks, what="that they are gone")


def free_port(address="127.0.0.1"):
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as s:
        s.bind((address, 0))
        return s.getsockname()[1]


@pytest.mark.parametrize("address, option, listens", [
    ("127.0.0.1", "tcp://*:{port}", True), ("::1", "tcp://*:{port}", True), ("127.0.0.1", "listen:tcp://127.0.0.1:{port}", True),
    ("::1", "listen:tcp://[::1]:{port}", True), ("127.0.0.1", "tcp://127.0.0.1:{port}", False),
    ("127.0.0.1", "tcp://localhost:{port}", False), ("::1", "connect:tcp://[::1]:{port}", False),
])
def test_over_tcp(start, address, option, listens):
    """A replica that listens, and one that connects to a router that does."""
    text = [1050 + i for i in range(100)]
    try:
        ports = [free_port(address) for _ in range(2)]
    except OSError:
        pytest.skip("no IPv6 here")
    ours = [f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}" for port in ports]
    events, replay = option.format(port=ports[0]), f"tcp://*:{ports[1]}" if not listens else option.format(port=ports[1])
    with Router(*ours, listens=not listens) as r, start("--kv-events", events, "--kv-events-replay", replay, model=DEMO) as s:
        assert f"msg=\"kv-events {'listens' if listens else 'connects'}\" endpoint={events} " in s.log()
        assert check(s, r, text) == 0 and check(s, r, text) == 96

        def heard():
            ask(s, [random.randrange(300, 2000) for _ in range(40)])
            return r.hear(100)
        wait_for(heard, what="an event, without asking")


def test_events_as_maps(start, tmp_path):
    text = [1000 + i for i in range(100)]
    with start(*options(tmp_path, kv_events_format="map", kv_events_topic="t-{model}", served_model_name="fish,other"), "--adapters",
               f"pirate={PIRATE}", model=DEMO) as s, router(tmp_path, form="map") as r:
        assert check(s, r, text, "pirate") == 0 and check(s, r, text, "pirate") == 96
        assert ask(s, text, "fish") == 0
        r.catch_up()
        assert r.pages(text) == r.pages(text, "pirate") == 6 and "removed" not in r.kinds
        wait_for(lambda: r.topics or r.hear(100), what="a topic")
        assert r.topics == {"t-fish"}


def test_several_models(start, tmp_path):
    """Each with a topic; what is sent again has it too."""
    text = [1100 + i for i in range(100)]
    with start(*options(tmp_path), "--models", f"one={DEMO},two={DEMO}", model=None) as s, router(tmp_path) as r:
        assert [ask(s, text, m) for m in ("one", "two", "one")] == [0, 0, 96]
        got = r.earlier(0)
        assert {topic.split(b"@")[2] for _, _, topic in got} == {b"one", b"two"}
        stored = [(topic, e.block_hashes) for _, payload, topic in got for e in r.decoder.decode(payload).events
                  if type(e).__name__ == "BlockStored"]
        assert len({h for _, hashes in stored for h in hashes}) == 12, "the two models' pages have hashes of their own"


@pytest.mark.full
def test_a_subscriber_that_does_not_read(start, tmp_path):
    """It misses batches, sees that by their numbers and asks; nobody waits for it."""
    with start(*options(tmp_path), "--max-seqs", "64", model=DEMO) as s, \
            router(tmp_path) as quick, router(tmp_path, hwm=10) as slow, ThreadPoolExecutor(8) as pool:
        ask(s, [1200 + i for i in range(100)])
        wait_for(lambda: slow.sub.poll(100), what="the slow one is there")
        def load(i):
            ask(s, [1300 + i, *range(1400, 1420)], max_tokens=430)
        i = 0
        while quick.next < 6000:
            list(pool.map(load, range(i, i + 8)))
            i += 8
            quick.catch_up()
        missed = quick.next
        while slow.hear(500):
            pass
        slow.catch_up()
        assert slow.gaps == 0, "what it missed was still kept"
        assert slow.next >= missed and slow.blocks == quick.blocks
        assert len(slow.batches) == slow.next and slow.skipped > 0, "it missed something"
        assert s.metric("tandem_kv_event_batches_refused_total") == 0


@pytest.mark.full
def test_what_is_no_longer_kept(start, tmp_path):
    """A subscriber that missed more than the last 10000 batches is told everything, with the next step."""
    with start(*options(tmp_path), "--max-seqs", "16", model=DEMO) as s, router(tmp_path) as old, ThreadPoolExecutor(2) as pool:
        def load(i):
            ask(s, [1300 + i, *range(1400, 1420)], max_tokens=430)
        i = 0
        while s.metric("tandem_kv_event_batches_total") < 10100:
            list(pool.map(load, range(i, i + 16)))
            i += 16
        with router(tmp_path) as late:
            late.ask()
            assert late.lost and not late.blocks

            def told():
                ask(s, [5] * 20)
                late.catch_up()
                return not late.lost
            wait_for(told, what="everything, again")
            assert late.gaps == 1
            assert check(s, late, [1300 + i - 1, *range(1400, 1420)]) == 16
            old.hear()
            late.catch_up()
            old.catch_up()
            assert late.blocks == old.blocks and len(late.blocks) > 100


@pytest.mark.parametrize("given, said", [
    (("--kv-events", "tcp://nowhere"), "--kv-events: tcp://nowhere: cannot connect: Invalid argument"),
    (("--kv-events", "connect:tcp://nowhere"), "--kv-events: tcp://nowhere: cannot connect: Invalid argument"),
    (("--kv-events", "tcp://0.0.0.0:5557"), "--kv-events: tcp://0.0.0.0:5557: nobody can be connected to there; tcp://*:PORT listens on all"),
    (("--kv-events", "udp//x*"), "--kv-events: udp//x*: cannot listen: Invalid argument"),
    (("--kv-events-replay", "tcp://*:5558"), "--kv-events-replay is for --kv-events"),
    (("--kv-events", "ipc:///nonexistent/x"), "--kv-events: ipc:///nonexistent/x: cannot listen: No such file or directory"),
])
def test_endpoints_that_cannot_be(given, said, tmp_path):
    done = subprocess.run([BINARY, "serve", "--model", DEMO, "--port", "0", "--data-dir", tmp_path, *given], capture_output=True, text=True,
                          env=ENV, timeout=300)
    assert done.returncode != 0 and said in done.stderr, done.stderr
