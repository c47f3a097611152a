#!/usr/bin/env python3
"""The training text of the demo model: a JSON line {"text": story} each, for `tandem train`.

    python prepare.py --data DIR --heldout heldout.txt --out stories.jsonl [--mixed-out mixed.jsonl]
                      [--heldout-out heldout.jsonl] [--tokenizer tokenizer.json]

DIR holds TinyStories as plain text, one story between each pair of <|endoftext|> marks
(tinystories_*.txt).  The script cleans the stories and drops fragments, near duplicates, and every story that shares
more than a tenth of the six-word runs of a held-out one.  --mixed-out gets the same stories again, a third of them as
one text in pieces that begin and end anywhere, so that a model also learns to begin a story after another one, and in
the middle.  --heldout-out gets the held-out stories as rows, each with the mark in front.  With --tokenizer it also trains the byte-level BPE tokenizer on the training stories; that needs the
package `tokenizers`, the rest needs none.
"""
import argparse
import collections
import json
import os
import random
import re

END = "<|endoftext|>"
FILES = ["tinystories_cased_2MB.txt", "tinystories_more.txt", "tinystories_recased.txt"]


# ---------------------------------------------------------------- the stories

def repair_capitals(stories, reference):
    """The recased file got its capitals from a rule that misses some names.
    Capitalise a word when the well-cased stories write it as a name, or when
    they do not know it and the story itself also has it with a capital."""
    lower = collections.Counter(re.findall(r"(?<![\w'])[a-z]+(?!\w)", reference))
    name = collections.Counter(re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", reference))

    def repair(story):
        have = set(re.findall(r"[A-Z][a-z]+", story))

        def one(m):
            w = m.group(0)
            c = w.capitalize()
            if len(w) > 2 and (name[c] > 3 * lower[w] or (lower[w] == 0 and c in have)):
                return c
            return w
        story = re.sub(r"(?<![\w'])[a-z]+(?!\w)", one, story)
        return re.sub(r'(?<=[?!]" )(mom|dad|mommy|daddy|mum|mummy)\b',
                      lambda m: m.group(0).capitalize(), story)
    return [repair(s) for s in stories]


PLAIN = str.maketrans({"“": '"', "”": '"', "«": '"', "»": '"', "’": "'", "‘": "'",
                       "–": "-", "—": "-", "…": "...", "\u200a": " "})


def clean(stories):
    out = []
    for s in stories:
        s = "\n\n".join(re.sub(r"\s+", " ", p).strip() for p in s.translate(PLAIN).split("\n") if p.strip())
        # a fragment, a story cut in the middle, or two stories run together
        if len(s) < 300 or s[-1] not in ".!?\"'" or s.count("Once upon a time") > 1:
            continue
        if re.search(r"[^\x00-\x7f]", s):
            continue
        out.append(s)
    return out


def load_stories(folder):
    """Whole, cleaned stories, each with the name of its file."""
    raw = {}
    for f in FILES:
        path = os.path.join(folder, f)
        if not os.path.exists(path):
            continue
        text = open(path, encoding="utf-8", errors="replace").read()
        raw[f] = clean(text.split(END))
    if not raw:
        raise SystemExit("no story files (%s) in %s" % (", ".join(FILES), folder))
    cased = "\n".join("\n".join(v) for k, v in raw.items() if "recased" not in k)
    for f in raw:
        if "recased" in f:
            raw[f] = repair_capitals(raw[f], cased)
    return [(f, s) for f in raw for s in raw[f]]


def shingles(story, n=6):
    words = re.findall(r"[a-z']+", story.lower())
    return {hash(tuple(words[i:i + n])) for i in range(len(words) - n + 1)}


def choose(stories, heldout):
    """The stories without near duplicates and without what a held-out one would be known by."""
    where, sizes, kept = collections.defaultdict(list), [], []

    def overlaps(mine):
        shared = collections.Counter(k for h in mine for k in where[h])
        return [(n, k) for k, n in shared.items()]

    def add(mine):
        for h in mine:
            where[h].append(len(sizes))
        sizes.append(len(mine))

    for s in heldout:
        add(shingles(s))
    for s in stories:
        mine = shingles(s)
        over = overlaps(mine)
        known = any(n > 0.1 * sizes[k] for n, k in over if k < len(heldout))
        twin = any(n > 0.5 * min(len(mine), sizes[k]) for n, k in over)
        if mine and not known and not twin:
            kept.append(s)
            add(mine)
    return kept


def mix(rows):
    """Two thirds of the rows as they are; the other stories end to end, in pieces longer than 512 tokens."""
    rng = random.Random(2)
    order = list(range(len(rows)))
    rng.shuffle(order)
    joined = order[:len(order) // 3]
    text = "".join(rows[i].removeprefix(END) + END for i in joined)
    out = [rows[i] for i in sorted(set(range(len(rows))) - set(joined))]
    for n, at in enumerate(range(0, len(text) - 2200, 1850)):
        start = text.rfind(". ", at, at + 200) + 2 if n % 2 else at
        out.append(text[start:start + 2200])
    rng.shuffle(out)
    return out


# -------------------------------------------------------------- the tokenizer

def make_tokenizer(stories, vocab):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(stories, trainers.BpeTrainer(
        vocab_size=vocab, min_frequency=2, special_tokens=[END], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    return tok


def write(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps({"text": s}) + "\n" for s in rows)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--data", required=True)
    p.add_argument("--heldout", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--mixed-out", help="where to write the rows of the second run")
    p.add_argument("--heldout-out", help="where to write the held-out stories as rows")
    p.add_argument("--tokenizer", help="where to write a tokenizer trained on the stories")
    p.add_argument("--vocab", type=int, default=2048)
    a = p.parse_args()
    heldout = [s.strip() for s in open(a.heldout, encoding="utf-8").read().split(END) if s.strip()]
    loaded = [s for _, s in load_stories(a.data)]
    stories = choose(loaded, heldout)
    random.Random(1).shuffle(stories)
    # half of them begin with the mark, so that a prompt works with it and without
    rows = [(END if i % 2 else "") + s for i, s in enumerate(stories)]
    write(a.out, rows)
    if a.mixed_out:
        write(a.mixed_out, mix(rows))
    if a.heldout_out:
        write(a.heldout_out, [END + s for s in heldout])
    print("%d of %d stories, %.1f MB" % (len(stories), len(loaded), sum(map(len, stories)) / 1e6))
    if a.tokenizer:
        make_tokenizer(stories, a.vocab).save(a.tokenizer)


if __name__ == "__main__":
    main()
