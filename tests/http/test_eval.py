"""tandem eval: log-likelihoods and generated texts are those that transformers gave (tests/clients/make_scores.py); subjects are
compared; mistakes name the row. The metrics themselves: tests/eval."""
import json
import math

import pytest
from conftest import DEMO, ROOT

TASKS = ROOT / "tests" / "clients" / "tasks"
SCORES = json.loads((TASKS / "scores.json").read_text())
PIRATE = ROOT / "models" / "demo-pirate"
EXACT = ("--activations", "f32", "--kv-cache", "f32", "--threads", "2")
pytestmark = pytest.mark.skipif(not (DEMO / "model.safetensors").exists(), reason="no demo model")


@pytest.fixture
def evaluate(run, tmp_path):
    """-> (the object of --json, the lines of --output, what is printed)"""
    def call(data, *args, model=DEMO):
        if not hasattr(data, "exists"):
            path = tmp_path / "rows.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in data))
            data = path
        done = run("eval", "--model", model, "--data", data, *EXACT, "--json", tmp_path / "all.json", "--output", tmp_path / "rows.out", *args)
        assert done.returncode == 0, done.stderr.decode()
        lines = (tmp_path / "rows.out").read_text().splitlines()
        return json.loads((tmp_path / "all.json").read_text()), [json.loads(line) for line in lines], done.stdout.decode()
    return call


def rows(name):
    return [json.loads(line) for line in (TASKS / name).read_text().splitlines()]


def values(result, subject=0):
    return {name: m["value"] for name, m in result["subjects"][subject]["metrics"].items()}


# ---- against transformers --------------------------------------------------------------------------------------------

def argmax(v):
    return max(range(len(v)), key=lambda i: (v[i], -i))


def test_choices(evaluate):
    result, lines, printed = evaluate(TASKS / "choices.jsonl")
    want = [[logprob for logprob, _ in row] for row in SCORES["choices"]]
    for line, logprobs, row in zip(lines, want, rows("choices.jsonl"), strict=True):
        assert line["logprobs"] == pytest.approx(logprobs, abs=1e-3)
        assert line["choice"] == argmax(logprobs) and line["answer"] == row["gold"] and line["scores"]["acc"] == (line["choice"] == row["gold"])
    task = rows("choices.jsonl")

    def accuracy(length):
        return sum(argmax([p / length(c) for p, c in zip(logprobs, row["choices"], strict=True)]) == row["gold"]
                   for logprobs, row in zip(want, task, strict=True)) / len(task)
    assert values(result) == {"acc": accuracy(lambda c: 1), "acc_norm": accuracy(len), "acc_bytes": accuracy(lambda c: len(c.encode()))}
    assert result["kind"] == "choice" and result["rows"] == len(task) and f"{values(result)['acc']:.4f}" in printed


def test_white_space_at_the_prompts_end_belongs_to_the_choice(evaluate):
    row = {"prompt": "Once upon a time, there was a little", "choices": ["girl", "boy"], "answer": "girl"}
    plain = evaluate([row])[1][0]["logprobs"]
    assert evaluate([{**row, "prompt": row["prompt"] + " "}], "--delimiter", "")[1][0]["logprobs"] == plain
    assert evaluate([{**row, "choices": [" girl", " boy"], "answer": "B"}], "--delimiter", "")[1][0]["logprobs"] == plain
    empty = evaluate([{**row, "prompt": ""}, {**row, "prompt": " "}], "--delimiter", "")[1]
    assert all(p < -1 for line in empty for p in line["logprobs"])


def test_texts(evaluate):
    result, lines, _ = evaluate(TASKS / "texts.jsonl")
    texts = [row["text"] for row in rows("texts.jsonl")]
    assert [line["logprob"] for line in lines] == pytest.approx(SCORES["texts"], abs=2e-3)
    assert values(result)["perplexity"] == pytest.approx(math.exp(-sum(line["logprob"] for line in lines) / sum(line["tokens"] for line in lines)))
    total, words, size = -sum(SCORES["texts"]), sum(len(t.split(" ")) for t in texts), sum(len(t.encode()) for t in texts)
    got = values(result)
    assert got["word_perplexity"] == pytest.approx(math.exp(total / words), rel=1e-4)
    assert got["byte_perplexity"] == pytest.approx(math.exp(total / size), rel=1e-4)
    assert got["bits_per_byte"] == pytest.approx(total / size / math.log(2), rel=1e-4)
    assert 1 < got["perplexity"] < got["word_perplexity"]


@pytest.mark.smoke
def test_generation(evaluate):
    task = [{**row, "id": f"row {i}", "reference": text} for i, (row, text) in enumerate(zip(rows("stories.jsonl"), SCORES["stories"], strict=True))]
    result, lines, _ = evaluate(task, "--stop", ".", "--max-new-tokens", 24)
    assert [line["text"] for line in lines] == SCORES["stories"] and [line["id"] for line in lines] == ["row 0", "row 1", "row 2"]
    assert all(line["finish_reason"] == "stop_sequence" for line in lines)
    got = values(result)
    assert got["exact_match"] == got["rouge1"] == got["rougeL"] == got["rougeLsum"] == 1
    assert got["bleu"] == pytest.approx(100) and got["chrf"] == got["chrf++"] == pytest.approx(100)


