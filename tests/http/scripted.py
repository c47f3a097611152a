"""A test double of a model's text, for agents: their requests reach the daemon as they are, but for one field that constrains what the
model writes.  All else is real: HTTP, the template, the tokenizer, the engine, and the calls that are found in the text.

An agent cannot be told to send that field, so a proxy adds it; the answers pass through it untouched."""
import http.client
import http.server
import json
import re
import shutil
import threading

from conftest import ROOT

QWEN = ROOT / "tests/fixtures/templates/Qwen-Qwen2.5-7B-Instruct.jinja"
ROOM = 131072
FLAGS = ("--chat-template", QWEN, "--kv-cache-bytes", "64M", "--threads", "2", "--accept-any-model")
OF_THE_HOP = ("host", "connection", "content-length", "transfer-encoding", "accept-encoding")


def make_agents_model(folder):
    """Random weights, and room for the prompts of agents: a token is about a byte, each sees the 16 before it, so 40,000 take a second."""
    model = folder / "agents"
    shutil.copytree(ROOT / "tests/fixtures/models/mistral", model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": ROOM}))
    return model


def call_text(name, arguments):
    """A call as the template teaches the model to write it."""
    return f'<tool_call>\n{json.dumps({"name": name, "arguments": arguments})}\n</tool_call>'


def turn_of(body):
    """How often the model has spoken in the conversation of a request."""
    if "messages" in body:
        return sum(m["role"] == "assistant" for m in body["messages"])
    n, before = 0, False
    for item in body["input"] if isinstance(body["input"], list) else []:
        mine = item.get("type") in ("reasoning", "function_call", "custom_tool_call") or item.get("role") == "assistant"
        n, before = n + (mine and not before), mine
    return n


def saying(body, script):
    """The body, constrained to the text of its turn; those without tools (titles, summaries) get a word."""
    if not body.get("tools"):
        return {**body, "structured_outputs": {"choice": ["Well."]}}
    turn = turn_of(body)
    assert turn < len(script), f"turn {turn}: the task should have ended"
    return {**body, "structured_outputs": {"choice": [script[turn]]}}


def events_of(text):
    return [json.loads(frame.split("data: ", 1)[1]) for frame in text.removesuffix("\n\n").split("\n\n") if "data: " in frame]


class Scripted:
    """The proxy, a context manager.  seen: what passed through it, one dict for each request, in the order of their ends."""

    def __init__(self, server, script):
        self.upstream, self.script, self.seen = server, script, []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def serve(self):
                outer._pass(self)

            do_GET = do_POST = do_HEAD = do_CONNECT = do_PUT = do_DELETE = serve

            def log_message(self, *args):
                pass
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def _pass(self, to):
        one = {"method": to.command, "path": to.path, "headers": dict(to.headers), "body": None, "status": 502, "answer": b""}
        sent = to.rfile.read(int(to.headers.get("content-length") or 0))
        to.close_connection = True
        self.seen.append(one)
        if to.command == "CONNECT" or not to.path.startswith("/"):  # something outside of this machine, through us as its proxy
            to.send_error(403)
            return
        if to.command == "POST":
            one["body"] = json.loads(sent)
            sent = json.dumps(saying(one["body"], self.script) if "count_tokens" not in to.path else one["body"]).encode()
        upstream = http.client.HTTPConnection("127.0.0.1", self.upstream.port, timeout=300)
        upstream.request(to.command, to.path, sent or None, {k: v for k, v in to.headers.items() if k.lower() not in OF_THE_HOP})
        answer = upstream.getresponse()
        one["status"] = answer.status
        to.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in OF_THE_HOP:
                to.send_header(name, value)
        to.send_header("Connection", "close")
        to.end_headers()
        while piece := answer.read1(65536):
            one["answer"] += piece
            to.wfile.write(piece)
            to.wfile.flush()
        upstream.close()

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *exc):
        self.http.shutdown()
        self.http.server_close()

    def told(self):
        """What was asked for and came of it, for the message of an assertion."""
        return [(one["method"], one["path"], one["status"], one["answer"][:300] if one["status"] != 200 else b"") for one in self.seen]


