/* The model section of tokenizer.json: options, vocabulary, merges or scores (model.h). */
#include "engine/tokenizer/model.h"

#include "engine/base/mem.h"

#include <math.h>
#include <string.h>

enum {
    SPELLING_MAX = 1 << 16,
    PIECE_BYTES_MAX = 1024, /* of a WordPiece or Unigram piece: lookups may read this far from each byte of a text */
    PIECES_BYTES_MAX = 32 << 20, /* of all pieces together; each costs up to 25 bytes in the trie */
    WORD_CHARACTERS_MAX = 1 << 20
};

static int options_read(struct bpe *m, const struct json_at *at, struct err *e)
{
    const char *prefix, *suffix;
    struct json_at dropout = json_member(at, "dropout");
    int rc;
    if (dropout.v && !(cJSON_IsNumber(dropout.v) && dropout.v->valuedouble == 0))
        return json_fail(&dropout, e, ERR_UNSUPPORTED, "must be null or 0: encoding is deterministic");
    rc = json_bool_or(at, "fuse_unk", false, &m->fuse_unk, e);
    if (!rc) rc = json_bool_or(at, "byte_fallback", false, &m->byte_fallback, e);
    if (!rc) rc = json_bool_or(at, "ignore_merges", false, &m->ignore_merges, e);
    if (!rc) rc = json_string_or(at, "continuing_subword_prefix", "", &prefix, e);
    if (!rc) rc = json_string_or(at, "end_of_word_suffix", "", &suffix, e);
    if (rc) return rc;
    if (*prefix) m->prefix = mem_strdup(prefix);
    if (*suffix) m->suffix = mem_strdup(suffix);
    return 0;
}

static int vocab_fail(const struct json_at *at, const cJSON *v, struct err *e, const char *why)
{
    return json_fail(at, e, ERR_INVALID, "\"%.60s\": %s", v->string, why);
}

/* An object of spellings and ids, each spelling of at most `longest` bytes. */
static int vocab_read(struct vocab *vocab, const struct json_at *at, size_t longest, struct err *e)
{
    if (!cJSON_IsObject(at->v)) return json_fail(at, e, ERR_INVALID, at->v ? "must be an object" : "missing");
    size_t n = 0;
    int32_t size = 0;
    for (const cJSON *v = at->v->child; v; v = v->next, n++) {
        double id = cJSON_IsNumber(v) ? v->valuedouble : -1;
        if (!(id >= 0 && id <= TOKEN_ID_MAX) || id != (double)(int32_t)id)
            return vocab_fail(at, v, e, "the id must be an integer below 2^24");
        if (strlen(v->string) > longest) return vocab_fail(at, v, e, "too long");
        if (id >= size) size = (int32_t)id + 1;
    }
    vocab_init(vocab, n, size);
    for (const cJSON *v = at->v->child; v; v = v->next) {
        int32_t id = (int32_t)v->valuedouble;
        if (vocab_add(vocab, v->string, strlen(v->string), id)) continue;
        const char *other = vocab_spelling(vocab, id, NULL);
        if (!other) return vocab_fail(at, v, e, "listed twice");
        return json_fail(at, e, ERR_INVALID, "\"%.60s\": id %d is already \"%.60s\"", v->string, (int)id, other);
    }
    return 0;
}

/* A merge: two spellings, and the token they make, which leaves out the second one's prefix. */
struct pair {
    const char *left, *right;
    size_t n_left, n_right;
};

/* The ids of the pair and of what it makes; what is missing is in *unknown. */
static bool pair_find(const struct bpe *m, struct buf *joined, struct pair p, int32_t ids[3], struct pair *unknown)
{
    size_t prefix = m->prefix ? strlen(m->prefix) : 0;
    ids[0] = vocab_find(&m->vocab, p.left, p.n_left);
    ids[1] = vocab_find(&m->vocab, p.right, p.n_right);
    buf_clear(joined);
    buf_append(joined, p.left, p.n_left);
    if (p.n_right >= prefix) buf_append(joined, p.right + prefix, p.n_right - prefix);
    ids[2] = vocab_find(&m->vocab, joined->data, joined->len);
    if (ids[0] < 0)
        *unknown = (struct pair){.left = p.left, .n_left = p.n_left};
    else if (ids[1] < 0)
        *unknown = (struct pair){.left = p.right, .n_left = p.n_right};
    else if (ids[2] < 0)
        *unknown = (struct pair){.left = joined->data, .n_left = joined->len};
    else
        return true;
    return false;
}

/* "a b".  Tokens that hold spaces make this ambiguous; accepted when only one split gives known tokens. */
static int merge_cut(const struct bpe *m, struct buf *joined, const char *s, int32_t ids[3], struct pair *unknown)
{
    size_t n = strlen(s);
    int cuts = 0, found = 0;
    for (size_t i = 0; i < n && cuts < 256; i++) {
        if (s[i] != ' ') continue;
        int32_t one[3];
        cuts++;
        if (!pair_find(m, joined, (struct pair){s, s + i + 1, i, n - i - 1}, one, unknown)) continue;
        memcpy(ids, one, sizeof one);
        found++;
    }
    return cuts ? found : -1;
}

