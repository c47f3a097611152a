"""Token masks on real vocabularies: grammar_tool compares every bit with a walk of that token alone.

    TANDEM_BUILD_DIR=build python -m pytest tests/grammar
"""
import lzma
import pathlib

import pytest

from grammar_client import Tool

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "tokenizers"

JSON_PREFIXES = ["", "{", '{"', '{"na', '{"name":', '{"name":"Once', '{"name":"caf\u00e9 \\', '["a",{"b":[', "[1", "[-1.5e", '["x","y"', "true", "[nul"]
CASES = [({"json": 4294967295}, JSON_PREFIXES), ({"json": 500}, JSON_PREFIXES[2:7]), ({"json": 12}, JSON_PREFIXES[3:8]),
         ({"regex": ".*"}, ["", "Once upon", "\u65e5"]), ({"regex": "[^\\n]{0,80}"}, ["", "x" * 70, "\u65e5\u672c"]),
         ({"regex": "\\w+( \\w+){0,5}\\."}, ["", "Once", "Once upon "]), ({"regex": "(yes|no|maybe so)"}, ["", "ma", "yes"]),
         ({"regex": "\\d{4}-\\d{2}-\\d{2}"}, ["", "20", "2024-0"]), ({"regex": "[\u4e00-\u9fff]{2,}"}, ["", "\u65e5", "\u65e5\u672c\u8a9e"])]


@pytest.fixture(scope="module")
def tool():
    t = Tool()
    yield t
    t.close()


@pytest.mark.parametrize("name", ["tinystories", "gpt2", "llama2", "qwen2", "small-llama3", "small-metaspace-first"])
def test_masks(tool, tmp_path, name):
    packed = FIXTURES / f"{name}.json.xz"
    path = tmp_path / "tokenizer.json"
    path.write_bytes(lzma.decompress(packed.read_bytes()) if packed.exists() else (FIXTURES / f"{name}.json").read_bytes())
    for grammar, prefixes in CASES:
        counts = tool.allowed(path, prefixes, **grammar)
        assert len(counts) == len(prefixes) and max(counts) > 0
