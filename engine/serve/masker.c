#include "engine/serve/masker.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/grammar/force.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    SLICE_NS = 1000 * 1000, /* the thread's time slice for one request while others wait */
    NICE = 5,               /* the thread's nice value: the step that runs at the same time has priority */
};

struct masked {
    struct masker *k;
    struct grammar *grammar;
    uint64_t id;
    /* owned by the masker thread while MASK_WAIT, from the moment it is queued; else by the engine thread */
    struct gram_automaton *a; /* NULL: not started */
    int32_t state;
    int32_t token;                    /* token to be read first; -1: none */
    size_t n_read;                    /* bytes of it already read */
    const struct gram_forced *forced; /* tokens forced after it, before the mask applies; NULL: not known */
    bool may_force, taken;            /* taken: by masked_forced */
    struct mask_walk walk;
    struct gram_mask *mask; /* of `state` */
    bool accepts, ends;
    const char *why;
    /* under k->lock */
    enum mask_status status;
    bool held, dead;
    struct masked *next; /* in the queue */
};

struct masker {
    const struct tokenizer *tokenizer;
    const int32_t *eos;
    int vocab, n_eos;
    void (*ready)(void *arg, uint64_t id);
    void *arg;
    _Atomic(struct token_trie *) trie; /* NULL: not made yet */
    uint64_t serial;                   /* identifies this masker, so that masks of different maskers are not confused */

    pthread_mutex_t lock;
    pthread_cond_t work, done;
    struct masked *first, **end; /* queue */
    bool started, stopping;
    pthread_t thread;
};

struct masker *masker_new(const struct tokenizer *z, int vocab, const int32_t *eos, int n_eos,
                          void (*ready)(void *arg, uint64_t id), void *arg)
{
    struct masker *k = mem_zalloc(sizeof *k);
    pthread_condattr_t monotonic;
    *k = (struct masker){.tokenizer = z, .vocab = vocab, .eos = eos, .n_eos = n_eos, .ready = ready, .arg = arg};
    static _Atomic uint64_t last_serial;
    k->serial = atomic_fetch_add(&last_serial, 1) + 1;
    k->end = &k->first;
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->work, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&k->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return k;
}

/* ---- the work ---- */

static bool fail(struct masked *m, const char *why)
{
    m->why = why;
    return true;
}

/* Advances the state over the token; @return false when the time is up before the end. */
static bool read_token(struct masked *m, const struct token_trie *t, uint64_t until)
{
    size_t n;
    const unsigned char *s = token_trie_bytes(t, m->token, &n);
    if (n == 0) m->state = GRAM_DEAD;
    for (; m->n_read < n && m->state >= 0; m->n_read++) {
        int32_t to = gram_known(m->a, m->state, s[m->n_read]);
        if (to == GRAM_FULL && clock_now() >= until) return false;
        if (to == GRAM_FULL) to = gram_next(m->a, m->state, s[m->n_read]);
        if (to == GRAM_LATER) return false;
        m->state = to;
    }
    m->token = -1;
    return true;
}

static bool take_mask(struct masked *m, const struct token_trie *t, struct gram_mask *mask)
{
    m->mask = mask;
    m->accepts = gram_accepts(m->a, m->state);
    m->ends = m->accepts && mask->n_allowed == token_trie_eos(t);
    if (mask->n_allowed == 0 && !m->accepts) return fail(m, "no token continues the text as the grammar wants it");
    return true;
}

/* Finds the forced tokens and advances over them; @return false when this must be continued later. */
static bool force(struct masked *m, const struct token_trie *t)
{
    if (m->forced || !m->may_force) return true;
    if (grammar_force(t, m->k->tokenizer, m->a, m->state, &m->forced) == GRAM_LATER) return false;
    if (m->forced->n) m->state = m->forced->to;
    return true;
}

/* @return true when done: m->mask or m->why is set.  Under the automaton's lock. */
static bool work_on(struct masked *m, const struct token_trie *t, uint64_t until)
{
    struct gram_automaton *a = m->a;
    if (m->state < 0) m->state = gram_begin(a);
    if (m->token >= 0 && m->state >= 0 && !read_token(m, t, until)) return false;
    if (m->state == GRAM_DEAD) return fail(m, "a token that the grammar does not allow");
    if (m->state >= 0 && !force(m, t)) return false;
    struct gram_mask *mask;
    int rc = m->state >= 0 ? mask_at(&m->walk, t, a, m->state, until, &mask) : GRAM_FULL;
    if (rc == 0) return false;
    return rc < 0 ? fail(m, "the grammar became too large") : take_mask(m, t, mask);
}

/* Releases the automaton; it is not used any more. */
static void leave(struct masked *m)
{
    mask_walk_drop(&m->walk);
    if (m->a) gram_automaton_leave(m->grammar, m->a);
    m->a = NULL;
}

static void destroy(struct masked *m)
{
    gram_mask_unref(m->mask);
    leave(m);
    grammar_unref(m->grammar);
    free(m);
}

/* ---- the thread ---- */

static void enqueue(struct masker *k, struct masked *m)
{
    m->next = NULL;
    *k->end = m;
    k->end = &m->next;
    pthread_cond_signal(&k->work);
}

static const struct token_trie *trie_of(struct masker *k)
{
    struct token_trie *t = atomic_load(&k->trie);
    if (t) return t;
    t = token_trie_new(k->tokenizer, k->vocab, k->eos, k->n_eos);
    atomic_store(&k->trie, t);
    return t;
}

static bool run_slice(struct masker *k, struct masked *m)
{
    const struct token_trie *t = trie_of(k);
    if (!m->a) m->a = gram_automaton_of(m->grammar, k->serial);
    pthread_mutex_lock(gram_lock(m->a));
    bool done = work_on(m, t, clock_now() + SLICE_NS);
    pthread_mutex_unlock(gram_lock(m->a));
    if (done && m->why) leave(m);
    return done;
}

