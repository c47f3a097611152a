"""The command lines of Claude Code and Codex, unmodified, through a whole task: a file is edited, the task ends.

The model's text is a script (tests/http/scripted.py).  The programs are those in the wheels of tests/requirements-agents.txt, which are
large; without them the tests are skipped.  They get an environment of their own and a home that is empty, and what they
ask of other machines is refused by the proxy, and fails the test."""
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import client_rig  # noqa: F401
import pytest
from conftest import BUILD, start  # noqa: F401
from scripted import FLAGS, ROOM, Scripted, cached, call_text, make_agents_model, record


sys.path.append(str(BUILD / "agents"))


def program(package, path):
    found = importlib.util.find_spec(package)
    file = Path(found.origin).parent / path if found and found.origin else None
    if not file or not file.exists():
        pytest.skip(f"{package} is not installed: tests/requirements-agents.txt")
    return file


@pytest.fixture(scope="module")
def daemon(start, tmp_path_factory):  # noqa: F811
    with start(*FLAGS, model=make_agents_model(tmp_path_factory.mktemp("models"))) as s:
        yield s
        s.wait_idle()


@pytest.fixture
def work(tmp_path):
    (tmp_path / "home").mkdir()
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("old\n")
    return folder


NOWHERE = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}


def run_agent(proxy, work, command, **env):
    env = {"HOME": work.parent / "home", "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HTTPS_PROXY": proxy.url, "HTTP_PROXY": proxy.url,
           "NO_PROXY": "127.0.0.1,localhost", **env}
    done = subprocess.run([str(c) for c in command], cwd=work, env={k: str(v) for k, v in env.items()}, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=110)
    assert done.returncode == 0, (proxy.told(), done.stdout[-3000:], done.stderr[-3000:])
    assert all(one["status"] == 200 for one in proxy.seen), proxy.told()
    return done.stdout


def keep(name, proxy, work):
    """TANDEM_RECORD=FOLDER makes the recordings that tests/http/test_agents.py replays."""
    if os.environ.get("TANDEM_RECORD"):
        record(Path(os.environ["TANDEM_RECORD"]) / f"{name}.json", proxy, work)


def found_again(proxy):
    """Each turn finds the one before in the prefix cache, but for the last page: however the agent writes its history."""
    usages = [cached(one) for one in proxy.seen if one["body"].get("tools")]
    assert all(now[1] >= before[0] - 32 for before, now in zip(usages, usages[1:], strict=False)), usages
    assert usages[0][0] > 10000, "the agent's own prompt and tools"


def test_claude_code(daemon, work):
    file = work / "a.txt"
    script = ["<think>\nWhat is in it?\n</think>\n\nI look.\n" + call_text("Read", {"file_path": str(file)}),
              call_text("Edit", {"file_path": str(file), "old_string": "old", "new_string": "new"}) + "\n" +
              call_text("Bash", {"command": "cat a.txt > seen.txt", "description": "Copies it"}),
              call_text("ToolSearch", {"query": "select:WebFetch", "max_results": 1}),
              call_text("Write", {"file_path": str(work / "b.txt"), "content": "It's \"b\".\n\tΩ\n"}), "It says new."]
    with Scripted(daemon, script) as proxy:
        out = run_agent(proxy, work, [program("claude_agent_sdk", "_bundled/claude"), "-p", "Make a.txt say new.", "--output-format", "json",
                                      "--allowedTools", "Read", "Edit", "Write", "Bash"],
                        ANTHROPIC_BASE_URL=proxy.url, ANTHROPIC_AUTH_TOKEN="none", ANTHROPIC_MODEL="tandem", ANTHROPIC_DEFAULT_HAIKU_MODEL="tandem",
                        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1, DISABLE_AUTOUPDATER=1, CLAUDE_CODE_MAX_CONTEXT_TOKENS=ROOM)
    result = json.loads(out.strip().splitlines()[-1])
    assert not result["is_error"] and result["result"] == "It says new." and result["usage"]["cache_read_input_tokens"] > 10000
    assert file.read_text() == (work / "seen.txt").read_text() == "new\n" and (work / "b.txt").read_text() == "It's \"b\".\n\tΩ\n"
    assert {one["path"] for one in proxy.seen} == {"/v1/messages?beta=true"}
    assert any(t.get("defer_loading") and t["name"] == "WebFetch" for t in proxy.seen[-1]["body"]["tools"]), "what was found by the search"
    found_again(proxy)
    keep("claude-code", proxy, work)


