/* The tokenizer: reading tokenizer.json, and the stages of encoding and decoding.  Contract in tokenizer.h.
 *
 *   bytes -> text (UTF-8 made valid, each byte knows its character)          text.c
 *         -> added tokens cut out -> normalizer -> added tokens again        added.c, normalize.c
 *         -> words                                                           pretokenize.c
 *         -> ids, by the model                                               model.c, bpe.c, wordpiece.c, unigram.c
 *         -> template (bos, eos, pairs of texts), offsets trimmed            template.c
 *   ids -> spellings -> decoder                                              decode.c
 *
 * Only tokenizer_parse writes to a struct tokenizer; the mutable state of a call is on its stack. */
#include "engine/tokenizer/tokenizer.h"

#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/model_dir.h"
#include "engine/files/model_file.h"
#include "engine/tokenizer/added.h"
#include "engine/tokenizer/decode.h"
#include "engine/tokenizer/model.h"
#include "engine/tokenizer/normalize.h"
#include "engine/tokenizer/pretokenize.h"
#include "engine/tokenizer/template.h"
#include "engine/tokenizer/text.h"
#include "engine/tokenizer/unicode.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FILE_MAX = 256 << 20,
    NODES_MAX = 8 << 20, /* JSON values; each costs 64 bytes and more while the file is read */
    TEXT_MAX = 256 << 20,
};

struct tokenizer {
    struct model model;
    struct added added;
    struct normalizer normalizer;
    struct pretokenizer pretokenizer;
    struct template template;
    struct decoder decoder;
    bool byte_level; /* words reach the model as raw bytes */
    uint64_t identity;
};

/* --- reading ------------------------------------------------------------------------------------------------------ */

static int parts_read(struct tokenizer *t, const cJSON *root, struct err *e)
{
    struct json_at top = {.v = root};
    if (!cJSON_IsObject(root)) return json_fail(&top, e, ERR_INVALID, "must be an object");
    struct json_at model = json_member(&top, "model"), added = json_member(&top, "added_tokens");
    struct json_at normalizer = json_member(&top, "normalizer"), pretokenizer = json_member(&top, "pre_tokenizer");
    struct json_at post = json_member(&top, "post_processor"), decoder = json_member(&top, "decoder");
    int rc = model_read(&t->model, &model, e);
    if (!rc) rc = normalizer_read(&t->normalizer, &normalizer, e);
    if (!rc) rc = pretokenizer_read(&t->pretokenizer, &pretokenizer, e);
    if (!rc) rc = template_read(&t->template, &post, e);
    if (!rc) rc = decoder_read(&t->decoder, &decoder, e);
    if (!rc) rc = added_read(&t->added, &added, model_vocab(&t->model), &t->normalizer, e);
    t->byte_level = pretokenizer_is_byte_level(&t->pretokenizer);
    return rc;
}

/* cJSON neither checks UTF-8 nor keeps a NUL in a string, and takes 64 bytes for what may be two in the file. */
static int json_check(const char *json, size_t n, struct err *e)
{
    size_t nodes = 0;
    if (n > FILE_MAX) return err_set(e, ERR_INVALID, "larger than %d MiB", FILE_MAX >> 20);
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)json[i];
        if (c == ',' || c == '[' || c == '{') nodes++;
        if (c == '\\' && n - i >= 2) {
            if (n - i >= 6 && !memcmp(json + i, "\\u0000", 6))
                return err_set(e, ERR_UNSUPPORTED, "byte %zu: a NUL in a string", i);
            i += (unsigned char)json[i + 1] < 0x80 ? 2 : 1;
            continue;
        }
        int step = utf8_step(json + i, n - i);
        if (step <= 0) return err_set(e, ERR_INVALID, "byte %zu: not UTF-8", i);
        i += (size_t)step;
    }
    return nodes > NODES_MAX ? err_set(e, ERR_INVALID, "more than %d JSON values", NODES_MAX) : 0;
}

static bool json_trails(const char *json, size_t n, const char *end)
{
    while (end < json + n && memchr(" \t\r\n", *end, 4)) end++;
    return end < json + n;
}

