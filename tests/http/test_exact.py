"""Training exactly on policy, over HTTP: texts are sampled, come back as rows with their log-probabilities, and
/metrics says how many of these training did not compute with the same bits."""
from concurrent.futures import ThreadPoolExecutor

import pytest
from training import request, wait_over


def sample(server, i):
    """A row of ids, of which those that were sampled are trained."""
    details = server.generate(f"Tom number {i} saw", max_new_tokens=20 + i, do_sample=True, seed=i, details=True,
                              decoder_input_details=True, adapter_id="hand")["details"]
    prompt, tokens = [t["id"] for t in details["prefill"]], details["tokens"]
    ids = prompt + [t["id"] for t in tokens]
    return {"input_ids": ids, "labels": [-100] * len(prompt) + ids[len(prompt):],
            "logprobs": [None] * len(prompt) + [t["logprob"] for t in tokens]}


def counts(server):
    return [server.metric(f"tandem_train_sampled_{what}_total") for what in ("tokens", "mismatches")]


def train(server, body):
    answer = server.post("/train", {**body, "method": "qlora"})
    assert answer.status_code == 202, answer.text
    found = wait_over(server, answer.json()["id"])
    assert found["status"] == "succeeded", found


def go_on(server, name, rows, exact):
    train(server, {**request(name, dataset={"rows": rows}, max_steps=1, batch_tokens=100000, exact=exact), "from": "hand"})


@pytest.mark.parametrize("kv", ["auto", "int8"])
def test_no_mismatch(start, kv):
    with start("--quantize", "int8", "--kv-cache", kv) as server:
        train(server, request("hand", max_steps=3, learning_rate=0.01))
        with ThreadPoolExecutor(8) as pool:
            rows = list(pool.map(lambda i: sample(server, i), range(12)))
        trained = sum(label >= 0 for row in rows for label in row["labels"])
        assert counts(server) == [0, 0]
        go_on(server, "hand-exact", rows, True)
        assert counts(server) == [trained, 0]
        go_on(server, "hand-usual", rows, False)
        assert counts(server)[0] == 2 * trained and counts(server)[1] > trained / 2


def test_refused(start):
    with start() as server:
        answer = server.post("/train", request("drops", exact=True, lora_dropout=0.1))
        failed = answer.status_code != 202 and answer.json() or wait_over(server, answer.json()["id"])
        assert "exact: lora_dropout must be 0" in str(failed), failed
        for logprobs, says in (([None], "1 \"logprobs\" for 3 \"input_ids\""), ([None, 1, -1], "logprobs[1] is neither"),
                               ("all", "must be a list")):
            rows = [{"input_ids": [5, 6, 7], "logprobs": logprobs}]
            answer = server.post("/train/validate", {"dataset": {"rows": rows}})
            assert says in answer.json()["error"], answer.text
