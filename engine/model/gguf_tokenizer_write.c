#include "engine/model/gguf_tokenizer_write.h"

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/files/gguf_pre.h"
#include "engine/files/model_file.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIMIT = 256 << 20, EOS_KEYS = 3 };

/* tokenizer.ggml.token_type */
enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

struct entry {
    const char *token;
    int id;
};

struct tokens {
    struct gguf_writer *w;
    const cJSON *model, *added; /* of tokenizer.json */
    cJSON *tokenizer, *config;  /* config: tokenizer_config.json, or NULL */
    const char **token;         /* of each id; NULL: none */
    int *type;                  /* likewise */
    struct entry *entry;        /* the tokens sorted by text */
    int n, n_entries;
    bool byte_level;
    struct err *e;
};

static const cJSON *member(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static const char *text_of(const cJSON *v)
{
    return cJSON_IsString(v) ? v->valuestring : NULL;
}

static bool is_type(const cJSON *object, const char *type)
{
    const char *s = text_of(member(object, "type"));
    return s && strcmp(s, type) == 0;
}

static int refuse(struct tokens *t, const char *what)
{
    return err_set(t->e, ERR_UNSUPPORTED, "tokenizer.json: %s cannot be said in a GGUF file", what);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

static int set_token(struct tokens *t, const char *token, const cJSON *id, int type)
{
    if (!cJSON_IsNumber(id) || id->valuedouble < 0 || id->valuedouble >= t->n)
        return err_set(t->e, ERR_INVALID,
                       "tokenizer.json: token \"%.60s\": its id is not below the %d rows of the table", token, t->n);
    t->token[id->valueint] = token;
    t->type[id->valueint] = type;
    return 0;
}

static bool is_byte(const char *s)
{
    return strlen(s) == 6 && strncmp(s, "<0x", 3) == 0 && s[5] == '>';
}

static int read_tokens(struct tokens *t)
{
    const char *unknown = text_of(member(t->model, "unk_token"));
    const cJSON *vocab = member(t->model, "vocab");
    int rc = cJSON_IsObject(vocab) ? 0 : err_set(t->e, ERR_INVALID, "tokenizer.json: model.vocab is not an object");
    for (const cJSON *v = rc ? NULL : vocab->child; v && !rc; v = v->next) {
        bool byte = !t->byte_level && is_byte(v->string);
        rc = set_token(t, v->string, v, unknown && strcmp(v->string, unknown) == 0 ? UNKNOWN : byte ? BYTE : NORMAL);
    }
    for (const cJSON *a = t->added ? t->added->child : NULL; a && !rc; a = a->next) {
        const char *s = text_of(member(a, "content"));
        if (!s) return err_set(t->e, ERR_INVALID, "tokenizer.json: an added token without content");
        bool is_unknown = !t->byte_level && unknown && strcmp(s, unknown) == 0;
        rc = set_token(t, s, member(a, "id"),
                       is_unknown                           ? UNKNOWN
                       : cJSON_IsTrue(member(a, "special")) ? CONTROL
                                                            : USER_DEFINED);
    }
    return rc;
}

static void write_tokens(struct tokens *t)
{
    gguf_write_array(t->w, "tokenizer.ggml.tokens", GGUF_TEXT, (uint64_t)t->n);
    for (int i = 0; i < t->n; i++) {
        char filler[24];
        int len = snprintf(filler, sizeof filler, "[PAD%d]", i);
        if (t->token[i])
            gguf_write_text_element(t->w, t->token[i], strlen(t->token[i]));
        else
            gguf_write_text_element(t->w, filler, (size_t)len);
    }
    gguf_write_array(t->w, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)t->n);
    for (int i = 0; i < t->n; i++) gguf_write_element(t->w, GGUF_I32, t->token[i] ? t->type[i] : UNUSED);
}

/* ---- merges ------------------------------------------------------------------------------------------------------ */

/* "a b" or ["a","b"]: the two parts joined by `between`.  @return false: neither form */
static bool merge_text(const cJSON *m, const char *between, struct buf *out)
{
    buf_clear(out);
    const char *a = cJSON_IsArray(m) && m->child ? text_of(m->child) : text_of(m), *b = NULL;
    if (!a) return false;
    if (cJSON_IsArray(m)) {
        b = m->child->next ? text_of(m->child->next) : NULL;
        if (b) buf_printf(out, "%s%s%s", a, between, b);
        return b;
    }
    b = strchr(a, ' ');
    if (b) buf_printf(out, "%.*s%s%s", (int)(b - a), a, between, b + 1);
    return b;
}

static int bad_merge(struct tokens *t, int i)
{
    return err_set(t->e, ERR_INVALID, "tokenizer.json: model.merges[%d] is not a pair of tokens", i);
}

static int write_merges(struct tokens *t, const cJSON *merges)
{
    struct buf s = {0};
    int i = 0, rc = 0;
    gguf_write_array(t->w, "tokenizer.ggml.merges", GGUF_TEXT, (uint64_t)cJSON_GetArraySize(merges));
    for (const cJSON *m = merges->child; m && !rc; m = m->next, i++) {
        if (merge_text(m, " ", &s))
            gguf_write_text_element(t->w, s.data, s.len);
        else
            rc = bad_merge(t, i);
    }
    buf_free(&s);
    return rc;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->token, ((const struct entry *)b)->token);
}

