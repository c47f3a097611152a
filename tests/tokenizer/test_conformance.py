"""The C tokenizer against PyPI tokenizers and llama.cpp's expected ids.

    TANDEM_BUILD_DIR=build python -m pytest tests/tokenizer
"""
import base64
import json
import random

import pytest

from mixed_text import chunks
from tool import FIXTURES, Reference, Refused, Tool, fixture

LARGE = ['qwen2', 'gpt2', 'llama2', 'phi-2', 'tinystories', 'nmt_nfkc']
SMALL = sorted(p.stem for p in FIXTURES.glob('small-*.json'))
LARGE_BYTES, SMALL_BYTES = 2_000_000, 200_000
QUICK_PART = 5  # without the tests marked `full`, so many times less text


class Pair:
    def __init__(self, name, part=1):
        self.name, self.part = name, part
        self.description = fixture(name)
        self.tool = Tool(self.description)
        self.reference = Reference(self.description)
        post = json.loads(self.description)['post_processor'] or {}
        templates = [p for p in [post] + post.get('processors', []) if 'pair' in p]
        self.has_pairs = all(p['pair'] for p in templates)

    def check_encoding(self, text, special=False):
        ours, theirs = self.tool.encode(text, special), self.reference.encode(text, special)
        if (ours[0], ours[1]) == (theirs[0], theirs[1]):
            return
        at = next((i for i, (a, b) in enumerate(zip(zip(*ours), zip(*theirs))) if a != b), None)
        if at is None:
            pytest.fail(f'{self.name}: {len(ours[0])} tokens, reference {len(theirs[0])}, for {text!a}')
        start = theirs[1][at][0]
        pytest.fail(f'{self.name}: token {at} is {ours[0][at]} {ours[1][at]}, reference {theirs[0][at]} '
                    f'{theirs[1][at]}, near {text[max(0, start - 12):start + 12]!a}')

    def check_decoding(self, ids):
        for skip in (False, True):
            assert self.tool.decode(ids, skip) == self.reference.decode(ids, skip), (self.name, skip, ids)


@pytest.fixture(scope='module', params=LARGE + SMALL)
def pair(request):
    p = Pair(request.param, QUICK_PART if 'not full' in request.config.option.markexpr else 1)
    yield p
    p.tool.close()


