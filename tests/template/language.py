r"""Short templates that try the language, a behaviour or two each; make_fixtures.py asks jinja2 what they print."""

VARIABLES = {
    "name": "Ada", "items": [3, 1, 2], "empty": [], "nothing": None, "yes": True, "no": False, "n": 7, "x": 2.5, "zero": 0,
    "text": "Hello, World", "unicode": "Größe 東京 🙂", "spaces": " \t a b  c \n", "lines": "one\ntwo\r\nthree\n\nfour",
    "d": {"a": 1, "b": {"c": [1, 2, {"deep": "x"}]}, "items": "shadow", "with space": 2, "Z": 26},
    "people": [{"name": "Bo", "age": 30, "tags": ["x"]}, {"name": "al", "age": 5}, {"name": "Cy", "age": 30, "boss": None}],
    "html": "<a href='x'>&\"</a>", "big": 9007199254740991, "words": ["b", "A", "c", "a", "B"], "nested": [[1, 2], [3, [4]]],
    "huge": 123456789012345678901234567890, "above": 9007199254740993, "top": 9223372036854775807, "whole": 1.0, "minus": -0.0, "tiny": 2.0 ** -44,
}

# Whole expressions: each becomes {{ expression }}.
EXPRESSIONS = r"""
name
'single' "double" 'glued'
1 + 2 * 3 - 4 / 2
7 // 2, -7 // 2, 7 % 3, -7 % 3, 7 % -3, 7.5 // 2, -7.5 % 2
2 ** 3 ** 2
2 ** -1, 2 ** 0.5, 0 ** 0, 2.0 ** 3
-2 ** 2
1 / 3, 10 / 5, 1e3, 1e16, 1e15, 123456789.123, 1e-5, 0.0001, 1.0, 100.0, 5e-324, 1.7976931348623157e308
0.1 + 0.2, 1e22, 1e21, 3.0 * 2, 2 * 3.5
1_000 + 0x1F + 0b101 + 0o17
1 == 1.0, 1 == true, "1" == 1, none == none, [1] == [1.0], {"a": 1} == {"a": 1}, (1, 2) == [1, 2]
1 < 2 < 3, 1 < 3 < 2, 3 > 2 >= 2 != 1
"a" < "b", "B" < "a", [1, 2] < [1, 3], [1] < [1, 0], (1, 2) < (2,)
1 < "a"
none < 1
true and "x", false and "x", "" or "y", "z" or "y", not "", not not 1
0 or none or [] or "last"
1 if true else 2, 1 if false else 2
(1 if false)
(1 if false) is defined
"x" if nothing else "y" if no else "z"
"a" in "abc", "d" not in "abc", 1 in items, 9 in items, "a" in d, "q" in d
1 in "abc"
1 in 5
"a" ~ 1 ~ none ~ true ~ [1, "b"] ~ {"k": "v"}
"a" + "b" * 3, [1] * 2 + [2], (1,) + (2, 3), 3 * "ab", -1 * "x"
"a" + 1
1 + "a"
[1] + (2,)
none + 1
{} + {}
-items
-true, +5, - 5, --5
items[0], items[-1], items[5] is defined, items[5]
text[0], text[-1], text[100] is defined
unicode[1], unicode[-1], unicode[6:8], unicode[::-1], unicode | length
items[1:], items[:-1], items[::-1], items[::2], items[5:], items[-2:], items[2:0:-1], items[-1:-3:-1]
text[1:4], text[:-3], text[::2], text[::-2], text[-3:], text[4:1], text[4:1:-1], text[100:], text[:100]
items[::0]
items["x"] is defined
items[none]
items[true], items[1.5] is defined
nothing[1:]
d.a, d["a"], d.b.c[2].deep, d["b"]["c"][2]["deep"], d["with space"]
d["items"], d.items is callable
d.missing, d.missing is defined, d["missing"] is undefined
d.missing.more
missing.more
missing
missing is defined, missing is undefined, missing | default("x"), missing == missing2, missing ~ "y"
missing + 1
missing[0]
missing()
"x" + missing
missing | length, missing | list, missing | join(","), missing | upper, missing | trim, missing | string | length
missing | int
missing | first is defined
missing < 1
missing is iterable, missing is sequence, missing is mapping, missing is string, missing is none
none.x is defined, 5.x is defined, name.x is defined
none.x
name.x
5 .x
nothing, yes, no, n, x, big
[1, 2.0, "x", none, true, [], {}, (), (1,), {"a": [1]}]
{"a": 1, "b": [1, 2], 3: "x", none: 1, true: 2}
{1: "a", 1.0: "b", true: "c"}
{[1]: 2}
["it's", 'say "hi"', 'both \' and "', "back\\slash", "tab\tnl\ncr\r", "é東🙂", "\u200b\x07\xad\u2028"]
(1, 2, 3), ()
()
1, 2
"\x41\u00e9\U0001F642\101\n|\q|\\|\'|\a"
items | length, d | length, text | count, unicode | length, () | length
5 | length
none | length
items | first, items | last, empty | first is defined, "abc" | first, "abc" | last, d | first
empty | first
items | sum, [0.1, 0.2] | sum, people | sum(attribute="age"), items | sum(start=10)
items | sort, words | sort, words | sort(case_sensitive=true), words | sort(reverse=true)
people | sort(attribute="age") | map(attribute="name") | list
people | sort(attribute="age,name") | map(attribute="name") | join(" ")
[1, "a"] | sort
d | dictsort, {"b": 1, "A": 2, "a": 3} | dictsort, {"b": 1, "A": 2} | dictsort(true), {"b": 1, "a": 2} | dictsort(false, "value")
{"b": 1, "a": 2} | dictsort(reverse=true)
{"b": 1} | dictsort(by="nothing")
words | unique | list, words | unique(true) | list, [1, 1.0, true, 2] | unique | list
items | min, items | max, words | min, words | max, people | max(attribute="age"), empty | max is defined
items | reverse | list, "abc" | reverse, (1, 2) | reverse | list
5 | reverse
items | join, items | join(", "), words | join("-"), people | join("; ", attribute="name"), [1, none, "x"] | join("|")
"abc" | join("."), d | join(",")
people | map(attribute="name") | list, words | map("upper") | list, words | map("replace", "a", "_") | join
people | map(attribute="boss", default="nobody") | list
people | map(attribute="tags.0") | list
people | map(attribute="tags.0", default="-") | list
words | map("nothing") | list
words | map | list
people | selectattr("age", "equalto", 30) | map(attribute="name") | list
people | selectattr("boss", "defined") | map(attribute="name") | list
people | rejectattr("age", ">", 10) | map(attribute="name") | list
people | selectattr("tags") | list | length
items | select("odd") | list, items | reject("odd") | list, items | select(">", 1) | list, [0, 1, "", "x"] | select | list
items | select("divisibleby", 3) | list, items | select("in", [1, 2]) | list
words | select("equalto", "a") | list | count
items | select("nothing") | list
items | map(attribute="x") | list | length
items | select("odd") | length
(items | select("odd")) is iterable, (items | select("odd")) is sequence, (items | map("string")) is string
[1, 2, 3, 4, 5] | batch(2) | list, [1, 2, 3] | batch(2, "-") | list
[1, 2, 3, 4, 5] | slice(2) | list, [1, 2, 3] | slice(2, "-") | list
people | groupby("age") | map("first") | list
(people | groupby("age"))[1][1] | length
people | groupby("boss", default="none") | length
"  x  " | trim, "xxaxx" | trim("x"), spaces | trim, 5 | trim, "[x]" | trim("[]")
text | upper, text | lower, "hELLO wORLD" | capitalize, "hello-world (foo) it's o'neil" | title
"straße ŉ ﬁ" | upper, "ΑΣ ΑΣΑ İ" | lower, "ǆ ß" | capitalize, "éA" | title
"hello world's o'neil x2y" .title(), "HeLLo".swapcase(), "straße".capitalize()
text | replace("o", "0"), text | replace("o", "0", 1), text | replace("", "-"), 123 | replace(2, "x")
"aaa".replace("a", "b", 2), "aaa".replace("aa", "b"), "abc".replace("", "-"), "".replace("", "x")
text | string, 5 | string, none | string, [1] | string | length
"5" | int, "5.7" | int, "x" | int, "x" | int(3), "0x1f" | int(base=16), "z" | int(base=36), 5.9 | int, -5.9 | int, true | int, none | int, "  7 " | int, "1_000" | int
"5" | float, "x" | float, "1e3" | float, none | float(1.5), "inf" | float, " 2.5 " | float, true | float
5 | abs, -5 | abs, -2.5 | abs
"x" | abs
2.5 | round, 3.5 | round, 2.675 | round(2), 2.345 | round(1, "ceil"), 2.345 | round(1, "floor"), 5 | round, 1234.5 | round(-2), 42.55 | round | int
2 | round(method="x")
items | tojson, d | tojson, "é\"\\\n\t\u2028" | tojson, none | tojson, true | tojson, 1.0 | tojson, 1e20 | tojson, (1, 2) | tojson
d | tojson(indent=2)
d | tojson(indent="--"), [] | tojson(indent=2), {} | tojson(indent=2), [[]] | tojson(indent=2), [1] | tojson(indent=0)
d | tojson(sort_keys=true), d | tojson(separators=(",", ":")), "é🙂" | tojson(ensure_ascii=true), d.b | tojson(indent=1, separators=(";", "="))
html | tojson, "\x7f\x01\x1f" | tojson
{1: 2, none: 3, true: 4, 1.5: 5} | tojson
missing | tojson
[missing] | tojson
d.items() | tojson
range(3) | tojson
html | safe
html | e
html | escape
"'" | forceescape
"x\ny\n\nz" | indent, "x\ny" | indent(2, true), "x\n\ny" | indent(blank=true), "x\ny" | indent("> "), lines | indent(1)
"%s is %d and %.2f, %5s|%-5s|%05d|%x|%%" | format("a", 3, 2.5, "r", "l", 42, 255)
"%(a)s-%(b)03d" | format(a="x", b=7), "%s" % "one", "%s %s" % ("a", 1), "%r %s" % ("a", [1])
"%d" % "x"
"%s %s" % "x"
"%s" % ("a", "b")
"%+d % d %e %g %G" % (5, 5, 12345.678, 0.00001, 1e10)
"{} {}".format("a", 1), "{0} {1} {0}".format("a", "b"), "{a.b} {c[d]} {e[0]}".format(a={"b": 1}, c={"d": 2}, e=[3])
"{:>5}|{:<5}|{:^5}|{:*^7}|{:05d}|{:.2f}|{:,}|{:x}|{:%}".format("a", "b", "c", "d", 42, 3.14159, 1234567, 255, 0.5)
"{!r} {!s} {{}} {}".format("a", "b", none)
"{:+.1f} {:10.3f}| {:<8d}| {:e} {:g} {:b} {:,.2f}".format(2.55, 3.14159, 5, 12345.678, 0.0001, 5, 1234567.891)
"{}".format()
"{".format(1)
"}".format(1)
"{x}".format(y=1)
"a,b,,c".split(","), "a b  c ".split(), "a b c d".split(" ", 2), "a b c d".split(none, 1), "".split(), "".split(","), "abc".split("")
"a,b,c".rsplit(",", 1), " a b  c ".rsplit(none, 1), "a--b--c".rsplit("--"), "a b c".rsplit(maxsplit=1)
"abc".partition("b"), "abc".partition("x"), "abcb".rpartition("b"), "abc".rpartition("x")
lines.splitlines(), lines.splitlines(true), "".splitlines(), "a\x0bb\x1cc\u2028d".splitlines()
"  x ".strip() ~ "|", "  x ".lstrip() ~ "|", "  x ".rstrip() ~ "|", "xyx".strip("x"), "abcba".lstrip("ba"), "\u3000x\u00a0".strip(), "éxé".strip("é")
text.startswith("Hell"), text.startswith(("x", "H")), text.endswith("ld"), text.startswith("W", 7), text.startswith("")
text.startswith(1)
text.find("o"), text.rfind("o"), text.find("z"), unicode.find("東"), text.index("W"), text.count("l"), text.count(""), text.find("o", 5), text.find("o", 5, 7)
text.index("z")
text.upper(), text.lower(), "abc".capitalize(), text.casefold()
"-".join(["a", "b"]), "".join(words), ", ".join("abc")
"-".join([1, 2])
"7".zfill(3), "-7".zfill(4), "a".center(6, "*"), "a".ljust(3) ~ "|", "a".rjust(3, "é"), "ab".center(5)
"x".encode(), "é".encode("utf-8"), "é 東🙂".encode() | length, unicode.encode().decode() == unicode, "é".encode() == "é", "é".encode() == "é".encode(encoding="UTF8"), "" | string is string, "é".encode() is string
"é".encode() | list, "é".encode()[0], "é".encode()[-1], "abcdef".encode()[1:4], "abc".encode()[::-1], "ab".encode() is iterable, "ab".encode() is sequence, "ab".encode() is mapping, "ab".encode().hex()
"a'b".encode(), 'a"b'.encode(), "a'b\"c".encode(), "\n\t\r\\ \x07".encode(), "é\n".encode("latin-1"), "".encode(), not "".encode()
"é€z".encode("ascii", "ignore"), "é€z".encode("ascii", "ignore").decode(), "é€z".encode("latin1", "replace"), "é€".encode("ascii", errors="replace").decode("ascii"), "é".encode("latin_1").decode("ISO-8859-1")
"x".encode() ~ "y", "%s" % "x".encode(), "x".encode() | string | upper, ["x".encode(), ("y".encode(),)], "x".encode() + "y".encode(), "xy".encode() * 2, 120 in "x".encode(), 1 in "x".encode()
"a".encode() < "b".encode(), "b".encode() < "ab".encode(), {"x".encode(): 1}["x".encode()], "x".encode in [1], "ab".encode() | first, "ab".encode() | sort, "ab".encode() | reverse | list, "abc".encode() | sum, "ba".encode() | join(",")
"é€".encode()[:2].decode(), "é€".encode()[:3].decode("utf-8", "ignore")
"x".encode() | tojson
"x".encode("klingon")
"x€".encode("x", "y")
"€".encode("ascii")
"€".encode("latin-1")
"é".encode()[:1].decode()
"é".encode().decode("ascii")
"x" in "xy".encode()
"x".encode() + "y"
"y" + "x".encode()
"x".encode() < "y"
"x".encode().append(1)
"ab".isprintable(), "é€ ".isprintable(), "a\nb".isprintable(), "".isprintable(), "\u2028".isprintable(), "\u00a0".isprintable()
"ab".isidentifier(), "a b".isidentifier(), "_1".isidentifier(), "1a".isidentifier(), "".isidentifier(), "é東".isidentifier(), "a-b".isidentifier(), "a·b".isidentifier(), "·b".isidentifier(), "℘".isidentifier(), "ͺ".isidentifier(), "aͺ".isidentifier(), "aำ".isidentifier(), "ำ".isidentifier(), "for".isidentifier(), "a‿b".isidentifier(), "‿".isidentifier(), "Ⅷ".isidentifier(), "½".isidentifier()
"abc".isalpha(), "a1".isalnum(), "12".isdigit(), "12".isdecimal(), "½".isnumeric(), "²".isdigit(), " \t".isspace(), "AB".isupper(), "ab1".islower(), "".isalpha(), "1".islower()
"abc".removeprefix("a"), "abc".removesuffix("c"), "abc".removeprefix("x")
"abc".nothing is defined
"abc".nothing()
text.__class__
text.__class__ is defined
items.append(4)
items.append is defined
d.update({"x": 1})
d.pop("a")
d.keys() | list, d.values() | list | length, d.items() | list | first
d.items()
{"a": 1}.items(), {"a": 1}.keys(), {"a": 1}.values()
d.get("a"), d.get("zz"), d.get("zz", 5), d.get("b").c
d.get()
d | items | list | length, missing | items | list
5 | items | list
d.copy() == d, items.copy() == items, items.index(1), items.count(1), (1, 2).index(2)
items.index(99)
range(3), range(3) | list, range(1, 10, 3) | list, range(3, 0, -1) | list, range(0) | list, range(2)[1], range(5) | length, 2 in range(3)
range(100001) | length
range(1, 2, 0)
range("x")
dict(a=1, b=2), dict({"a": 1}, b=3), dict([("x", 1)]), dict()
namespace(a=1).a, namespace({"q": 2}).q, namespace().x is defined
namespace(_x=1)
raise_exception("stop: " ~ n)
raise_exception(5)
name is string, 5 is number, 5 is integer, 5.0 is float, 5.0 is integer, true is number, true is integer, true is boolean, 1 is boolean
none is none, nothing is none, d is mapping, items is mapping, items is sequence, d is sequence, name is sequence, 5 is sequence, items is iterable, 5 is iterable, name is iterable, none is iterable
3 is odd, 4 is even, 9 is divisibleby 3, 9 is divisibleby(2), 5 is eq 5, 5 is ne 5, 5 is gt 3, 5 is lt(3), 5 is ge 5, 5 is le 4, 5 is equalto 5, 5 is in items
true is true, 1 is true, false is false, 0 is false, "A" is upper, "a" is lower, name is sameas name, none is sameas none, 1 is sameas true
name is not string, name is not none and n is number, not name is string
name is callable, range is callable, "upper" is filter, "nothing" is filter, "odd" is test, html is escaped
"x" is odd
5 is nothing
5 | nothing
true, True, none, None, false, False
loop is defined, messages, tools, documents, add_generation_prompt
"a" if n > 5 and x < 3 or no else "b"
(n + 1) * 2, (n, x)[0], [n, x][-1], {"k": n}["k"], {"k": n}.k, "abc"[1], ("a" ~ "b") | upper, ("a" + "b").upper()
n | string ~ "x", -n | abs, (-n) | abs, n + x | int, "a" "b" | upper
n is odd and n is not even, n is defined and n, not n is defined
"é" < "z", "é" > "z", "東" > "é", "🙂" > "東"
nested | string, nested[1][1][0], nested.1.1.0, d.b.c.0
"abc" is in ["abc"], "a" is in "abc"
items.0, items.5 is defined
"a" == "a" == "a", 1 in items == true
[1, 2, 3,], {"a": 1,}, (1,)
"%s" | format(unicode), "%c%c" | format(65, "é")
"a" * 3 ~ "b"
9223372036854775807, -9223372036854775807 - 1
10 ** 18, 2 ** 62
1 // 0
1 / 0
1.0 / 0
1 % 0
5.0 // 2.0, -5.0 // 2.0, 5.5 % 2.0, -5.5 % 2.0, 1e300 * 10
"x" | center(5) ~ "|", "hello big world" | truncate(9), "hello" | truncate(3, true), "hello big world" | truncate(9, false, "!", 0)
"a b, c-d" | wordcount, "über straße" | wordcount
"a b/c?é" | urlencode
words | first | upper, (words | map("lower") | unique | sort | join(","))
people | map(attribute="name") | map("length") | sum
[people[0]] | tojson
cycler("a", "b").next(), joiner("|")()
"\N{DASH}" | length
{"a": {"b": 1}}.a.b, {"a-b": 1}["a-b"]
not missing, missing or "x", missing and "x"
text is string and text | length > 3
d | attr("keys") is defined, d | attr("a") is defined
[1, 2][0:1], (1, 2)[::-1], range(5)[1:3] | list, range(5)[::-1] | list
"abc" | list, d | list, "" | list
items | list is sameas items
5 | list
["a", "b"] | tojson | length
1if 1else 2
foo.bar.baz | default("x")
(d.missing | default({})).x | default("y")
d.missing | d("z"), "" | default("e"), "" | default("e", true), none | default("n", true), none | default("n"), 0 | default(5, boolean=true)
"a" is eq("a") and "b" is eq "b"
items is sequence and items is not mapping and items is not string
strftime_now is defined, undefined_function is defined
strftime_now("plain text") ~ strftime_now("%Y") | length
strftime_now("")
"x" | replace(old="x", new="y"), "x" | replace("x")
"x" | replace("x", "y", bogus=1)
"x" | upper(1)
"x".upper(1)
d.b.c | map("string") | list
[[1, "a"], [0, "b"]] | sort, [(1, 2), (1, 1)] | sort
[{"a": 1}] | sort | length
[{"a": 1}, {"a": 0}] | sort
{"a": 1} | length, {"a": none}.a is none
"🙂é" | tojson, ["\ud83d"] | length
0x10, 0XFF, 1E2, 1.5e+3
00, 0_0
1__0
"abc" % ()
[] | sum, [1.5] | sum, [true, true] | sum
["a"] | sum
[[1], [2]] | sum(start=[])
"ab" in ["abc"], [1] in [[1]], none in [none], 1.0 in [1]
"{:d}".format(3.5)
"{:>10}".format(none)
"{:5}|{:5}|{:<5}|{:05}".format(3, "a", 3, 3)
(items | map("string") | list)[0], (items | map("string"))[0] is defined
items | map("multiply") | list
"a" | list | first, "ab" | map("upper") | join("-")
d.keys()[0] is defined, d.keys() | first, d.values() | list | last, d.items() | length
"x".join is callable
namespace(a=1) | string, namespace() == namespace(), [] == (), {} == []
"a\tb" | string, "a\\b", 'a\'b', "a\"b"
"" == none, 0 == false, "" == false, [] == false
people[0].name ~ people[0]["age"] ~ people[-1].boss
people | length == 3 and people[0].tags is defined and not people[1].tags is defined
5 if missing is defined
[1, [2, [3]]] | tojson(indent=3)
"caf\u00e9" == "café", "\x41"
"𝒳".isalpha()
"a"|upper~"b"|upper
1 ~ 2 + 3, 1 + 2 ~ 3
[1, 2] | map("string") | map("int") | sum
"İSTANBUL".lower() | length, "ẞ".lower(), "ß".upper()
huge, -huge, above, top, whole, minus, tiny, [huge, whole], {"k": above}, huge | string, huge ~ "", huge | tojson
huge + 1, huge - huge, huge * huge, huge // 7, huge % 7, -huge // 7, -huge % 7, huge // -7, huge % -7, 7 // huge, -7 // huge, 7 % huge, -7 % huge
top + 1, -top - 1, -top - 2, top * top, top * -1, -top - 1 + top, (top + 1) - 1, (-top - 1) // -1, (-top - 1) % -1, (-top - 1) | abs
huge / 7, 7 / huge, huge / huge, above / 3, above / 1, above * 1.0, huge / 0.5, huge // 0.5, huge % 0.5, (10 ** 400) / (10 ** 399), 0 / -5
2 ** 64, 2 ** 63, 10 ** 40, (-3) ** 99, huge ** 2, huge ** 0, 1 ** huge, (no - 1) ** huge, 0 ** huge, 2 ** 1000 % 1000007, huge ** -1, 2.0 ** 1000
10.0 ** 400
(10 ** 400) * 1.0
(10 ** 400) | float
(10 ** 400) / 3
huge // 0
huge % 0
huge < top, huge > top, -huge < 1, huge == huge + 0, huge == 1, above == 9007199254740992.0, above > 9007199254740992.0, above == above | float, huge == huge | float, huge < 1e30, huge < 1e29
huge in [1, huge], {huge: 1}[huge], {2 ** 64: "a"}[18446744073709551616.0], [huge, 1, -huge, 2.5, top] | sort, [huge, 1e31, 1] | max, [huge, 1, huge] | unique | list, [huge, top, 1] | sum
huge is integer, huge is number, huge is float, huge is odd, huge is even, huge is divisibleby(10), huge is sameas(huge), huge and 1, not huge
123456789012345678901234567890, 0xffffffffffffffffffff, 0b1_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000, 0o7777777777777777777777777
"123456789012345678901234567890" | int, "-9_999_999_999_999_999_999_999" | int, "ffffffffffffffffffff" | int(base=16), "0xffffffffffffffffffff" | int(base=16), "0b101" | int(base=0), "010" | int(base=0), "1__0" | int, "_1" | int, "5" | int(base=1), 1e25 | int, -1e25 | int, "1e25" | int, "inf" | int, "nan" | int(3)
"inf" | float | int
"nan" | float | int
huge | float, ("1e" ~ n ~ "00") | float, "1_0.5" | float, "1__0.5" | float(2), huge | abs, -huge | abs, huge | int, true | int
huge | round, huge | round(-3), -huge | round(-25), 15 | round(-1), 25 | round(-1), 35 | round(-1), -15 | round(-1), 5 | round(-1), 123 | round(-5), huge | round(2), 1234 | round(-2, "ceil"), 1234 | round(1, "floor"), huge | round(-3, "floor")
"%d" % huge, "%x" % huge, "%#o" % -huge, "%40d|%-40d|%040d" % (huge, huge, -huge), "%+d % d" % (huge, huge), "%.35d" % huge, "%d" % 1e22, "%f %e %g" % (huge, huge, huge), "%s %r" % (huge, huge)
"%d" % ("inf" | float)
"%x" % 1.5
"{:,} {:_} {:x} {:_x} {:#b} {:+d} {:40} {:<40}| {:^40}|".format(huge, huge, huge, huge, 5, huge, huge, huge, huge)
"{:.3} {:.10} {:.1} {:08.3} {:,} {:_} {:>10} {:+} {:010}".format(1234.5678, 2.0, 0.00001, 2.5, 1234567.5, 1e15, 1.0, 2.5, -1.5)
"{:.70f} {:.100e}".format(0.1, 0.1), "%.80f" % 0.1, "{:F} {:E} {:G} {:%} {:.1%}".format(1.5, 1.5, 1e20, 0.25, 0.123)
"{:.2d}".format(5)
items[huge] is defined, items[:huge], items[-huge:], items[huge:], text[:huge], items[::huge]
"a" * huge
range(huge)
whole, whole | tojson, {"a": minus} | tojson, [whole, minus, tiny] | string, minus == 0, 0.0 * -1, whole | int, "%s" % whole, whole ~ minus
tiny, 1e23, 9007199254740993.0, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 4.35, 0.1 + 0.7, 1e16, 123456789012345680.0, 2.0 ** -30, 2.0 ** 70, -2.0 ** -1022
(0.5 - above) // -7.5, 5.0 // -0.3, -5.5 % 0.3, x * 1e308, -x * 1e308, 0.0 / -5
{"big": huge, "n": [above, -top - 1], "x": {"w": whole}} | tojson(indent=1), {huge: 1, whole: 2} | tojson, {huge: 1}
1 | filesizeformat, 0 | filesizeformat, 999 | filesizeformat, 1000 | filesizeformat, 123456 | filesizeformat, 1e26 | filesizeformat, 1024 | filesizeformat(true), huge | filesizeformat, -5 | filesizeformat, 1.5 | filesizeformat, "2048" | filesizeformat(binary=true)
[7] | random, "x" | random, [] | random is defined
d | pprint, people | pprint, "a" | pprint, 5 | pprint, missing | pprint, [] | pprint, {} | pprint, {2: 1, 1: 2} | pprint, {"b": 1, "a": {"d": 1, "c": 2}} | pprint
[people, people, words, (text, text, text), (html * 12,), {"key": people}] | pprint
{"long": "the quick brown fox jumps over the lazy dog and then some more of that until it is too long for a line", "l": "one\ntwo " * 20} | pprint
"the quick brown fox jumps over the lazy dog and then some more of that until it is too long for a line" | pprint
html | striptags, "<b>bold</b> &lt;x&gt; <!-- c > --> y\n z" | striptags, "a < b" | striptags, "<!--" | striptags, "&amp;amp; &#65;&#x42; &quot;&nbsp;&unknown;" | striptags, "a<br>b" | striptags
{"class": "a b", "n": none, "id": 5, "q": html} | xmlattr, {} | xmlattr, {"a": 1} | xmlattr(false)
{"a b": 1} | xmlattr
"The quick brown fox jumps-over the lazy dog" | wordwrap(10), "aaaaaaaaaaaaaaaaaaaa bb" | wordwrap(6), "aaaaaaaaaaaa bb" | wordwrap(6, false), "a-b-cc dd-ee-ffff well-known" | wordwrap(8), "a-b cc-dd" | wordwrap(3, break_on_hyphens=false), lines | wordwrap(4, wrapstring="|"), spaces | wordwrap(5), unicode | wordwrap(3), "" | wordwrap, "an em--dash goes---here" | wordwrap(6), "x" * 200 | wordwrap
"ab" | wordwrap(0)
"Straße ŉ ǰ İ ﬁ Σς ẞ".casefold(), "ß".casefold() == "SS".casefold()
text | nothing_of_the_kind
text is nothing_of_the_kind
1 if yes else (text | nothing_of_the_kind)
1 if no else (text | nothing_of_the_kind)
(text is nothing_of_the_kind) if no else 2
text | filesizeformat
"ab".isascii(), "é".isascii(), "".isascii(), "Ab Cd".istitle(), "AB".istitle(), "ab".istitle(), "A1b".istitle(), "12".istitle(), "a\tb\n\tc".expandtabs(4), "a\tb".expandtabs(), "a\tb".expandtabs(0), "éé\tb".expandtabs(3)
items | truncate(5), {} | truncate, items | truncate(3, leeway=0)
[1, 2, 3, 4, 5, 6] | truncate(3, leeway=0)
"Visit http://example.com/a?b=c&d, www.foo.org. or mail a@b.co (see https://x.y/z)." | urlize, "(http://a.com/(b))" | urlize, "<http://a.com>" | urlize, "mailto:x@y.zz and @a@b and a:b@c.d" | urlize, "http://1.2.3.4:80/x http://[::1:2]/ foo.com bar.xyz" | urlize
"http://example.com/long/path www.é.de" | urlize(10, true, "_blank"), "http://a.com" | urlize(rel="b a noopener"), "tel:123 ftp://x" | urlize(extra_schemes=["tel:", "ftp://"]), "" | urlize, spaces | urlize, text | urlize
"""

