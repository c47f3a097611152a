/* KV events: a router that reads them knows at any time which prefixes a request would find, and no others.
 *
 * Texts are drawn so that they share prefixes.  What becomes of pages is worse than the scheduler makes it: references
 * are dropped in any order, texts run twice at once, and everything is forgotten now and then.  The router here knows
 * only the batches.  Its answer is compared with a search of the pool. */
#include "engine/base/mem.h"
#include "engine/serve/kv_published.h"
#include "engine/serve/sched.h"
#include "kernels/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PAGES = 24, DEPTH = 6, WORDS = 3, RUNS = 6, ROUNDS = 20000, BLOCKS = 4096 };

/* ---- the router -------------------------------------------------------------------------------------------------- */

struct known_page {
    uint64_t hash, parent;
    int32_t tokens[KV_PAGE];
    char adapter[ADAPTER_NAME_MAX + 1];
};

struct router {
    struct known_page v[BLOCKS];
    int n;
    bool full; /* takes nothing */
    int posts, refused, cleared, events;
    int left; /* pages that were known when everything was forgotten */
};

static int known(const struct router *r, uint64_t hash)
{
    for (int i = 0; i < r->n; i++)
        if (r->v[i].hash == hash) return i;
    return -1;
}

static void store(struct router *r, const struct kv_event_batch *b, const struct kv_event *e)
{
    uint64_t parent = e->parent;
    for (size_t i = 0; i < e->pages; i++) {
        struct known_page *k = &r->v[r->n++];
        assert_true(r->n < BLOCKS);
        *k = (struct known_page){.hash = b->hashes[e->hash + i], .parent = parent};
        memcpy(k->tokens, b->tokens + e->token + i * KV_PAGE, sizeof k->tokens);
        memcpy(k->adapter, e->adapter, sizeof k->adapter);
        assert_true(k->hash != 0 && known(r, k->hash) == r->n - 1); /* never told twice */
        assert_true(!parent || known(r, parent) >= 0);
        parent = k->hash;
    }
}

static bool post(void *arg, const struct kv_event_batch *b)
{
    struct router *r = arg;
    r->posts++;
    if (r->full) return r->refused++, false;
    assert_string_equal(b->model, "model");
    assert_int_equal(b->page_tokens, KV_PAGE);
    assert_true(b->n > 0);
    for (size_t i = 0; i < b->n; i++) {
        const struct kv_event *e = &b->v[i];
        r->events++;
        assert_true(e->hash + e->pages <= b->n_hashes);
        if (e->kind == KV_STORED) assert_true(e->token + e->pages * KV_PAGE <= b->n_tokens);
        if (e->kind == KV_STORED) store(r, b, e);
        if (e->kind == KV_CLEARED) r->left += r->n, r->n = 0, r->cleared++;
        for (size_t k = 0; e->kind == KV_REMOVED && k < e->pages; k++) {
            int at = known(r, b->hashes[e->hash + k]);
            assert_true(at >= 0);
            r->v[at] = r->v[--r->n];
        }
    }
    return true;
}

/* How many pages of the text the router believes to be cached. */
static int believes(const struct router *r, const char *adapter, const int32_t *tokens)
{
    uint64_t parent = 0;
    int n = 0;
    for (bool found = true; found && n < DEPTH; n += found) {
        found = false;
        for (int i = 0; i < r->n && !found; i++) {
            const struct known_page *k = &r->v[i];
            found = k->parent == parent && strcmp(k->adapter, adapter) == 0 &&
                    memcmp(k->tokens, tokens + n * KV_PAGE, sizeof k->tokens) == 0;
            if (found) parent = k->hash;
        }
    }
    return n;
}

/* ---- what happens to the pool ------------------------------------------------------------------------------------ */

struct text {
    int32_t tokens[DEPTH * KV_PAGE];
    uint64_t root, salt;
    int version; /* 0: the base model */
};

struct run {
    struct text t;
    int32_t page[DEPTH];
    int n;
    uint64_t serial;
};