def mixed(pair):
    return chunks(1, (LARGE_BYTES if pair.name in LARGE else SMALL_BYTES) // pair.part)


@pytest.mark.parametrize('name,lines', [('qwen2', 'qwen2'), ('gpt2', 'gpt-2'), ('llama2', 'llama-spm')])
def test_expected_ids(name, lines):
    texts = (FIXTURES / 'conformance' / f'{lines}.inp').read_bytes().decode().split('\n__ggml_vocab_test__\n')
    expected = [[int(i) for i in line.split()]
                for line in (FIXTURES / 'conformance' / f'{lines}.out').read_text().split('\n')]
    assert len(texts) == len(expected) > 40
    tool = Tool(fixture(name))
    for text, ids in zip(texts, expected):
        assert tool.encode(text)[0] == ids, text
    tool.close()


def test_mixed_text_is_mixed():
    text = ''.join(chunks(1, LARGE_BYTES))
    assert len(text.encode()) >= LARGE_BYTES
    for wanted in ('\0', '\u200d', '\ufffd', '\u0301', '\u0085', '<|im_end|>', ' ' * 60, '\n' * 60, '的', 'ال', '\U0001f9d1'):
        assert wanted in text, wanted
    assert text == ''.join(chunks(1, LARGE_BYTES)), 'the text must be the same every time'


def test_encode_mixed(pair):
    for text in mixed(pair):
        pair.check_encoding(text)


def test_encode_with_template(pair):
    for text in mixed(pair)[:100] + ['', ' ', 'Hello']:
        pair.check_encoding(text, special=True)


def test_inputs(pair):
    """Texts and pairs in the template, with each token's type, cut to a limit on either side."""
    r = random.Random(11)
    texts = ['', ' ', 'Hello'] + mixed(pair)[:60 // pair.part]
    added = [len(pair.reference.input('', other)[0]) for other in (None, '')]
    for text in texts:
        for other in (None, r.choice(texts), r.choice(texts)[:20]):
            if other is not None and not pair.has_pairs:
                with pytest.raises(Refused, match='two texts'):
                    pair.tool.input(text, other)
                continue
            limit = r.choice([0, added[other is not None] + r.randrange(1, 60)])
            args = dict(limit=limit, left=r.random() < 0.5, special=r.random() < 0.9)
            ours, theirs = pair.tool.input(text, other, **args), pair.reference.input(text, other, **args)
            assert (ours[0], ours[2]) == (theirs[0], theirs[2]), (text, other, args)
            if not args['left']:  # where a text is cut in front, the reference trims its new first token otherwise
                assert ours[1] == theirs[1], (text, other, args)


def test_input_limits():
    """The rules for pairs that are too long."""
    p = Pair('small-bert')
    a, b = 'the quick brown fox ' * 3, 'jumps over the lazy dog ' * 9
    for limit in range(3, 80):
        for cut in ('longest_first', 'only_first', 'only_second'):
            for x, y in ((a, b), (b, a), (a, a)):
                try:
                    theirs = p.reference.input(x, y, limit, cut=cut)
                except Exception:
                    with pytest.raises(Refused, match='too short'):
                        p.tool.input(x, y, limit, cut=cut)
                else:
                    assert p.tool.input(x, y, limit, cut=cut) == theirs, (limit, cut)
    for limit, other in ((1, None), (2, a)):
        with pytest.raises(Refused, match='tokens are added'):
            p.tool.input(a, other, limit)
    p.tool.close()


def test_broken_bytes(pair):
    r = random.Random(5)
    for text in mixed(pair)[:200]:
        raw = bytearray(text.encode())
        for _ in range(8):
            raw[r.randrange(len(raw))] = r.randrange(256)
        assert pair.tool.encode(bytes(raw)) == pair.tool.encode(bytes(raw).decode(errors='replace')), bytes(raw)


def test_decode_mixed(pair):
    for text in mixed(pair):
        ids = pair.reference.encode(text)[0]
        pair.check_decoding(ids)


def whole_runs_only(pair, ids):
    """ids without byte tokens: a stream and a list agree on them whatever their order"""
    return [i for i in ids if not pair.tool_info.get(i, ('',))[0].startswith('<0x')]


def random_ids(pair, count):
    size, info = pair.tool.info()
    pair.tool_info = info
    r = random.Random(7)
    for _ in range(count):
        yield [r.randrange(size + 2) if r.random() < 0.7 else r.randrange(min(size, 400)) for _ in range(r.randrange(40))]


def test_decode_random_ids(pair):
    for ids in random_ids(pair, 400):
        pair.check_decoding(ids)


def test_stream_equals_decode(pair):
    for text in mixed(pair)[:400]:
        ids = pair.reference.encode(text)[0]
        pieces = pair.tool.stream(ids)
        for piece in pieces:
            piece.decode()  # no piece ends within a character
        assert b''.join(pieces).decode() == pair.tool.decode(ids)


def test_stream_random_ids(pair):
    for ids in random_ids(pair, 400):
        pieces = pair.tool.stream(ids)
        for piece in pieces:
            piece.decode()
        ids = whole_runs_only(pair, ids)
        assert b''.join(pair.tool.stream(ids)).decode() == pair.tool.decode(ids), ids


@pytest.mark.parametrize('name', ['llama2', 'small-metaspace-first'])
def test_stream_behind_a_prompt(name):
    """The first token of an answer keeps the space that only the start of a text loses."""
    tool = Tool(fixture(name))
    prompt, answer = tool.encode('Hello there')[0], tool.encode('my friend')[0]
    whole = tool.decode(prompt + answer)
    assert whole == 'Hello there my friend'
    assert tool.decode(prompt) + b''.join(tool.stream(answer, mid=True)).decode() == whole
    tool.close()


def test_stream_bad_byte_run():
    """Where a run of byte tokens is no UTF-8, a stream keeps its whole characters; a list keeps nothing."""
    tool = Tool(fixture('llama2'))
    byte = {b: int(tool.ask('find', 0, f'<0x{b:02X}>')) for b in range(256)}
    run = [byte[b] for b in b'\xe4\xbd\xa0\xff\xe4\xbd']
    assert tool.decode(run) == '\ufffd' * 6
    assert b''.join(tool.stream(run)).decode() == '你\ufffd\ufffd\ufffd'
    tool.close()


def test_vocabulary(pair):
    size, info = pair.tool.info()
    vocab = pair.reference.tokenizer.get_vocab(with_added_tokens=True)
    assert {s: i for i, (s, _) in info.items()} == vocab
    assert size == max(vocab.values()) + 1
    special = {i for i, t in pair.reference.tokenizer.get_added_tokens_decoder().items() if t.special}
    assert {i for i, (_, s) in info.items() if s} == special
    for spelling in list(vocab)[:50]:
        assert int(pair.tool.ask('find', 0, spelling)) == vocab[spelling]
    assert int(pair.tool.ask('find', 0, 'no such token at all')) == -1


@pytest.fixture(scope='module', params=LARGE)
def large(request):
    tool = Tool(fixture(request.param))
    yield tool, Reference(fixture(request.param))
    tool.close()


@pytest.mark.full
@pytest.mark.parametrize('run', ['a', ' ', '\n', '\t', 'ab', '啊', '\u0301', '\0', '🏳️\u200d', '▁', "'", '1'])
def test_long_runs(large, run):
    """A megabyte without a break: same ids, and time that grows with the text, not with its square."""
    tool, reference = large
    text = run * (50_000 // len(run.encode()))
    assert tool.encode(text)[0] == reference.encode(text)[0]
    text = run * (1_000_000 // len(run.encode()))
    assert int(tool.ask('time', 1, text)) < 5e9  # nanoseconds; a fraction of that on an idle core


def refusal(change, name='small-llama3'):
    data = json.loads(fixture(name))
    change(data)
    with pytest.raises(Refused) as e:
        Tool(json.dumps(data).encode())
    return str(e.value)


def test_refusals_name_the_place():
    def put(path, value):
        def change(data):
            for key in path[:-1]:
                data = data[key]
            data[path[-1]] = value
        return change

    assert refusal(put(['model', 'merges', 17], ['nobody', 'knows'])).startswith('model.merges[17]: "nobody"')
    assert refusal(put(['model', 'merges', 3], 7)).startswith('model.merges[3]: ')
    assert refusal(put(['model', 'vocab', 'a'], -1)).startswith('model.vocab: "a"')
    assert refusal(put(['model', 'vocab', 'zzz'], 5)).startswith('model.vocab: "zzz": id 5 is already')
    assert refusal(put(['model', 'type'], 'Quadgram')).startswith('model: ')
    assert refusal(put(['added_tokens', 2, 'content'], None)).startswith('added_tokens[2].content: missing')
    assert refusal(put(['added_tokens', 1, 'special'], 'yes')).startswith('added_tokens[1].special: ')
    assert refusal(put(['pre_tokenizer', 'pretokenizers', 0, 'pattern'], {'Regex': '('})).startswith(
        'pre_tokenizer.pretokenizers[0].pattern: regular expression, byte 1: ')
    assert refusal(put(['pre_tokenizer', 'pretokenizers', 0, 'behavior'], 'Torn')).startswith(
        'pre_tokenizer.pretokenizers[0].behavior: "Torn"')
    assert refusal(put(['decoder', 'type'], 'CTC')).startswith('decoder: ')
    assert refusal(put(['normalizer'], {'type': 'Precompiled'})).startswith('normalizer.precompiled_charsmap: missing')
    assert refusal(put(['normalizer'], {'type': 'Nothing'})).startswith('normalizer: ')
    step = ['pre_tokenizer', 'pretokenizers', 1]
    assert 'Scripts' in refusal(put(step, {'type': 'Scripts'}))
    assert '[1].delimiter: must be one character' in refusal(put(step, {'type': 'CharDelimiterSplit', 'delimiter': 'ab'}))
    assert '[1].length: ' in refusal(put(step, {'type': 'FixedLength', 'length': 0}))
    assert refusal(put(['post_processor', 'processors', 1, 'single', 0, 'SpecialToken', 'id'], '<x>')).startswith(
        'post_processor.processors[1].single[0]: "<x>"')


def test_refusals_of_pieces():
    def put(name, path, value):
        def change(data):
            for key in path[:-1]:
                data = data[key]
            data[path[-1]] = value
        return refusal(change, name)

    charsmap = ['normalizer', 'precompiled_charsmap']
    for bad in ('', 'AAAA', '*', 'AAA', '/////w==', 'BAAAAAAAAA==', 'BAAAAAAAAAD/'):
        assert put('small-unigram', charsmap, bad).startswith('normalizer.precompiled_charsmap: '), bad
    for bad in (['a'], 'a', ['a', '0'], ['a', 0, 0], [None, 0], ['x' * 2000, 0]):
        assert put('small-unigram', ['model', 'vocab', 7], bad).startswith('model.vocab[7]: '), bad
    assert 'listed twice' in put('small-unigram', ['model', 'vocab', 7], ['<s>', 0])
    assert put('small-unigram', ['model', 'vocab'], []).startswith('model.vocab: ')
    assert put('small-unigram', ['model', 'unk_id'], 5000).startswith('model.unk_id: ')
    assert put('small-bert', ['model', 'unk_token'], 'nothing').startswith('model: unk_token')
    assert put('small-bert', ['model', 'max_input_chars_per_word'], -1).startswith('model.max_input_chars_per_word: ')
    assert put('small-bert', ['post_processor', 'pair', 3, 'Sequence', 'id'], 'C').startswith('post_processor.pair[3]')
    assert put('small-bert', ['post_processor', 'pair', 3, 'Sequence', 'id'], 'A').startswith('post_processor.pair: ')
    assert put('small-bert-options', ['post_processor', 'sep'], ['[SEP]']).startswith('post_processor.sep: ')


def test_any_charsmap_is_safe():
    """A table of random bytes is read or refused, and text goes through it."""
    r = random.Random(3)
    data = json.loads(fixture('small-unigram'))
    whole = bytearray(base64.b64decode(data['normalizer']['precompiled_charsmap']))
    for _ in range(200):
        bad = bytearray(whole)
        for _ in range(r.choice([1, 10, 300])):
            bad[r.randrange(4, len(bad))] = r.randrange(256)
        data['normalizer']['precompiled_charsmap'] = base64.b64encode(bytes(bad)).decode()
        try:
            tool = Tool(json.dumps(data).encode())
        except Refused as e:
            assert str(e).startswith('normalizer.precompiled_charsmap: ')
            continue
        tool.encode(chunks(r.randrange(1000), 500)[0])
        tool.close()


def test_truncated_files():
    whole = fixture('small-llama3')
    for n in list(range(0, 200)) + list(range(200, len(whole) - 2, 997)):
        with pytest.raises(Refused):
            Tool(whole[:n])


def test_regex_bomb_is_an_error():
    data = json.loads(fixture('small-llama3'))
    data['pre_tokenizer'] = {'type': 'Split', 'pattern': {'Regex': '((a+)+)+$'}, 'behavior': 'Isolated', 'invert': False}
    tool = Tool(json.dumps(data).encode())
    with pytest.raises(Refused, match='gave up'):
        tool.encode('a' * 60 + '!')
    assert tool.encode('hello')[0]
    tool.close()
