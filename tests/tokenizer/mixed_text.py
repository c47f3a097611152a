"""The mixed text of the conformance tests: the committed samples, cut and shuffled with seeded random Unicode."""
import random

from tool import FIXTURES

SNIPPETS = [
    # emoji: joined by ZWJ, skin tones, flags, keycaps, variation selectors
    '👩‍👩‍👧‍👦', '🏳️‍🌈', '👍🏽', '🇩🇪🇫🇷', '1️⃣', '☺️', '❤️‍🔥', '🧑🏿‍🚀', '😶‍🌫️', '🦙',
    # marks that compose, in and out of order, too many, and at the start of a word
    'e\u0301', 'E\u0302\u0301', 'a\u0323\u0302', 'a\u0302\u0323', 'u\u0308\u0304', 'q\u0323\u0307', '\u0301x',
    'o\u0302\u0301\u0323\u0300', 'Z' + '\u0300\u0301\u0302\u0323\u0331' * 5, '\u1112\u1161\u11ab', '\u1100\u1161\u1161',
    '\uac00\u11a8', '\u212b\u2126\u212a', '\u0958\u095f', '\ufb1d\ufb4f', '\u0f71\u0f72\u0f74', '\u0344', '\u2adc',
    'ﬁ ﬂ ﬃ', '①②③', 'Ⅷ', 'ｱｲｳ', 'Ｆｕｌｌ', '㍿', '\ufdfa', 'ǆ', '½ ¼',
    # contractions and their look-alikes
    "I'll", "WE'VE", "he'S", "don’t", "'ſ", "'\u212a", "'LL", "'Re", "x'd'm't", "''s'", "it`s",
    # numbers of every kind
    '1234567890', '٠١٢٣', '१२३', '3.14159', '1,000,000', '²³', '௧௨', '𝟘𝟙𝟚', '0x1F', '1e-9', '〇一二',
    # white space of every kind
    ' ', '  ', '   ', '\t', '\t\t', '\n', '\n\n', '\r\n', '\r', '\u00a0', '\u0085', '\u2028', '\u2029', '\u3000',
    '\u200b', '\u2009', '\u180e', '\ufeff', '\u202f', '\x0b', '\x0c', '\x1c', '\x1f', ' \n ', '\n \n', '\t \t',
    # controls
    '\0', '\x01', '\x07', '\x1b[0m', '\x7f', '\x80', '\x9f', '\u202e', '\u2066', '\ufff9', '\ufffd', '\ue000', '\U0010ffff',
    # special tokens of the models tested, whole and broken
    '<|endoftext|>', '<|im_start|>', '<|im_end|>', '<s>', '</s>', '<unk>', '<|start_story|>', '<|end_story|>',
    '<|endoftext', '|>', '<<|im_end|>>', '<|vision_start|>', '[INST]', '<0x0A>', '▁', '▁▁', 'Ġ', '<|file_sep|>',
    # scripts that do not use spaces, or join
    'สวัสดีชาวโลก', 'こんにちは世界', '안녕하세요 세계', 'नमस्ते दुनिया', 'Здравствуй, мир', 'γειά σου Κόσμε', 'שָׁלוֹם עוֹלָם', 'ሰላም', 'தமிழ்',
    'İstanbul ıI', 'straße STRASSE', 'Ǆ', 'ΑΣ ς', '\U00010400\U00010428', '\U0001e900',
    '!!!', '...', '---', '===', '"\'"', '))))', '/* */', '->', '#$%^&*', '¿¡', '、。', '«»', '„“', '−', '€', '©',
]


def random_char(r):
    while True:
        c = r.choice([r.randrange(0x20, 0x7f), r.randrange(0x250), r.randrange(0x3000), r.randrange(0x10000),
                      r.randrange(0x110000)])
        if not 0xd800 <= c < 0xe000:
            return chr(c)


def broken_utf8(r, text):
    raw = bytearray(text.encode())
    for _ in range(r.randrange(1, 6)):
        raw[r.randrange(len(raw)):r.randrange(len(raw))] = bytes(r.randrange(256) for _ in range(r.randrange(4)))
    return bytes(raw).decode(errors='replace')


def chunk(r, samples):
    kind = r.randrange(16)
    sample = r.choice(samples)
    at = r.randrange(len(sample))
    cut = sample[at:at + r.randrange(1, 400)]
    if kind < 6:
        return cut
    if kind < 8:
        return ' '.join(r.choice(SNIPPETS) for _ in range(r.randrange(1, 30)))
    if kind < 10:
        return ''.join(r.choice(SNIPPETS) for _ in range(r.randrange(1, 30)))
    if kind == 10:
        return ''.join(random_char(r) for _ in range(r.randrange(1, 60)))
    if kind == 11:
        return r.choice([' ', '\n', '\t', '\r\n', '\u3000', 'a', '=', '\u0301', '▁', '9', '啊']) * r.randrange(1, 200)
    if kind == 12:
        return broken_utf8(r, cut)
    if kind == 13:
        return ''.join(c + r.choice(['', '', '\u0301', '\u0323', '\u200d', ' ', '\ufe0f']) for c in cut[:80])
    if kind == 14:
        return cut.swapcase()
    return ''.join(r.sample(cut, len(cut)))


def chunks(seed, size):
    """Texts of about `size` UTF-8 bytes in all, each up to a few kB."""
    r = random.Random(seed)
    samples = [(FIXTURES / 'samples' / f'{name}.txt').read_bytes().decode()
               for name in ('english', 'arabic', 'chinese', 'code')]
    total, out = 0, []
    while total < size:
        text = ''.join(chunk(r, samples) for _ in range(r.choice([1, 1, 2, 4, 12])))
        total += len(text.encode())
        out.append(text)
    return out