static void *masker_main(void *arg)
{
    struct masker *k = arg;
    setpriority(PRIO_PROCESS, (id_t)gettid(), NICE); /* on failure it keeps the normal priority */
    pthread_mutex_lock(&k->lock);
    for (;;) {
        while (!k->first && !k->stopping) pthread_cond_wait(&k->work, &k->lock);
        if (k->stopping) break;
        struct masked *m = k->first;
        k->first = m->next;
        if (!k->first) k->end = &k->first;
        bool dead = m->dead;
        pthread_mutex_unlock(&k->lock);
        bool done = !dead && run_slice(k, m);
        pthread_mutex_lock(&k->lock);
        if (m->dead) {
            pthread_mutex_unlock(&k->lock);
            destroy(m);
            pthread_mutex_lock(&k->lock);
        } else if (!done) {
            enqueue(k, m);
        } else {
            bool held = m->held;
            uint64_t id = m->id;
            m->held = false;
            m->status = m->why ? MASK_FAILED : MASK_READY;
            pthread_cond_broadcast(&k->done);
            if (!held) continue;
            pthread_mutex_unlock(&k->lock);
            k->ready(k->arg, id);
            pthread_mutex_lock(&k->lock);
        }
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

void masker_stop(struct masker *k)
{
    pthread_mutex_lock(&k->lock);
    bool started = k->started;
    k->stopping = true;
    pthread_cond_signal(&k->work);
    pthread_mutex_unlock(&k->lock);
    if (started) pthread_join(k->thread, NULL);
    k->started = false;
    for (struct masked *m = k->first, *next; m; m = next) {
        next = m->next;
        if (m->dead) destroy(m);
    }
    k->first = NULL;
    k->end = &k->first;
}

void masker_free(struct masker *k)
{
    if (!k) return;
    token_trie_free(atomic_load(&k->trie));
    pthread_mutex_destroy(&k->lock);
    pthread_cond_destroy(&k->work);
    pthread_cond_destroy(&k->done);
    free(k);
}

/* ---- requests ---- */

struct masked *masked_new(struct masker *k, struct grammar *g, uint64_t id, struct err *e)
{
    struct masked *m = mem_zalloc(sizeof *m);
    *m = (struct masked){.k = k, .grammar = grammar_ref(g), .id = id, .state = -1, .token = -1};
    pthread_mutex_lock(&k->lock);
    int rc = k->started || k->stopping ? 0 : pthread_create(&k->thread, NULL, masker_main, k);
    if (rc == 0) k->started = !k->stopping;
    pthread_mutex_unlock(&k->lock);
    if (rc == 0) return m;
    err_set(e, ERR_IO, "cannot start the thread for constrained output: %s", strerror(rc));
    destroy(m);
    return NULL;
}

void masked_begin(struct masked *m, bool may_force)
{
    struct masker *k = m->k;
    m->may_force = may_force;
    pthread_mutex_lock(&k->lock);
    CHECK(m->status == MASK_NEW);
    m->status = MASK_WAIT;
    enqueue(k, m);
    pthread_mutex_unlock(&k->lock);
}

void masked_free(struct masked *m)
{
    if (!m) return;
    struct masker *k = m->k;
    pthread_mutex_lock(&k->lock);
    bool working = m->status == MASK_WAIT && !k->stopping;
    m->dead = true;
    pthread_mutex_unlock(&k->lock);
    if (!working) destroy(m); /* else the masker thread frees it */
}

enum mask_status masked_poll(struct masked *m, uint64_t until)
{
    struct masker *k = m->k;
    struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    pthread_mutex_lock(&k->lock);
    while (m->status == MASK_WAIT && until && !k->stopping)
        if (pthread_cond_timedwait(&k->done, &k->lock, &t) == ETIMEDOUT) break;
    enum mask_status s = m->status;
    pthread_mutex_unlock(&k->lock);
    return s;
}

bool masked_notify(struct masked *m)
{
    pthread_mutex_lock(&m->k->lock);
    bool waits = m->held = m->status == MASK_WAIT;
    pthread_mutex_unlock(&m->k->lock);
    return waits;
}

const uint32_t *masked_bits(const struct masked *m)
{
    return m->mask->n_allowed ? m->mask->bits : NULL;
}

const int32_t *masked_forced(struct masked *m, int *n)
{
    *n = m->forced && !m->taken ? m->forced->n : 0;
    m->taken = true;
    return *n ? m->forced->ids : NULL;
}

bool masked_accepts(const struct masked *m)
{
    return m->accepts;
}

bool masked_ends(const struct masked *m)
{
    return m->ends;
}

const char *masked_error(const struct masked *m)
{
    return m->why;
}

void masked_token(struct masked *m, int32_t token, uint64_t until)
{
    struct masker *k = m->k;
    const struct token_trie *t = atomic_load(&k->trie);
    CHECK(m->status == MASK_READY && t);
    gram_mask_unref(m->mask);
    m->mask = NULL;
    m->token = token;
    m->n_read = 0;
    m->forced = NULL;
    m->taken = false;
    bool done = false;
    if (pthread_mutex_trylock(gram_lock(m->a)) == 0) {
        gram_hurry(m->a, true); /* a single transition may take milliseconds */
        done = work_on(m, t, until);
        gram_hurry(m->a, false);
        pthread_mutex_unlock(gram_lock(m->a));
        if (done && m->why) leave(m);
    }
    pthread_mutex_lock(&k->lock);
    m->status = !done ? MASK_WAIT : m->why ? MASK_FAILED : MASK_READY;
    if (!done) enqueue(k, m);
    pthread_mutex_unlock(&k->lock);
}
