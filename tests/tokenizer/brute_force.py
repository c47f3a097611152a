"""Every code point, in contexts, through one part of the tokenizer at a time, ours and the reference's.

    TANDEM_BUILD_DIR=build python tests/tokenizer/brute_force.py [PART...]

Prints, per part, the code points whose result differs.  Takes half a minute a part; not run by the test suite.
README.md lists what is expected to differ.
"""
import json
import sys

from tool import Reference, Tool

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(pattern):
    return {'type': 'Split', 'pattern': {'Regex': pattern}, 'behavior': 'Isolated', 'invert': False}


PRETOKENIZERS = {
    'gpt2': {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': False, 'use_regex': True},
    'llama3': split(LLAMA3),
    **{p: split(p) for p in (r'\s', r'\S', r'\w', r'\W', r'\d', r'\p{L}', r'\p{N}', r'\p{M}', r'\p{P}', r'\p{S}', r'\p{Lu}',
                             r'[\p{Ll}]', r'\p{Lo}|\p{Lm}|\p{Lt}', r'\p{Han}', r'a.', r'^a|b$', r'\b',
                             r"(?i:'s|'k|'t|'re|'ve|'m|'ll|'d|'i)")},
    'Digits': {'type': 'Digits', 'individual_digits': True},
    'Punctuation': {'type': 'Punctuation', 'behavior': 'Isolated'},
    'Whitespace': {'type': 'Whitespace'},
    'WhitespaceSplit': {'type': 'WhitespaceSplit'},
    'UnicodeScripts': {'type': 'UnicodeScripts'},
}
NORMALIZERS = {n: {'type': n} for n in ('NFC', 'NFD', 'NFKC', 'NFKD', 'Lowercase', 'StripAccents', 'Nmt', 'ByteLevel')}
NORMALIZERS['Strip'] = {'type': 'Strip', 'strip_left': True, 'strip_right': True}


def description(normalizer=None, pretokenizer=None):
    """Words show as the offsets of one fused unknown token, normalized text as its bytes."""
    vocab = {'<unk>': 0} | ({f'<0x{i:02X}>': i + 1 for i in range(256)} if normalizer else {})
    return json.dumps({
        'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': [], 'normalizer': normalizer,
        'pre_tokenizer': pretokenizer, 'post_processor': None, 'decoder': None,
        'model': {'type': 'BPE', 'dropout': None, 'unk_token': '<unk>', 'continuing_subword_prefix': None,
                  'end_of_word_suffix': None, 'fuse_unk': True, 'byte_fallback': bool(normalizer),
                  'ignore_merges': False, 'vocab': vocab, 'merges': []}}).encode()


def differing(tool, reference, points, context):
    text = ''.join(context(chr(c)) for c in points)
    ours, theirs = tool.encode(text), reference.encode(text)
    if (ours[0], ours[1]) == (theirs[0], theirs[1]):
        return []
    if len(points) == 1:
        return points
    half = len(points) // 2
    return differing(tool, reference, points[:half], context) + differing(tool, reference, points[half:], context)


def ranges(points):
    out = []
    for c in points:
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return ' '.join(f'{a:X}' if a == b else f'{a:X}-{b:X}' for a, b in out)


def run(name, text, context):
    tool, reference = Tool(text), Reference(text)
    points = [c for c in range(0x110000) if not 0xd800 <= c < 0xe000]
    found = []
    for i in range(0, len(points), 2048):
        found += differing(tool, reference, points[i:i + 2048], context)
    print(f'{name}: {len(found)} differ {ranges(found)}', flush=True)
    tool.close()


def main(wanted):
    for name, step in PRETOKENIZERS.items():
        if not wanted or name in wanted:
            run(name, description(pretokenizer=step), lambda c: f"a{c}b {c}'{c}1{c}\n{c} {c}{c}.{c}\n")
    if not wanted or 'UnicodeScripts' in wanted:
        run('UnicodeScripts, neighbours', description(pretokenizer=PRETOKENIZERS['UnicodeScripts']), str)
    for name, step in NORMALIZERS.items():
        if not wanted or name in wanted:
            run(name, description(normalizer=step),
                str if name == 'Strip' else lambda c: f'{c}a{c}\u0301{c} \u1161{c}e\u0323{c}\u0338|')


if __name__ == '__main__':
    main(sys.argv[1:])
