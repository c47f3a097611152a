"""Makes tests/fixtures/tokenizers/small-*.json: tiny tokenizers that between them use every part the engine reads.

Run by hand when a part is added; the results are committed.  One trained vocabulary per kind (byte-level, and
SentencePiece-style, WordPiece, Unigram), the rest are variations of the description around it.  nmt_nfkc.json.xz has the
table that XLM-RoBERTa's and T5's tokenizers have, in full.  Made with tokenizers 0.23.3 and sentencepiece 0.2.3.
"""
import base64
import copy
import io
import json
import lzma
import struct
import tempfile

import sentencepiece as spm
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

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


SPECIAL_BERT = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
# SentencePiece normalization rules: code points to code points, in hexadecimal
NMT_RULES = [('2122', '54 4D'), ('AD', ''), ('200B', '20'), ('FF21', '41'), ('61 301', 'E1'), ('1', ''), ('7F', ''),
             ('FB01', '66 69'), ('BD', '31 2044 32'), ('1112 1161 11AB', 'D55C'), ('9', '20'), ('3000', '20'),
             ('A0', '20'), ('D A', '20'), ('FDFA', '635 644 649 20 627'), ('20AC', '45 55 52')]


def wordlevel():
    t = Tokenizer(models.WordLevel(unk_token='[UNK]'))
    t.normalizer = normalizers.Lowercase()
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.train_from_iterator(samples()[:2], trainers.WordLevelTrainer(vocab_size=600, show_progress=False, special_tokens=['[UNK]']))
    return json.loads(t.to_str())


def wordpiece(lowercase):
    t = Tokenizer(models.WordPiece(unk_token='[UNK]'))
    t.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.train_from_iterator(samples(), trainers.WordPieceTrainer(
        vocab_size=1100, show_progress=False, special_tokens=SPECIAL_BERT, limit_alphabet=400))
    d = json.loads(t.to_str())
    special = {s: {'id': s, 'ids': [i], 'tokens': [s]} for i, s in ((2, '[CLS]'), (3, '[SEP]'))}

    def piece(name, kind):
        return {'Sequence' if name in 'AB' else 'SpecialToken': {'id': name, 'type_id': kind}}
    d['post_processor'] = {'type': 'TemplateProcessing', 'special_tokens': special,
                           'single': [piece('[CLS]', 0), piece('A', 0), piece('[SEP]', 0)],
                           'pair': [piece('[CLS]', 0), piece('A', 0), piece('[SEP]', 0), piece('B', 1),
                                    piece('[SEP]', 1)]}
    d['decoder'] = {'type': 'WordPiece', 'prefix': '##', 'cleanup': True}
    return d


def protobuf(data):
    """(field, value) of one message"""
    def varint(i):
        n = shift = 0
        while True:
            n |= (data[i] & 127) << shift
            shift += 7
            i += 1
            if data[i - 1] < 128:
                return n, i
    i = 0
    while i < len(data):
        key, i = varint(i)
        if key & 7 == 0:
            value, i = varint(i)
        elif key & 7 == 5:
            value, i = data[i:i + 4], i + 4
        else:
            n, i = varint(i)
            value, i = data[i:i + n], i + n
        yield key >> 3, value


def unigram(rules, size=900):
    """(precompiled_charsmap in base64, pieces with scores) of a model that SentencePiece trains on the samples; rules:
    a list, or the name of rules that SentencePiece has"""
    model = io.BytesIO()
    with tempfile.NamedTemporaryFile('w', suffix='.tsv') as f:
        f.write('' if isinstance(rules, str) else ''.join(f'{a}\t{b}\n' for a, b in rules))
        f.flush()
        how = {'normalization_rule_name': rules} if isinstance(rules, str) else {'normalization_rule_tsv': f.name}
        spm.SentencePieceTrainer.train(
            sentence_iterator=(line for t in samples() for line in t.split('\n') if line.strip()), model_writer=model,
            model_type='unigram', vocab_size=size, character_coverage=0.98, hard_vocab_limit=False, minloglevel=2, **how)
    message = list(protobuf(model.getvalue()))
    charsmap = dict(protobuf(dict(message)[3]))[2]  # ModelProto.normalizer_spec.precompiled_charsmap
    learnt = [dict(protobuf(value)) for field, value in message if field == 1]
    pieces = [[p[1].decode(), struct.unpack('<f', p[2])[0]] for p in learnt if p.get(3, 1) == 1]
    return (base64.b64encode(charsmap).decode(),
            [[s, 0.0] for s in ('<s>', '<pad>', '</s>', '<unk>')] + pieces)