struct tokenizer *tokenizer_parse(const char *json, size_t n, struct err *e)
{
    struct err own = {0};
    struct tokenizer *t = mem_zalloc(sizeof *t);
    t->identity = (uint64_t)crc32c(0, json, n) << 32 | (uint32_t)n;
    int rc = json_check(json, n, &own);
    if (!rc) {
        const char *end = NULL;
        cJSON *root = cJSON_ParseWithLengthOpts(json, n, &end, false);
        if (!root)
            rc = err_set(&own, ERR_INVALID, "not JSON near byte %zu", end ? (size_t)(end - json) : 0);
        else if (json_trails(json, n, end))
            rc = err_set(&own, ERR_INVALID, "byte %zu: text behind the JSON value", (size_t)(end - json));
        else
            rc = parts_read(t, root, &own);
        cJSON_Delete(root);
    }
    if (!rc) return t;
    tokenizer_close(t);
    if (e) *e = own;
    return NULL;
}

/* Frees json. */
static struct tokenizer *parse_file(const char *path, char *json, size_t n, struct err *e)
{
    struct tokenizer *t = NULL;
    if (model_dir_lfs_pointer(json, n))
        model_dir_lfs_error(e);
    else
        t = tokenizer_parse(json, n, e);
    if (!t) err_prefix(e, "%s", path);
    free(json);
    return t;
}

struct tokenizer *tokenizer_open(const char *path, struct err *e)
{
    char *json = NULL;
    size_t n;
    return file_read(path, FILE_MAX, &json, &n, e) ? NULL : parse_file(path, json, n, e);
}

struct tokenizer *tokenizer_open_dir(const char *dir, struct err *e)
{
    char *json = NULL, *path = file_join(dir, "tokenizer.json");
    size_t n;
    int rc = model_file_read(dir, "tokenizer.json", FILE_MAX, &json, &n, e);
    struct tokenizer *t = rc ? NULL : parse_file(path, json, n, e);
    free(path);
    if (!t) model_dir_no_tokenizer(dir, e);
    return t;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t) return;
    model_free(&t->model);
    added_free(&t->added);
    normalizer_free(&t->normalizer);
    pretokenizer_free(&t->pretokenizer);
    template_free(&t->template);
    decoder_free(&t->decoder);
    free(t);
}

void tokens_free(struct tokens *t)
{
    free(t->v);
    *t = (struct tokens){0};
}

/* --- asking ------------------------------------------------------------------------------------------------------- */

int tokenizer_size(const struct tokenizer *t)
{
    return t->added.size;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *token)
{
    size_t n = strlen(token);
    int32_t id = vocab_find(&t->added.names, token, n);
    return id >= 0 ? id : vocab_find(model_vocab(&t->model), token, n);
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    const struct added_token *token = added_by_id(&t->added, id);
    return token && token->special;
}

static const char *spelling(const struct tokenizer *t, int32_t id, size_t *n)
{
    const char *s = vocab_spelling(&t->added.names, id, n);
    return s ? s : vocab_spelling(model_vocab(&t->model), id, n);
}

const char *tokenizer_spelling(const struct tokenizer *t, int32_t id)
{
    return spelling(t, id, NULL);
}

size_t tokenizer_before(const struct tokenizer *t, const int32_t **ids)
{
    *ids = t->template.before;
    return t->template.n_before;
}

size_t tokenizer_after(const struct tokenizer *t, const int32_t **ids)
{
    *ids = t->template.after;
    return t->template.n_after;
}

void tokenizer_lowercase(struct buf *text)
{
    struct text valid = {.limit = SIZE_MAX / 16};
    struct edits lower = {0};
    text_decode(&valid, text->data, text->len);
    unicode_lowercase(valid.s, valid.n, &lower);
    buf_clear(text);
    for (size_t i = 0; i < lower.n; i++) {
        char s[4];
        buf_append(text, s, utf8_put(s, lower.v[i].c));
    }
    edits_free(&lower);
    text_free(&valid);
}

uint64_t tokenizer_identity(const struct tokenizer *t)
{
    return t->identity;
}

/* --- encoding ----------------------------------------------------------------------------------------------------- */

static void token_add(struct tokens *out, int32_t id, struct span at)
{
    mem_grow(&out->v, &out->cap, out->n + 1, sizeof *out->v);
    out->v[out->n++] = (struct token){id, at.start, at.end};
}

static bool is_trimmed(uint32_t c)
{
    return c == 0x120 || unicode_is_space(c); /* U+0120 is the byte-level space */
}

