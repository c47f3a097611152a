/* tokenizer.json and tokenizer_config.json from a GGUF file's keys (gguf_model.h).
 *
 * tokenizer.ggml.model "gpt2" is byte-level BPE: tokens, merges, and the name of a pre-tokenizer, whose patterns are
 * those of llama.cpp (src/llama-vocab.cpp) and of the models' own tokenizer.json.  "llama" is SentencePiece's BPE:
 * tokens with scores; merging the pair whose token has the best score is BPE with merges sorted by score. */
#include "engine/base/fnv.h"
#include "engine/base/mem.h"
#include "engine/files/gguf_model.h"
#include "engine/files/gguf_pre.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB_MAX = 1 << 24 };

/* tokenizer.ggml.token_type */
enum token_type { TOKEN_NORMAL = 1, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER_DEFINED, TOKEN_UNUSED, TOKEN_BYTE };

struct vocabulary {
    struct gguf_text *token;
    const struct gguf_key *type, *score; /* NULL: none */
    size_t n;
};

static enum token_type type_of(const struct vocabulary *v, size_t i)
{
    double t = v->type ? gguf_element(v->type, i) : TOKEN_NORMAL;
    return t >= TOKEN_NORMAL && t <= TOKEN_BYTE ? (enum token_type)t : TOKEN_NORMAL;
}

/* The array of that name with one element per token; NULL with e->code 0: there is none. */
static const struct gguf_key *per_token(const struct gguf *g, const char *name, size_t n, struct err *e)
{
    const struct gguf_key *k = gguf_find(g, name);
    if (!k) return NULL;
    if (k->type == GGUF_ARRAY && k->of != GGUF_TEXT && k->n == n) return k;
    err_set(e, ERR_INVALID, "GGUF: key %s is not a list of %zu numbers, one for each token", name, n);
    return NULL;
}

static int vocabulary_read(const struct gguf *g, struct vocabulary *v, struct err *e)
{
    const struct gguf_key *k = gguf_find(g, "tokenizer.ggml.tokens");
    struct err own = {0};
    *v = (struct vocabulary){0};
    if (!k) return err_set(e, ERR_INVALID, "GGUF: key tokenizer.ggml.tokens is missing");
    if (k->type != GGUF_ARRAY || k->of != GGUF_TEXT || !k->n || k->n > VOCAB_MAX)
        return err_set(e, ERR_INVALID, "GGUF: key tokenizer.ggml.tokens is not a list of 1 to %d texts", VOCAB_MAX);
    v->n = (size_t)k->n;
    v->type = per_token(g, "tokenizer.ggml.token_type", v->n, &own);
    if (!own.code) v->score = per_token(g, "tokenizer.ggml.scores", v->n, &own);
    if (own.code) return err_set(e, own.code, "%s", own.msg);
    v->token = mem_array(v->n, sizeof *v->token);
    const char *at = k->at;
    for (size_t i = 0; i < v->n; i++) v->token[i] = gguf_next_text(&at);
    return 0;
}

/* Tokens that only fill the embedding table up, "[PAD7]": they stand for no text. */
static bool is_filler(const struct vocabulary *v, size_t i)
{
    struct gguf_text t = v->token[i];
    return type_of(v, i) == TOKEN_UNUSED && t.n > 4 && memcmp(t.s, "[PAD", 4) == 0;
}

/* The id that a key names.  @return -1: none, or *e is set. */
static int64_t token_id(const struct gguf *g, const char *key, size_t n, struct err *e)
{
    double id;
    if (!gguf_number(g, key, &id)) return -1;
    if (id >= 0 && id < (double)n && id == floor(id)) return (int64_t)id;
    if (id == 0xffffffffu) return -1; /* written for "none" */
    err_set(e, ERR_INVALID, "GGUF: key %s is not below the %zu tokens", key, n);
    return -1;
}

/* ---- merges from scores ------------------------------------------------------------------------------------------ */

struct table {
    uint32_t *slot; /* an index + 1; 0: free */
    size_t mask;
    const struct vocabulary *v;
};

static uint64_t hash(struct gguf_text t)
{
    uint64_t h = fnv1a(FNV1A_START, t.s, t.n);
    return h ^ h >> 29;
}

/* The slot of a text, free or its own. */
static uint32_t *find(const struct table *t, struct gguf_text s)
{
    size_t i = hash(s) & t->mask;
    for (; t->slot[i]; i = (i + 1) & t->mask) {
        struct gguf_text other = t->v->token[t->slot[i] - 1];
        if (other.n == s.n && memcmp(other.s, s.s, s.n) == 0) break;
    }
    return &t->slot[i];
}

static bool merges(enum token_type t)
{
    return t == TOKEN_NORMAL || t == TOKEN_USER_DEFINED;
}