def cached(one):
    """(tokens of the prompt, those of them that were in the cache) of an answer."""
    for e in reversed(events_of(one["answer"].decode())):
        usage = e.get("usage") or e.get("response", {}).get("usage")
        if usage and "cache_read_input_tokens" in usage:
            return usage["input_tokens"] + usage["cache_read_input_tokens"], usage["cache_read_input_tokens"]
        if usage:
            return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    raise AssertionError(one["answer"][-2000:])


# ---- recordings ------------------------------------------------------------------------------------------------------

RECORDED = ROOT / "tests/http/recorded"
HOME = "/home/user/project"
HEADERS = ("accept", "anthropic-beta", "anthropic-version", "content-type", "originator", "x-app", "user-agent", "x-codex-beta-features")


KEPT = ("definition", "arguments", "input", "output", "command", "file_path", "encrypted_content", "id", "call_id", "tool_use_id", "prompt_cache_key",
        "user_id", "x-codex-turn-metadata", "type", "model", "$schema")


def without_texts(value, key=""):
    """The value with "<N>" for each text of N characters that is longer than a line: what the texts say is not ours to copy, their size
    is what a replay needs.  Grammars stay."""
    if isinstance(value, dict):
        return {k: without_texts(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [without_texts(v, key) for v in value]
    kept = not isinstance(value, str) or len(value) <= 40 or key in KEPT or value.startswith(("x-anthropic-billing-header", HOME, "The file " + HOME))
    return value if kept else f"<{len(value)}>"


def with_texts(value):
    if isinstance(value, dict):
        return {k: with_texts(v) for k, v in value.items()}
    if isinstance(value, list):
        return [with_texts(v) for v in value]
    size = re.fullmatch(r"<(\d+)>", value) if isinstance(value, str) else None
    return ("The quick brown fox. " * (int(size[1]) // 21 + 1))[:int(size[1])] if size else value


def record(file, proxy, work):
    """Writes the requests that passed through as a recording, without what is of this machine or session."""
    def scrub(text):
        text = text.replace(str(work), HOME).replace(str(work.parent), "/home/user")
        text = re.sub(r"[0-9a-f]{64}", "0" * 64, text)
        text = re.sub(r"(OS Version:|Linux) [\w .-]+", r"\1 6.1", text)
        return re.sub(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "00000000-0000-4000-8000-000000000000", text)
    tools, turns = [], []
    for one in proxy.seen:
        body = without_texts(json.loads(scrub(json.dumps(one["body"]))))
        if body["tools"] not in tools:
            tools.append(body["tools"])
        if "client_metadata" in body:
            body["client_metadata"] = {"x-codex-turn-metadata": "{}"}
        turns.append({**body, "tools": tools.index(body["tools"])})
    headers = {k.lower(): v for k, v in proxy.seen[0]["headers"].items() if k.lower() in HEADERS}
    whole = {"path": proxy.seen[0]["path"], "headers": headers, "script": proxy.script, "tools": tools, "turns": turns}
    file.write_text(compact(json.loads(scrub(json.dumps(whole)))) + "\n")


def compact(whole):
    """One line for each tool, message and other field."""
    def lines(value, depth):
        if depth and isinstance(value, dict) and value:
            return "{" + ",\n".join(f"{json.dumps(k)}: {lines(v, depth - 1)}" for k, v in value.items()) + "}"
        if depth and isinstance(value, list) and value:
            return "[" + ",\n".join(lines(v, depth - 1) for v in value) + "]"
        return json.dumps(value, ensure_ascii=False)
    return "{" + ",\n".join(f"{json.dumps(k)}: {lines(v, 4 if k == 'turns' else 2)}" for k, v in whole.items()) + "}"


def recording(name, work):
    """The recording, as if it had been made in the folder `work`."""
    return with_texts(json.loads((RECORDED / f"{name}.json").read_text().replace(HOME, str(work))))