static void index_tokens(struct tokens *t)
{
    for (int i = 0; i < t->n; i++)
        if (t->token[i]) t->entry[t->n_entries++] = (struct entry){t->token[i], i};
    if (t->n_entries) qsort(t->entry, (size_t)t->n_entries, sizeof *t->entry, by_text);
}

/* @return -1: there is no such token */
static int id_of(const struct tokens *t, const char *token)
{
    struct entry want = {token, 0};
    const struct entry *found =
        token && t->n_entries ? bsearch(&want, t->entry, (size_t)t->n_entries, sizeof want, by_text) : NULL;
    return found ? found->id : -1;
}

/* A token's score is the rank of the first merge that makes it, negated: merging by score is merging by rank then. */
static int write_scores(struct tokens *t, const cJSON *merges)
{
    enum { NO_SCORE = -1000000000 };
    float *score = mem_array((size_t)t->n, sizeof *score);
    struct buf s = {0};
    int rank = 0, rc = 0;
    for (int i = 0; i < t->n; i++) score[i] = NO_SCORE;
    for (const cJSON *m = merges->child; m && !rc; m = m->next, rank++) {
        int id = merge_text(m, "", &s) ? id_of(t, s.data) : -2;
        if (id == -2) rc = bad_merge(t, rank);
        if (id >= 0 && score[id] == (float)NO_SCORE) score[id] = (float)-rank;
    }
    gguf_write_array(t->w, "tokenizer.ggml.scores", GGUF_F32, (uint64_t)t->n);
    for (int i = 0; i < t->n; i++) gguf_write_element(t->w, GGUF_F32, score[i]);
    buf_free(&s);
    free(score);
    return rc;
}

/* ---- normalising and splitting ----------------------------------------------------------------------------------- */

static bool text_is(const cJSON *v, const char *s)
{
    return cJSON_IsString(v) && strcmp(v->valuestring, s) == 0;
}

/* The parts of a Sequence in turn, or the object itself: begin with NULL. */
static const cJSON *next_part(const cJSON *object, const char *list, const cJSON *before)
{
    bool sequence = is_type(object, "Sequence");
    if (before) return sequence ? before->next : NULL;
    const cJSON *parts = sequence ? member(object, list) : NULL;
    return sequence ? (parts ? parts->child : NULL) : cJSON_IsObject(object) ? object : NULL;
}

static const cJSON *pre_tokenizer(const struct tokens *t)
{
    return member(t->tokenizer, "pre_tokenizer");
}

static bool has_byte_level(const struct tokens *t)
{
    const cJSON *all = pre_tokenizer(t), *p = NULL;
    while ((p = next_part(all, "pretokenizers", p)))
        if (is_type(p, "ByteLevel")) return true;
    return false;
}

static int write_splitter(struct tokens *t)
{
    const cJSON *all = pre_tokenizer(t), *p = NULL, *normal = member(t->tokenizer, "normalizer");
    const char *pattern = NULL;
    bool digits = false, builtin = false, whole = cJSON_IsTrue(member(t->model, "ignore_merges"));
    while ((p = next_part(all, "pretokenizers", p))) {
        const cJSON *regex = member(member(p, "pattern"), "Regex");
        if (is_type(p, "ByteLevel")) {
            if (cJSON_IsTrue(member(p, "add_prefix_space"))) return refuse(t, "a ByteLevel with add_prefix_space");
            builtin = !cJSON_IsFalse(member(p, "use_regex"));
        } else if (is_type(p, "Digits") && cJSON_IsTrue(member(p, "individual_digits")) && !pattern) {
            digits = true;
        } else if (is_type(p, "Split") && text_of(regex) && !pattern && text_is(member(p, "behavior"), "Isolated")) {
            pattern = regex->valuestring;
        } else {
            return refuse(t, "this pre_tokenizer");
        }
    }
    if (cJSON_IsObject(normal) && !is_type(normal, "NFC")) return refuse(t, "this normalizer");
    if (builtin == (pattern != NULL)) return refuse(t, "this pre_tokenizer");
    const char *name = gguf_pre_name(builtin ? "" : pattern, digits, whole, cJSON_IsObject(normal));
    if (!name) return refuse(t, "this pre_tokenizer");
    gguf_write_text(t->w, "tokenizer.ggml.pre", name, strlen(name));
    return 0;
}

