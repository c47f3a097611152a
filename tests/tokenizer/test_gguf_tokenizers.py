"""A tokenizer read from a GGUF file encodes and decodes as the tokenizer.json that the file was made from, and as llama.cpp.

    TANDEM_BUILD_DIR=build python -m pytest tests/tokenizer/test_gguf_tokenizers.py
"""
import json
import sys
from pathlib import Path

import gguf
import pytest

from mixed_text import chunks
from tool import FIXTURES, Tool, fixture

sys.path.insert(0, str(Path(__file__).parent.parent / 'model'))
import gguf_models  # noqa: E402

PRES = {'gpt2': 'gpt-2', 'phi-2': 'phi-2', 'qwen2': 'qwen2', 'llama2': None, 'tinystories': None, 'small-llama3': 'llama-bpe'}
LINES = {'gpt2': 'gpt-2', 'qwen2': 'qwen2', 'llama2': 'llama-spm'}


def write(name, path):
    """The tokenizer as a GGUF file without tensors."""
    w = gguf.GGUFWriter(path, 'llama')
    gguf_models.write_tokenizer(w, json.loads(fixture(name)), {}, PRES[name])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


@pytest.fixture(scope='module', params=PRES)
def case(request, tmp_path_factory):
    """-> (name, the GGUF file, tok_tool with its tokenizer, tok_tool with the original)"""
    path = write(request.param, tmp_path_factory.mktemp('gguf') / 'vocabulary.gguf')
    original = Tool(fixture(request.param))
    made = original.ask('gguf', 0, path.read_bytes())
    ours = Tool(made)
    yield request.param, path, ours, original
    ours.close()
    original.close()


def texts(name):
    if name not in LINES:
        return []
    return (FIXTURES / 'conformance' / f'{LINES[name]}.inp').read_bytes().decode().split('\n__ggml_vocab_test__\n')


def test_as_the_original(case):
    """But for texts with a special token in them in SentencePiece's models: what follows one begins with a space, as in
    llama.cpp; whether the original agrees is not in a GGUF file."""
    name, _, ours, original = case
    added = [t['content'] for t in json.loads(fixture(name))['added_tokens']] if PRES[name] is None else []
    for text in [*texts(name), *chunks(3, 200_000)]:
        if any(token in text for token in added):
            continue
        for special in (False, True):
            want, got = original.encode(text, special)[0], ours.encode(text, special)[0]
            assert got == want, (name, text)
        assert ours.decode(want) == original.decode(want), (name, text)


def test_as_llama_cpp(case):
    """Where the two differ by design: Qwen's tokenizer.json composes characters first, llama.cpp does not."""
    llama_cpp = pytest.importorskip('llama_cpp')
    name, path, ours, _ = case
    if name == 'tinystories':
        pytest.skip('llama.cpp ends the process at a character that the vocabulary lacks, where there are no tokens for bytes')
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    for text in texts(name) or list(chunks(5, 20_000)):
        if '\0' in text or name == 'qwen2' and not text.isascii():
            continue
        assert ours.encode(text)[0] == model.tokenize(text.encode(), add_bos=False, special=True), (name, text)