MCP = """
import json, sys
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m:
        continue
    if m["method"] == "initialize":
        r = {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "files", "version": "1"}}
    elif m["method"] == "tools/list":
        r = {"tools": [{"name": "read", "description": "Reads a file.", "inputSchema": {
            "type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}}]}
    elif m["method"] == "tools/call":
        r = {"content": [{"type": "text", "text": open(m["params"]["arguments"]["path"]).read()}]}
    else:
        r = {}
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
"""
CONFIG = """
model = "tandem"
model_provider = "tandem"
model_context_window = {room}
check_for_update_on_startup = false
{more}
[model_providers.tandem]
name = "tandem"
base_url = "{url}/v1"
wire_api = "responses"
[analytics]
enabled = false
[features]
plugins = false
apps = false
[mcp_servers.files]
command = "{python}"
args = ["{server}"]
"""
PATCH = "*** Begin Patch\n*** Update File: a.txt\n@@\n-old\n+new\n*** Add File: b.txt\n+It's \"b\".\n+\tΩ\n*** End Patch\n"


@pytest.mark.parametrize("freeform", [False, True], ids=["as it is", "with a catalogue that gives it apply_patch"])
def test_codex(daemon, work, freeform):
    codex, home = program("codex_cli_bin", "bin/codex"), work.parent / "home" / ".codex"
    home.mkdir()
    more = ""
    if freeform:  # the entry of a model of OpenAI's, under another name
        entries = json.loads(subprocess.run([codex, "debug", "models"], env={"HOME": str(work.parent / "home"), **NOWHERE}, capture_output=True, check=True).stdout)
        entry = next(m for m in entries["models"] if m.get("apply_patch_tool_type") == "freeform" and not m.get("tool_mode"))
        (home / "models.json").write_text(json.dumps({"models": [{**entry, "slug": "tandem", "supports_search_tool": False}]}))
        more = f'model_catalog_json = "{home}/models.json"'
    (home / "server.py").write_text(MCP)
    edit = call_text("apply_patch", {"input": PATCH}) if freeform else call_text("exec_command", {"cmd": f"apply_patch <<'EOF'\n{PATCH}EOF"})
    script = ["<think>\nWhat is in it?\n</think>\n\nI look.\n" + call_text("exec_command", {"cmd": "cat a.txt > seen.txt"}),
              call_text("mcp__files__read", {"path": str(work / "a.txt")}), "I edit.\n" + edit, "It says new."]
    with Scripted(daemon, script) as proxy:
        (home / "config.toml").write_text(CONFIG.format(url=proxy.url, python=sys.executable, server=home / "server.py", more=more, room=ROOM))
        out = run_agent(proxy, work, [codex, "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "--json", "Make a.txt say new."])
    events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    items = [e["item"] for e in events if e["type"] == "item.completed"]
    assert events[-1]["type"] == "turn.completed" and events[-1]["usage"]["cached_input_tokens"] > 10000
    assert [i["text"] for i in items if i["type"] == "agent_message"] == ["I look.", "I edit.", "It says new."]
    assert (work / "a.txt").read_text() == "new\n" and (work / "seen.txt").read_text() == "old\n" and (work / "b.txt").read_text() == "It's \"b\".\n\tΩ\n"
    [read] = [i for i in items if i["type"] == "mcp_tool_call"]
    assert (read["server"], read["tool"], read["status"]) == ("files", "read", "completed")
    assert {one["path"] for one in proxy.seen} == {"/v1/responses"} and len(proxy.seen) == 4
    assert ("custom" in {t["type"] for t in proxy.seen[0]["body"]["tools"]}) == freeform
    found_again(proxy)
    keep("codex-apply-patch" if freeform else "codex", proxy, work)
