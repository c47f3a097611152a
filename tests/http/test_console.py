"""The built-in page: what GET / answers to whom, and the page itself in Debian's Chromium."""
import base64
import json
import os
import re
import shutil

import pytest
import requests
from browser import Browser, find_browser
from conftest import DEMO, MODEL, ROOT
from keys import new_key
from training import jsonl, rows

SOURCES = ROOT / "server/console"
FILES = {p.name: p for p in SOURCES.iterdir() if p.suffix in (".html", ".css", ".js", ".svg")}
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
PROMPT = "Once upon a time"


# ---- without a browser -----------------------------------------------------------------------------------------------

@pytest.mark.smoke
@pytest.mark.parametrize("accept, html", [
    (BROWSER, True), ("text/html", True), ("TEXT/HTML", True), ("text/*", True), ("text/html;q=0.5, application/json;q=0.4", True),
    ("application/json;q=0.1,text/html; q=0.2", True), ("*/*;q=0.1, text/html", True), ("text/html;level=1", True),
    ("*/*", False), ("application/json", False), ("text/html, application/json", False), ("text/html;q=0.5, */*", False),
    ("application/json, text/*;q=0.9", False), ("text/html;q=0", False), ("text/html;q=0.0, */*;q=0", False), ("", False), (",,;", False),
    ("text/htmlx", False), ("text", False), ("*/*;q=1, text/html;q=bad", False), ("text/plain", False),
])
def test_who_gets_the_page(server, accept, html):
    answer = server.get("/", headers={"Accept": accept})
    assert answer.status_code == 200 and answer.headers["Vary"].split(",")[0] == "Accept"
    if html:
        assert answer.text.startswith("<!doctype html>") and answer.headers["Content-Type"] == TYPES[".html"]
    else:
        assert answer.json()["server"].startswith("tandem ")


def test_without_an_accept_header(server):
    assert requests.get(server.url, headers={"Accept": None}, timeout=300).json()["server"].startswith("tandem ")