static int merge_read(const struct bpe *m, struct buf *joined, const struct json_at *at, const cJSON *v, int i,
                      int32_t ids[3], struct err *e)
{
    struct pair unknown = {.left = ""};
    int found = -1;
    if (cJSON_IsString(v)) {
        found = merge_cut(m, joined, v->valuestring, ids, &unknown);
    } else if (cJSON_IsArray(v) && cJSON_IsString(v->child) && cJSON_IsString(v->child->next) &&
               !v->child->next->next) {
        const char *a = v->child->valuestring, *b = v->child->next->valuestring;
        found = pair_find(m, joined, (struct pair){a, b, strlen(a), strlen(b)}, ids, &unknown);
    }
    if (found == 1) return 0;
    struct json_at place = json_element(at, v, i);
    if (found < 0) return json_fail(&place, e, ERR_INVALID, "must be \"a b\" or [\"a\", \"b\"]");
    if (found > 1) return json_fail(&place, e, ERR_INVALID, "can be read in %d ways", found);
    return json_fail(&place, e, ERR_INVALID, "\"%.*s\" is not in the vocabulary",
                     (int)(unknown.n_left < 60 ? unknown.n_left : 60), unknown.left);
}

static int merges_read(struct bpe *m, const struct json_at *at, struct err *e)
{
    const cJSON *v;
    size_t n;
    int rc = json_array(at, &v, &n, e);
    if (rc) return rc;
    bpe_merges_init(m, n);
    struct buf joined = {0};
    for (int i = 0; v && !rc; v = v->next, i++) {
        int32_t ids[3] = {0};
        rc = merge_read(m, &joined, at, v, i, ids, e);
        if (!rc) bpe_merge_add(m, ids[0], ids[1], (uint32_t)i, ids[2]);
    }
    buf_free(&joined);
    return rc;
}

static int unk_find(const struct vocab *vocab, const struct json_at *at, const char *unk, int32_t *id, struct err *e)
{
    *id = unk ? vocab_find(vocab, unk, strlen(unk)) : -1;
    if (!unk || *id >= 0) return 0;
    return json_fail(at, e, ERR_INVALID, "unk_token \"%.60s\" is not in the vocabulary", unk);
}

static int bpe_read(struct bpe *m, const struct json_at *at, struct err *e)
{
    const char *unk;
    struct json_at vocab = json_member(at, "vocab"), merges = json_member(at, "merges");
    int rc = options_read(m, at, e);
    if (!rc) rc = json_string_or(at, "unk_token", NULL, &unk, e);
    if (!rc) rc = vocab_read(&m->vocab, &vocab, SPELLING_MAX, e);
    if (!rc) rc = unk_find(&m->vocab, at, unk, &m->unk, e);
    if (!rc) rc = merges_read(m, &merges, e);
    if (!rc) bpe_seal(m);
    return rc;
}

static int pieces_check(const struct vocab *vocab, const struct json_at *at, struct err *e)
{
    if (vocab->arena.len <= PIECES_BYTES_MAX) return 0;
    return json_fail(at, e, ERR_UNSUPPORTED, "its pieces have more than %d MiB", PIECES_BYTES_MAX >> 20);
}

static int wordpiece_read(struct wordpiece *m, const struct json_at *at, struct err *e)
{
    const char *unk, *prefix;
    struct json_at vocab = json_member(at, "vocab"), longest = json_member(at, "max_input_chars_per_word");
    m->characters = 100;
    int rc = json_string_or(at, "unk_token", "[UNK]", &unk, e);
    if (!rc) rc = json_string_or(at, "continuing_subword_prefix", "##", &prefix, e);
    if (!rc && longest.v) rc = json_integer(&longest, WORD_CHARACTERS_MAX, &m->characters, e);
    if (!rc) rc = vocab_read(&m->vocab, &vocab, PIECE_BYTES_MAX, e);
    if (!rc) rc = pieces_check(&m->vocab, &vocab, e);
    if (!rc) rc = unk_find(&m->vocab, at, unk, &m->unk, e);
    if (!rc) wordpiece_seal(m, prefix);
    return rc;
}

/* One [spelling, score]. */
static int piece_read(struct unigram *m, const struct json_at *at, const cJSON *v, int32_t id, struct err *e)
{
    struct json_at place = json_element(at, v, id);
    const cJSON *piece = cJSON_IsArray(v) ? v->child : NULL, *score = piece ? piece->next : NULL;
    if (!cJSON_IsString(piece) || !cJSON_IsNumber(score) || score->next || !isfinite(score->valuedouble))
        return json_fail(&place, e, ERR_INVALID, "must be [\"piece\", score]");
    size_t n = strlen(piece->valuestring);
    if (n > PIECE_BYTES_MAX) return json_fail(&place, e, ERR_INVALID, "longer than %d bytes", PIECE_BYTES_MAX);
    if (!vocab_add(&m->vocab, piece->valuestring, n, id))
        return json_fail(&place, e, ERR_INVALID, "\"%.60s\" is listed twice", piece->valuestring);
    m->scores[id] = score->valuedouble;
    return 0;
}

