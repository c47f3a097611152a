"""Makes tests/fixtures/encoders: small random encoders and embedding models, and what sentence-transformers gives for them.

    python tests/model/make_encoder_fixtures.py

Needs torch 2.15, transformers 5.23, sentence-transformers 6.2, bitsandbytes 0.50.2 (not test dependencies: the fixtures
are committed).  A directory is what SentenceTransformer.save or CrossEncoder.save writes, weights in float16,
tokenizers of tests/fixtures/tokenizers, plus expected.json, computed in float32 on the CPU:
    texts, vectors              encode(texts)
    prompts                     {name: vectors of encode(texts[:2], prompt_name=name)}
    pairs, scores               a cross-encoder's predict(pairs), and raw: its logits
    single, logits              the logits of one text each
"""
import json
import shutil
import tempfile
from pathlib import Path

import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

from make_nf4_fixtures import bitsandbytes
from make_nf4_fixtures import values as nf4_values

HERE = Path(__file__).resolve().parent.parent / 'fixtures'
OUT = HERE / 'encoders'
TEXTS = ['The word anarchism is composed', 'a', 'An early political theory: "state", law, and 1984!',
         'naïve café — 中文 and more', 'if (x) return y; ' * 6, 'the state is the state is the state']
PAIRS = [['what is anarchism', t] for t in TEXTS[:4]] + [[TEXTS[4], TEXTS[5]]]
SHAPE = dict(hidden_size=16, num_attention_heads=2, intermediate_size=32, initializer_range=0.3)


def tokenizer(name, special, types=False):
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(HERE / 'tokenizers' / f'small-{name}.json'), **special,
        model_input_names=['input_ids'] + ['token_type_ids'] * types + ['attention_mask'])


BERT = dict(cls_token='[CLS]', sep_token='[SEP]', pad_token='[PAD]', unk_token='[UNK]', mask_token='[MASK]')
QWEN = dict(pad_token='<|end_of_text|>', eos_token='<|end_of_text|>')