/* Takes the spaces of the token's spelling out of its offsets. */
static void token_trim(const struct template *z, struct token *t, bool first, const char *s, size_t n)
{
    uint32_t leading = 0, trailing = 0, c;
    for (size_t i = 0; i < n; leading++) {
        i += utf8_get(s + i, &c);
        if (!is_trimmed(c)) break;
    }
    for (size_t i = n; i > 0; trailing++) {
        do i--;
        while (i > 0 && ((unsigned char)s[i] & 0xc0) == 0x80);
        utf8_get(s + i, &c);
        if (!is_trimmed(c)) break;
    }
    if (leading == 1 && z->trim_prefix && (first || !t->start)) leading = 0;
    if (leading) t->start = t->start + leading < t->end ? t->start + leading : t->end;
    if (trailing && t->end >= trailing) t->end = t->end - trailing > t->start ? t->end - trailing : t->start;
}

static int piece_encode(const struct tokenizer *t, struct bpe_run *run, const struct text *text, struct piece p,
                        size_t first, struct tokens *out, struct err *e)
{
    bool trim = t->template.trim;
    if (p.id != PIECE_OPEN) {
        token_add(out, p.id, (struct span){text->at[p.start].start, text->at[p.end - 1].end});
        if (trim)
            token_trim(&t->template, &out->v[out->n - 1], out->n - 1 == first, text->s + p.start, p.end - p.start);
        return 0;
    }
    int rc = model_encode(&t->model, run, text->s + p.start, p.end - p.start, t->byte_level, e);
    if (rc) return rc;
    size_t i = p.start;
    struct span at = {text->at[i].start, text->at[i].start};
    for (size_t k = 0; k < run->n; k++) {
        size_t end = i + run->symbols[k].len;
        if (end > p.end) end = p.end; /* a suffix spelled in bytes has more of them than the word */
        if (i < end)
            at = (struct span){text->at[i].start, text->at[end - 1].end};
        else if (run->symbols[k].len)
            at = (struct span){text->at[p.end - 1].end, text->at[p.end - 1].end};
        token_add(out, run->symbols[k].id, at);
        i = end;
        size_t n;
        const char *s = trim ? spelling(t, run->symbols[k].id, &n) : NULL;
        if (s) token_trim(&t->template, &out->v[out->n - 1], out->n - 1 == first, s, n);
    }
    return 0;
}

/* Appends the tokens of one text, without a template. */
static int text_encode(const struct tokenizer *t, const char *text, size_t n, struct tokens *out, struct err *e)
{
    if (n > TEXT_MAX) return err_set(e, ERR_INVALID, "text longer than %d MiB", TEXT_MAX >> 20);
    struct text now = {.limit = 32 * n + (1 << 20)};
    if (now.limit > INT32_MAX) now.limit = INT32_MAX;
    struct text spare = {.limit = now.limit};
    struct regex_run run = {0};
    text_decode(&now, text, n);
    added_cut(&t->added, &t->added.raw, &run, &now, &spare);
    int rc = normalizer_apply(&t->normalizer, &run, &now, &spare, e);
    if (!rc) {
        added_cut(&t->added, &t->added.normal, &run, &now, &spare);
        rc = pretokenizer_apply(&t->pretokenizer, &run, &now, &spare, e);
    }
    struct bpe_run words = {0};
    size_t first = out->n;
    for (size_t i = 0; i < now.n_pieces && !rc; i++) rc = piece_encode(t, &words, &now, now.pieces[i], first, out, e);
    bpe_run_free(&words);
    text_free(&now);
    text_free(&spare);
    regex_run_free(&run);
    return rc;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags, struct tokens *out,
                     struct err *e)
{
    const struct template *z = &t->template;
    if (flags & TOKENIZE_SPECIAL)
        for (size_t i = 0; i < z->n_before; i++) token_add(out, z->before[i], (struct span){0, 0});
    int rc = text_encode(t, text, n, out, e);
    if (flags & TOKENIZE_SPECIAL)
        for (size_t i = 0; i < z->n_after && !rc; i++) token_add(out, z->after[i], (struct span){0, 0});
    return rc;
}

/* --- texts and pairs in their template ---------------------------------------------------------------------------- */

