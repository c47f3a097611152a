"""BLEU, chrF, chrF++ and ROUGE equal sacrebleu's and rouge-score's, on sentences of stories and on random text.

    TANDEM_BUILD_DIR=build python -m pytest tests/eval
"""
import json
import os
import random
import subprocess
from pathlib import Path

import pytest
from nltk.stem.porter import PorterStemmer
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF

ROOT = Path(__file__).resolve().parents[2]
TOOL = Path(os.environ.get("TANDEM_BUILD_DIR", ROOT / "build")) / "tests" / "eval" / "metrics_tool"
ROUGE = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
PAIRS = 500
CHARACTERS = ["a", "b", "c", "A", "1", "2", "0", ".", ",", "-", " ", " ", " ", "\n", "\t", "'", '"', "&", "&amp;", "&quot;", "&lt;", "<skipped>", "-\n",
              "$", "(", ")", "/", "\u00e9", "\u0130", "\u212a", "\u65e5", "\u672c", "\U0001f600", "\u00a0", "\u2003", "\u2028", "\u1680", "\x1c", "\x85", "\u3000",
              "\u0301", "\u200b", "x.y", "3.14", "1,000", "5-6", "well-known", "..", "...", "?!", "\\", "^", "_", "`", "{", "~"]

PARTS = "a y b yy gy cry fly hop tann control fall fizz agre troubl s sk dy spr oe rel".split()
ENDS = """s es ies ed eed ied ing y ational tional enci anci izer bli alli entli eli ousli ization ation ator alism iveness fulness ousness aliti iviti
    biliti fulli logi icate ative alize iciti ical ful ness al ance ence er ic able ible ant ement ment ent ion sion tion ou ism ate iti ous ive ize e
    ll""".split()


def mutated(rng, sentence):
    words = sentence.split(" ")
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(words))
        change = rng.randrange(4)
        if change == 0:
            words[at] = rng.choice(words)
        elif change == 1:
            words.insert(at, rng.choice(["really", "the", "running", "happily,", "\u201cyes\u201d", "na\u00efve", "U.S.", "3.5"]))
        elif change == 2 and len(words) > 1:
            del words[at]
        else:
            words[at] = words[at].upper()
    return " ".join(words)


def stories(rng):
    text = (ROOT / "models/demo/heldout.txt").read_text()
    sentences = [s.strip() for s in text.replace("\n", " ").split(".") if 3 < len(s.split()) < 40]
    lines = []
    while len(lines) < PAIRS // 2:
        some = rng.sample(sentences, 3)
        glue = rng.choice([". ", ".\n", " .\n\n"])
        text, refs = glue.join(some), [glue.join(mutated(rng, s) for s in some[:rng.choice([2, 3])]) for _ in range(rng.choice([1, 1, 2, 3]))]
        lines.append((text, refs))
    return lines


def noise(rng):
    def text(least):
        return "".join(rng.choice(CHARACTERS) for _ in range(rng.randrange(least, 60)))
    lines = []
    while len(lines) < PAIRS - PAIRS // 2:
        one = text(0)
        lines.append((one, [rng.choice([text(0), one + text(0), text(0) + one[3:], one]) for _ in range(rng.choice([1, 1, 2, 4]))]))
    return lines + [("", [""]), ("", ["a b"]), ("a b", [""]), (" \n", ["\t"]), ("a", ["a"]), ("\n", ["\n\n"]), ("the cat", ["the cat", ""])]


def ask(rows):
    done = subprocess.run([TOOL], input="".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows).encode(), capture_output=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(rows) + 1
    return answers[:-1], answers[-1]


@pytest.fixture(scope="module", params=["stories", "noise"])
def pairs(request):
    return {"stories": stories, "noise": noise}[request.param](random.Random(7))


def streams(pairs):
    """sacrebleu's way to give texts a different number of references: None where there is none."""
    most = max(len(refs) for _, refs in pairs)
    return [text for text, _ in pairs], [[refs[i] if i < len(refs) else None for _, refs in pairs] for i in range(most)]


def close(got, want):
    assert got == pytest.approx(want, rel=1e-12, abs=1e-12)


METRICS = {"bleu": (BLEU(), BLEU(effective_order=True)), "chrf": (CHRF(), CHRF()), "chrf++": (CHRF(word_order=2), CHRF(word_order=2))}


@pytest.mark.parametrize("name", METRICS)
def test_sacrebleu(pairs, name):
    rows, whole = ask([{"text": text, "references": refs} for text, refs in pairs])
    corpus, sentence = METRICS[name]
    close(whole[name], corpus.corpus_score(*streams(pairs)).score)
    for (text, refs), row in zip(pairs, rows, strict=True):
        close(row[name], sentence.sentence_score(text, refs).score)
    assert len({round(r[name], 6) for r in rows}) > 50


@pytest.mark.parametrize("stem", [False, True])
def test_rouge(pairs, stem):
    rows, whole = ask([{"text": text, "references": refs, "stem": stem} for text, refs in pairs])
    scorer = RougeScorer(ROUGE, use_stemmer=stem)
    want = [scorer.score_multi(refs, text) for text, refs in pairs]
    for row, scores in zip(rows, want, strict=True):
        for name in ROUGE:
            close(row[name], scores[name].fmeasure)
    for name in ROUGE:
        close(whole[name], sum(s[name].fmeasure for s in want) / len(want))


def test_stems():
    """Every word of the stories, and words made of endings that the rules know."""
    rng, stemmer = random.Random(3), PorterStemmer()
    text = (ROOT / "models/demo/heldout.txt").read_text().lower()
    words = set("".join(c if c.isalnum() and c.isascii() else " " for c in text).split())
    words |= {rng.choice(PARTS) + rng.choice(PARTS) + rng.choice(ENDS) + rng.choice(["", *ENDS]) for _ in range(8000)}
    words |= {"sky", "skies", "dying", "news", "innings", "howe", "proceed", "succeed", "dies", "died", "spied", "happy", "enjoy", "1st", "x2s"}
    words = sorted(w for w in words if len(w) > 2)
    done = subprocess.run([TOOL, "stem"], input="\n".join([*words, ""]).encode(), capture_output=True, check=True)
    assert done.stdout.decode().splitlines() == [stemmer.stem(w) for w in words]


@pytest.mark.parametrize("text, references, ignore, equal", [
    ("Lily", ["Lily"], 0, 1), (" Lily", ["Lily"], 0, 0), (" Lily\n", ["\u2003Lily"], 8, 1), ("lily", ["Lily"], 0, 0), ("\u00c9t\u00c9", ["\u00e9t\u00e9"], 1, 1),
    ("Lily!", ["Lily."], 2, 1), ("Lily\u201d", ["Lily"], 2, 0), ("42 cats", ["7 cats"], 4, 1), ("42", ["7"], 4, 1), ("a", ["b", "a"], 0, 1),
    ("", [""], 0, 1), ("A, b.", ["ab"], 15, 0), ("A,b. 1", ["ab"], 15, 1),
])
def test_exact_match(text, references, ignore, equal):
    assert ask([{"text": text, "references": references, "ignore": ignore}])[0][0]["exact_match"] == equal
