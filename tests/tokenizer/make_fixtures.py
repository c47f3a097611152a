"""Makes tests/fixtures/tokenizers/small-*.json: tiny tokenizers that between them use every part the engine reads.

Run by hand when a part is added; the results are committed.  One trained vocabulary per kind (byte-level, and
SentencePiece-style), the rest are variations of the description around it.
"""
import copy
import json

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from tool import FIXTURES

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIALS = ['<|begin_of_text|>', '<|end_of_text|>', '<|start_header_id|>', '<|end_header_id|>', '<|eot_id|>']


def samples():
    return [(FIXTURES / 'samples' / f'{n}.txt').read_bytes().decode() for n in ('english', 'code', 'chinese', 'arabic')]


def token(i, content, **options):
    base = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    return dict(id=i, content=content, **(base | options))


def llama3():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), 'isolated'),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.train_from_iterator(samples(), trainers.BpeTrainer(
        vocab_size=1500, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    d = json.loads(t.to_str())
    d['model']['ignore_merges'] = True
    # words no merge leads to: only ignore_merges finds them whole
    for word in ('Ġextraordinary', 'zyx', 'éĹ®é¢ĺ'):
        d['model']['vocab'].setdefault(word, len(d['model']['vocab']))
    n = len(d['model']['vocab'])
    d['added_tokens'] = [token(n + i, s) for i, s in enumerate(SPECIALS)]
    bos = SPECIALS[0]
    piece = {'SpecialToken': {'id': bos, 'type_id': 0}}
    d['post_processor'] = {'type': 'Sequence', 'processors': [
        {'type': 'ByteLevel', 'add_prefix_space': True, 'trim_offsets': False, 'use_regex': True},
        {'type': 'TemplateProcessing',
         'single': [piece, {'Sequence': {'id': 'A', 'type_id': 0}}],
         'pair': [piece, {'Sequence': {'id': 'A', 'type_id': 0}}, {'Sequence': {'id': 'B', 'type_id': 1}}],
         'special_tokens': {bos: {'id': bos, 'ids': [n], 'tokens': [bos]}}}]}
    d['decoder'] = {'type': 'ByteLevel', 'add_prefix_space': True, 'trim_offsets': True, 'use_regex': True}
    return d


def sentencepiece():
    t = Tokenizer(models.BPE(unk_token='<unk>', byte_fallback=True, fuse_unk=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    specials = ['<unk>', '<s>', '</s>'] + [f'<0x{i:02X}>' for i in range(256)]
    t.train_from_iterator(samples()[:2], trainers.BpeTrainer(
        vocab_size=900, show_progress=False, special_tokens=specials, limit_alphabet=120))
    d = json.loads(t.to_str())
    d['added_tokens'] = [token(i, s) for i, s in enumerate(specials[:3])]
    d['decoder'] = {'type': 'Sequence', 'decoders': [
        {'type': 'Replace', 'pattern': {'String': '▁'}, 'content': ' '}, {'type': 'ByteFallback'}, {'type': 'Fuse'},
        {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}]}
    return d


def metaspace(base, scheme, split):
    d = copy.deepcopy(base)
    step = {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': scheme, 'split': split}
    d['pre_tokenizer'] = step
    d['decoder'] = step
    return d


def strip_fallback(d):
    """Without byte tokens, so that what the alphabet lacks is unknown."""
    for i in range(256):
        del d['model']['vocab'][f'<0x{i:02X}>']
    ids = {old: new for new, old in enumerate(sorted(d['model']['vocab'].values()))}
    d['model']['vocab'] = {s: ids[i] for s, i in d['model']['vocab'].items()}
    return d


def variants():
    byte_level, spm = llama3(), sentencepiece()
    yield 'llama3', byte_level
    for scheme in ('first', 'always', 'never'):
        yield f'metaspace-{scheme}', metaspace(spm, scheme, scheme != 'first')

    d = strip_fallback(copy.deepcopy(spm))
    d['model'] |= {'byte_fallback': False, 'fuse_unk': True}
    d['normalizer'] = {'type': 'Sequence', 'normalizers': [{'type': 'NFKC'}, {'type': 'Lowercase'},
                       {'type': 'Strip', 'strip_left': True, 'strip_right': True}]}
    d['pre_tokenizer'] = {'type': 'Sequence', 'pretokenizers': [{'type': 'WhitespaceSplit'},
                          {'type': 'Digits', 'individual_digits': True},
                          {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': 'always', 'split': False}]}
    d['decoder'] = None
    yield 'unk-fused', d

    d = strip_fallback(copy.deepcopy(spm))
    d['model'] |= {'byte_fallback': False, 'fuse_unk': False}
    d['normalizer'] = {'type': 'Sequence', 'normalizers': [{'type': 'NFD'},
                       {'type': 'Replace', 'pattern': {'Regex': r'\s+'}, 'content': ' '},
                       {'type': 'Prepend', 'prepend': '▁'},
                       {'type': 'Replace', 'pattern': {'String': ' '}, 'content': '▁'}]}
    d['pre_tokenizer'] = {'type': 'Punctuation', 'behavior': 'MergedWithPrevious'}
    yield 'unk-single', d

    d = copy.deepcopy(byte_level)
    n = max(t['id'] for t in d['added_tokens']) + 1
    d['added_tokens'] += [token(n, '<left>', lstrip=True), token(n + 1, '<right>', rstrip=True),
                          token(n + 2, '<both>', lstrip=True, rstrip=True), token(n + 3, 'one', single_word=True),
                          token(n + 4, 'The Word', normalized=True, special=False),
                          token(n + 5, 'The', normalized=True, special=False, single_word=True),
                          token(n + 6, '  ', special=False), token(n + 7, 'naïve', special=False, normalized=True),
                          token(n + 8, '<lef', special=False), token(n + 9, '=====', normalized=True, lstrip=True)]
    d['normalizer'] = {'type': 'Sequence', 'normalizers': [{'type': 'NFKD'}, {'type': 'Lowercase'}]}
    d['model']['ignore_merges'] = False
    d['pre_tokenizer'] = {'type': 'ByteLevel', 'add_prefix_space': True, 'trim_offsets': True, 'use_regex': True}
    d['post_processor'] = {'type': 'ByteLevel', 'add_prefix_space': True, 'trim_offsets': True, 'use_regex': True}
    yield 'added', d

    d = copy.deepcopy(byte_level)  # as Falcon has it: cutting goes on behind ByteLevel
    d['pre_tokenizer'] = {'type': 'Sequence', 'pretokenizers': [
        {'type': 'Punctuation', 'behavior': 'Contiguous'},
        {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True, 'use_regex': True},
        {'type': 'Digits', 'individual_digits': False},
        {'type': 'Split', 'pattern': {'Regex': '[0-9][0-9][0-9]'}, 'behavior': 'Isolated', 'invert': False}]}
    d['post_processor'] = None
    yield 'falcon', d

    t = Tokenizer(models.BPE(unk_token='<unk>', continuing_subword_prefix='##', end_of_word_suffix='</w>'))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    t.train_from_iterator(samples()[:2], trainers.BpeTrainer(
        vocab_size=700, show_progress=False, special_tokens=['<unk>'], continuing_subword_prefix='##',
        end_of_word_suffix='</w>'))
    yield 'affixes', json.loads(t.to_str())

    behaviors = [('Removed', False), ('MergedWithPrevious', False), ('MergedWithNext', False), ('Contiguous', False),
                 ('Removed', True), ('MergedWithPrevious', True), ('MergedWithNext', True), ('Contiguous', True),
                 ('Isolated', True)]
    for i, (behavior, invert) in enumerate(behaviors):  # every piece is one unknown token: its offsets show the cuts
        yield f'split-{i}', {
            'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': [], 'normalizer': None,
            'pre_tokenizer': {'type': 'Split', 'pattern': {'Regex': r'[\s.,]|\w\d+'}, 'behavior': behavior,
                              'invert': invert},
            'post_processor': None, 'decoder': {'type': 'Fuse'},
            'model': {'type': 'BPE', 'dropout': None, 'unk_token': '?', 'continuing_subword_prefix': None,
                      'end_of_word_suffix': None, 'fuse_unk': True, 'byte_fallback': False, 'ignore_merges': False,
                      'vocab': {'?': 0}, 'merges': []}}


if __name__ == '__main__':
    for name, description in variants():
        path = FIXTURES / f'small-{name}.json'
        path.write_text(json.dumps(description, ensure_ascii=False, separators=(',', ':')) + '\n', encoding='utf-8')
        print(path.name, path.stat().st_size)