#define LOW_LINE "\xe2\x96\x81" /* U+2581, which stands for a space */

/* SentencePiece's: spaces are U+2581, perhaps with one put before the text, by a normalizer or by Metaspace. */
static int write_prefix(struct tokens *t)
{
    const cJSON *all = member(t->tokenizer, "normalizer"), *p = NULL, *pre = pre_tokenizer(t);
    bool prefix = false, spaces = is_type(pre, "Metaspace");
    while ((p = next_part(all, "normalizers", p))) {
        bool replaces = is_type(p, "Replace") && text_is(member(member(p, "pattern"), "String"), " ") &&
                        text_is(member(p, "content"), LOW_LINE);
        bool prepends = is_type(p, "Prepend") && text_is(member(p, "prepend"), LOW_LINE);
        if (!replaces && !prepends) return refuse(t, "this normalizer");
        prefix |= prepends;
        spaces |= replaces;
    }
    bool splits = is_type(pre, "Split") && text_is(member(member(pre, "pattern"), "String"), " ");
    if (is_type(pre, "Metaspace"))
        prefix |= !text_is(member(pre, "prepend_scheme"), "never");
    else if (cJSON_IsObject(pre) && !splits)
        return refuse(t, "this pre_tokenizer");
    if (!spaces) return refuse(t, "a BPE without ByteLevel and without U+2581 for spaces");
    gguf_write_bool(t->w, "tokenizer.ggml.add_space_prefix", prefix);
    return 0;
}

/* ---- special tokens ---------------------------------------------------------------------------------------------- */

/* bos and eos: the ids that are put before and behind a text; -1: none. */
static int read_template(struct tokens *t, int *bos, int *eos)
{
    const cJSON *all = member(t->tokenizer, "post_processor"), *p = NULL;
    *bos = *eos = -1;
    while ((p = next_part(all, "processors", p))) {
        if (is_type(p, "ByteLevel")) continue;
        const cJSON *single = member(p, "single");
        bool behind = false;
        if (!is_type(p, "TemplateProcessing") || !cJSON_IsArray(single)) return refuse(t, "this post_processor");
        for (const cJSON *part = single->child; part; part = part->next) {
            int id = id_of(t, text_of(member(member(part, "SpecialToken"), "id")));
            int *to = behind ? eos : bos;
            if (member(part, "Sequence"))
                behind = true;
            else if (id < 0 || *to >= 0)
                return refuse(t, "this post_processor");
            else
                *to = id;
        }
    }
    return 0;
}

/* The id of a token that tokenizer_config.json names. */
static int named(const struct tokens *t, const char *name)
{
    const cJSON *v = member(t->config, name);
    return id_of(t, cJSON_IsObject(v) ? text_of(member(v, "content")) : text_of(v));
}

static void write_id(struct tokens *t, const char *name, int id)
{
    char key[64];
    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", name);
    if (id >= 0) gguf_write_u32(t->w, key, (uint32_t)id);
}

/* The ends of a text: the tokenizer's own first, if it is one of them. */
static void write_ends(struct tokens *t, const int32_t *eos, int n_eos)
{
    static const char *const names[EOS_KEYS] = {"eos", "eot", "eom"};
    int own = named(t, "eos_token"), n = 0;
    bool listed = n_eos == 0;
    for (int i = 0; i < n_eos; i++) listed |= eos[i] == own;
    if (own >= 0 && listed) write_id(t, names[n++], own);
    for (int i = 0; i < n_eos && n < EOS_KEYS; i++)
        if (eos[i] != own) write_id(t, names[n++], eos[i]);
}

