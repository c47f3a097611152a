/* The model section of tokenizer.json: options, vocabulary, merges (model.h). */
#include "engine/tokenizer/model.h"

#include "engine/base/mem.h"

#include <string.h>

enum { SPELLING_MAX = 1 << 16 };

static int options_read(struct bpe *m, const struct json_at *at, struct err *e)
{
    const char *type, *prefix, *suffix;
    struct json_at dropout = json_member(at, "dropout");
    int rc = json_string_or(at, "type", "BPE", &type, e);
    if (rc) return rc;
    if (strcmp(type, "BPE")) return json_fail(at, e, ERR_UNSUPPORTED, "type \"%.40s\": only BPE models are read", type);
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

static int vocab_read(struct bpe *m, const struct json_at *at, struct err *e)
{
    if (!cJSON_IsObject(at->v)) return json_fail(at, e, ERR_INVALID, at->v ? "must be an object" : "missing");
    size_t n = 0;
    int32_t size = 0;
    for (const cJSON *v = at->v->child; v; v = v->next, n++) {
        double id = cJSON_IsNumber(v) ? v->valuedouble : -1;
        if (!(id >= 0 && id <= TOKEN_ID_MAX) || id != (double)(int32_t)id)
            return vocab_fail(at, v, e, "the id must be an integer below 2^24");
        if (strlen(v->string) > SPELLING_MAX) return vocab_fail(at, v, e, "too long");
        if (id >= size) size = (int32_t)id + 1;
    }
    vocab_init(&m->vocab, n, size);
    for (const cJSON *v = at->v->child; v; v = v->next) {
        int32_t id = (int32_t)v->valuedouble;
        if (vocab_add(&m->vocab, v->string, strlen(v->string), id)) continue;
        const char *other = vocab_spelling(&m->vocab, id, NULL);
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

int model_read(struct bpe *m, const struct json_at *at, struct err *e)
{
    if (!cJSON_IsObject(at->v)) return json_fail(at, e, ERR_INVALID, at->v ? "must be an object" : "missing");
    const char *unk;
    struct json_at vocab = json_member(at, "vocab"), merges = json_member(at, "merges");
    int rc = options_read(m, at, e);
    if (!rc) rc = json_string_or(at, "unk_token", NULL, &unk, e);
    if (!rc) rc = vocab_read(m, &vocab, e);
    if (rc) return rc;
    m->unk = unk ? vocab_find(&m->vocab, unk, strlen(unk)) : -1;
    if (unk && m->unk < 0) return json_fail(at, e, ERR_INVALID, "unk_token \"%.60s\" is not in the vocabulary", unk);
    rc = merges_read(m, &merges, e);
    if (!rc) bpe_seal(m);
    return rc;
}
