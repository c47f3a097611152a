"""Random JSON schemas, documents for them, and random regular expressions: everything from a seed.

schema() also says how many bytes the longest document may have, or None where there is no end: a test over a model with few
positions takes bounded ones.
"""
import json
import math
import re

WORDS = ["name", "age", "id", "kind", "items", "on", "price", "note", "tag", "x", "größe", "a b", 'q"uote', "deep", "state", "when"]
PATTERNS = [  # with the most characters a string may have; None: no end
    ("^[a-z]{1,5}$", 5), ("^[A-Z][a-z]{0,4}$", 5), (r"^\d{3}-\d{2}$", 6), ("^(red|green|blue)$", 5), (r"^#[0-9a-fA-F]{6}$", 7),
    (r"^[^\s\d]{2,4}$", 4), ("^a?b?c?$", 3), (r"^v\d{1,2}(\.\d{1,2}){0,2}$", 9), (r'^["\\/]{1,3}$', 3), ("^.{2,3}$", 3),
    ("[0-9]$", None), ("^x+y", None), ("foo|^bar$", None), (r"^[a-z_]+@[a-z]+\.com$", None)]
FORMATS = {"date": 10, "time": 21, "date-time": 32, "uuid": 36, "ipv4": 15, "ipv6": 39}


def text_bytes(characters):
    return None if characters is None else 4 * characters + 2  # UTF-8; escapes take two


def add(*sizes):
    return None if None in sizes else sum(sizes)


class Maker:
    def __init__(self, rng, bounded=False, exact=False):
        """bounded: no document is endless.  exact: leave out what schema/schema.h may restrict beyond the schema."""
        self.rng, self.bounded, self.exact = rng, bounded, exact
        self.defs = {}

    def string(self):
        r = self.rng
        kind = r.random()
        if kind < 0.25:
            pattern, longest = r.choice([p for p in PATTERNS if not self.bounded or p[1] is not None])
            out = {"type": "string", "pattern": pattern}
            return out, text_bytes(longest)
        if kind < 0.4 and not self.exact:
            name = r.choice(list(FORMATS))
            return {"type": "string", "format": name}, FORMATS[name] + 2
        out, longest = {"type": "string"}, None
        if r.random() < 0.5:
            out["minLength"] = r.randint(0, 3)
        if self.bounded or r.random() < 0.5:
            longest = out.get("minLength", 0) + r.randint(0, 6)
            out["maxLength"] = longest
        return out, text_bytes(longest)

    def integer(self):
        r, out = self.rng, {"type": "integer"}
        scale = 10 ** r.randint(0, 12)
        low, high = sorted(r.randint(-scale, scale) for _ in range(2))
        if r.random() < 0.5:
            out[r.choice(["minimum", "exclusiveMinimum"])] = low
        if r.random() < 0.5:
            out[r.choice(["maximum", "exclusiveMaximum"])] = high + 2
        if r.random() < 0.3:
            out["multipleOf"] = r.choice([1, 2, 3, 5, 7, 10, 25, 100])
            if low + 2 * out["multipleOf"] > high:
                out.pop("maximum", None), out.pop("exclusiveMaximum", None)
        return out, 20

    def number(self):
        r, out = self.rng, {"type": "number"}
        if r.random() < 0.6:
            low, high = sorted(round(r.uniform(-1000, 1000), r.randint(0, 3)) for _ in range(2))
            if r.random() < 0.7:
                out[r.choice(["minimum", "exclusiveMinimum"])] = low
            if r.random() < 0.7:
                out[r.choice(["maximum", "exclusiveMaximum"])] = high + 1
        return out, 37

    def literal(self):
        return self.rng.choice([None, True, 0, -3, 2.5, "", "yes", "nö", [1, "a"], {"k": [True]}])

    def leaf(self):
        r, kind = self.rng, self.rng.randrange(9)
        if kind < 3:
            return self.string()
        if kind == 3:
            return self.integer()
        if kind == 4:
            return self.number()
        if kind == 5:
            return {"type": "boolean"}, 5
        if kind == 6:
            return {"type": "null"}, 4
        values = [self.literal() for _ in range(r.randint(1, 4))]
        longest = max(len(json.dumps(v, ensure_ascii=False).encode()) for v in values)
        return ({"const": values[0]} if len(values) == 1 else {"enum": values}), longest

    def object(self, depth):
        r = self.rng
        out, size = {"type": "object", "properties": {}}, 2
        for name in r.sample(WORDS, r.randint(0, 4)):
            schema, longest = self.schema(depth - 1)
            out["properties"][name] = schema
            size = add(size, longest, len(json.dumps(name, ensure_ascii=False).encode()) + 4)
        names = list(out["properties"])
        required = [n for n in names if r.random() < 0.6]
        if required or r.random() < 0.3:
            out["required"] = required
        kind = r.random()
        if kind < 0.4:
            out["additionalProperties"] = False
        elif kind < 0.55 and not self.bounded:
            schema, _ = self.schema(0)
            out["additionalProperties"] = r.choice([True, schema])
            size = None
        return out, size

    def array(self, depth):
        r, out = self.rng, {"type": "array"}
        if r.random() < 0.2:
            parts = [self.schema(depth - 1) for _ in range(r.randint(1, 3))]
            out["prefixItems"] = [p[0] for p in parts]
            if self.exact or r.random() < 0.5:
                out["items"] = False
            if r.random() < 0.7:
                out["minItems"] = r.randint(0, len(parts))
            return out, add(2, *(add(p[1], 2) for p in parts))
        out["items"], longest = self.schema(depth - 1)
        least = 0
        if r.random() < 0.4:
            least = out["minItems"] = r.randint(0, 2)
        if self.bounded or r.random() < 0.5:
            most = out["maxItems"] = least + r.randint(0, 3)
            return out, 2 if most == 0 else add(2, *[add(longest, 2)] * most)
        return out, None

    def combined(self, depth):
        r = self.rng
        kind = r.randrange(4)
        if kind == 0:
            parts = [self.schema(depth - 1) for _ in range(r.randint(1, 3))]
            return {r.choice(["anyOf"] if self.exact else ["anyOf", "anyOf", "oneOf"]): [p[0] for p in parts]}, self.longest(parts)
        if kind == 1:
            schema, size = self.schema(depth - 1)
            name = f"d{len(self.defs)}"
            self.defs[name] = schema
            return {"$ref": f"#/$defs/{name}", "description": "referred to"}, size
        if kind == 2 and not self.exact:  # objects that hold at once
            parts = [self.object(depth - 1) for _ in range(2)]
            for p, _ in parts:
                p.pop("additionalProperties", None)
            parts[1][0]["properties"] = {n: s for n, s in parts[1][0]["properties"].items() if n not in parts[0][0]["properties"]}
            parts[1][0]["required"] = [n for n in parts[1][0].get("required", []) if n in parts[1][0]["properties"]]
            return {"allOf": [p[0] for p in parts]}, add(*(p[1] for p in parts))
        types = r.sample(["boolean", "null", "integer"], r.randint(1, 3))
        return {"type": types, "title": "several"}, 20

    @staticmethod
    def longest(parts):
        return None if any(p[1] is None for p in parts) else max(p[1] for p in parts)

    def schema(self, depth):
        kind = self.rng.random()
        if depth <= 0 or kind < 0.3:
            return self.leaf()
        if kind < 0.65:
            return self.object(depth)
        return self.array(depth) if kind < 0.85 else self.combined(depth)