static void tokens_cut(struct tokens *x, size_t n, bool left)
{
    if (n >= x->n) return;
    if (left) memmove(x->v, x->v + (x->n - n), n * sizeof *x->v);
    x->n = n;
}

/* Shortens the texts to `room` tokens in all, by the reference's rules (tokenizers, utils/truncation). */
static int texts_cut(const struct encode_input *in, struct tokens *a, struct tokens *b, size_t room, struct err *e)
{
    if (a->n + b->n <= room) return 0;
    if (!in->pair || !room) {
        tokens_cut(a, room, in->cut_left);
        tokens_cut(b, room, in->cut_left);
        return 0;
    }
    if (in->cut != CUT_LONGEST) {
        struct tokens *x = in->cut == CUT_FIRST ? a : b;
        size_t over = a->n + b->n - room;
        if (x->n <= over)
            return err_set(e, ERR_INVALID, "the %s text is too short to be cut to %zu tokens together with the other",
                           x == a ? "first" : "second", in->max);
        tokens_cut(x, x->n - over, in->cut_left);
        return 0;
    }
    bool swap = a->n > b->n;
    size_t less = swap ? b->n : a->n, more = less; /* of the shorter and the longer text */
    if (less <= room && room - less > less) more = room - less;
    if (less + more > room) less = room / 2, more = less + room % 2;
    tokens_cut(a, swap ? more : less, in->cut_left);
    tokens_cut(b, swap ? less : more, in->cut_left);
    return 0;
}

static void list_write(const struct template_list *list, bool special, const struct tokens texts[2], struct tokens *out,
                       struct buf *types)
{
    for (size_t i = 0; i < list->n; i++) {
        const struct template_item *item = &list->v[i];
        if (item->id >= 0) {
            if (!special) continue;
            token_add(out, item->id, (struct span){0, 0});
            buf_char(types, (char)item->type);
            continue;
        }
        const struct tokens *x = &texts[item->id == TEMPLATE_PAIR];
        for (size_t k = 0; k < x->n; k++) {
            token_add(out, x->v[k].id, (struct span){x->v[k].start, x->v[k].end});
            buf_char(types, (char)item->type);
        }
    }
}

int tokenizer_encode_input(const struct tokenizer *t, const struct encode_input *in, unsigned flags, struct tokens *out,
                           struct buf *types, struct err *e)
{
    bool special = flags & TOKENIZE_SPECIAL;
    const struct template_list *list = in->pair ? &t->template.pair : &t->template.single;
    if (!list->n) return err_set(e, ERR_UNSUPPORTED, "the tokenizer's post-processor has no template for two texts");
    size_t added = special ? list->n_added : 0;
    if (in->max && added > in->max)
        return err_set(e, ERR_INVALID, "%zu tokens are added to every text, more than the limit of %zu", added,
                       in->max);
    struct tokens texts[2] = {{0}};
    int rc = text_encode(t, in->text, in->n_text, &texts[0], e);
    if (!rc && in->pair) rc = text_encode(t, in->pair, in->n_pair, &texts[1], e);
    if (!rc && in->max) rc = texts_cut(in, &texts[0], &texts[1], in->max - added, e);
    if (!rc) list_write(list, special, texts, out, types);
    tokens_free(&texts[0]);
    tokens_free(&texts[1]);
    return rc;
}

/* --- decoding ----------------------------------------------------------------------------------------------------- */

void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special, struct buf *out)
{
    struct strings list = {0};
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *s = spelling(t, ids[i], &len);
        if (s && !(skip_special && tokenizer_is_special(t, ids[i]))) strings_add(&list, s, len);
    }
    decoder_run(&t->decoder, &list, out);
    strings_free(&list);
}

void tokenizer_bytes(const struct tokenizer *t, int32_t id, struct buf *out)
{
    size_t n;
    const char *s = spelling(t, id, &n);
    if (s) decoder_bytes(&t->decoder, s, n, out);
}

void detok_push(struct detok *d, const struct tokenizer *t, int32_t id, struct buf *out)
{
    size_t n;
    const char *s = spelling(t, id, &n);
    if (!s) return;
    if (tokenizer_is_special(t, id)) decoder_flush(&t->decoder, d, out);
    decoder_push(&t->decoder, d, s, n, out);
}

void detok_flush(struct detok *d, const struct tokenizer *t, struct buf *out)
{
    decoder_flush(&t->decoder, d, out);
}
