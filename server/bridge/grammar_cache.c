/* An LRU cache of grammars, which compiles new ones on the thread pool (the request side is constraint.h).  Loop
 * thread, except work_compile (pool). */
#include "server/bridge/grammar_cache.h"

#include "engine/base/mem.h"
#include "server/bridge/bridge.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT = 16 };

struct kept {
    struct constraint_request request; /* owned */
    uint64_t hash, used;               /* used: a count of uses, the larger the later */
    struct grammar *grammar;
};

struct grammar_cache {
    struct bridge *bridge;
    unsigned char bytes[256]; /* not 0: some token of the model contains this byte; constant */
    struct kept v[KEPT];
    size_t n;
    uint64_t uses;
};

struct grammar_cache_job {
    struct grammar_cache *all;
    struct constraint_request request; /* owned */
    uint64_t hash;
    grammar_cache_fn *done; /* NULL: cancelled */
    _Atomic bool gone;      /* the same, for the pool */
    void *arg;
    struct grammar *grammar;
    struct err err;
};

static uint64_t hash_bytes(uint64_t h, const struct buf *b)
{
    for (size_t i = 0; i < b->len; i++) h = (h ^ (unsigned char)b->data[i]) * 0x100000001b3u;
    return (h ^ b->len) * 0x9e3779b97f4a7c15u;
}

static uint64_t hash_request(const struct constraint_request *a)
{
    return hash_bytes(hash_bytes(hash_bytes(0xcbf29ce484222325u + (unsigned)a->kind, &a->text), &a->before), &a->after);
}

static bool same_text(const struct buf *a, const struct buf *b)
{
    return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

static struct kept *find(struct grammar_cache *all, const struct constraint_request *request, uint64_t hash)
{
    for (size_t i = 0; i < all->n; i++) {
        struct kept *k = &all->v[i];
        if (k->hash == hash && k->request.kind == request->kind && same_text(&k->request.text, &request->text) &&
            same_text(&k->request.before, &request->before) && same_text(&k->request.after, &request->after))
            return k;
    }
    return NULL;
}

/* Moves the job's request and grammar into the cache, evicting the least recently used entry. */
static struct grammar *keep(struct grammar_cache *all, struct grammar_cache_job *j)
{
    struct kept *k = find(all, &j->request, j->hash);
    if (k) { /* two requests compiled it concurrently */
        grammar_unref(j->grammar);
        constraint_request_free(&j->request);
    } else {
        if (all->n < KEPT) {
            k = &all->v[all->n++];
        } else {
            k = &all->v[0];
            for (size_t i = 1; i < all->n; i++)
                if (all->v[i].used < k->used) k = &all->v[i];
            grammar_unref(k->grammar);
            constraint_request_free(&k->request);
        }
        *k = (struct kept){.request = j->request, .hash = j->hash, .grammar = j->grammar};
        j->request = (struct constraint_request){0};
    }
    j->grammar = NULL;
    k->used = ++all->uses;
    return k->grammar;
}

/* Records the bytes of all tokens except special ones, which are not part of a text, but for the byte around them where
 * a grammar has them (grammar.h). */
static void note_bytes(const struct tokenizer *t, unsigned char bytes[256])
{
    struct buf text = {0};
    for (int32_t id = 0; id < tokenizer_size(t); id++) {
        bool special = tokenizer_is_special(t, id);
        if (special) bytes[GRAM_SPECIAL] = 1;
        if (special) continue;
        buf_clear(&text);
        tokenizer_bytes(t, id, &text);
        for (size_t i = 0; i < text.len; i++) bytes[(unsigned char)text.data[i]] = 1;
    }
    buf_free(&text);
}

struct grammar_cache *grammar_cache_new(const struct tokenizer *tokenizer)
{
    struct grammar_cache *all = mem_zalloc(sizeof *all);
    note_bytes(tokenizer, all->bytes);
    return all;
}

void grammar_cache_bridge(struct grammar_cache *all, struct bridge *bridge)
{
    all->bridge = bridge;
}

void grammar_cache_free(struct grammar_cache *all)
{
    if (!all) return;
    for (size_t i = 0; i < all->n; i++) {
        grammar_unref(all->v[i].grammar);
        constraint_request_free(&all->v[i].request);
    }
    free(all);
}

static void work_compile(void *arg)
{
    struct grammar_cache_job *j = arg;
    if (atomic_load(&j->gone)) return;
    j->grammar = constraint_build(&j->request, &j->err);
    if (!j->grammar || !grammar_check_bytes(j->grammar, j->all->bytes, &j->err)) return;
    grammar_unref(j->grammar);
    j->grammar = NULL;
}

static void after_compile(void *arg)
{
    struct grammar_cache_job *j = arg;
    /* own reference: done may request other grammars, which could evict this one */
    struct grammar *g = j->grammar ? grammar_ref(keep(j->all, j)) : NULL;
    if (j->done) j->done(j->arg, g, &j->err);
    grammar_unref(g);
    constraint_request_free(&j->request);
    free(j);
}

static void copy_text(struct buf *out, const struct buf *in)
{
    if (in->len) buf_append(out, in->data, in->len);
}

struct grammar_cache_job *grammar_cache_compile(struct grammar_cache *all, uint64_t client,
                                                const struct constraint_request *request, grammar_cache_fn *done,
                                                void *arg)
{
    struct err none = {0};
    if (request->kind == CONSTRAINT_NONE) {
        done(arg, NULL, &none);
        return NULL;
    }
    uint64_t hash = hash_request(request);
    struct kept *k = find(all, request, hash);
    if (k) {
        struct grammar *g = grammar_ref(k->grammar);
        k->used = ++all->uses;
        done(arg, g, &none);
        grammar_unref(g);
        return NULL;
    }
    struct grammar_cache_job *j = mem_zalloc(sizeof *j);
    *j = (struct grammar_cache_job){.all = all, .hash = hash, .done = done, .arg = arg};
    j->request.kind = request->kind;
    j->request.field = request->field;
    copy_text(&j->request.text, &request->text);
    copy_text(&j->request.before, &request->before);
    copy_text(&j->request.after, &request->after);
    bridge_work(all->bridge, client, work_compile, after_compile, j);
    return j;
}

void grammar_cache_cancel(struct grammar_cache_job *j)
{
    if (!j) return;
    j->done = NULL;
    atomic_store(&j->gone, true);
}