def xlm_roberta(charsmap, pieces):
    special = [(s, i) for i, (s, _) in enumerate(pieces[:4]) if s in ('<s>', '</s>')]

    def part(name):
        return {'Sequence' if name in 'AB' else 'SpecialToken': {'id': name, 'type_id': 0}}
    metaspace = {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': 'always', 'split': True}
    return {
        'version': '1.0', 'truncation': None, 'padding': None,
        'added_tokens': [token(i, s) for s, i in special] + [token(len(pieces), '<mask>', lstrip=True)],
        'normalizer': {'type': 'Precompiled', 'precompiled_charsmap': charsmap},
        'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [{'type': 'WhitespaceSplit'}, metaspace]},
        'post_processor': {
            'type': 'TemplateProcessing', 'single': [part('<s>'), part('A'), part('</s>')],
            'pair': [part(s) for s in ('<s>', 'A', '</s>', '</s>', 'B', '</s>')],
            'special_tokens': {s: {'id': s, 'ids': [i], 'tokens': [s]} for s, i in special}},
        'decoder': metaspace,
        'model': {'type': 'Unigram', 'unk_id': 3, 'vocab': pieces, 'byte_fallback': False}}


def cuts(pre_tokenizer):
    """Every piece is one unknown token: its offsets show the cuts."""
    return {'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': [], 'normalizer': None,
            'pre_tokenizer': pre_tokenizer, 'post_processor': None, 'decoder': {'type': 'Fuse'},
            'model': {'type': 'BPE', 'dropout': None, 'unk_token': '?', 'continuing_subword_prefix': None,
                      'end_of_word_suffix': None, 'fuse_unk': True, 'byte_fallback': False, 'ignore_merges': False,
                      'vocab': {'?': 0}, 'merges': []}}


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

    d = wordlevel()
    d['normalizer'] = {'type': 'Sequence', 'normalizers': [{'type': 'Nmt'}, {'type': 'NFD'}, {'type': 'StripAccents'},
                       {'type': 'Lowercase'}]}
    d['pre_tokenizer'] = {'type': 'BertPreTokenizer'}
    yield 'wordlevel', d
    d = wordlevel()
    d['normalizer'] = {'type': 'ByteLevel'}
    d['pre_tokenizer'] = {'type': 'Sequence', 'pretokenizers': [{'type': 'CharDelimiterSplit', 'delimiter': 'Ġ'},
                          {'type': 'FixedLength', 'length': 3}]}
    yield 'wordlevel-bytes', d

    for name, lowercase in (('bert', True), ('bert-cased', False)):
        yield name, wordpiece(lowercase)
    d = wordpiece(True)
    d['post_processor'] = {'type': 'BertProcessing', 'sep': ['[SEP]', 3], 'cls': ['[CLS]', 2]}
    d['decoder'] |= {'cleanup': False}
    d['model'] |= {'max_input_chars_per_word': 7}
    d['normalizer'] |= {'clean_text': False, 'handle_chinese_chars': False, 'strip_accents': False}
    yield 'bert-options', d

    d = copy.deepcopy(byte_level)
    d['post_processor'] = {'type': 'RobertaProcessing', 'sep': ['</s>', 2], 'cls': ['<s>', 0], 'trim_offsets': True,
                           'add_prefix_space': False}
    d['pre_tokenizer'] = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True, 'use_regex': True}
    yield 'roberta', d

    charsmap, pieces = unigram(NMT_RULES)
    yield 'unigram', xlm_roberta(charsmap, pieces)
    d = xlm_roberta(charsmap, [['<unk>', 0.0], ['<s>', 0.0], ['</s>', 0.0]] + [[f'<0x{i:02X}>', -9.0] for i in range(256)]
                    + pieces[4:])  # as T5 and Gemma-like files have it, with bytes for what no piece has
    d['model'] |= {'unk_id': 0, 'byte_fallback': True}
    d['pre_tokenizer'] = {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': 'first', 'split': False}
    d['normalizer'] = {'type': 'Sequence', 'normalizers': [
        {'type': 'Strip', 'strip_left': False, 'strip_right': True},
        {'type': 'Replace', 'pattern': {'Regex': ' {2,}'}, 'content': '▁'}]}
    d['post_processor'] = None
    yield 'unigram-bytes', d

    behaviors = [('Removed', False), ('MergedWithPrevious', False), ('MergedWithNext', False), ('Contiguous', False),
                 ('Removed', True), ('MergedWithPrevious', True), ('MergedWithNext', True), ('Contiguous', True),
                 ('Isolated', True)]
    for i, (behavior, invert) in enumerate(behaviors):
        yield f'split-{i}', cuts({'type': 'Split', 'pattern': {'Regex': r'[\s.,]|\w\d+'}, 'behavior': behavior,
                                  'invert': invert})
    yield 'scripts', cuts({'type': 'UnicodeScripts'})


if __name__ == '__main__':
    for name, description in variants():
        path = FIXTURES / f'small-{name}.json'
        path.write_text(json.dumps(description, ensure_ascii=False, separators=(',', ':')) + '\n', encoding='utf-8')
        print(path.name, path.stat().st_size)
    description = xlm_roberta(*unigram('nmt_nfkc', 600))
    path = FIXTURES / 'nmt_nfkc.json.xz'
    path.write_bytes(lzma.compress(json.dumps(description, ensure_ascii=False, separators=(',', ':')).encode(), preset=9))
    print(path.name, path.stat().st_size)