# Whole templates, separated by lines of ====.
TEMPLATES = r"""
{% for i in items %}{{ i }},{% endfor %}
====
{% for i in items %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }}/{{ loop.depth }}/{{ loop.depth0 }};{% endfor %}
====
{% for i in items %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}
====
{% for i in items %}{{ loop.cycle("odd", "even") }} {% endfor %}
====
{% for i in [1, 1, 2] %}{{ loop.changed(i) }} {% endfor %}
====
{% for i in items if i > 1 %}{{ i }}{{ loop.length }}{% else %}none{% endfor %}
====
{% for i in items if i > 10 %}{{ i }}{% else %}none{% endfor %}
====
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
====
{% for k, v in d | items %}{{ k }};{% endfor %}{% for k in d %}{{ k }};{% endfor %}
====
{% for (a, b), c in [[(1, 2), 3]] %}{{ a }}{{ b }}{{ c }}{% endfor %}
====
{% for a, b in [[1]] %}{{ a }}{% endfor %}
====
{% for a, b in [[1, 2, 3]] %}{{ a }}{% endfor %}
====
{% for a, b in [1] %}{{ a }}{% endfor %}
====
{% for x in 5 %}{% endfor %}
====
{% for x in none %}{% endfor %}
====
{% for x in missing %}x{% else %}empty{% endfor %}
====
{% for c in "aé🙂" %}[{{ c }}]{% endfor %}
====
{% for i in range(10) %}{% if i == 3 %}{% continue %}{% endif %}{% if i == 6 %}{% break %}{% endif %}{{ i }}{% endfor %}
====
{% break %}
====
{% for i in items %}{% for j in items %}{% if j == 1 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}
====
{% for i in [[1, [2]], [3]] recursive %}{% if i is iterable %}({{ loop(i) }}){% else %}{{ i }}@{{ loop.depth }}{% endif %}{% endfor %}
====
{% for i in [1] %}{{ loop([2]) }}{% endfor %}
====
{% set x = 1 %}{% for i in items %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}
====
{% set ns = namespace(x=1) %}{% for i in items %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}
====
{% set ns.x = 1 %}
====
{% set q = 5 %}{% set q.x = 1 %}
====
{% set ns = namespace() %}{% set ns._x = 1 %}
====
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set a, b = b, a %}{{ a }}{{ b }}
====
{% set a = 1, 2 %}{{ a }}
====
{% set ns = namespace(a=0) %}{% set ns.a, y = 1, 2 %}{{ ns.a }}{{ y }}
====
{% set b %}<b>{{ name }}</b>{% endset %}{{ b }}{{ b | length }}
====
{% set b | upper | trim %}  {{ name }} {% endset %}[{{ b }}]
====
{% if no %}{% set q = 1 %}{% endif %}[{{ q }}]{% if yes %}{% set q = 2 %}{% endif %}[{{ q }}]
====
{% if no %}a{% elif nothing %}b{% elif yes %}c{% else %}d{% endif %}
====
{% if missing %}a{% else %}b{% endif %}{% if not missing %}c{% endif %}{% if 0 %}x{% endif %}{% if "0" %}y{% endif %}
====
{% macro f(a, b=2, c=b) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }} {{ f(1, 3) }} {{ f(1, c=9) }} {{ f(a=5) }} {{ f() }}
====
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}
====
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}
====
{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, x=4) }}
====
{% macro f(a, b=1) %}{% endmacro %}{{ f.name }} {{ f.arguments }} {{ f is callable }}
====
{% macro f() %}{{ name }}{{ local }}{% endmacro %}{% set local = 1 %}{{ f() }}
====
{% for i in items %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}
====
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
====
{% macro f(x) %}{% set y = x %}{{ y }}{% endmacro %}{{ f(1) }}{{ y }}
====
{% macro f() %}  x  {% endmacro %}[{{ f() | trim }}][{{ f() ~ "y" }}]{{ f() is string }}
====
{% macro f(a) %}<{{ caller(a, 2) }}>{% endmacro %}{% call(p, q) f(1) %}{{ p }}{{ q }}{{ name }}{% endcall %}
====
{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}body{% endcall %}{{ f() }}
====
{% macro f(a) %}{{ a }}{% endmacro %}{% call f(1) %}x{% endcall %}
====
{% macro f(x, y) %}{{ x }}{{ y }}{% endmacro %}{{ f(*[1, 2]) }}{{ f(**{"x": 3, "y": 4}) }}{{ f(1, *[2]) }}
====
{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}
====
{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}
====
{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% set a = 7 %}{% endwith %}{{ a }}
====
{% filter upper %}abc {{ name }}{% endfilter %}
====
{% filter replace("a", "b") | upper %}abc{% endfilter %}
====
{% raw %}{{ name }} {% if %} {# x #}{% endraw %}
====
a {%- raw -%}  {{ x }}  {%- endraw -%} b
====
{# comment #}a{#- comment -#} b {#- multi
line #}c
====
a
{% if yes %}
b
{% endif %}
c
====
a
    {% if yes %}
    b
    {% endif %}
c
====
a
    {%+ if yes %}
b
    {% endif +%}
c
====
  {{ name }}
  {{- name }}
  {{ name -}}
  x
====
  a {% if yes -%}   b   {%- endif %} c
====
    {# comment #}
x
    {#- comment #}
y
====
{% for i in items %}
  {{ i }}
{% endfor %}
====
{%- for i in items -%}
  {{ i }}
{%- endfor -%}
====
{% for i in items -%}
  {{ i }}
{%- endfor %}
x
====
{% set x = 1 %}
  {% set y = 2 %}  z
====
x {% set x = 1 %} y
====
{{ "}}" }}{{ '{%' }}{{ {"a": {"b": 1}}.a.b }}{{ {"a": 1}}}
====
{{ "a" -}}

   b{{- "c" }}
====
{% print name, 5 %}
====
{% block x %}{{ name }}{% endblock %}{% block y %}b{% endblock y %}
====
{% generation %}{{ name }}{% set inner = 1 %}{% endgeneration %}[{{ inner }}]
====
{% if yes %}
    {{- name -}}
{% endif %}
====
{% set c = cycler("a", "b") %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set _ = c.reset() %}{{ c.current }}
====
{% set j = joiner(", ") %}{% for i in items %}{{ j() }}{{ i }}{% endfor %}
====
{% set loop = 5 %}{{ loop }}{% for i in [1] %}{{ loop.index }}{% endfor %}{{ loop }}
====
{% for i in items %}{% for j in items %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}
====
{% for loop in [1] %}{{ loop }}{% endfor %}
====
{% for i in items %}{{ i }}{% else %}e{% endfor %}{{ i }}
====
{% set messages = [1, 2] %}{% for m in messages %}{{ m }}{% endfor %}{% set messages = messages[1:] %}{{ messages }}
====
{% set x = namespace(found=false) %}{% for i in items %}{% if i == 1 and not x.found %}{% set x.found = true %}{{ i }}{% endif %}{% endfor %}{{ x.found }}
====
{% if a is not defined %}{% set a = "new" %}{% endif %}{{ a }}
====
{% for p in people | sort(attribute="name") %}{{ p.name }}{% if not loop.last %}, {% endif %}{% endfor %}
====
{% for g in people | groupby("age") %}{{ g[0] }}:{% for p in g[1] %}{{ p.name }}{% endfor %};{% endfor %}
====
{% for row in [1, 2, 3] | batch(2) %}{{ row }}{% endfor %}
====
{{ name
====
{% if yes %}
====
{% endif %}
====
{% nothing %}
====
{{ }}
====
{{ 1 + }}
====
{{ (1 }}
====
{{ 1) }}
====
{{ "abc }}
====
{# never closed
====
{% raw %} never closed
====
{% for i items %}{% endfor %}
====
{% set 5 = 1 %}
====
{% set true = 1 %}
====
{% macro f(a=1, b) %}{% endmacro %}
====
{{ f(a=1, 2) }}
====
{{ a is b is c }}
====
{{ a b }}
====
{{ $ }}
====
{% include "x" %}
====
{% do x %}
====
{% if yes: %}a{% endif %}
====
{% for i in items: %}{{ i }}{% endfor %}
====
{% if yes %}{{ raise_exception("no luck") }}{% endif %}
====
{% if no %}{{ raise_exception("no luck") }}{% endif %}fine
====
{% if no %}{{ 1 | nothing }}{% endif %}fine
====
{% set s = namespace(v="") %}{% for i in range(3) %}{% set s.v = s.v ~ i %}{% endfor %}{{ s.v }}
====
{% macro m(x) -%}
  {%- if x is mapping -%}
    {%- for k, v in x | dictsort -%}{{ k }}:{{ m(v) }} {%- endfor -%}
  {%- else -%}{{ x }}{%- endif -%}
{%- endmacro %}{{ m(d) }}
====
{%- macro param(p) %}
    {%- if p.type == "string" %}
        {{- "s" }}
    {%- else %}
        {{- "other" }}
    {%- endif %}
{%- endmacro %}
{{ param({"type": "string"}) }}|{{- param({}) }}
====
{% set it = items | select("odd") %}{{ it | list }}{{ it | list }}
====
{% set it = items | map("string") %}{{ it | first }}{{ it | list }}
====
{% for i in items | select("odd") %}{{ i }}{{ loop.last }}{{ loop.length }}{% endfor %}
====
{{ '''a''' }}{{ "" "" }}
====
{% if "a" in name or "d" in name and not no %}ok{% endif %}
====
{% set x %}{% for i in items %}{{ i }}{% endfor %}{% endset %}{{ x | length }}{{ x }}
====
{{ name }}

====
{{ name }}


====

  leading
====
a{% if yes %}

b{% endif %}

c
====
a {{ name }}	{%- if yes %} b {%- endif %} c
====
{%- set x = "s" -%}   {{- x -}}   y
====
{% if yes and
   n == 7 %}multi
line{% endif %}
====
{{ {"role": "x", "list": [1,
  2]} | tojson }}
====
{% for message in [{"role": "user", "content": "hi"}] %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}
====
{% for a in [1, 2] %}{% for b in [3] %}{{ loop.first }}{% endfor %}{{ loop.first }}{% endfor %}
====
{% macro f() %}{{ loop }}{% endmacro %}{% for i in [1] %}{{ f() }}{% endfor %}
====
{% set a = [] %}{% set _ = a.append(1) %}{{ a }}
====
{% set d2 = dict(d, new=1) %}{{ d2.new }}{{ d.new is defined }}
====
{% for x in [1, 2, 3] %}{% if loop.index is odd %}{{ x }}{% endif %}{% endfor %}
====
{{ messages }}{{ tools }}{{ documents }}{{ add_generation_prompt }}
====
é{{ "é" }}東{% if yes %} 🙂{% endif %}
====
{%if yes%}a{%endif%}{{name}}{#c#}
====
{%- if yes -%}a{%- else -%}b{%- endif -%}
====
{% for i in [3, 2] %}{% set outer = loop %}{% for j in [1] %}{{ outer.index }}{{ loop.index }}{% endfor %}{% endfor %}
====
{% set x = 1 %}{% if yes %}{% set x = 2 %}{% endif %}{{ x }}
====
{% set x = 1 %}{% macro f() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ f() }}
====
{% macro f() %}{% for i in items %}{{ i }}{% if i == 1 %}{% break %}{% endif %}{% endfor %}{% endmacro %}{{ f() }}
====
{% for i in items %}{% filter upper %}a{{ i }}{% endfilter %}{% endfor %}
====
{% for i in items %}{% with j = i %}{{ j }}{{ loop.index }}{% endwith %}{% endfor %}
====
{{ caller }}{{ varargs }}{{ kwargs }}
====
{% call nothing() %}x{% endcall %}
====
{% set f = range %}{{ f(2) | list }}{% set u = "x".upper %}{{ u() }}
====
{% if no %}{{ text | nothing_of_the_kind }}{% elif text is nothing_of_the_kind %}{% endif %}x
====
{% if no %}{{ text | nothing_of_the_kind }}{% else %}x{% endif %}
====
{% if no %}{% for i in items %}{{ i | nothing_of_the_kind }}{% endfor %}{% endif %}x
====
{% if no %}{% for i in items | nothing_of_the_kind %}{{ i }}{% endfor %}{% endif %}x
====
{% for i in items %}{% if no %}{{ i | nothing_of_the_kind }}{% endif %}{{ i }}{% endfor %}
====
{% macro never() %}{{ text | nothing_of_the_kind }}{% endmacro %}x
====
{% for i in empty %}{{ i is nothing_of_the_kind }}{% endfor %}x
====
{% if no %}{% set y = text | nothing_of_the_kind %}{% set z %}{{ yes }}{% endset %}{% endif %}x
"""

CASES = ["{{ " + line + " }}" for line in EXPRESSIONS.strip("\n").split("\n")]
CASES += ['{{ "multi\nline" }}']
CASES += [t.removeprefix("\n") for t in TEMPLATES.removesuffix("\n").split("\n====")]
CASES += ['\t{% if yes %}\ttab\t{% endif %}\t\nend', '{{- name -}}    \n   {{- name }}']  # blanks at the ends of lines