struct rig {
    uint64_t random;
    struct kv_pool *pool;
    struct adapters adapters;
    struct adapter_version version[2];
    uint64_t last_version;
    struct kv_event_sink sink;
    struct router router;
    struct kv_published *published;
    struct run run[RUNS];
};

static int draw(struct rig *g, int n)
{
    g->random = rng_mix(g->random + 1);
    return (int)(g->random % (uint64_t)n);
}

static void set_version(struct rig *g, int i)
{
    struct adapter_version *v = &g->version[i];
    *v = (struct adapter_version){.refs = 1, .next = i ? NULL : &g->version[1]};
    v->info.version = ++g->last_version;
    v->lora.up = i;
    v->info.name[0] = (char)('a' + i);
}

static struct text draw_text(struct rig *g)
{
    struct text t = {.version = draw(g, 3)};
    for (int i = 0; i < DEPTH; i++)
        for (int k = 0, word = draw(g, i < 2 ? 2 : WORDS); k < KV_PAGE; k++) t.tokens[i * KV_PAGE + k] = 7 * word + k;
    if (t.version) t.root = adapter_root(&g->version[t.version - 1]);
    if (draw(g, 10) == 0) t.root |= SEQ_FAR;
    if (draw(g, 10) == 0) t.salt = 5;
    return t;
}

static int cached(const struct rig *g, const struct text *t)
{
    uint64_t serial = t->root;
    int n = 0;
    while (n < DEPTH && kv_peek(g->pool, serial, t->salt, t->tokens + n * KV_PAGE, &serial) >= 0) n++;
    return n;
}

/* A text begins: it takes what is cached, or computes all itself, as one of two that began at once does. */
static void begin(struct rig *g, struct run *r)
{
    *r = (struct run){.t = draw_text(g)};
    r->serial = r->t.root;
    bool computes = draw(g, 4) == 0;
    while (!computes && r->n < DEPTH) {
        int32_t page = kv_lookup(g->pool, r->serial, r->t.salt, r->t.tokens + r->n * KV_PAGE, &r->serial);
        if (page < 0) break;
        r->page[r->n++] = page;
    }
}

static void grow(struct rig *g, struct run *r)
{
    int32_t page = r->n < DEPTH ? kv_alloc(g->pool) : -1;
    if (page < 0) return;
    r->page[r->n] = page;
    r->serial = kv_register(g->pool, page, r->serial, r->t.salt, r->t.tokens + r->n * KV_PAGE);
    r->n++;
}

static void end(struct rig *g, struct run *r)
{
    while (r->n) {
        int i = draw(g, r->n);
        kv_unref(g->pool, r->page[i]);
        r->page[i] = r->page[--r->n];
    }
    *r = (struct run){0};
}

static void happen(struct rig *g)
{
    struct run *r = &g->run[draw(g, RUNS)];
    int what = draw(g, 100);
    if (what == 0) kv_forget(g->pool);
    if (what == 1) {
        set_version(g, draw(g, 2)); /* the other stays */
        kv_published_sweep(g->published);
    }
    if (!r->n && what > 1) begin(g, r);
    if (what < 80)
        grow(g, r);
    else
        end(g, r);
}

static void check(struct rig *g)
{
    struct text t = draw_text(g);
    char name[2] = {t.version ? (char)('a' + t.version - 1) : 0, 0};
    kv_published_check(g->published);
    if (t.salt || t.root & SEQ_FAR) /* the router knows the same text without them, if any */
        t.salt = 0, t.root &= ~SEQ_FAR;
    assert_int_equal(believes(&g->router, name, t.tokens), cached(g, &t));
}

static int setup(void **state)
{
    struct rig *g = *state = mem_zalloc(sizeof *g);
    g->random = 12;
    g->pool = kv_pool_new(PAGES, 3);
    adapters_init(&g->adapters, 2, 8);
    set_version(g, 0);
    set_version(g, 1);
    g->adapters.current = &g->version[0];
    g->sink = (struct kv_event_sink){.post = post, .arg = &g->router};
    g->published = kv_published_new(g->pool, &g->adapters, &g->sink, "model");
    return 0;
}