def test_a_stop_text_in_the_last_token(evaluate):
    task = [{**rows("stories.jsonl")[0], "reference": SCORES["stories"][0]}]
    _, (line,), _ = evaluate(task, "--stop", ".", "--max-new-tokens", 24)
    result, (short,), _ = evaluate(task, "--stop", ".", "--max-new-tokens", line["generated_tokens"])
    assert short["text"] == line["text"] and values(result)["exact_match"] == 1


def test_what_is_there_stays_until_there_are_results(run, tmp_path):
    out, data = tmp_path / "out.jsonl", tmp_path / "rows.jsonl"
    out.write_text("precious\n")
    data.write_text('{"prompt": "", "choices": ["a", ""], "answer": 0}\n')
    assert run("eval", "--model", DEMO, "--data", data, "--output", out).returncode == 1
    assert out.read_text() == "precious\n"


# ---- how rows run ----------------------------------------------------------------------------------------------------

def test_windows_score_every_token_once(evaluate, run):
    text = (DEMO / "heldout.txt").read_text()[:900]
    count = json.loads(run("tokenize", "--model", DEMO, "--text", text, "--json", "--no-special").stdout)["count"]
    whole, by_window = evaluate([{"text": text}])[0], {}
    for window in (16, 50, count):
        result = evaluate([{"text": text}], "--window", window)[0]
        by_window[window] = values(result)["perplexity"]
        if window < count:  # the tokens that requests had: each window's inputs, the one after them, and one generated
            windows = math.ceil(count / window)
            assert result["subjects"][0]["tokens"] == windows * (window + 2)
    assert by_window[count] == values(whole)["perplexity"]
    assert by_window[16] > by_window[50] > by_window[count]


def test_results_do_not_depend_on_the_batch(evaluate):
    task = [{"prompt": p, "reference": "x"} for p in ["Once upon a time", "The dog", "Tom and Anna", "A", "One day, a cat saw a big"] * 3]
    many = [line["text"] for line in evaluate(task, "--max-new-tokens", 16)[1]]
    assert many == [line["text"] for line in evaluate(task, "--max-new-tokens", 16, "--max-seqs", 1)[1]]
    assert many[:5] == many[5:10] and evaluate(task, "--max-new-tokens", 16, "--limit", 2)[0]["rows"] == 2


def test_choices_share_their_prompt(evaluate):
    """In the prefix cache, whose keys and values are those that would be computed."""
    text = (DEMO / "heldout.txt").read_text()
    task = [{"prompt": text[at:at + 600], "choices": ["the dog", "a cat.", "Lily", "purple"], "answer": 0} for at in range(0, 3000, 600)]
    shared, alone = (evaluate(task, "--max-seqs", 2, *more)[1] for more in ([], ["--no-prefix-cache"]))
    assert shared == alone and all(len(set(line["logprobs"])) == 4 for line in shared)


def test_long_prompts_lose_their_beginning(evaluate, run, tmp_path):
    words = " ".join(["the dog ran to the park."] * 200)
    result, lines, _ = evaluate([{"prompt": words, "choices": ["He", "spoon"], "answer": 0}])
    assert result["subjects"][0]["truncated"] == 2 and lines[0]["choice"] == 0
    assert evaluate([{"prompt": words, "reference": "a"}], "--max-new-tokens", 4)[1][0]["generated_tokens"] == 4
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "a", "choices": ["b", words], "answer": 0}))
    done = run("eval", "--model", DEMO, "--data", tmp_path / "long.jsonl")
    assert done.returncode == 1 and b"long.jsonl:1: choices[1]: " in done.stderr


def test_extraction_and_what_is_ignored(evaluate):
    task = [{"prompt": "Once upon a time, there was a little", "references": ["nothing", "GIRL!"]}]
    options = ("--max-new-tokens", 8, "--extract", "(girl|boy)")
    assert evaluate(task, *options)[1][0]["prediction"] == "girl"
    assert values(evaluate(task, *options)[0])["exact_match"] == 0
    assert values(evaluate(task, *options, "--ignore", "case,punctuation")[0])["exact_match"] == 1
    assert evaluate(task, "--max-new-tokens", 8, "--extract", "[0-9]+")[1][0]["prediction"] == "[invalid]"


