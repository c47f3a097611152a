/* Added tokens (added.h): reading them, and splitting them off the text, leftmost and longest first. */
#include "engine/tokenizer/added.h"

#include "engine/base/mem.h"
#include "engine/tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { CONTENT_MAX = 512 }; /* bytes: matching may look this far from every byte of a text */

/* \w of Rust's regex, which decides on single_word in the reference */
static const char word_char[] = "[\\p{Alphabetic}\\p{L}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}]";

/* --- the trie ----------------------------------------------------------------------------------------------------- */

static struct added_edge *trie_edge(const struct added_trie *x, uint32_t node, unsigned char byte)
{
    uint64_t key = ((uint64_t)node << 8 | byte) + 1;
    size_t i = (size_t)(key * 0x9e3779b97f4a7c15u >> 32) & x->mask;
    while (x->edges[i].key && x->edges[i].key != key) i = (i + 1) & x->mask;
    return x->edges + i;
}

/* bytes: of all patterns together, which bounds the nodes */
static void trie_init(struct added_trie *x, size_t bytes)
{
    size_t slots = 16;
    while (slots < 2 * (bytes + 1)) slots *= 2;
    x->edges = mem_array(slots, sizeof *x->edges);
    x->mask = slots - 1;
    x->ends = mem_array(bytes + 1, sizeof *x->ends);
    x->ends[0] = -1;
    x->n_nodes = 1;
}

/* The first of two equal patterns stays. */
static void trie_add(struct added_trie *x, const char *s, size_t n, int32_t token)
{
    uint32_t node = 0;
    if (!n) return;
    x->first[(unsigned char)*s] = true;
    for (size_t i = 0; i < n; i++) {
        struct added_edge *edge = trie_edge(x, node, (unsigned char)s[i]);
        if (!edge->key) {
            edge->key = ((uint64_t)node << 8 | (unsigned char)s[i]) + 1;
            edge->to = x->n_nodes;
            x->ends[x->n_nodes++] = -1;
        }
        node = edge->to;
    }
    if (x->ends[node] < 0) x->ends[node] = token;
}

/* The longest pattern that starts at s[0, n): its token and length, or -1. */
static int32_t trie_match(const struct added_trie *x, const char *s, size_t n, size_t *len)
{
    int32_t token = -1;
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        const struct added_edge *edge = trie_edge(x, node, (unsigned char)s[i]);
        if (!edge->key) break;
        node = edge->to;
        if (x->ends[node] >= 0) token = x->ends[node], *len = i + 1;
    }
    return token;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

void added_free(struct added *a)
{
    vocab_free(&a->names);
    free(a->tokens);
    free(a->by_id);
    regex_free(a->word);
    free(a->raw.edges);
    free(a->raw.ends);
    free(a->normal.edges);
    free(a->normal.ends);
    *a = (struct added){0};
}

const struct added_token *added_by_id(const struct added *a, int32_t id)
{
    return id >= 0 && id < a->names.size && a->by_id[id] >= 0 ? a->tokens + a->by_id[id] : NULL;
}

static int token_read(struct added_token *t, const char **content, const struct json_at *at, struct err *e)
{
    if (!cJSON_IsObject(at->v)) return json_fail(at, e, ERR_INVALID, "must be an object");
    struct json_at id = json_member(at, "id");
    int rc = json_integer(&id, TOKEN_ID_MAX, &t->id, e);
    if (!rc) rc = json_string(at, "content", content, e);
    if (!rc) rc = json_bool_or(at, "single_word", false, &t->single_word, e);
    if (!rc) rc = json_bool_or(at, "lstrip", false, &t->lstrip, e);
    if (!rc) rc = json_bool_or(at, "rstrip", false, &t->rstrip, e);
    if (!rc) rc = json_bool_or(at, "special", false, &t->special, e);
    if (!rc) rc = json_bool_or(at, "normalized", !t->special, &t->normalized, e);
    if (!rc && strlen(*content) > CONTENT_MAX)
        return json_fail(at, e, ERR_INVALID, "content longer than %d bytes", CONTENT_MAX);
    return rc;
}

/* The reference ignores the ids in the file: a token in the model's vocabulary keeps the model's id, the others are
 * numbered from the size of the vocabulary on.  Files written by the reference agree with that; for others, ids must be
 * the reference's, with which the model was trained. */
static int token_place(struct added *a, struct added_token *t, const char *content, const struct json_at *at,
                       const struct vocab *model, int32_t *next, struct err *e)
{
    size_t n = strlen(content);
    t->id = vocab_find(model, content, n);
    int32_t again = vocab_find(&a->names, content, n);
    if (again >= 0) { /* listed twice: the later entry counts */
        t->id = again;
        a->tokens[a->by_id[again]] = *t;
        return 0;
    }
    if (t->id < 0) {
        t->id = (*next)++;
        const char *other = vocab_spelling(model, t->id, NULL);
        if (other) return json_fail(at, e, ERR_INVALID, "its id %d is already \"%.60s\"", (int)t->id, other);
    }
    vocab_add(&a->names, content, n, t->id);
    a->by_id[t->id] = (int32_t)a->n;
    a->tokens[a->n++] = *t;
    return 0;
}