static int teardown(void **state)
{
    struct rig *g = *state;
    kv_published_free(g->published);
    kv_pool_free(g->pool);
    free(g);
    return 0;
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void knows_what_is_cached(void **state)
{
    struct rig *g = *state;
    int found = 0;
    assert_int_equal(g->router.cleared, 1); /* at the start */
    for (int i = 0; i < ROUNDS; i++) {
        happen(g);
        kv_published_flush(g->published);
        check(g);
        struct text t = draw_text(g);
        found += cached(g, &t);
    }
    assert_true(found > ROUNDS / 10); /* there was something to know */
    int cleared = g->router.cleared;
    kv_published_free(g->published);
    g->published = NULL;
    assert_true(cleared > 10 && g->router.cleared == cleared + 1);
    assert_int_equal(g->router.n, 0);
    assert_int_equal(g->router.left, 0); /* each page was removed before, for routers that pass over KV_CLEARED */
}

static void learns_again_what_it_missed(void **state)
{
    struct rig *g = *state;
    int times = 0;
    for (int i = 0; i < ROUNDS; i++) {
        g->router.full = draw(g, 8) == 0;
        happen(g);
        kv_published_flush(g->published);
        times += g->router.full;
        if (g->router.full) continue;
        check(g);
    }
    assert_true(times > 1000 && g->router.refused > 500 && g->router.cleared > 200);
}

static void learns_all_when_it_asks(void **state)
{
    struct rig *g = *state;
    for (int i = 0; i < 500; i++) happen(g);
    kv_published_flush(g->published);
    int cleared = g->router.cleared, posts = g->router.posts;
    kv_published_flush(g->published);
    assert_int_equal(g->router.posts, posts); /* nothing happened */
    g->router.n = 0;                          /* it was started again */
    atomic_fetch_add(&g->sink.resync, 1);
    kv_published_flush(g->published);
    assert_int_equal(g->router.cleared, cleared + 1);
    assert_int_equal(g->router.n, kv_published_check(g->published));
    check(g);
    kv_published_flush(g->published);
    assert_int_equal(g->router.cleared, cleared + 1);
}

/* A prompt of several pages is one event, in order. */
static void pages_of_a_text_are_one_event(void **state)
{
    struct rig *g = *state;
    struct run *r = &g->run[0];
    kv_published_flush(g->published);
    int events = g->router.events;
    for (int k = 0; k < DEPTH * KV_PAGE; k++) r->t.tokens[k] = k;
    while (r->n < DEPTH) grow(g, r);
    kv_published_flush(g->published);
    assert_int_equal(g->router.events, events + 1);
    assert_int_equal(believes(&g->router, "", r->t.tokens), DEPTH);
}

/* The same text has the same hash in every process; another adapter's has another. */
static void hashes_depend_on_what_is_cached(void **state)
{
    struct rig *g = *state;
    uint64_t first[2];
    for (int i = 0; i < 2; i++) {
        struct run *r = &g->run[i];
        for (int k = 0; k < KV_PAGE; k++) r->t.tokens[k] = k;
        r->serial = r->t.root = i ? adapter_root(&g->version[0]) : 0;
        grow(g, r);
        kv_published_flush(g->published);
        first[i] = g->router.v[g->router.n - 1].hash;
    }
    assert_true(first[0] != first[1]);
    assert_true(first[0] == UINT64_C(0x63ed477352af302d)); /* by Python's hashlib */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(knows_what_is_cached, setup, teardown),
        cmocka_unit_test_setup_teardown(learns_again_what_it_missed, setup, teardown),
        cmocka_unit_test_setup_teardown(learns_all_when_it_asks, setup, teardown),
        cmocka_unit_test_setup_teardown(pages_of_a_text_are_one_event, setup, teardown),
        cmocka_unit_test_setup_teardown(hashes_depend_on_what_is_cached, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