@pytest.mark.smoke
@pytest.mark.parametrize("name", sorted(FILES))
def test_the_files_are_in_the_binary(server, name):
    answer = server.get(f"/console/{name}")
    assert answer.status_code == 200 and answer.content == FILES[name].read_bytes()
    assert answer.headers["Content-Type"] == TYPES[FILES[name].suffix]
    assert answer.headers["X-Content-Type-Options"] == "nosniff" and answer.headers["Cache-Control"] == "no-cache"
    rules = dict(rule.strip().split(" ", 1) for rule in answer.headers["Content-Security-Policy"].split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == rules["frame-ancestors"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == rules["img-src"] == "'self'"
    assert rules["require-trusted-types-for"] == "'script'"
    head = requests.head(f"{server.url}/console/{name}", timeout=300)
    assert head.status_code == 200 and head.content == b"" and head.headers["Content-Length"] == str(len(answer.content))
    for known in (answer.headers["ETag"], f'"other", W/{answer.headers["ETag"]}', "*"):
        again = server.get(f"/console/{name}", headers={"If-None-Match": known})
        assert again.status_code == 304 and again.content == b"" and again.headers["ETag"] == answer.headers["ETag"]
    assert server.get(f"/console/{name}", headers={"If-None-Match": '"other"'}).status_code == 200


def test_every_tag_is_its_own(server):
    assert len({server.get(f"/console/{name}").headers["ETag"] for name in FILES}) == len(FILES)


@pytest.mark.smoke
def test_the_page_itself(server):
    page = server.get("/", headers={"Accept": BROWSER})
    assert page.content == FILES["index.html"].read_bytes() and "Content-Security-Policy" in page.headers
    head = requests.head(server.url, headers={"Accept": BROWSER}, timeout=300)
    assert head.status_code == 200 and head.headers["Content-Type"] == TYPES[".html"] and head.content == b""
    assert requests.head(server.url, timeout=300).headers["Content-Type"] == "application/json"
    assert server.get("/", headers={"Accept": BROWSER, "If-None-Match": page.headers["ETag"]}).status_code == 304


def test_other_paths(server):
    for path in ("/console/nothing.js", "/console/embed.py", "/console/INDEX.HTML", "/console/index.html%00", "/console/..%2fapp.h"):
        assert server.get(path).status_code in (400, 404), path
    for path in ("/console", "/console/", "/console/a/b", "/index.html"):
        assert server.get(path, headers={"Accept": BROWSER}).status_code == 404, path
    assert server.post("/console/console.js", {}).status_code == 405
    assert server.post("/", {"inputs": "a", "parameters": {"max_new_tokens": 1}}, headers={"Accept": BROWSER}).json()[0]["generated_text"]


def test_the_sources_stay_plain():
    """Strings never become markup or code, nothing comes from elsewhere, and every file is short."""
    for name, path in FILES.items():
        text = path.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setHTML|DOMParser|\bstyle=", text), name
        assert set(re.findall(r"https?://[^\s\"'<>)]+", text)) <= {"http://www.w3.org/2000/svg"}, name
        assert len(text.splitlines()) <= 800 and not re.search(r"[ \t]$", text, re.M), name
    page = FILES["index.html"].read_text()
    assert set(re.findall(r'(?:src|href)="([^"]+)"', page)) == {"console/icon.svg", "console/console.css", "console/console.js"}
    assert not re.search(r"\son\w+=", page)


# ---- in a browser ----------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def browser():
    if not find_browser():
        assert not os.environ.get("CI"), "no Chromium: scripts/deps test installs it"
        pytest.skip("no Chromium here: scripts/deps test installs it")
    with Browser() as b:
        yield b


@pytest.fixture(scope="module")
def daemon(start, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    if (ROOT / "models/demo-pirate/adapter_config.json").exists() and MODEL == DEMO:
        shutil.copytree(ROOT / "models/demo-pirate", folder / "pirate")
    with start("--adapter-dir", folder, "--max-adapters", "8") as s:
        yield s


def opened(browser, url):
    """The console, ready."""
    p = browser.page()
    p.expected = []  # patterns of errors that the test provokes
    p.open(url)
    p.wait("document.querySelector('#status').textContent === 'ready' && document.querySelector('#facts').textContent")
    return p


def leave(p, url):
    """It must end without an error, and without having asked anybody but the daemon."""
    p.js("1")  # what was logged until now has come before this
    problems = [x for x in p.problems if not any(re.search(e, x) for e in p.expected)]
    foreign = [asked for asked in p.requests if not asked.startswith(url + "/")]
    p.close()
    assert problems == [] and foreign == []


@pytest.fixture
def page(browser, daemon):
    p = opened(browser, daemon.url + "/")
    yield p
    leave(p, daemon.url)
    daemon.wait_idle()


@pytest.fixture(scope="module")
def still(browser, daemon):
    """One for the tests that only call its modules."""
    p = opened(browser, daemon.url + "/#model")
    yield p
    leave(p, daemon.url)


def set_sampling(page, **values):
    for name, value in values.items():
        page.fill("#" + name.replace("_", "-"), str(value))


def go(page, tab):
    page.click(f"#tab-{tab}")
    page.wait(f"!document.querySelector('#panel-{tab}').hidden")


def test_text_streams_in_and_the_charts_move(page, daemon):
    page.fill("#prompt-text", PROMPT)
    set_sampling(page, max_tokens=240, temperature=0)
    page.slow(60000)
    page.js("""{ const out = document.querySelector('#prompt-out'); window.seen = new Set();
        new MutationObserver(() => seen.add(out.textContent.length)).observe(out, {subtree: true, childList: true, characterData: true}) }""")
    page.click("#prompt-go")
    page.wait("document.querySelector('#prompt-stats').textContent.includes('ended')")
    expected = daemon.generate(PROMPT, max_new_tokens=240, details=True)
    assert page.text("#prompt-out") == PROMPT + expected["generated_text"]
    assert page.text("#prompt-stats").startswith(f"{expected['details']['generated_tokens']} tokens in ")
    assert page.js("seen.size") >= 4, "the text came in one piece"
    page.slow(-1)
    for chart in ("throughput", "first", "next", "kv", "queue"):
        page.wait(f"document.querySelectorAll('#live-{chart} path, #live-{chart} circle').length")
    page.wait("/[1-9]/.test(document.querySelector('#live-first b').textContent)")
    # the line of throughput has left the ground: its path has more than one height
    page.wait("""new Set(document.querySelector('#live-throughput path.line.one')?.getAttribute('d').match(/ [\\d.]+/g)).size > 1""")
    page.hover("#live-throughput svg")
    assert page.js("document.querySelector('#live-throughput .tip').hidden") is False


def test_stop(page, daemon):
    page.fill("#prompt-text", PROMPT)
    set_sampling(page, max_tokens=480, temperature=0, repetition="1.3")
    page.slow(8000)
    page.js("new MutationObserver(() => document.querySelector('#prompt-stop').click()).observe("
            "document.querySelector('#prompt-out'), {subtree: true, characterData: true})")
    page.click("#prompt-go")
    page.wait("!document.querySelector('#prompt-go').disabled && document.querySelector('#prompt-stats').textContent")
    assert page.text("#prompt-stats").endswith("stopped") and not page.js("document.querySelector('#prompt-error').textContent")
    assert len(PROMPT) < len(page.text("#prompt-out")) < len(PROMPT + daemon.generate(PROMPT, max_new_tokens=480, repetition_penalty=1.3)["generated_text"])
    page.slow(-1)
    daemon.wait_idle()


def test_errors_are_the_daemons_words(page):
    page.expected = ["status of 422"]
    set_sampling(page, max_tokens=100000)
    page.click("#prompt-go")
    page.wait("!document.querySelector('#prompt-error').hidden")
    assert "max_new_tokens" in page.text("#prompt-error")
    set_sampling(page, max_tokens=4)
    page.click("#prompt-go")
    page.wait("document.querySelector('#prompt-stats').textContent.includes('4 tokens')")
    assert page.js("document.querySelector('#prompt-error').hidden")


def test_markup_stays_text(page):
    text = "<img src=x onerror=alert(1)><b>bold</b>"
    page.fill("#prompt-text", text)
    set_sampling(page, max_tokens=2)
    page.click("#prompt-go")
    page.wait("document.querySelector('#prompt-stats').textContent.includes('2 tokens')")
    assert page.text("#prompt-out").startswith(text) and page.js("document.querySelectorAll('#prompt-out :is(img, b)').length") == 0
    # and the browser itself would not let it become anything else
    assert page.js("(() => { try { document.body.innerHTML = 'x' } catch (e) { return e.name } })()") == "TypeError"
    page.expected = ["TrustedHTML", "Trusted Types"]


def new_job(page, name, **fields):
    go(page, "training")
    page.wait("document.querySelector('#jobs').children.length || !document.querySelector('#jobs-none').hidden")
    page.click("#train-new")
    page.fill("#train-name", name)
    for field, value in fields.items():
        page.fill(f"#train-{field}", str(value))


def state_of(name):
    return f"""[...document.querySelectorAll('.job')].find(j => j.querySelector('.open').textContent === '{name}')?.querySelector('.pill').textContent"""


def test_a_job_from_start_to_use(page, daemon):
    new_job(page, "parrot", epochs=12, rate="0.01", rank=4, alpha=8, batch=128)
    page.fill("#train-rows", jsonl(24))
    page.click("#train-go")
    page.wait(state_of("parrot"))
    assert page.js("document.querySelector('#train-form').hidden")
    page.wait(f"{state_of('parrot')} === 'succeeded'", 90)
    job = daemon.get("/train").json()["data"][0]
    losses = daemon.get(f"/train/{job['id']}/metrics").json()["metrics"]["train_loss"]
    assert job["serve_as"] == "parrot" and job["hyperparameters"]["lora_r"] == 4 and len(losses) == job["steps"] > 3
    page.wait(f"(document.querySelector('.chart.large path.line.one')?.getAttribute('d').match(/[ML]/g) ?? []).length === {len(losses)}")
    page.wait("document.querySelector('.log').textContent.includes('successfully completed')")
    rules = [a["rule"] for a in daemon.get(f"/train/{job['id']}").json()["usage"]["advice"]]
    page.wait(f"JSON.stringify([...document.querySelectorAll('.advice b')].map(b => b.textContent)) === {json.dumps(json.dumps(rules, separators=(',', ':')))}")
    page.click("[aria-label='Use parrot']")
    page.wait("document.querySelector('#adapter').value === 'parrot' && !document.querySelector('#panel-prompt').hidden")
    page.fill("#prompt-text", rows()[0]["prompt"])
    set_sampling(page, max_tokens=24, temperature=0)
    page.click("#prompt-go")
    page.wait("document.querySelector('#prompt-stats').textContent.includes('ended')")
    prompt = rows()[0]["prompt"]
    ours = daemon.generate(prompt, max_new_tokens=24, adapter_id="parrot")["generated_text"]
    assert page.text("#prompt-out") == prompt + ours and ours != daemon.generate(prompt, max_new_tokens=24)["generated_text"]
    go(page, "adapters")
    page.wait("document.querySelector('[data-adapter=parrot]')")


def test_a_file_is_checked_and_its_job_paused_and_cancelled(page, daemon, tmp_path):
    (tmp_path / "data.jsonl").write_text(jsonl(24) + '{"text": 5}\n')
    new_job(page, "long", epochs=900, batch=64)
    page.put_file("#train-file", tmp_path / "data.jsonl")
    page.wait("document.querySelector('#train-file-name').textContent.startsWith('data.jsonl')")
    page.click("#train-check")
    page.wait("!document.querySelector('#train-report').hidden || !document.querySelector('#train-error').hidden")
    assert "24 of 25 rows" in page.text("#train-report") and "Line 25" in page.text("#train-report"), page.text("#train-error")
    page.click("#train-go")
    page.wait(f"{state_of('long')} === 'running' && document.querySelector('#jobs .stats').textContent.includes('step ')")
    assert daemon.get("/train").json()["data"][0]["dataset"]["file"].startswith("file-")
    assert len(daemon.get("/v1/files").json()["data"]) >= 1
    page.click("[aria-label='Pause long']")
    page.wait(f"{state_of('long')} === 'paused'")
    page.click("[aria-label='Resume long']")
    page.wait(f"['queued', 'running'].includes({state_of('long')})")
    page.click("[aria-label='Cancel long']")
    page.click("#ask-no")
    page.click("[aria-label='Cancel long']")
    page.click("#ask-yes")
    page.wait(f"{state_of('long')} === 'cancelled'")
    page.click("[aria-label='Remove long']")
    page.click("#ask-yes")
    page.wait(f"!({state_of('long')})")
    assert "long" not in [j["serve_as"] for j in daemon.get("/train").json()["data"]]


def test_bad_rows_are_named(page):
    page.expected = ["status of 4"]
    new_job(page, "bad/name")
    page.fill("#train-rows", '{"text": "good"}\nnot json')
    page.click("#train-go")
    page.wait("document.querySelector('#train-error').textContent.includes('Line 2')")
    page.fill("#train-rows", '{"text": "good"}')
    page.click("#train-go")
    page.wait("document.querySelector('#train-error').textContent.includes('serve_as')")


@pytest.mark.skipif(MODEL != DEMO, reason="the adapter is the demo model's")
def test_adapters(page, daemon):
    page.expected = ["status of 4"]
    go(page, "adapters")
    page.wait("document.querySelector('[data-adapter=pirate]')")
    page.fill("#adapter-name", "second")
    page.fill("#adapter-path", "nowhere")
    page.click("#adapter-load")
    page.wait("document.querySelector('#adapters-error').textContent.includes('nowhere')")
    page.fill("#adapter-path", "pirate")
    page.click("#adapter-load")
    page.wait("document.querySelector('[data-adapter=second]')")
    assert page.js("document.querySelector('#adapters-error').hidden")
    page.click("[aria-label='Unload second']")
    page.click("#ask-yes")
    page.wait("!document.querySelector('[data-adapter=second]')")
    assert "second" not in [a["name"] for a in daemon.get("/adapters").json()["adapters"]]


def test_model_facts(still, daemon):
    info = daemon.get("/info").json()
    shown = still.text("#model-facts")
    assert still.js("document.querySelector('#panel-model').hidden") is False
    for fact in (info["model_id"], info["model_family"], info["model_dtype"], str(info["kv_pages"]), str(info["vocab_size"])):
        assert fact in shown


def test_a_question_right_after_another(still):
    """The end of the first is told after the second has begun."""
    assert still.js("""import('/console/dom.js').then(async ({ ask }) => {
        const dialog = document.querySelector('#ask-dialog'), question = { title: 'Sure?', text: '', yes: 'yes', no: 'no' };
        const first = ask(question);
        dialog.close('');
        const second = ask(question);
        await new Promise(next => setTimeout(next, 100));
        dialog.close('ok');
        return [await first, await second]; })""") == [None, {"checked": False}]


def test_a_page_of_another_site(browser, start):
    """It can neither read nor do anything here, unless it is let in."""
    say = """fetch('%s/generate', {method: 'POST', mode: 'MODE', body: '{"inputs":"Hi","parameters":{"max_new_tokens":1}}'})
             .then(a => a.status, () => 'refused')"""
    with start() as daemon, start() as other, start("--cors-origin", other.url) as open_to_it:
        page = browser.page()
        page.open(other.url + "/health")
        ask = lambda s, mode: page.js((say % s.url).replace("MODE", mode))  # noqa: E731
        assert ask(other, "cors") == 200
        assert ask(daemon, "cors") == "refused" and ask(daemon, "no-cors") == 0
        assert daemon.metric("tandem_requests_total", route="/generate", status="403") == 2
        assert daemon.metric("tandem_generated_tokens_total") == 0
        assert page.js(f"fetch('{daemon.url}/info').then(a => a.status, () => 'refused')") == "refused"
        assert ask(open_to_it, "cors") == 200
        page.close()


def test_a_key_is_asked_for_and_sent(page, daemon):
    """No key is configured here, so the browser plays a daemon that wants one."""
    page.expected = ["status of 401"]

    def gate(event):
        headers = {k.lower(): v for k, v in event["request"]["headers"].items()}
        request_id, seen = event["requestId"], headers.get("authorization")
        if seen == "Bearer right":
            page.browser.send("Fetch.continueRequest", page.session, requestId=request_id)
        else:
            body = json.dumps({"error": {"message": f"no good key: {seen}"}})
            page.browser.send("Fetch.fulfillRequest", page.session, requestId=request_id, responseCode=401,
                              body=base64.b64encode(body.encode()).decode())
    page.intercept = gate
    page.call("Fetch.enable", patterns=[{"urlPattern": "*/generate_stream"}, {"urlPattern": "*/metrics"}])
    page.wait("document.querySelector('#key-dialog').open")
    assert page.text("#key-reason") == "no good key: None"
    page.fill("#key-text", "wrong")
    page.key("Enter")
    page.wait("document.querySelector('#key-dialog').open && document.querySelector('#key-reason').textContent.includes('Bearer wrong')")
    page.fill("#key-text", "right")
    page.key("Enter")
    page.wait("!document.querySelector('#key-dialog').open && document.querySelector('#status').textContent === 'ready'")
    set_sampling(page, max_tokens=3)
    page.click("#prompt-go")
    page.wait("document.querySelector('#prompt-stats').textContent.includes('3 tokens')")
    assert page.js("[Object.entries(sessionStorage).join(), localStorage.length]") == ["tandem-key,right", 0]


def test_a_daemon_with_keys(browser, start, tmp_path):
    """The page comes without a key, asks for one, and works with what the key's role allows: here not with training."""
    file = tmp_path / "keys"
    key = new_key(file, "visitor", "user")
    with start("--api-keys", file, key=key) as s:
        p = browser.page()
        p.expected = ["status of 401", "status of 403"]
        p.open(s.url + "/")
        p.wait("document.querySelector('#key-dialog').open")
        p.fill("#key-text", "tdm_wrong")
        p.key("Enter")
        p.wait("document.querySelector('#key-dialog').open && document.querySelector('#key-reason').textContent.includes('not known')")
        p.fill("#key-text", key)
        p.key("Enter")
        p.wait("!document.querySelector('#key-dialog').open && document.querySelector('#status').textContent === 'ready'")
        set_sampling(p, max_tokens=3)
        p.click("#prompt-go")
        p.wait("document.querySelector('#prompt-stats').textContent.includes('3 tokens')")
        go(p, "training")
        p.wait("document.querySelector('#panel-training').textContent.includes('the role train')")
        leave(p, s.url)


def test_a_daemon_that_goes_away(browser, start):
    with start() as s:
        p = opened(browser, s.url + "/")
    p.wait("document.querySelector('#status').textContent === 'unreachable'")
    p.click("#prompt-go")
    p.wait("document.querySelector('#prompt-error').textContent.includes('cannot be reached')")
    p.expected = ["ERR_"]
    leave(p, s.url)


# ---- its parts -------------------------------------------------------------------------------------------------------

def test_events_however_they_are_cut(still):
    text = "data: a\r\ndata: b\r\n\r\n: comment\n\nid: 7\nevent: x\ndata:y\u00e9\u20ac\n\rdata\r\rdata: lost"
    for size in (1, 2, 3, 5, 1000):
        found = still.js(f"""import('/console/api.js').then(async m => {{
            const bytes = new TextEncoder().encode({json.dumps(text)}), found = [];
            const body = new ReadableStream({{start(c) {{ for (let i = 0; i < bytes.length; i += {size}) c.enqueue(bytes.slice(i, i + {size})); c.close(); }}}});
            for await (const e of m.events(new Response(body))) found.push([e.type, e.data, e.id]);
            return found; }})""")
        assert found == [["message", "a\nb", None], ["x", "y\u00e9\u20ac", "7"], ["message", "", "7"]], size


def test_metrics_are_read_as_prometheus_does(still, daemon):
    from prometheus_client.parser import text_string_to_metric_families
    text = daemon.get("/metrics").text
    found = still.js(f"import('/console/live.js').then(m => [...m.parseMetrics({json.dumps(text)})])")
    expected = [s.value for family in text_string_to_metric_families(text) for s in family.samples]
    assert sorted(value for _, value in found) == sorted(expected) and len(found) > 100
    quantile = "import('/console/live.js').then(m => [0.25, 0.5, 0.95, 1].map(q => m.quantile({count: 8, buckets: [[1, 0], [2, 4], [4, 8], [Infinity, 8]]}, q)))"
    assert still.js(quantile) == [1.5, 2, 3.8, 4]


def test_pasted_rows(still):
    for text, found in [
        ('{"text": "a"}\n\n{"prompt": "b", "completion": "c"}\r\n', [{"text": "a"}, {"prompt": "b", "completion": "c"}]),
        ('"a"', [{"text": "a"}]), ('[{"text": "a"}, "b"]', [{"text": "a"}, {"text": "b"}]), ("", []), ('{"a": 1}\n[1]', "Line 2 is no JSON object."),
        ("[1]", "Row 1 is no JSON object."), ("[", "The rows are no JSON array"), ("a", "Line 1 is no JSON object."), ("null", "Line 1 is no JSON object."),
    ]:
        got = still.js(f"import('/console/train.js').then(m => {{ try {{ return m.parseRows({json.dumps(text)}) }} catch (e) {{ return e.message }} }})")
        assert got == found if isinstance(found, list) else got.startswith(found), text


def test_numbers(still):
    for call, text in [
        ("number(1234)", "1234"), ("number(12345)", "12.3 k"), ("number(0.012345)", "0.0123"), ("number(3.5e6)", "3.5 M"), ("number(0)", "0"),
        ("number(NaN)", "–"), ("number(1.23456)", "1.23"), ("number(2e-6)", "2.0e-6"), ("seconds(0.0031)", "3.1 ms"), ("seconds(3e-5)", "30 µs"),
        ("seconds(61.2)", "61 s"), ("seconds(7260)", "2 h 1 min"), ("bytes(14000000)", "13.4 MiB"), ("bytes(12)", "12 B"), ("percent(0.345)", "35 %"),
        ("percent(0.00123)", "0.1 %"),
    ]:
        assert still.js(f"import('/console/dom.js').then(m => m.{call})").replace("\u202f", " ") == text


# ---- how it looks, and how it is used without a mouse ----------------------------------------------------------------

TABS = ["prompt", "chat", "training", "adapters", "model"]

# Text whose colour is too near to what is behind it (WCAG 2.2, 1.4.3: 4.5 to 1).
FAINT = """(() => {
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const rgb = c => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
    const light = c => { const [r, g, b] = c.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; } return [255, 255, 255]; };
    const found = [];
    for (const e of document.querySelectorAll('body *')) {
        const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()), svg = e instanceof SVGElement;
        if (!own || !e.getClientRects().length || e.disabled || e.closest('noscript, option')) continue;
        const style = getComputedStyle(e), a = light(rgb(svg ? style.fill : style.color)), b = light(behind(e));
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) found.push(`${e.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
    }
    return found; })()"""


@pytest.mark.parametrize("dark", [False, True])
def test_readable_on_a_phone_and_a_desk(page, dark):
    for width, height in ((360, 740), (820, 1100), (1440, 900)):
        page.show(width, height, dark)
        for tab in TABS:
            page.js(f"location.hash = '{tab}'")
            page.wait(f"!document.querySelector('#panel-{tab}').hidden")
            assert page.js("document.documentElement.scrollWidth") <= width, (tab, width)
            wide = page.js("[...document.querySelectorAll('main *, header *')].filter(e => e.getClientRects().length && "
                           "e.getBoundingClientRect().right > innerWidth + 0.5 && !e.closest('svg, .unseen, .facts')).map(e => e.outerHTML.slice(0, 80))")
            assert wide == [], (tab, width)
            assert page.js(FAINT) == [], (tab, width)
    ground = page.js("getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == dark


def test_everything_has_a_name(page):
    """What can be focused is announced with a name, on every tab."""
    page.call("Accessibility.enable")
    for tab in TABS:
        page.js(f"location.hash = '{tab}'")
        page.wait(f"!document.querySelector('#panel-{tab}').hidden")
        if tab == "training" and page.js("document.querySelector('#train-form').hidden"):
            page.click("#train-new")
        nameless = []
        for node in page.call("Accessibility.getFullAXTree")["nodes"]:
            properties = {p["name"]: p["value"].get("value") for p in node.get("properties", [])}
            role = node.get("role", {}).get("value")
            if not node.get("ignored") and properties.get("focusable") and role not in ("RootWebArea", "tabpanel") and not node.get("name", {}).get("value"):
                nameless.append(node)
        assert nameless == [], tab


def test_keyboard_alone(page):
    page.js("document.querySelector('#tab-prompt').focus()")
    for key, tab in (("ArrowRight", "chat"), ("End", "model"), ("ArrowRight", "prompt"), ("ArrowLeft", "model"), ("Home", "prompt")):
        page.key(key)
        page.wait(f"document.activeElement.id === 'tab-{tab}' && !document.querySelector('#panel-{tab}').hidden")
    page.key("Tab")
    page.wait("document.activeElement.id === 'prompt-text'")
    set_sampling(page, max_tokens=3)
    page.js("document.querySelector('#prompt-text').focus()")
    page.key("Enter", modifiers=2)
    page.wait("document.querySelector('#prompt-stats').textContent.includes('3 tokens')")


# ---- chat ------------------------------------------------------------------------------------------------------------

def test_no_template_no_chat(page):
    """The demo model has none: the tab says so, and the message waits in the prompt tab."""
    page.expected = ["status of 400"]
    go(page, "chat")
    page.fill("#chat-text", "Hello there")
    page.key("Enter")
    page.wait("!document.querySelector('#panel-prompt').hidden")
    assert page.js("document.querySelector('#prompt-text').value") == "Hello there"
    assert "no chat template" in page.text("#prompt-notice") and "no chat template" in page.text("#chat-notice")
    assert page.js("document.querySelectorAll('.message').length") == 0


def test_a_conversation(browser, start):
    with start("--chat-template", "plain") as s:
        p = opened(browser, s.url + "/#chat")
        set_sampling(p, max_tokens=20, temperature=0)
        p.click(".fold summary")
        p.fill("#chat-system", "You tell stories.")
        messages = [{"role": "system", "content": "You tell stories."}]
        for turn, text in enumerate(("Tell me of a dog.", "And <b>then</b>?"), 1):
            p.fill("#chat-text", text)
            p.key("Enter")
            p.wait(f"document.querySelectorAll('.message').length === {2 * turn} && document.querySelector('#chat-stats').textContent.includes('ended')")
            messages.append({"role": "user", "content": text})
            answer = s.post("/v1/chat/completions", {"model": MODEL.name, "messages": messages, "max_tokens": 20, "temperature": 0}).json()
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            assert p.js("[...document.querySelectorAll('.said')].map(e => e.textContent)") == [m["content"] for m in messages[1:]]
            assert p.text("#chat-stats").startswith(f"{answer['usage']['completion_tokens']} tokens")
        p.click("#chat-clear")
        assert p.js("document.querySelectorAll('.message').length") == 0
        leave(p, s.url)
