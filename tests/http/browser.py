"""Debian's Chromium without a window, over the DevTools protocol's pipe: JSON messages that end with a NUL, to its file
descriptor 3 and from its 4. No driver program and no library in between, so console messages and requests are seen as
they happen. https://chromedevtools.github.io/devtools-protocol/"""
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-extensions",
         "--no-proxy-server", "--hide-scrollbars", "--force-color-profile=srgb", "--lang=en-US")
KEYS = {"Enter": ("Enter", 13, "\r"), "ArrowRight": ("ArrowRight", 39, ""), "ArrowLeft": ("ArrowLeft", 37, ""), "Tab": ("Tab", 9, ""),
        "Home": ("Home", 36, ""), "End": ("End", 35, ""), "Escape": ("Escape", 27, "")}


def find_browser():
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def high(fd):
    """The descriptor under a number that is not 3 or 4."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(fd)
    return moved


class Browser:
    """One process; a context manager. All its pages are read by whoever waits for one of them."""

    def __init__(self, program=None):
        self.folder = tempfile.TemporaryDirectory(prefix="browser", ignore_cleanup_errors=True)
        theirs_in, self.to = map(high, os.pipe())
        self.from_, theirs_out = map(high, os.pipe())
        command = [program or find_browser(), *FLAGS, f"--user-data-dir={self.folder.name}"]
        with open(Path(self.folder.name) / "log", "wb") as log:
            self.process = subprocess.Popen(["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *command],
                                            pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env={**os.environ, "HOME": self.folder.name, "TZ": "UTC"})
        os.close(theirs_in)
        os.close(theirs_out)
        self.count, self.buffer, self.replies, self.pages = 0, b"", {}, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(300)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        os.close(self.from_)
        self.folder.cleanup()

    def log(self):
        return (Path(self.folder.name) / "log").read_text(errors="replace")[-2000:]

    def read(self, seconds):
        """Takes what has come, waiting at most so long for it."""
        if not select.select([self.from_], [], [], max(seconds, 0))[0]:
            return
        data = os.read(self.from_, 1 << 20)
        assert data, f"the browser ended\n{self.log()}"
        *messages, self.buffer = (self.buffer + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self.replies[message["id"]] = message
            elif message.get("sessionId") in self.pages:
                self.pages[message["sessionId"]].on_event(message["method"], message["params"])

    def send(self, method, session=None, **parameters):
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        data = memoryview(json.dumps(message).encode() + b"\0")
        while data:
            data = data[os.write(self.to, data):]
        return self.count

    def call(self, method, session=None, seconds=60, **parameters):
        number, end = self.send(method, session, **parameters), time.monotonic() + seconds
        while number not in self.replies:
            assert time.monotonic() < end, f"no reply to {method} in {seconds} s\n{self.log()}"
            self.read(end - time.monotonic())
        reply = self.replies.pop(number)
        assert "error" not in reply, f"{method}: {reply.get('error')}"
        return reply["result"]

    def page(self, width=1280, height=900, dark=False):
        return Page(self, width, height, dark)


class Page:
    """A tab with storage of its own. `problems`: errors it logged; `requests`: every address it asked for."""

    def __init__(self, browser, width, height, dark):
        self.browser, self.problems, self.requests, self.intercept = browser, [], [], None
        self.context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=self.context)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.pages[self.session] = self
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")
        self.show(width, height, dark)

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def close(self):
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)
        del self.browser.pages[self.session]

    def on_event(self, method, p):
        if method == "Network.requestWillBeSent":
            self.requests.append(p["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = p["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and p["type"] in ("error", "assert"):
            self.problems.append(" ".join(str(a.get("value", a.get("description"))) for a in p["args"]))
        elif method == "Log.entryAdded" and p["entry"]["level"] == "error":
            self.problems.append(f"{p['entry']['text']} {p['entry'].get('url', '')}")
        elif method == "Fetch.requestPaused" and self.intercept:
            self.intercept(p)

    # ---- looking ----

    def show(self, width, height, dark=False):
        """The size in CSS pixels, and the system's colours."""
        self.width, self.height = width, height
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def slow(self, bytes_per_second):
        """Answers come at most so fast, so that what happens on the way can be seen on any machine."""
        self.call("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=bytes_per_second, uploadThroughput=-1)

    def js(self, expression):
        """The value of an expression, which may be a promise."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, f"{expression}: {found.get('exceptionDetails')}"
        return found["result"].get("value")

    def wait(self, expression, seconds=60):
        """Until the expression is true, or an element; returns its value."""
        end = time.monotonic() + seconds
        while True:
            value = self.js(expression)
            if value or value == {}:
                return value
            assert time.monotonic() < end, f"not in {seconds} s: {expression}\n{self.problems}\n{self.js('document.body.innerText')}"
            self.browser.read(0.03)

    def text(self, selector):
        return self.js(f"document.querySelector({json.dumps(selector)}).textContent")

    def screenshot(self, path, whole=False):
        clip = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"clip": {"x": 0, "y": 0, "width": self.width, "height": size["height"], "scale": 1}, "captureBeyondViewport": True}
        data = self.call("Page.captureScreenshot", format="png", **clip)["data"]
        Path(path).write_bytes(base64.b64decode(data))

    # ---- doing ----

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def place(self, selector):
        """The middle of the element, scrolled into view."""
        found = self.wait(f"""(() => {{ const e = document.querySelector({json.dumps(selector)});
            if (!e || !e.getClientRects().length || e.disabled) return null;
            e.scrollIntoView({{block: 'center', behavior: 'instant'}});
            const r = e.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2, top = document.elementFromPoint(x, y);
            return e.contains(top) || top?.closest('label')?.contains(e) ? [x, y] : null; }})()""")
        return {"x": found[0], "y": found[1]}

    def click(self, selector):
        at = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def hover(self, selector, dx=0):
        at = self.place(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=at["x"] + dx, y=at["y"])

    def fill(self, selector, text):
        """Replaces what a field holds, as typing does."""
        self.click(selector)
        self.js("document.activeElement.select()")
        self.call("Input.insertText", text=text)

    def choose(self, selector, value):
        self.js(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(value)}; "
                "e.dispatchEvent(new Event('input', {bubbles: true})); e.dispatchEvent(new Event('change', {bubbles: true})); })()")

    def key(self, name, modifiers=0):
        key, code, text = KEYS[name]
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, modifiers=modifiers,
                      **({"text": text} if text and kind == "keyDown" else {}))

    def put_file(self, selector, path):
        found = self.call("Runtime.evaluate", expression=f"document.querySelector({json.dumps(selector)})")["result"]["objectId"]
        self.call("DOM.setFileInputFiles", objectId=found, files=[str(path)])
