"""Speculation over HTTP: the same answers with it and without, from a text's own repetitions, from earlier texts and
from a draft model; and its metrics."""
import json
import os

import pytest

from conftest import MODEL, ROOT

TEXT = ('Tom saw a red ball. Tom said, "I like the red ball." Tom saw a red ball. Tom said, "I like the red ball." '
        'Tom saw a red ball. Tom')
ASKS = [{}, {"do_sample": True, "seed": 4, "temperature": 0.4}, {"repetition_penalty": 1.02, "top_n_tokens": 2},
        {"grammar": {"type": "regex", "value": "( (saw|said|like|a|the|red|ball|Tom)){12}"}}, {"stop": ["ball"]}]


def answers(server):
    got = [server.generate(TEXT, max_new_tokens=40, details=True, **ask) for ask in ASKS]
    streamed = server.post("/v1/completions", {"prompt": TEXT, "max_tokens": 40, "temperature": 0, "stream": True}).text
    got.append([line.split('"text":')[1].split(',"')[0] for line in streamed.splitlines() if '"text":' in line])
    return got


def tokens(server, source, accepted=False):
    return server.metric(f"tandem_speculated_tokens{'_accepted' if accepted else ''}_total", source=source)


@pytest.fixture(scope="module")
def draft(tmp_path_factory):
    """The model without its last layer."""
    path = tmp_path_factory.mktemp("draft")
    config = json.loads((MODEL / "config.json").read_text())
    config["num_hidden_layers"] -= 1
    (path / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "model.safetensors"):
        os.symlink(MODEL / name, path / name)
    return path


def test_same_answers_in_fewer_steps(start, draft):
    with start("--speculate", "off", "--draft-model", draft) as server:
        want = answers(server)
        assert tokens(server, "ngram") == 0
        assert "draft" not in server.get("/info").json()  # it is not even loaded
        steps = server.metric("tandem_steps_total")
    with start("--speculate", "on", "--speculate-history", "0") as server:
        assert answers(server) == want
        proposed, accepted = tokens(server, "ngram"), tokens(server, "ngram", True)
        assert 0 < accepted <= proposed
        assert server.metric("tandem_speculation_saved_steps_total") == accepted  # a request at a time
        fewer = server.metric("tandem_steps_total")
        assert fewer < steps
        assert answers(server) == want
        assert tokens(server, "history") == 0
    with start("--speculate", "on", "--draft-model", draft) as server:
        assert answers(server) == want
        assert 0 < tokens(server, "draft", True) <= tokens(server, "draft")
        before = server.metric("tandem_steps_total")
        assert answers(server) == want  # again: from what was generated before
        assert tokens(server, "history", True) > 0
        assert server.metric("tandem_steps_total") - before < fewer / 2
        info = server.get("/info").json()["draft"]
        assert info["model"] == str(draft) and 0 < info["parameters"] and info["kv_bytes"] > 0
        assert server.metric("tandem_memory_bytes", part="draft") > info["weight_bytes"] + info["kv_bytes"]
        assert server.metric("tandem_draft_steps_total") > 0


def test_a_draft_of_another_vocabulary(run):
    done = run("serve", "--port", "0", "--model", MODEL, "--draft-model", ROOT / "tests/fixtures/models/gpt2")
    assert done.returncode != 0 and b"draft-model: its vocabulary" in done.stderr