static int tries_build(struct added *a, const struct normalizer *z, struct err *e)
{
    struct text *forms = mem_array(a->n, sizeof *forms);
    struct text spare = {.limit = 1 << 24};
    struct regex_run run = {0};
    size_t bytes[2] = {0};
    int rc = 0;
    for (size_t i = 0; i < a->n && !rc; i++) {
        size_t n;
        const char *s = vocab_spelling(&a->names, a->tokens[i].id, &n);
        forms[i].limit = spare.limit = 1 << 16;
        text_decode(&forms[i], s, n);
        if (a->tokens[i].normalized) rc = normalizer_apply(z, &run, &forms[i], &spare, e);
        bytes[a->tokens[i].normalized] += forms[i].n;
    }
    trie_init(&a->raw, bytes[0]);
    trie_init(&a->normal, bytes[1]);
    for (int special = 1; special >= 0 && !rc; special--) /* of two equal forms the special one wins */
        for (size_t i = 0; i < a->n; i++)
            if (a->tokens[i].special == special)
                trie_add(a->tokens[i].normalized ? &a->normal : &a->raw, forms[i].s, forms[i].n, (int32_t)i);
    for (size_t i = 0; i < a->n; i++) text_free(&forms[i]);
    free(forms);
    text_free(&spare);
    regex_run_free(&run);
    return rc ? err_prefix(e, "added_tokens") : 0;
}

int added_read(struct added *a, const struct json_at *at, const struct vocab *model, const struct normalizer *z,
               struct err *e)
{
    const cJSON *first;
    size_t n = 0;
    int rc = at->v ? json_array(at, &first, &n, e) : 0;
    if (rc) return rc;
    int32_t next = (int32_t)model->n, size = next + (int32_t)n > model->size ? next + (int32_t)n : model->size;
    if (size > TOKEN_ID_MAX) return json_fail(at, e, ERR_INVALID, "more than %d ids", TOKEN_ID_MAX);
    bool word = false;
    vocab_init(&a->names, n, size);
    a->tokens = mem_array(n, sizeof *a->tokens);
    a->by_id = mem_array((size_t)size, sizeof *a->by_id);
    memset(a->by_id, 0xff, (size_t)size * sizeof *a->by_id);
    int i = 0;
    for (const cJSON *v = n ? first : NULL; v && !rc; v = v->next, i++) {
        struct json_at place = json_element(at, v, i);
        struct added_token t = {0};
        const char *content = "";
        rc = token_read(&t, &content, &place, e);
        if (!rc && *content) rc = token_place(a, &t, content, &place, model, &next, e);
        word |= t.single_word;
    }
    a->size = next > model->size ? next : model->size;
    if (!rc && word && !(a->word = regex_compile(word_char, sizeof word_char - 1, e))) rc = e ? e->code : ERR_INVALID;
    return rc ? rc : tries_build(a, z, e);
}

/* --- splitting ---------------------------------------------------------------------------------------------------- */

static bool is_word(const struct added *a, struct regex_run *run, const char *s, size_t n)
{
    struct regex_scan scan = {.s = s, .n = n};
    return regex_next(a->word, run, &scan, NULL) > 0;
}

static size_t char_before(const struct text *t, size_t i, size_t first)
{
    do i--;
    while (i > first && ((unsigned char)t->s[i] & 0xc0) == 0x80);
    return i;
}

/* Neither the character before nor the one after is a word character. */
static bool stands_alone(const struct added *a, struct regex_run *run, const struct text *t, struct piece p,
                         size_t start, size_t end)
{
    uint32_t c;
    if (start > p.start) {
        size_t k = char_before(t, start, p.start);
        if (is_word(a, run, t->s + k, start - k)) return false;
    }
    return end == p.end || !is_word(a, run, t->s + end, utf8_get(t->s + end, &c));
}

static void piece_cut(const struct added *a, const struct added_trie *trie, struct regex_run *run, const struct text *t,
                      struct piece p, struct text *out)
{
    size_t done = p.start; /* up to here everything is in a piece */
    for (size_t i = p.start, len = 0; i < p.end;) {
        int32_t k = trie->first[(unsigned char)t->s[i]] ? trie_match(trie, t->s + i, p.end - i, &len) : -1;
        if (k < 0) {
            i++;
            continue;
        }
        const struct added_token *token = a->tokens + k;
        size_t start = i, end = i + len;
        uint32_t c;
        i = end; /* matches do not overlap, not even with discarded ones */
        if (token->single_word && !stands_alone(a, run, t, p, start, end)) continue;
        while (token->lstrip && start > done) {
            size_t before = char_before(t, start, p.start);
            utf8_get(t->s + before, &c);
            if (!unicode_is_space(c)) break;
            start = before;
        }
        if (token->rstrip && end < done) end = done; /* spaces that the previous token already covers */
        for (unsigned n; token->rstrip && end < p.end; end += n) {
            n = utf8_get(t->s + end, &c);
            if (!unicode_is_space(c)) break;
        }
        if (token->lstrip && start < done) start = done;
        text_piece(out, done, start, PIECE_OPEN);
        text_piece(out, start, end, token->id);
        done = end;
    }
    text_piece(out, done, p.end, PIECE_OPEN);
}

void added_cut(const struct added *a, const struct added_trie *trie, struct regex_run *run, struct text *t,
               struct text *spare)
{
    if (trie->n_nodes <= 1) return;
    text_clear(spare);
    for (size_t k = 0; k < t->n_pieces; k++) {
        struct piece p = t->pieces[k];
        if (p.id == PIECE_OPEN)
            piece_cut(a, trie, run, t, p, spare);
        else
            text_piece(spare, p.start, p.end, p.id);
    }
    text_take_pieces(t, spare);
}