static void table_fill(struct table *t, const struct vocabulary *v)
{
    size_t size = 16;
    while (size < 2 * v->n) size *= 2;
    *t = (struct table){mem_array(size, sizeof *t->slot), size - 1, v};
    for (size_t i = 0; i < v->n; i++) {
        uint32_t *slot = find(t, v->token[i]);
        if (!*slot && merges(type_of(v, i))) *slot = (uint32_t)i + 1;
    }
}

struct merge {
    double score;
    uint32_t token, cut; /* the token made, and how many of its bytes are the left part */
};

/* Best score first; of one token the longest left part first, as transformers orders them (convert_slow_tokenizer.py).
 */
static int by_score(const void *a, const void *b)
{
    const struct merge *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->cut != y->cut) return x->cut > y->cut ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

enum { PIECE_MAX = 1024 }; /* bytes of a token that is made by merging; each of its characters is tried as a cut */

static struct merge *merges_of(const struct vocabulary *v, size_t *n)
{
    struct table t;
    struct merge *out = NULL;
    size_t cap = 0;
    table_fill(&t, v);
    *n = 0;
    for (size_t i = 0; i < v->n; i++) {
        struct gguf_text s = v->token[i];
        if (!merges(type_of(v, i)) || s.n > PIECE_MAX || memchr(s.s, ' ', s.n)) continue;
        for (size_t cut = 1; cut < s.n; cut++) {
            if (((unsigned char)s.s[cut] & 0xc0) == 0x80) continue; /* inside a character */
            if (!*find(&t, (struct gguf_text){s.s, cut}) || !*find(&t, (struct gguf_text){s.s + cut, s.n - cut}))
                continue;
            mem_grow(&out, &cap, *n + 1, sizeof *out);
            double score = gguf_element(v->score, i);
            out[(*n)++] = (struct merge){isnan(score) ? -INFINITY : score, (uint32_t)i, (uint32_t)cut};
        }
    }
    if (*n) qsort(out, *n, sizeof *out, by_score);
    free(t.slot);
    return out;
}

static void put_score_merges(struct buf *out, const struct vocabulary *v)
{
    size_t n;
    struct merge *m = merges_of(v, &n);
    for (size_t i = 0; i < n; i++) {
        struct gguf_text s = v->token[m[i].token];
        buf_str(out, i ? ",\n[" : "\n[");
        gguf_put_text(out, (struct gguf_text){s.s, m[i].cut});
        buf_char(out, ',');
        gguf_put_text(out, (struct gguf_text){s.s + m[i].cut, s.n - m[i].cut});
        buf_char(out, ']');
    }
    free(m);
}

/* ---- parts of tokenizer.json ------------------------------------------------------------------------------------- */

static void put_vocab(struct buf *out, const struct vocabulary *v)
{
    buf_str(out, "\"vocab\":{");
    bool first = true;
    for (size_t i = 0; i < v->n; i++) {
        if (is_filler(v, i)) continue;
        buf_str(out, first ? "\n" : ",\n");
        gguf_put_text(out, v->token[i]);
        buf_char(out, ':');
        buf_decimal(out, (int64_t)i);
        first = false;
    }
    buf_str(out, "}");
}

static void put_added(struct buf *out, const struct vocabulary *v)
{
    buf_str(out, "\"added_tokens\":[");
    bool first = true;
    for (size_t i = 0; i < v->n; i++) {
        enum token_type type = type_of(v, i);
        if (type != TOKEN_CONTROL && type != TOKEN_USER_DEFINED && type != TOKEN_UNKNOWN) continue;
        buf_printf(out,
                   "%s{\"id\":%zu,\"special\":%s,\"normalized\":false,\"single_word\":false,\"lstrip\":false,"
                   "\"rstrip\":false,\"content\":",
                   first ? "\n" : ",\n", i, type == TOKEN_USER_DEFINED ? "false" : "true");
        gguf_put_text(out, v->token[i]);
        buf_char(out, '}');
        first = false;
    }
    buf_str(out, "],\n");
}

static void put_template_token(struct buf *out, const struct vocabulary *v, int64_t id)
{
    buf_str(out, "{\"SpecialToken\":{\"type_id\":0,\"id\":");
    gguf_put_text(out, v->token[id]);
    buf_str(out, "}}");
}

static void put_special(struct buf *out, const struct vocabulary *v, int64_t id)
{
    gguf_put_text(out, v->token[id]);
    buf_str(out, ":{\"id\":");
    gguf_put_text(out, v->token[id]);
    buf_printf(out, ",\"ids\":[%lld],\"tokens\":[", (long long)id);
    gguf_put_text(out, v->token[id]);
    buf_str(out, "]}");
}

static bool flag(const struct gguf *g, const char *key, bool otherwise)
{
    double v = otherwise;
    gguf_number(g, key, &v);
    return v != 0;
}

