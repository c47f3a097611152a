"""Limits that keep the code readable: short files, short functions, files that say what they are."""
import re

import pytest
from sources import FOLDERS, ROOT, c_files, tracked

FILE_LINES = 800
FUNCTION_LINES = 120
CODE = {".c", ".h", ".cu", ".cuh", ".cc", ".py"}
TEXT = CODE | {".md", ".yaml", ".yml", ".build", ".txt", ".sh", ".service", ".socket", ""}
DATA = ("tests/fixtures/", "tests/fuzz/corpus/", "models/", "LICENSE")


def ours(suffixes):
    """Files written by hand, with one of the suffixes."""
    return [p for p in tracked() if p.suffix in suffixes and not str(p.relative_to(ROOT)).startswith(DATA)]


def c_and_tests():
    return c_files() + c_files(ROOT, ["tests", "loadtest"])


def long_functions(text, limit=FUNCTION_LINES):
    """[(first line, lines)] of C functions over the limit: the body opens and closes with a brace in column 0."""
    found, start = [], None
    for number, line in enumerate(text.splitlines(), 1):
        if line == "{":
            start = number
        elif line.startswith("}") and start is not None:
            if number - start + 1 > limit:
                found.append((start, number - start + 1))
            start = None
    return found


def opens_with_comment(path):
    return path.read_text().lstrip().startswith(("/*", "//"))


def is_introduced(path):
    """The file opens with a comment, or it is a source whose header of the same name does."""
    header = path.with_suffix(".h")
    return opens_with_comment(path) or (path.suffix in {".c", ".cu", ".cc"} and header.exists() and opens_with_comment(header))


def trailing_blanks(text):
    return [number for number, line in enumerate(text.split("\n"), 1) if re.search(r"[ \t\r]$", line)]


def unset_errors(text):
    """Line numbers of local variables `struct err e;` without a value: those of a block that no struct or union opens."""
    out, blocks = [], []
    for number, line in enumerate(text.splitlines(), 1):
        code = re.sub(r"\"(\\.|[^\"\\])*\"|'(\\.|[^'\\])*'|//.*|/\*.*?\*/", "", line)
        if blocks and not blocks[-1] and re.match(r"\s*struct err \w+(, \w+)*;", code):
            out.append(number)
        for part in re.finditer(r"[{}]", code):
            if part.group() == "}":
                blocks and blocks.pop()
            else:
                blocks.append(bool(re.search(r"\b(struct|union)\b[^()=;]*$", code[:part.start()])))
    return out


# ---- the project -----------------------------------------------------------------------------------------------------

def test_files_are_short():
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in ours(CODE)}
    assert {name: n for name, n in lengths.items() if n > FILE_LINES} == {}


def test_errors_begin_empty():
    """A struct err that no failing call has set is read as no error, not as what was on the stack."""
    assert {str(p.relative_to(ROOT)): lines for p in c_files(ROOT, [*FOLDERS, "loadtest"]) if (lines := unset_errors(p.read_text()))} == {}


def test_json_is_compared_in_bounded_time():
    """cJSON_Compare is exponential in the depth of objects; json_equal is not."""
    assert [str(p) for p in c_files() if "cJSON_Compare" in p.read_text()] == []


def test_functions_are_short():
    found = {str(p.relative_to(ROOT)): long_functions(p.read_text()) for p in c_and_tests()}
    assert {name: functions for name, functions in found.items() if functions} == {}


def test_files_say_what_they_are():
    assert [str(p.relative_to(ROOT)) for p in c_files() if not is_introduced(p)] == []


def test_no_trailing_blanks():
    found = {str(p.relative_to(ROOT)): trailing_blanks(p.read_text()) for p in ours(TEXT)}
    assert {name: lines for name, lines in found.items() if lines} == {}


# ---- these tests can fail --------------------------------------------------------------------------------------------

def function(lines):
    return "int f(void)\n{\n" + "    g();\n" * (lines - 2) + "}\n"


@pytest.mark.parametrize("lines, found", [(FUNCTION_LINES, []), (FUNCTION_LINES + 1, [(2, FUNCTION_LINES + 1)])])
def test_a_long_function_is_found(lines, found):
    assert long_functions(function(lines)) == found


def test_a_trailing_blank_is_found():
    assert trailing_blanks("a\nb \nc\t\n") == [2, 3]


def test_a_silent_file_is_found(tmp_path):
    (tmp_path / "a.c").write_text("int a;\n")
    assert not is_introduced(tmp_path / "a.c")
    (tmp_path / "a.h").write_text("/* what a is */\n")
    assert is_introduced(tmp_path / "a.c")


def test_an_unset_error_is_found():
    text = "struct s {\n    struct err e;\n};\nint f(struct s *s)\n{\n    struct err e = {0};\n    if (s) {\n        struct err other;\n    }\n}\n"
    assert unset_errors(text) == [8]
