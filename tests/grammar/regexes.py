"""Regular expressions and texts for test_regexes.py and for the C unit test, which reads the table this file prints:

    python tests/grammar/regexes.py > tests/grammar/regexes.jsonl      # one [pattern, text, matches] a line
"""
import json
import re
import warnings

TEXTS = ["", "a", "b", "ab", "aab", "abab", "aaa", "abc", "ABC", "aBc", "1", "12", "2024-01-31", "x_1", " ", "\n", "\t", "a\n", "\na", "é",
         "É", "ß", "ſ", "s", "S", "K", "k", "\u212a", "İ", "ı", "i", "I", "٣", "日本", "😀", "😀😀", "-", "]", "[", "^", "$", "\\", "{", "}", "{,}",
         "a{2}", "a{,", "a-c", ".", "..", "(a)", "|", "a|b", "foo", "bar", "foobar", "foobarfoo", "hello world", "\"q\"", "\x00", "\x1c", "\x7f",
         "\u00a0", "\u2028", "\u3000", "µ", "μ", "Μ", "a" * 9, "a" * 10, "a" * 11, "ab" * 5, "0", "-0", "-1.5e+10", "1e5", "01", "user@host.org",
         "#fff", "#12abCD", "127.0.0.1", "256.0.0.1", "true", "null", "aXbXc", "¼", "Ⅷ", "_", "\U0010ffff", "a/b", "#", "\x08", "\x41"]

PATTERNS = ["", "a", "ab", "a|b", "a|", "|a", "(a|b)*", "(?:ab)+", "a?b", "a*b*", "a+?b*?", "a{2}", "a{2,}", "a{,2}", "a{,}", "a{2,3}", "a{0}", "a{2", "a{,",
            "a{", "{", "}", "]", "a{9,10}", "(ab){5}", "(a{2}){2}", "(a?){3,5}", "(a*)*", "(a*)+b", "(a|aa){3}", ".", ".*", "(?s).", "(?s).*", ".\\n", "[abc]",
            "[^abc]", "[a-c]+", "[]]", "[^]]", "[-a]", "[a-]", "[a\\-c]", "[\\]]", "[\\^]", "[.]", "[$^]", "[|]", "[\\b]", "\\.", "\\\\", "\\/", "a\\/b", "\\-",
            "\\d", "\\D", "\\s", "\\S", "\\w", "\\W", "\\w+", "\\d+", "\\s*", "[\\d]", "[^\\d]", "[\\w-]+", "[\\s\\S]", "[^\\W]", "[\\W\\d]", "(?a)\\d", "(?a)\\w+",
            "(?a)\\s", "(?a)\\W", "(?a:\\d)|x_\\d", "\\d{4}-\\d{2}-\\d{2}", "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\\d|3[01])", "^a$", "^a|b$", "^(a|b)$", "(^a|^b)",
            "(a$|b$)", "\\Aab\\Z", "^$", "(?i)abc", "(?i)k", "(?i)s", "(?i)i", "(?i)ı", "(?i)é", "(?i)ß", "(?i)[a-z]+", "(?i)[^a-z]", "(?i)µ", "(?ai)k", "(?i:a)Bc",
            "(?i:a(?-i:B)c)", "(?is).", "é", "É", "[à-ÿ]", "日本", "[一-龥]+", "😀+", "[😀-😂]+", "\\U0001F600", "\\u65e5\\u672c", "\\x41", "\\101", "\\0", "[\\0]", "[\\101]",
            "[\\x41-\\x43]+", "\\x7f", "[\\x00-\\x1f]", "\\t", "\\n", "\\x1c", "[^\\n]", "(?P<x>a)b", "(?:)", "()", "(?#note)a", "(foo|bar)+", "(foo|foobar)(bar|foo)?",
            "-?(0|[1-9]\\d*)(\\.\\d+)?([eE][+-]?\\d+)?", "\"([^\"\\\\]|\\\\.)*\"", "[\\w.]+@[\\w.]+\\.\\w{2,}", "#([0-9a-fA-F]{3}){1,2}",
            "((25[0-5]|2[0-4]\\d|1?\\d?\\d)\\.){3}(25[0-5]|2[0-4]\\d|1?\\d?\\d)", "(true|false|null)", "a.b.c|.X?.X?.", "(a|b|ab)*c?", "(?:a|b){2,4}", "x*y*z*[^q]?",
            "[^\\s]+", "\\S+ \\S+", "[\\s]?", "[a-zA-Z_]\\w*", "[ -~]*", "[^ -~]", "\\$", "\\^", "\\{", "\\}", "a\\{2\\}", "\\[", "\\(a\\)", "\\|", "a\\|b", "#", "\\#",
            "[&&]", "[a~~b]", "(((((a)))))", "(a|(b|(c|)))?", "[^\\x00-\\x7f]", "\\w\\W?\\w?", "(?:(?:a)?)*b?", "(a{0,3}){0,3}", "([ab]{2,}){2}", "(?i)\\u212a", "\\uFEFF?a"]

REFUSED = {"(": "without its )", "{,}": "nothing to repeat", ")": "without its (", "*": "nothing to repeat", "a**": "repetition of a repetition", "a{3,2}": "least count", "[a": "without its ]",
           "[z-a]": "bad character range", "[\\d-z]": "bad character range", "\\": "backslash at the end", "(a)\\1": "back-reference", "(?P<n>a)(?P=n)": "back-reference",
           "(?=a)": "look-ahead", "(?!a)": "look-ahead", "(?<=a)": "look-behind", "(?<!a)b": "look-behind", "\\bfoo": "word boundaries", "fo\\B": "word boundaries",
           "(?>a)": "atomic", "a++": "possessive", "(a)?(?(1)b|c)": "conditional", "a^b": "beginning", "a$b": "end", "(a$)+": "^ or $", "\\q": "bad escape",
           "\\p{L}": "Unicode properties", "\\N{DASH}": "bad escape", "(?x) a": "flag x", "(?m)^a": "flag m", "a(?i)b": "start of the whole", "\\ud800": "no character",
           "\\xg1": "hexadecimal", "[\\400]": "octal", "(?P<": "group name", "(?#": "comment", "^*": "a repetition", "a{99999999999}": "too large", "(?i": "without its )"}


def table():
    warnings.simplefilter("ignore", FutureWarning)  # sets such as [&&], whose meaning may change one day
    return [[p, t, re.fullmatch(p, t) is not None] for p in PATTERNS for t in TEXTS if "\x00" not in p + t]


if __name__ == "__main__":
    # a selection: whatever matches, and one in nine of the rest
    for k, row in enumerate(table()):
        if row[2] or k % 9 == 0:
            print(json.dumps(row, ensure_ascii=True))
    for p, why in REFUSED.items():
        print(json.dumps([p, why]))