/* bos: -1, or the token put before the text; eos: behind it. */
static void put_post_processor(struct buf *out, const struct vocabulary *v, int64_t bos, int64_t eos)
{
    if (bos < 0 && eos < 0) return;
    buf_str(out, "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[");
    if (bos >= 0) put_template_token(out, v, bos), buf_char(out, ',');
    buf_str(out, "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}");
    if (eos >= 0) buf_char(out, ','), put_template_token(out, v, eos);
    buf_str(out, "],\"pair\":[],\"special_tokens\":{");
    if (bos >= 0) put_special(out, v, bos);
    if (bos >= 0 && eos >= 0 && bos != eos) buf_char(out, ',');
    if (eos >= 0 && bos != eos) put_special(out, v, eos);
    buf_str(out, "}},\n");
}

/* ---- byte-level BPE ---------------------------------------------------------------------------------------------- */

/* A file without the key, or with "default": one written before the key existed.  llama.cpp then splits at punctuation,
 * words, and groups of three digits. */
static const char *const old_patterns[] = {
    "[\\p{P}\\$\\+<=>\\^~\\|]+", "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)",
    "\\p{N}+", "[0-9][0-9][0-9]"};

static void put_split(struct buf *out, const char *pattern)
{
    buf_str(out, "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"invert\":false,\"pattern\":{\"Regex\":");
    gguf_put_text(out, (struct gguf_text){pattern, strlen(pattern)});
    buf_str(out, "}},");
}