def randomised(model, seed):
    """Norms and biases of trained models are not 1 and 0."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(torch.randn(p.shape, generator=g) * 0.2)
            else:
                p.copy_(torch.randn(p.shape, generator=g) * 0.3)
    return model.half()


def transformer(model, tok, length):
    """A Transformer module of the saved files, in float32."""
    folder = tempfile.mkdtemp()
    model.save_pretrained(folder)
    tok.model_max_length = length
    tok.save_pretrained(folder)
    return Transformer(folder, model_kwargs={'dtype': torch.float32, 'attn_implementation': 'eager'})


def weights_again(model, folder):
    """float16 again, as the model was made: save() writes the float32 that it computes with."""
    for path in folder.rglob('model.safetensors'):
        path.unlink()
    with tempfile.TemporaryDirectory() as t:
        model.save_pretrained(t)
        shutil.copy(Path(t) / 'model.safetensors', folder / 'model.safetensors')
    tok = folder / 'tokenizer.json'
    tok.write_text(json.dumps(json.loads(tok.read_text()), ensure_ascii=False, separators=(',', ':')) + '\n')
    for name in ('README.md', 'special_tokens_map.json'):
        (folder / name).unlink(missing_ok=True)
    for path in folder.rglob('*'):
        path.chmod(0o755 if path.is_dir() else 0o644)


def save_expected(folder, expected):
    (folder / 'expected.json').write_text(json.dumps(expected, ensure_ascii=False, separators=(',', ':')) + '\n')
    size = sum(p.stat().st_size for p in folder.rglob('*') if p.is_file())
    print(folder.name, size, flush=True)


OLD_MODES = {'cls': 'cls_token', 'max': 'max_tokens', 'mean': 'mean_tokens', 'mean_sqrt_len_tokens': 'mean_sqrt_len_tokens',
             'weightedmean': 'weightedmean_tokens', 'lasttoken': 'lasttoken'}


def older(folder):
    """The pooling in the words of sentence-transformers before 6, and the model that has it."""
    path = folder / '1_Pooling/config.json'
    new = json.loads(path.read_text())
    old = {f'pooling_mode_{word}': mode in new['pooling_mode'] for mode, word in OLD_MODES.items()}
    path.write_text(json.dumps({'word_embedding_dimension': new['embedding_dimension'], **old, 'include_prompt': new['include_prompt']}, indent=2))
    return SentenceTransformer(str(folder), model_kwargs={'dtype': torch.float32, 'attn_implementation': 'eager'}, device='cpu')


def sentences(name, model, tok, *modules, length=24, prompts=None, default=None, old=False):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    st = SentenceTransformer(modules=[transformer(model, tok, length), *modules], prompts=prompts,
                             default_prompt_name=default, device='cpu')
    st.eval()
    st.save(str(folder))
    dense = {m: (folder / m / 'model.safetensors').read_bytes() for m in ('2_Dense',) if (folder / m).exists()}
    weights_again(model, folder)
    for m, data in dense.items():
        (folder / m / 'model.safetensors').write_bytes(data)
    if old:
        st = older(folder)
    expected = {'texts': TEXTS, 'vectors': st.encode(TEXTS).tolist(),
                'prompts': {p: st.encode(TEXTS[:2], prompt_name=p).tolist() for p in prompts or {}}}
    save_expected(folder, expected)


def cross(name, model, tok, length=32, quantised=None, **options):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as t:
        model.save_pretrained(t)
        tok.model_max_length = length
        tok.save_pretrained(t)
        how = {'dtype': torch.float32, 'attn_implementation': 'eager'}
        ce = CrossEncoder(t, model_kwargs=how, device='cpu', **options)
        if quantised:
            model = transformers.AutoModelForSequenceClassification.from_pretrained(t, quantization_config=quantised, **how)
    ce.save_pretrained(str(folder))
    weights_again(model, folder)
    if quantised:
        (folder / 'config.json').write_text(model.config.to_json_string())
        for name, module in model.named_modules():
            if isinstance(module, bitsandbytes.nn.Linear4bit):
                ce.model.get_submodule(name).weight.data = nf4_values(module.weight.data, module.weight.quant_state)
    expected = {'pairs': PAIRS, 'scores': ce.predict(PAIRS).tolist(),
                'raw': ce.predict(PAIRS, activation_fn=torch.nn.Identity()).tolist(), 'single': TEXTS}
    with torch.no_grad():
        expected['logits'] = [ce.model(**ce.tokenizer(t, return_tensors='pt', truncation=True, max_length=length)).logits[0].tolist()
                              for t in TEXTS]
    save_expected(folder, expected)


def main():
    OUT.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    bert = tokenizer('bert', BERT, types=True)
    cased = tokenizer('bert-cased', BERT, types=True)
    roberta_special = dict(bos_token='<s>', eos_token='</s>', cls_token='<s>', sep_token='</s>', pad_token='<pad>',
                           unk_token='<unk>')
    xlmr = tokenizer('unigram', roberta_special)
    bpe = tokenizer('roberta', QWEN)
    config = transformers.BertConfig(vocab_size=len(bert), num_hidden_layers=3, max_position_embeddings=40, **SHAPE)
    sentences('bert-mean', randomised(transformers.BertModel(config, add_pooling_layer=False), 1), bert, Pooling(16, 'mean'), Normalize(),
              prompts={'query': 'the query: ', 'passage': 'a passage '})
    config = transformers.BertConfig(vocab_size=len(cased), num_hidden_layers=2, max_position_embeddings=24, **SHAPE)
    torch.manual_seed(5)
    sentences('bert-cls-dense', randomised(transformers.BertForMaskedLM(config), 2), cased, Pooling(16, 'cls'),
              Dense(16, 12), prompts={'query': 'some query '}, default='query')
    config = transformers.RobertaConfig(vocab_size=len(bpe), num_hidden_layers=2, max_position_embeddings=42, type_vocab_size=1, **SHAPE)
    sentences('roberta-max', randomised(transformers.RobertaModel(config, add_pooling_layer=False), 3), bpe, Pooling(16, 'max'))
    config = transformers.XLMRobertaConfig(vocab_size=len(xlmr), num_hidden_layers=2, max_position_embeddings=30, type_vocab_size=1, **SHAPE)
    sentences('xlm-roberta-weighted', randomised(transformers.XLMRobertaModel(config, add_pooling_layer=False), 4), xlmr,
              Pooling(16, 'weightedmean'), Normalize())
    config = transformers.ModernBertConfig(vocab_size=len(bpe), num_hidden_layers=5, max_position_embeddings=96, local_attention=8, pad_token_id=0,
                                           **SHAPE)
    sentences('modernbert-mean', randomised(transformers.ModernBertModel(config), 6), bpe, Pooling(16, 'mean'), Normalize(), length=90)
    config = transformers.Qwen3Config(vocab_size=len(bpe), num_hidden_layers=2, max_position_embeddings=64, num_key_value_heads=1, head_dim=8,
                                      tie_word_embeddings=True, **SHAPE)
    sentences('qwen3-last', randomised(transformers.Qwen3Model(config), 7), bpe, Pooling(16, 'lasttoken'), Normalize(),
              prompts={'query': 'Instruct: find it\nQuery:'}, length=60)
    config = transformers.BertConfig(vocab_size=len(bert), num_hidden_layers=2, max_position_embeddings=40, **SHAPE)
    torch.manual_seed(6)
    several = ('mean', 'weightedmean', 'cls', 'max', 'lasttoken', 'mean_sqrt_len_tokens')
    sentences('bert-concat-dense', randomised(transformers.BertModel(config, add_pooling_layer=False), 12), bert,
              Pooling(16, several, include_prompt=False), Dense(96, 12), prompts={'query': 'the query: ', 'unknown': 'what \u2603'})
    config = transformers.RobertaConfig(vocab_size=len(bpe), num_hidden_layers=2, max_position_embeddings=42, type_vocab_size=1, **SHAPE)
    sentences('roberta-concat-old', randomised(transformers.RobertaModel(config, add_pooling_layer=False), 13), bpe,
              Pooling(16, ('max', 'cls', 'mean')), Normalize(), prompts={'query': 'the query: '}, old=True)
    config = transformers.Qwen3Config(vocab_size=len(bpe), num_hidden_layers=2, max_position_embeddings=64, num_key_value_heads=1, head_dim=8,
                                      tie_word_embeddings=True, **SHAPE)
    sentences('qwen3-concat', randomised(transformers.Qwen3Model(config), 14), bpe, Pooling(16, ('lasttoken', 'mean'), include_prompt=False),
              prompts={'query': 'Instruct: find it\nQuery:'}, length=60)

    config = transformers.BertConfig(vocab_size=len(bert), num_hidden_layers=2, max_position_embeddings=64, num_labels=1, **SHAPE)
    cross('cross-bert', randomised(transformers.BertForSequenceClassification(config), 8), bert)
    config = transformers.XLMRobertaConfig(vocab_size=len(xlmr), num_hidden_layers=2, max_position_embeddings=66, type_vocab_size=1, num_labels=1,
                                           **SHAPE)
    cross('cross-xlm-roberta', randomised(transformers.XLMRobertaForSequenceClassification(config), 9), xlmr,
          activation_fn=torch.nn.Identity())
    config = transformers.RobertaConfig(vocab_size=len(bpe), num_hidden_layers=2, max_position_embeddings=66, type_vocab_size=1,
                                        id2label={0: 'sad', 1: 'neutral', 2: 'glad'}, label2id={'sad': 0, 'neutral': 1, 'glad': 2}, **SHAPE)
    cross('classify-roberta', randomised(transformers.RobertaForSequenceClassification(config), 10), bpe)
    config = transformers.ModernBertConfig(vocab_size=len(bpe), num_hidden_layers=4, max_position_embeddings=64, local_attention=8, pad_token_id=0,
                                           num_labels=2, classifier_pooling='mean', **SHAPE)
    cross('classify-modernbert', randomised(transformers.ModernBertForSequenceClassification(config), 11), bpe)
    decoders(bpe)


def decoders(bpe):
    """Classifiers on decoders.  Where the pad token is the last one of the tokenizer's template, it is not read."""
    llama3 = tokenizer('llama3', dict(QWEN, bos_token='<|begin_of_text|>'))
    metaspace = tokenizer('metaspace-first', dict(pad_token='<s>'))
    bare = tokenizer('falcon', QWEN)
    shape = dict(SHAPE, num_hidden_layers=2, max_position_embeddings=64, num_key_value_heads=1)
    config = transformers.LlamaConfig(vocab_size=len(llama3), num_labels=1, pad_token_id=llama3.pad_token_id, **shape)
    cross('cross-llama', randomised(transformers.LlamaForSequenceClassification(config), 15), llama3)
    nf4 = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4', bnb_4bit_compute_dtype=torch.float32)
    cross('cross-llama-nf4', randomised(transformers.LlamaForSequenceClassification(config), 15), llama3, quantised=nf4)
    end = bpe('a').input_ids[-1]
    padded = tokenizer('roberta', dict(pad_token=bpe.convert_ids_to_tokens(end)))
    config = transformers.Qwen3Config(vocab_size=len(bpe), num_labels=1, pad_token_id=end, head_dim=8, tie_word_embeddings=True, **shape)
    cross('cross-qwen3', randomised(transformers.Qwen3ForSequenceClassification(config), 16), padded, activation_fn=torch.nn.Identity())
    config = transformers.Qwen2Config(vocab_size=len(bare), num_labels=1, pad_token_id=bare.pad_token_id, **shape)
    cross('cross-qwen2', randomised(transformers.Qwen2ForSequenceClassification(config), 17), bare)
    config = transformers.MistralConfig(vocab_size=len(llama3), pad_token_id=llama3.pad_token_id, sliding_window=8,
                                        problem_type='multi_label_classification', id2label={0: 'law', 1: 'state', 2: 'word'},
                                        label2id={'law': 0, 'state': 1, 'word': 2}, **shape)
    cross('classify-mistral', randomised(transformers.MistralForSequenceClassification(config), 18), llama3)
    config = transformers.GPT2Config(vocab_size=len(bpe), n_embd=16, n_head=2, n_layer=2, n_positions=64,
                                     pad_token_id=end, bos_token_id=end, eos_token_id=end)
    cross('classify-gpt2', randomised(transformers.GPT2ForSequenceClassification(config), 19), padded)
    config = transformers.Gemma3TextConfig(vocab_size=len(metaspace), pad_token_id=metaspace.pad_token_id, head_dim=8, query_pre_attn_scalar=8,
                                           sliding_window=8, num_labels=2, **dict(shape, num_hidden_layers=6))
    cross('classify-gemma3', randomised(transformers.Gemma3TextForSequenceClassification(config), 20), metaspace)


if __name__ == '__main__':
    main()
