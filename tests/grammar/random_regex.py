"""Random regular expressions, each with a way to draw texts that it matches (and, broken a little, texts that it may
not)."""
import random

LETTERS = "abcxyzABC019_ -.,:é日😀\n"
SPECIAL = set(".^$*+?{}[]\\|()")
CLASSES = {"\\d": "0123456789", "\\w": "abcXYZ_09é日", "\\s": " \t\n\u00a0", "\\D": "ab -é", "\\W": " -.!", "\\S": "aZ0-é😀", ".": "abc09 -é日😀",
           "[a-f]": "abcdef", "[^a-f]": "xyz09 é日", "[0-9a-fA-F]": "0129afAF", "[à-ÿ]": "àéÿ", "[^\\d\\s]": "abz-é", "[\\w.-]": "ab_.-é", "[^\"\\\\]": "ab é日😀"}


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.repeats = 0

    def make(self, depth):
        """-> (pattern, draw), draw() gives a text of the pattern"""
        r = self.r
        kind = r.choice(["text", "text", "class", "seq", "seq", "alt", "repeat", "repeat", "group"]) if depth else r.choice(["text", "class"])
        if kind == "repeat" and self.repeats:
            kind = "class"  # one in another takes Python's re hours
        return getattr(self, "_" + kind)(depth)

    def _text(self, depth):
        text = "".join(self.r.choice(LETTERS) for _ in range(self.r.randint(1, 4)))
        return "".join("\\" + c if c in SPECIAL or (c == "-" and self.r.random() < 0.3) else c for c in text), lambda: text

    def _class(self, depth):
        name = self.r.choice(list(CLASSES))
        return name, lambda: self.r.choice(CLASSES[name])

    def _seq(self, depth):
        parts = [self.make(depth - 1) for _ in range(self.r.randint(2, 3))]
        return "".join(self.wrap(p, alt=True) for p, _ in parts), lambda: "".join(d() for _, d in parts)

    def _alt(self, depth):
        parts = [self.make(depth - 1) for _ in range(self.r.randint(2, 3))]
        return "(?:" + "|".join(p for p, _ in parts) + ")", lambda: self.r.choice(parts)[1]()

    def _repeat(self, depth):
        self.repeats += 1
        pattern, draw = self.make(depth - 1)
        self.repeats -= 1
        low, high, text = self.r.choice([(0, 3, "*"), (1, 3, "+"), (0, 1, "?"), (2, 2, "{2}"), (1, 3, "{1,3}"), (2, 4, "{2,}"), (0, 2, "{,2}"), (0, 12, "{0,12}")])
        lazy = self.r.choice(["", "", "?"])
        return self.wrap(pattern) + text + lazy, lambda: "".join(draw() for _ in range(self.r.randint(low, high)))

    def _group(self, depth):
        pattern, draw = self.make(depth - 1)
        return self.r.choice(["(", "(?:", f"(?P<g{self.r.randrange(10**9)}>"]) + pattern + ")", draw

    def wrap(self, pattern, alt=False):
        return pattern if alt and "|" not in pattern else "(?:" + pattern + ")"

    def broken(self, text):
        """One character more, less or other."""
        i = self.r.randint(0, len(text))
        return self.r.choice([text[:i] + self.r.choice(LETTERS) + text[i:], text[:i] + text[i + 1:], text[:i] + self.r.choice(LETTERS) + text[i + 1:]])