def random_schema(rng, bounded=False, exact=False, depth=3, most=None):
    """-> (schema, bytes of the longest document or None); at most `most` bytes when given."""
    while True:
        m = Maker(rng, bounded, exact)
        schema, size = m.object(depth) if rng.random() < 0.6 else m.schema(depth)
        if m.defs:
            schema = {**schema, "$defs": m.defs}
        if most is None or (size is not None and size <= most):
            return schema, size


def dumps(document):
    """As tandem writes documents."""
    return json.dumps(document, ensure_ascii=False, separators=(", ", ": "))


# ---- documents -----------------------------------------------------------------------------------------------------

POOL = [None, True, False, 0, 1, -1, 5, 7, 25, 100, -100, 12345678, 0.5, -2.25, 999.125, 1e-3, "", "a", "ab", "abc", "red", "Zed", "été", "q\"\\", "a\nb",
        "123-45", "#00ffAA", "v1.22", "x", "xxy", "foo", "bar", "m@n.com", "z" * 12, [], {}, [1, "a"]]


def mutated(rng, document):
    """The document with one part of it changed; names keep their order."""
    if isinstance(document, dict) and document and rng.random() < 0.8:
        out, name = dict(document), rng.choice(list(document))
        if rng.random() < 0.3:
            del out[name]
        else:
            out[name] = mutated(rng, out[name])
        return out
    if isinstance(document, list) and document and rng.random() < 0.8:
        out, i = list(document), rng.randrange(len(document))
        kind = rng.random()
        if kind < 0.25:
            del out[i]
        elif kind < 0.5:
            out.insert(i, out[i])
        else:
            out[i] = mutated(rng, out[i])
        return out
    if isinstance(document, str) and rng.random() < 0.5:
        i = rng.randrange(len(document) + 1)
        return document[:i] + document[i + 1:] if rng.random() < 0.5 else document[:i] + rng.choice("aZ09é\"") + document[i:]
    if isinstance(document, int) and not isinstance(document, bool) and rng.random() < 0.7:
        return document + rng.choice([-1, 1, 10, -100, 3])
    return rng.choice(POOL)


def plain_numbers(document):
    """Whether every number is written as tandem writes those that are bounded."""
    if isinstance(document, dict):
        return all(map(plain_numbers, document.values()))
    if isinstance(document, list):
        return all(map(plain_numbers, document))
    if isinstance(document, bool) or not isinstance(document, (int, float)):
        return True
    if isinstance(document, float):
        return math.isfinite(document) and not document.is_integer() and bool(re.fullmatch(r"-?\d{1,9}\.\d{1,5}", repr(document)))
    return abs(document) < 10 ** 15


# ---- regular expressions -------------------------------------------------------------------------------------------

def random_regex(rng, depth=3):
    """Bounded: no * or +."""
    def atom(d):
        kind = rng.random()
        if d <= 0 or kind < 0.45:
            return rng.choice(["a", "b", "c", "z", "0", "7", " ", "-", "_", "é", r"\.", r"\\", r"\"", "/", ",", r"\d", r"\w", r"\s", ".", "[a-f]", "[^a-y]",
                               "[A-Z0-9_]", r"[\d,]", r"[^\W\d]", "日", r"\x41", "[é-ü]"])
        if kind < 0.75:
            return rng.choice(["(", "(?:"]) + "|".join(sequence(d - 1) for _ in range(rng.randint(1, 3))) + ")"
        return atom(d - 1)

    def item(d):
        out = atom(d)
        kind = rng.random()
        if kind < 0.12:
            return out + "?"
        if kind < 0.3:
            low = rng.randint(0, 2)
            return out + rng.choice(["{%d}" % max(low, 1), "{%d,%d}" % (low, low + rng.randint(0, 3))])
        return out

    def sequence(d):
        return "".join(item(d) for _ in range(rng.randint(1, 4)))

    return "|".join(sequence(depth) for _ in range(rng.choice([1, 1, 1, 2])))