static int unigram_read(struct unigram *m, const struct json_at *at, struct err *e)
{
    struct json_at vocab = json_member(at, "vocab"), unk = json_member(at, "unk_id");
    const cJSON *v;
    size_t n = 0;
    m->unk = -1;
    int rc = json_bool_or(at, "byte_fallback", false, &m->byte_fallback, e);
    if (!rc) rc = json_array(&vocab, &v, &n, e);
    if (!rc && n > TOKEN_ID_MAX) rc = json_fail(&vocab, e, ERR_INVALID, "more than %d pieces", TOKEN_ID_MAX);
    if (!rc && !n) rc = json_fail(&vocab, e, ERR_INVALID, "is empty");
    if (!rc && unk.v) rc = json_integer(&unk, (int32_t)n - 1, &m->unk, e);
    if (rc) return rc;
    vocab_init(&m->vocab, n, (int)n);
    m->scores = mem_array(n, sizeof *m->scores);
    for (int32_t id = 0; v && !rc; v = v->next, id++) rc = piece_read(m, &vocab, v, id, e);
    if (!rc) rc = pieces_check(&m->vocab, &vocab, e);
    if (!rc) unigram_seal(m);
    return rc;
}

static int wordlevel_read(struct wordlevel *m, const struct json_at *at, struct err *e)
{
    const char *unk;
    struct json_at vocab = json_member(at, "vocab");
    int rc = json_string_or(at, "unk_token", "<unk>", &unk, e);
    if (!rc) rc = vocab_read(&m->vocab, &vocab, SPELLING_MAX, e);
    if (!rc) m->unk = vocab_find(&m->vocab, unk, strlen(unk));
    return rc;
}

static int wordlevel_encode(const struct wordlevel *m, struct bpe_run *run, const char *word, size_t n, struct err *e)
{
    int32_t id = vocab_find(&m->vocab, word, n);
    if (id < 0) id = m->unk;
    if (id < 0)
        return err_set(e, ERR_INVALID, "the word \"%.*s\" is not in the vocabulary, which has no unk_token",
                       (int)(n < 60 ? n : 60), word);
    run->n = 0;
    bpe_symbol_add(run, id, (uint32_t)n);
    return 0;
}

int model_read(struct model *m, const struct json_at *at, struct err *e)
{
    const char *type;
    if (!cJSON_IsObject(at->v)) return json_fail(at, e, ERR_INVALID, at->v ? "must be an object" : "missing");
    int rc = json_string_or(at, "type", "BPE", &type, e);
    if (rc) return rc;
    if (!strcmp(type, "BPE")) return bpe_read(&m->bpe, at, e);
    if (!strcmp(type, "WordPiece")) {
        m->kind = MODEL_WORDPIECE;
        return wordpiece_read(&m->wordpiece, at, e);
    }
    if (!strcmp(type, "Unigram")) {
        m->kind = MODEL_UNIGRAM;
        return unigram_read(&m->unigram, at, e);
    }
    if (!strcmp(type, "WordLevel")) {
        m->kind = MODEL_WORDLEVEL;
        return wordlevel_read(&m->wordlevel, at, e);
    }
    return json_fail(at, e, ERR_UNSUPPORTED, "type \"%.40s\": BPE, WordPiece, WordLevel and Unigram models are read",
                     type);
}

void model_free(struct model *m)
{
    switch (m->kind) {
    case MODEL_BPE: bpe_free(&m->bpe); break;
    case MODEL_WORDPIECE: wordpiece_free(&m->wordpiece); break;
    case MODEL_UNIGRAM: unigram_free(&m->unigram); break;
    case MODEL_WORDLEVEL: vocab_free(&m->wordlevel.vocab); break;
    }
}

const struct vocab *model_vocab(const struct model *m)
{
    switch (m->kind) {
    case MODEL_WORDPIECE: return &m->wordpiece.vocab;
    case MODEL_UNIGRAM: return &m->unigram.vocab;
    case MODEL_WORDLEVEL: return &m->wordlevel.vocab;
    default: return &m->bpe.vocab;
    }
}

int model_encode(const struct model *m, struct bpe_run *run, const char *word, size_t n, bool byte_level, struct err *e)
{
    switch (m->kind) {
    case MODEL_WORDPIECE: wordpiece_encode(&m->wordpiece, run, word, n); return 0;
    case MODEL_UNIGRAM: return unigram_encode(&m->unigram, run, word, n, e);
    case MODEL_WORDLEVEL: return wordlevel_encode(&m->wordlevel, run, word, n, e);
    default: bpe_encode(&m->bpe, run, word, n, byte_level); return 0;
    }
}
