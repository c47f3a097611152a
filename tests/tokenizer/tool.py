"""The C tokenizer (tok_tool) and the reference, side by side."""
import array
import json
import lzma
import os
import pathlib
import struct
import subprocess

import tokenizers

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE.parent / 'fixtures' / 'tokenizers'


def find_tool():
    """$TOK_TOOL, or tok_tool in $TANDEM_BUILD_DIR (anywhere under its tests/), or in ./build."""
    if os.environ.get('TOK_TOOL'):
        return os.environ['TOK_TOOL']
    build = pathlib.Path(os.environ.get('TANDEM_BUILD_DIR') or HERE.parent.parent / 'build')
    for folder in (build / 'tests' / 'tokenizer', build / 'tests', build):
        if (folder / 'tok_tool').is_file():
            return str(folder / 'tok_tool')
    raise FileNotFoundError(f'no tok_tool under {build}: build it, or set TANDEM_BUILD_DIR or TOK_TOOL')


def fixture(name):
    """The bytes of a committed tokenizer.json."""
    packed = FIXTURES / f'{name}.json.xz'
    return lzma.decompress(packed.read_bytes()) if packed.exists() else (FIXTURES / f'{name}.json').read_bytes()


class Refused(Exception):
    pass


class Tool:
    """One tok_tool process; holds one tokenizer at a time."""

    def __init__(self, description):
        self.process = subprocess.Popen([find_tool()], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self.parse(description)
        except Refused:
            self.close()
            raise

    def close(self):
        self.process.stdin.close()
        code = self.process.wait()
        self.process.stdout.close()
        assert code == 0, f'tok_tool ended with {code}'

    def ask(self, command, arg=0, payload=b''):
        if isinstance(payload, str):
            payload = payload.encode()
        self.process.stdin.write(b'%s %d %d\n' % (command.encode(), arg, len(payload)) + payload)
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if line.startswith(b'ok '):
            return self.process.stdout.read(int(line[3:]))
        if line.startswith(b'err '):
            raise Refused(line[4:-1].decode())
        raise RuntimeError(f'tok_tool died ({self.process.wait()})')

    def parse(self, description):
        return int(self.ask('parse', 0, description))

    def encode(self, text, special=False):
        """(ids, offsets) of str or bytes"""
        v = array.array('i', self.ask('encode', int(special), text))
        return list(v[0::3]), list(zip(v[1::3], v[2::3]))

    def input(self, text, pair=None, limit=0, special=True, left=False, cut='longest_first'):
        """(ids, offsets, types) of a text or a pair in the template"""
        arg = limit | (not special) << 16 | left << 17 | (cut == 'only_first') << 18 | (cut == 'only_second') << 19
        payload = b''
        for t in (text, pair):
            raw = b'' if t is None else t.encode()
            payload += struct.pack('<I', 0xffffffff if t is None else len(raw)) + raw
        v = array.array('i', self.ask('input', arg, payload))
        return list(v[0::4]), list(zip(v[1::4], v[2::4])), list(v[3::4])

    def decode(self, ids, skip_special=False):
        return self.ask('decode', int(skip_special), array.array('i', ids).tobytes()).decode()

    def stream(self, ids, mid=False):
        """The pieces, as bytes; the last is the flush's."""
        answer = self.ask('stream', int(mid), array.array('i', ids).tobytes())
        pieces, at = [], 0
        while at < len(answer):
            n, = struct.unpack_from('<I', answer, at)
            pieces.append(answer[at + 4:at + 4 + n])
            at += 4 + n
        assert len(pieces) == len(ids) + 1
        return pieces

    def info(self):
        """size, {id: (spelling, special)}"""
        answer = self.ask('info')
        size, at = int(answer[:answer.index(b'\n')]), answer.index(b'\n') + 1
        found = {}
        for token in range(size):
            space = answer.index(b' ', answer.index(b' ', at) + 1)
            special, n = answer[at:space].split()
            n = int(n)
            if n >= 0:
                found[token] = (answer[space + 1:space + 1 + n].decode(), special == b'1')
            at = space + 2 + max(n, 0)
        assert at == len(answer)
        return size, found


def merges_as_pairs(description):
    """Old files write a merge as "a b"; where a token holds a space the reference refuses that, so cut it here."""
    data = json.loads(description)
    vocab, merges = data['model']['vocab'], data['model'].get('merges', [])
    for i, m in enumerate(merges):
        if isinstance(m, str) and m.count(' ') > 1:
            cuts = [(m[:k], m[k + 1:]) for k in range(len(m)) if m[k] == ' ']
            pair, = [c for c in cuts if c[0] in vocab and c[1] in vocab and c[0] + c[1] in vocab]
            data['model']['merges'] = [list(x.split(' ')) if isinstance(x, str) and x.count(' ') == 1 else x
                                       for x in data['model']['merges']]
            data['model']['merges'][i] = list(pair)
    return data


class Reference:
    """PyPI tokenizers.  Versions from 0.23 spell a special token by its normalized form when decoding and then do not
    know it as special any more; decoding does not normalize, so a twin whose added tokens are not normalized gives what
    every earlier version gave."""

    def __init__(self, description):
        data = merges_as_pairs(description)
        self.tokenizer = tokenizers.Tokenizer.from_str(json.dumps(data))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        for token in data.get('added_tokens', []):
            token['normalized'] = False
        self.decoder = tokenizers.Tokenizer.from_str(json.dumps(data))

    def encode(self, text, special=False):
        e = self.tokenizer.encode(text, add_special_tokens=special)
        return e.ids, e.offsets

    def input(self, text, pair=None, limit=0, special=True, left=False, cut='longest_first'):
        if limit:
            self.tokenizer.enable_truncation(limit, strategy=cut, direction='left' if left else 'right')
        try:
            e = self.tokenizer.encode(text, pair, add_special_tokens=special)
        finally:
            self.tokenizer.no_truncation()
        return e.ids, e.offsets, e.type_ids

    def decode(self, ids, skip_special=False):
        return self.decoder.decode(ids, skip_special_tokens=skip_special)
