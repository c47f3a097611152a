/* Text to token ids and back, according to Hugging Face's tokenizer.json.
 *
 * A tokenizer is immutable after tokenizer_parse: any number of threads may use it at once.  It reads untrusted files:
 * a bad one is an error that names the place, never a crash.  Encoding untrusted text is bounded in time (regex match
 * limits, O(n log n) merges) and memory.
 *
 * Supported, as the format's own documents name them: models BPE (byte-level and SentencePiece-style with byte
 * fallback, unk/fuse_unk, ignore_merges, subword prefix/suffix; merges as "a b" or ["a","b"]), WordPiece and Unigram;
 * added and special tokens (lstrip, rstrip, single_word, normalized); normalizers NFC NFD NFKC NFKD Lowercase Strip
 * Prepend Replace BertNormalizer Precompiled Sequence; pre-tokenizers ByteLevel Split Digits Punctuation
 * Whitespace WhitespaceSplit BertPreTokenizer Metaspace Sequence; post-processors TemplateProcessing BertProcessing
 * RobertaProcessing ByteLevel Sequence; decoders ByteLevel Replace ByteFallback Fuse Strip Metaspace WordPiece
 * Sequence.  Truncation and padding settings of a file are not applied: callers say how long an input may be. */
#ifndef TANDEM_ENGINE_TOKENIZER_TOKENIZER_H
#define TANDEM_ENGINE_TOKENIZER_TOKENIZER_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* NULL and *e on error.  Free with tokenizer_close (NULL is allowed). */
struct tokenizer *tokenizer_open(const char *path, struct err *e);
/* tokenizer.json of a model directory; where it is missing, *e says what to do. */
struct tokenizer *tokenizer_open_dir(const char *dir, struct err *);
struct tokenizer *tokenizer_parse(const char *json, size_t n, struct err *e);
void tokenizer_close(struct tokenizer *);

/* one token of an encoding; start, end are **character** (code point) offsets into the text as given, as Python's
 * tokenizers report them; 0, 0 for tokens the post-processor added */
struct token {
    int32_t id;
    uint32_t start, end;
};

struct tokens {
    struct token *v; /* owned: tokens_free */
    size_t n, cap;
};

void tokens_free(struct tokens *);

enum { TOKENIZE_SPECIAL = 1 /* let the post-processor add its tokens (bos...) */ };

/* Appends the encoding of text[0, n) to *out.  Bytes that are not UTF-8 count as U+FFFD (one per maximal bad sequence,
 * as Python's errors="replace").  Returns 0 or an err code. */
int tokenizer_encode(const struct tokenizer *, const char *text, size_t n, unsigned flags, struct tokens *out,
                     struct err *e);

/* A model's input: a text or a pair of texts, in the post-processor's template. */
struct encode_input {
    const char *text, *pair; /* pair NULL: one text */
    size_t n_text, n_pair;
    size_t max; /* tokens, those of the template included: a longer input is cut; 0: no limit */
    enum { CUT_LONGEST, CUT_FIRST, CUT_SECOND } cut; /* which of two texts is cut */
    bool cut_left;                                   /* tokens are cut off in front instead of behind */
};

/* Appends the encoding of the input to *out and each token's type, one byte, to *types.  Offsets of a pair's second
 * text count from its own beginning.  Otherwise like tokenizer_encode.  The offsets of a text that was cut in front are
 * those of its tokens before the cut (the reference trims spaces after it). */
int tokenizer_encode_input(const struct tokenizer *, const struct encode_input *, unsigned flags, struct tokens *out,
                           struct buf *types, struct err *e);

int tokenizer_size(const struct tokenizer *);                        /* largest id + 1 */
int32_t tokenizer_find(const struct tokenizer *, const char *token); /* id of the token written so, or -1 */
bool tokenizer_is_special(const struct tokenizer *, int32_t id);
/* the vocabulary's own spelling ("Ġthe", "▁the", "<0x0A>"), NULL for an id it lacks; owned by the tokenizer */
const char *tokenizer_spelling(const struct tokenizer *, int32_t id);

/* What TOKENIZE_SPECIAL puts before and behind a text: *ids (n returned), owned by the tokenizer. */
size_t tokenizer_before(const struct tokenizer *, const int32_t **ids);
size_t tokenizer_after(const struct tokenizer *, const int32_t **ids);

/* Makes the text lower case, as str.lower() of Python does (but for a sigma at the end of a word). */
void tokenizer_lowercase(struct buf *text);

/* Hash of the bytes it was parsed from. */
uint64_t tokenizer_identity(const struct tokenizer *);

/* Appends the text of all ids, as Python's decode does. */
void tokenizer_decode(const struct tokenizer *, const int32_t *ids, size_t n, bool skip_special, struct buf *out);

/* Appends the bytes that a token adds to a text which it continues, as they are: perhaps a part of a UTF-8 character.
 * Nothing for an id it lacks. */
void tokenizer_bytes(const struct tokenizer *, int32_t id, struct buf *out);

/* Streaming decode.  Zero-initialise; feed ids one by one; each push appends the text that is complete (never part of a
 * UTF-8 character) to *out.  The pieces joined, with the flush at the end, are what tokenizer_decode gives with
 * skip_special false, except that a special token first flushes what was incomplete, and that a run of byte tokens
 * ("<0xE4>"...) which is no UTF-8 keeps its whole characters, where tokenizer_decode replaces every byte of it. */
struct detok {
    unsigned char pending[16]; /* bytes of an unfinished character */
    uint8_t n_pending;
    bool started;       /* something was emitted: a leading space is no longer stripped */
    bool mid_context;   /* set by the caller to continue after a prompt: the first token keeps its leading space */
    uint8_t n_stripped; /* leading spaces taken so far, while more may be */
};

void detok_push(struct detok *, const struct tokenizer *, int32_t id, struct buf *out);
void detok_flush(struct detok *, const struct tokenizer *, struct buf *out); /* an incomplete rest becomes U+FFFD */

#endif
