"""What Claude Code and Codex sent during a task (recorded/), sent again: each turn's answer is one that the agent went on with, its calls
edit the file, the task ends.  tests/clients/test_agents.py runs the programs themselves and makes the recordings."""
import json
import re

import pytest
from scripted import FLAGS, call_text, events_of, make_agents_model, recording

EDITED = {"a.txt": "new\n", "b.txt": "It's \"b\".\n\tΩ\n"}


@pytest.fixture(scope="module")
def daemon(start, tmp_path_factory):
    with start(*FLAGS, model=make_agents_model(tmp_path_factory.mktemp("models"))) as s:
        yield s
        s.wait_idle()


def apply_patch(folder, patch):
    """What of apply_patch the recordings need."""
    file, lines = None, patch.split("\n")
    assert lines[0] == "*** Begin Patch" and lines[-2:] == ["*** End Patch", ""]
    for line in lines[1:-2]:
        if line.startswith("*** "):
            file = folder / line.split(": ")[1]
            file.touch()
        elif line[0] == "-":
            file.write_text(file.read_text().replace(line[1:] + "\n", "", 1))
        elif line[0] == "+":
            file.write_text(file.read_text() + line[1:] + "\n")


def claude_code(item, folder):
    """Does what a call asks for.  @return the call as the next turn repeats it."""
    kind, given = item["type"], item.get("input")
    if kind != "tool_use":
        return {k: v for k, v in item.items() if k != "citations"}
    if item["name"] == "Edit":
        file = folder / given["file_path"]
        file.write_text(file.read_text().replace(given["old_string"], given["new_string"]))
        given = {"replace_all": False, **given}
    elif item["name"] == "Write":
        (folder / given["file_path"]).write_text(given["content"])
    return {**item, "input": given}


def codex(item, folder):
    command = json.loads(item["arguments"]).get("cmd", "") if item["type"] == "function_call" else ""
    patch = item["input"] if item["type"] == "custom_tool_call" else command.split("<<'EOF'\n")[1].removesuffix("EOF") if "<<" in command else ""
    if patch:
        apply_patch(folder, patch)
    return item


def items_of(events):
    """(the parts of the answer, how it ended, its usage), put together as the agents do it."""
    if events[0]["type"] == "response.created":
        end = events[-1]
        assert end["type"] == "response.completed" and [e["sequence_number"] for e in events] == list(range(len(events)))
        return [e["item"] for e in events if e["type"] == "response.output_item.done"], end["response"]["status"], end["response"]["usage"]
    blocks, end = [], next(e for e in events if e["type"] == "message_delta")
    for e in events:
        if e["type"] == "content_block_start":
            blocks.append({**e["content_block"], "partial": ""})
        elif e["type"] == "content_block_delta":
            delta = e["delta"]
            field = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature", "input_json_delta": "partial_json"}[delta["type"]]
            blocks[-1]["partial" if field == "partial_json" else field] += delta[field]
    blocks = [{**b, "input": json.loads(b["partial"])} if b["partial"] else b for b in blocks]
    return [{k: v for k, v in b.items() if k != "partial"} for b in blocks], end["delta"]["stop_reason"], end["usage"]


def with_ids(value, ids):
    """The recorded value with the ids of the answers given now."""
    text = json.dumps(value)
    for old, new in ids.items():
        text = text.replace(old, new)
    return json.loads(text)


def repeated(body, n):
    """What the n-th answer became in the history of a later request."""
    if "messages" in body:
        return [m for m in body["messages"] if m["role"] == "assistant"][n]["content"]
    mine, n_turns = [], -1
    for before, item in zip([{}, *body["input"]], body["input"], strict=False):
        spoken = [i.get("type") in ("reasoning", "function_call", "custom_tool_call") or i.get("role") == "assistant" for i in (before, item)]
        n_turns += spoken[1] and not spoken[0]
        mine += [item] if spoken[1] and n_turns == n else []
    return mine


def replay(daemon, name, folder, act):
    """@return the last answer's parts and how it ended; the tokens of each prompt and those of them that were in the cache."""
    task, ids, usages = recording(name, folder), {}, []
    (folder / "a.txt").write_text("old\n")
    for n, turn in enumerate(task["turns"]):
        body = with_ids({**turn, "tools": task["tools"][turn["tools"]]}, ids)
        got = daemon.post(task["path"], {**body, "structured_outputs": {"choice": [task["script"][n]]}}, headers={**task["headers"], "x-api-key": "none"})
        assert got.status_code == 200, got.text
        items, end, usage = items_of(events_of(got.content.decode()))
        items = [act(item, folder) for item in items]
        usages.append((usage["input_tokens"], usage["cache_read_input_tokens"]) if "cache_read_input_tokens" in usage
                      else (usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"], usage["input_tokens_details"]["cached_tokens"]))
        if n + 1 == len(task["turns"]):
            break
        for old, new in zip(repeated(task["turns"][n + 1], n), items, strict=True):
            ids.update({old[k]: new[k] for k in ("id", "call_id") if k in old})
            kept = {k: v for k, v in new.items() if k in old}
            assert with_ids(old, ids) == kept, "the answer is what the agent had in its history"
    return items, end, usages


@pytest.mark.parametrize("name, act", [("claude-code", claude_code), ("codex", codex), ("codex-apply-patch", codex)])
def test_a_recorded_task(daemon, tmp_path, name, act):
    items, end, usages = replay(daemon, name, tmp_path, act)
    assert end in ("end_turn", "completed")
    [text] = [i.get("text") or i["content"][0]["text"] for i in items]
    assert text == "It says new." and {f.name: f.read_text() for f in tmp_path.iterdir()} == EDITED
    assert all(now[1] >= sum(before) - 32 for before, now in zip(usages, usages[1:], strict=False)), "each turn finds the one before in the cache"
    assert sum(usages[0]) > 10000


def test_recordings_are_of_no_machine():
    for name in ("claude-code", "codex", "codex-apply-patch"):
        text = json.dumps(recording(name, "/home/user/project"))
        assert not re.search(r"/(tmp|root|work)\b", text) and call_text("x", {})[:11] in text