def test_messages(evaluate, tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    prompt = "Once upon a time, there was a little girl named"
    plain = evaluate([{"prompt": prompt, "reference": "Lily"}], "--max-new-tokens", 6)[1][0]["text"]
    chat = [{"messages": [{"role": "user", "content": prompt}], "reference": "Lily"}]
    assert evaluate(chat, "--max-new-tokens", 6, "--chat-template", template)[1][0]["text"] == plain
    assert evaluate(chat, "--max-new-tokens", 6, "--chat-template", "plain")[1][0]["prompt_tokens"] > 6


def test_prompts_begin_with_bos_once(evaluate):
    """The model's tokenizer puts <|start_story|> before texts."""
    def tokens(prompt, *args):
        return evaluate([{"prompt": prompt, "reference": ""}], "--max-new-tokens", 1, *args, model=ROOT / "tests/fixtures/models/tinystories-656k")[1][0]["prompt_tokens"]
    plain = tokens("Once upon", "--no-special")
    written = "<|start_story|>Once upon"
    assert tokens("Once upon") == plain + 1 and tokens(written) == tokens(written, "--no-special") and tokens("", "--no-special") == 1


# ---- comparing -------------------------------------------------------------------------------------------------------

def test_subjects(evaluate):
    task = [{"text": t} for t in (DEMO / "heldout.txt").read_text().split("<|endoftext|>")[:12]]
    result, lines, printed = evaluate(task, "--adapter", PIRATE, "--quantize", "int4", "--resamples", 200)
    assert [s["name"] for s in result["subjects"]] == ["base", str(PIRATE), "int4"] and len(lines) == 36
    base, pirate, int4 = (s["metrics"]["perplexity"] for s in result["subjects"])
    assert "difference" not in base and base["low"] < base["value"] < base["high"]
    for other in (pirate, int4):
        assert other["difference"] == other["value"] - base["value"] and other["difference_low"] < other["difference"] < other["difference_high"]
    assert pirate["difference_low"] > 0 and pirate["low"] < base["high"]  # that a pirate is worse at stories only paired rows show
    alone = evaluate(task, "--resamples", 200)[0]["subjects"][0]["metrics"]
    assert alone["perplexity"] == base and evaluate(task, "--resamples", 200, "--seed", 1)[0]["subjects"][0]["metrics"]["perplexity"] != base
    assert evaluate(task, "--resamples", 0)[0]["subjects"][0]["metrics"]["perplexity"]["low"] is None
    assert sum(line.startswith("perplexity") for line in printed.splitlines()) == 1 and f"{int4['value']:.4f}" in printed


MASK = 2**64 - 1


def mixed(z):
    """rng_mix of kernels/rng.h: splitmix64."""
    z = z + 0x9e3779b97f4a7c15 & MASK
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9 & MASK
    z = (z ^ z >> 27) * 0x94d049bb133111eb & MASK
    return z ^ z >> 31


def test_intervals(evaluate):
    """Computed again from the scores of rows: 95 of 100 resamples, the same rows for both subjects."""
    result, lines, _ = evaluate(TASKS / "choices.jsonl", "--adapter", PIRATE, "--resamples", 80, "--seed", 5, "--delimiter", " a ")
    n, stream = result["rows"], mixed(5)
    drawn = [[mixed(stream ^ mixed(c * n + k + 0x632be59bd9b4e019 & MASK)) % n for k in range(n)] for c in range(80)]
    spread = 0
    for metric in ("acc", "acc_norm", "acc_bytes"):
        base, pirate = ([line["scores"][metric] for line in lines[at:at + n]] for at in (0, n))
        for scores, got in ((base, result["subjects"][0]["metrics"][metric]), (pirate, result["subjects"][1]["metrics"][metric])):
            means = sorted(sum(scores[i] for i in rows) / n for rows in drawn)
            assert [got["low"], got["high"]] == [means[2], means[-3]] and got["value"] == sum(scores) / n
        gains = sorted((sum(pirate[i] for i in rows) / n) - sum(base[i] for i in rows) / n for rows in drawn)
        got = result["subjects"][1]["metrics"][metric]
        assert [got["difference_low"], got["difference_high"]] == [gains[2], gains[-3]]
        spread += gains[-3] - gains[2]
    assert spread > 0


# ---- mistakes --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("text, args, says", [
    ('{"text": 1}', [], "rows.jsonl:1: text: expected a string"),
    ('{"text": "a"}\n{"text": "a", }', [], "rows.jsonl:2: malformed JSON"),
    ('{"text": "a"}', ["--window", "100000"], "window: 100000 is not between 1 and"),
    ('{"text": "a"}', ["--quantize", "int2"], "--quantize: 'int2' is not one of int8, int4, nf4"),
    ('{"text": "a"}', ["--adapter", "/no/such"], "/no/such"),
    ('{"text": "a"}', ["--ignore", "spaces"], "--ignore: 'spaces'"),
    ('{"text": "a"}', ["--json", "/no/such/file"], "--json: /no/such/file"),
    ('{"prompt": "a", "reference": "b"}', ["--extract", "("], "extract: the regex is wrong at byte"),
    ('{"prompt": "a", "reference": "b"}', ["--max-new-tokens", "100000"], "max_new_tokens: 100000 is not between"),
    ('{"messages": [{"role": "user", "content": "x"}], "reference": "b"}', ["--chat-template", "/no/such.jinja"], "/no/such.jinja"),
    (None, [], "no such file"),
])
def test_mistakes(run, tmp_path, text, args, says):
    file = tmp_path / "rows.jsonl"
    if text:
        file.write_text(text)
    done = run("eval", "--model", DEMO, "--data", file, *args)
    assert done.returncode == 1 and says in done.stderr.decode() and not done.stdout