static void put_splitter(struct buf *out, const struct gguf_pre *s)
{
    if (s && s->nfc) buf_str(out, "\"normalizer\":{\"type\":\"NFC\"},\n");
    buf_str(out, "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (size_t i = 0; !s && i < sizeof old_patterns / sizeof *old_patterns; i++) put_split(out, old_patterns[i]);
    for (int i = 0; s && i < GGUF_PRE_FIRST && s->first[i]; i++) put_split(out, s->first[i]);
    if (s && s->digits) buf_str(out, "{\"type\":\"Digits\",\"individual_digits\":true},");
    if (s && *s->pattern) put_split(out, s->pattern);
    buf_printf(out, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":%s}]},\n",
               s && !*s->pattern ? "true" : "false");
}

static int find_splitter(const struct gguf *g, const struct gguf_pre **out, struct err *e)
{
    struct gguf_text name;
    *out = NULL;
    if (!gguf_text(g, "tokenizer.ggml.pre", &name) || gguf_text_is(name, "default")) return 0;
    if ((*out = gguf_pre_find(name))) return 0;
    return err_set(e, ERR_UNSUPPORTED, "GGUF: tokenizer.ggml.pre \"%.*s\" is not a pre-tokenizer that tandem knows",
                   (int)(name.n < 40 ? name.n : 40), name.s);
}

static int put_byte_level(const struct gguf *g, const struct vocabulary *v, const struct gguf_pre *s, struct buf *out,
                          struct err *e)
{
    const struct gguf_key *m = gguf_find(g, "tokenizer.ggml.merges");
    if (!m || m->type != GGUF_ARRAY || m->of != GGUF_TEXT)
        return err_set(e, ERR_INVALID, "GGUF: key tokenizer.ggml.merges is missing or not a list of texts");
    put_splitter(out, s);
    buf_str(out, "\"decoder\":{\"type\":\"ByteLevel\"},\n");
    buf_printf(out, "\"model\":{\"type\":\"BPE\",\"ignore_merges\":%s,\"merges\":[", s && s->whole ? "true" : "false");
    const char *at = m->at;
    for (uint64_t i = 0; i < m->n; i++) {
        buf_str(out, i ? ",\n" : "\n");
        gguf_put_text(out, gguf_next_text(&at));
    }
    buf_str(out, "],\n");
    return 0;
}

/* ---- SentencePiece ----------------------------------------------------------------------------------------------- */

static int put_sentencepiece(const struct gguf *g, const struct vocabulary *v, struct buf *out, struct err *e)
{
    struct err own = {0};
    bool prefix = flag(g, "tokenizer.ggml.add_space_prefix", true), bytes = false;
    int64_t unknown = token_id(g, "tokenizer.ggml.unknown_token_id", v->n, &own);
    if (own.code) return err_set(e, own.code, "%s", own.msg);
    if (!v->score) return err_set(e, ERR_INVALID, "GGUF: key tokenizer.ggml.scores is missing");
    for (size_t i = 0; i < v->n; i++) bytes |= type_of(v, i) == TOKEN_BYTE;
    buf_str(out, "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    if (prefix) buf_str(out, "{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"},");
    buf_str(out, "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}]},\n"
                 "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\""
                 "\xe2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}");
    if (prefix) buf_str(out, ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}");
    buf_printf(out, "]},\n\"model\":{\"type\":\"BPE\",\"fuse_unk\":true,\"byte_fallback\":%s,",
               bytes ? "true" : "false");
    if (unknown >= 0) buf_str(out, "\"unk_token\":"), gguf_put_text(out, v->token[unknown]), buf_char(out, ',');
    buf_str(out, "\"merges\":[");
    put_score_merges(out, v);
    buf_str(out, "],\n");
    return 0;
}

/* ---- the files --------------------------------------------------------------------------------------------------- */

static bool is_sentencepiece(const struct gguf *g)
{
    struct gguf_text model = {"", 0};
    gguf_text(g, "tokenizer.ggml.model", &model);
    return gguf_text_is(model, "llama");
}

static int check_model(const struct gguf *g, struct err *e)
{
    struct gguf_text model;
    if (!gguf_text(g, "tokenizer.ggml.model", &model))
        return err_set(e, ERR_INVALID, "GGUF: key tokenizer.ggml.model is missing");
    if (gguf_text_is(model, "gpt2") || gguf_text_is(model, "llama")) return 0;
    return err_set(e, ERR_UNSUPPORTED, "GGUF: tokenizer.ggml.model \"%.*s\" is not supported; gpt2 and llama are",
                   (int)(model.n < 40 ? model.n : 40), model.s);
}

static int put_tokenizer(const struct gguf *g, const struct vocabulary *v, struct buf *out, struct err *e)
{
    const struct gguf_pre *s = NULL;
    struct err own = {0};
    bool sentencepiece = is_sentencepiece(g);
    int rc = sentencepiece ? 0 : find_splitter(g, &s, e);
    if (rc) return rc;
    int64_t bos = token_id(g, "tokenizer.ggml.bos_token_id", v->n, &own);
    int64_t eos = own.code ? -1 : token_id(g, "tokenizer.ggml.eos_token_id", v->n, &own);
    if (own.code) return err_set(e, own.code, "%s", own.msg);
    if (!flag(g, "tokenizer.ggml.add_bos_token", sentencepiece || (s && s->bos))) bos = -1;
    if (!flag(g, "tokenizer.ggml.add_eos_token", false)) eos = -1;
    buf_str(out, "{\"version\":\"1.0\",\n");
    put_added(out, v);
    put_post_processor(out, v, bos, eos);
    rc = sentencepiece ? put_sentencepiece(g, v, out, e) : put_byte_level(g, v, s, out, e);
    put_vocab(out, v);
    buf_str(out, "}}\n");
    return rc;
}

int gguf_tokenizer_json(const struct gguf *g, struct buf *out, struct err *e)
{
    struct vocabulary v;
    int rc = check_model(g, e);
    if (rc) return rc;
    rc = vocabulary_read(g, &v, e);
    if (!rc) rc = put_tokenizer(g, &v, out, e);
    free(v.token);
    return rc;
}

static void put_named_token(const struct gguf *g, const struct vocabulary *v, const char *key, const char *name,
                            struct buf *out, struct err *e)
{
    int64_t id = token_id(g, key, v->n, e);
    if (id < 0) return;
    buf_printf(out, ",\n\"%s\":", name);
    gguf_put_text(out, v->token[id]);
}

/* The template of that name among the file's further ones. */
static void put_template(const struct gguf *g, const char *key, const char *name, struct buf *out, bool *any)
{
    struct gguf_text t;
    if (!gguf_text(g, key, &t)) return;
    buf_printf(out, "%s{\"name\":\"%s\",\"template\":", *any ? "," : "", name);
    gguf_put_text(out, t);
    buf_char(out, '}');
    *any = true;
}

int gguf_tokenizer_config_json(const struct gguf *g, struct buf *out, struct err *e)
{
    struct vocabulary v;
    struct err own = {0};
    bool any = false;
    int rc = vocabulary_read(g, &v, e);
    if (rc) return rc;
    buf_printf(out, "{\"add_bos_token\":%s",
               flag(g, "tokenizer.ggml.add_bos_token", is_sentencepiece(g)) ? "true" : "false");
    put_named_token(g, &v, "tokenizer.ggml.bos_token_id", "bos_token", out, &own);
    put_named_token(g, &v, "tokenizer.ggml.eos_token_id", "eos_token", out, &own);
    put_named_token(g, &v, "tokenizer.ggml.unknown_token_id", "unk_token", out, &own);
    put_named_token(g, &v, "tokenizer.ggml.padding_token_id", "pad_token", out, &own);
    buf_str(out, ",\n\"chat_template\":[");
    put_template(g, "tokenizer.chat_template", "default", out, &any);
    put_template(g, "tokenizer.chat_template.tool_use", "tool_use", out, &any);
    buf_str(out, "]}\n");
    free(v.token);
    return own.code ? err_set(e, own.code, "%s", own.msg) : 0;
}