static int write_specials(struct tokens *t, const int32_t *eos, int n_eos)
{
    int before, behind, rc = read_template(t, &before, &behind), own = named(t, "eos_token");
    if (rc) return rc;
    if (behind >= 0 && behind != own) return refuse(t, "a post_processor that ends with another token than eos_token");
    write_id(t, "bos", before >= 0 ? before : named(t, "bos_token"));
    write_ends(t, eos, n_eos);
    write_id(t, "padding", named(t, "pad_token"));
    if (!t->byte_level) write_id(t, "unknown", id_of(t, text_of(member(t->model, "unk_token"))));
    gguf_write_bool(t->w, "tokenizer.ggml.add_bos_token", before >= 0);
    gguf_write_bool(t->w, "tokenizer.ggml.add_eos_token", behind >= 0);
    return 0;
}

static void write_template(struct tokens *t, const char *name, const char *text)
{
    if (name && strcmp(name, "default") == 0)
        gguf_write_text(t->w, "tokenizer.chat_template", text, strlen(text));
    else if (name && strcmp(name, "tool_use") == 0)
        gguf_write_text(t->w, "tokenizer.chat_template.tool_use", text, strlen(text));
}

static void write_templates(struct tokens *t, const char *dir)
{
    const cJSON *v = member(t->config, "chat_template");
    char *file = NULL;
    size_t n;
    if (model_file_read(dir, "chat_template.jinja", LIMIT, &file, &n, NULL) == 0)
        write_template(t, "default", file);
    else if (text_of(v))
        write_template(t, "default", v->valuestring);
    for (const cJSON *one = !file && cJSON_IsArray(v) ? v->child : NULL; one; one = one->next)
        if (text_of(member(one, "template")))
            write_template(t, text_of(member(one, "name")), member(one, "template")->valuestring);
    free(file);
}

/* ---- the files --------------------------------------------------------------------------------------------------- */

/* The file as JSON; NULL with *e unchanged: there is none. */
static cJSON *read_json(const char *dir, const char *name, struct err *e)
{
    char *text = NULL;
    size_t n;
    struct err own = {0};
    int rc = model_file_read(dir, name, LIMIT, &text, &n, &own);
    cJSON *j = rc ? NULL : cJSON_ParseWithLengthOpts(text, n, NULL, 0);
    if (rc && rc != ERR_NOT_FOUND) *e = own;
    if (!rc && !cJSON_IsObject(j)) {
        err_set(e, ERR_INVALID, "%s is not a JSON object", name);
        cJSON_Delete(j);
        j = NULL;
    }
    free(text);
    return j;
}

static int write_all(struct tokens *t, const char *dir, const int32_t *eos, int n_eos)
{
    const cJSON *merges = member(t->model, "merges");
    if (!is_type(t->model, "BPE")) return refuse(t, "a model other than BPE");
    if (!cJSON_IsArray(merges)) return err_set(t->e, ERR_INVALID, "tokenizer.json: model.merges is not a list");
    t->byte_level = has_byte_level(t);
    const char *model = t->byte_level ? "gpt2" : "llama";
    gguf_write_text(t->w, "tokenizer.ggml.model", model, strlen(model));
    int rc = t->byte_level ? write_splitter(t) : write_prefix(t);
    if (!rc) rc = read_tokens(t);
    if (rc) return rc;
    index_tokens(t);
    write_tokens(t);
    rc = t->byte_level ? write_merges(t, merges) : write_scores(t, merges);
    if (!rc) rc = write_specials(t, eos, n_eos);
    if (!rc) write_templates(t, dir);
    return rc;
}

int gguf_tokenizer_write(struct gguf_writer *w, const char *dir, int vocab, const int32_t *eos, int n_eos,
                         struct err *e)
{
    struct err own = {0};
    struct tokens t = {.w = w, .n = vocab, .e = e};
    t.tokenizer = read_json(dir, "tokenizer.json", &own);
    if (!own.code) t.config = read_json(dir, "tokenizer_config.json", &own);
    t.model = member(t.tokenizer, "model");
    t.added = member(t.tokenizer, "added_tokens");
    t.token = mem_array((size_t)vocab, sizeof *t.token);
    t.type = mem_array((size_t)vocab, sizeof *t.type);
    t.entry = mem_array((size_t)vocab, sizeof *t.entry);
    int rc = own.code      ? err_set(e, own.code, "%s", own.msg)
             : t.tokenizer ? write_all(&t, dir, eos, n_eos)
                           : err_set(e, ERR_NOT_FOUND, "%s has no tokenizer.json", dir);
    cJSON_Delete(t.tokenizer);
    cJSON_Delete(t.config);
    free((void *)t.token);
    free(t.type);
    free(t.entry);
    return rc;
}
