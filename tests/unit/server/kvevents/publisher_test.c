/* The publisher with a wire of the test's own: what is slow holds up the thread and nobody else, and what was missed is
 * sent again. */
#include "engine/base/mem.h"
#include "server/kvevents/module.h"
#include "server/kvevents/publisher.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { SENT = 20000, ASKED = 20 };

/* What the wire saw; under its lock. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stuck; /* sending waits */
    uint64_t number[SENT];
    size_t bytes[SENT];
    int n;
    char topic[64];
    struct kv_wire_request asked[ASKED];
    int n_asked, taken, subscribers;
    struct kv_event_sink *late; /* a batch is posted there just before a request comes */
    int full;                   /* so many answers are refused first */
    bool gone;                  /* the subscriber */
    uint64_t answered[SENT];
    int n_answered, ends;
} wire = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static char *pack(const struct kv_event_batch *b, double unix_time, bool maps, size_t *n)
{
    assert_true(unix_time > 1e9 && !maps);
    *n = b->n_tokens * sizeof *b->tokens + 1;
    return mem_zalloc(*n);
}

static void send_batch(void *state, const char *topic, uint64_t sequence, const void *payload, size_t n)
{
    pthread_mutex_lock(&wire.lock);
    while (wire.stuck) pthread_cond_wait(&wire.changed, &wire.lock);
    assert_true(wire.n < SENT);
    strncpy(wire.topic, topic, sizeof wire.topic - 1);
    wire.bytes[wire.n] = n;
    wire.number[wire.n++] = sequence;
    pthread_cond_broadcast(&wire.changed);
    pthread_mutex_unlock(&wire.lock);
}

static bool subscribed(void *state)
{
    pthread_mutex_lock(&wire.lock);
    bool any = wire.subscribers > 0;
    wire.subscribers = 0;
    pthread_mutex_unlock(&wire.lock);
    return any;
}

static void wait_for(void *state, int fd, bool requests, int ms)
{
    pthread_mutex_lock(&wire.lock);
    bool any = requests && wire.taken < wire.n_asked;
    pthread_mutex_unlock(&wire.lock);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (!any) poll(&p, 1, ms < 0 || ms > 20 ? 20 : ms); /* requests of the test wake nobody */
}

static bool take(void *state, struct kv_wire_request *r)
{
    const struct kv_event_batch b = {.model = "", .v = &(struct kv_event){.kind = KV_CLEARED}, .n = 1};
    pthread_mutex_lock(&wire.lock);
    bool any = wire.taken < wire.n_asked;
    if (any) *r = wire.asked[wire.taken++];
    struct kv_event_sink *late = any ? wire.late : NULL;
    pthread_mutex_unlock(&wire.lock);
    if (late) late->post(late->arg, &b);
    return any;
}

static enum kv_wire_sent answer(void *state, const struct kv_wire_request *r, uint64_t sequence, const void *payload,
                                size_t n, const char *topic)
{
    enum kv_wire_sent sent = KV_WIRE_SENT;
    pthread_mutex_lock(&wire.lock);
    assert_null(topic);
    if (wire.gone) {
        sent = KV_WIRE_GONE;
    } else if (wire.full) {
        sent = KV_WIRE_FULL;
        wire.full--;
    } else if (payload) {
        wire.answered[wire.n_answered++] = sequence;
    } else {
        assert_true(sequence == UINT64_MAX && n == 0);
        wire.ends++;
    }
    pthread_cond_broadcast(&wire.changed);
    pthread_mutex_unlock(&wire.lock);
    return sent;
}

static void close_wire(void *state)
{
    (void)state;
}

static atomic_long seconds; /* what the clock shows; it goes only as the test moves it */

int __real_clock_gettime(clockid_t, struct timespec *);
int __wrap_clock_gettime(clockid_t, struct timespec *);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    if (clock != CLOCK_MONOTONIC) return __real_clock_gettime(clock, t);
    *t = (struct timespec){.tv_sec = seconds};
    return 0;
}

int __wrap_kv_wire_load(const struct kv_wire_config *, struct kv_wire *out, struct err *e);
int __wrap_kv_wire_load(const struct kv_wire_config *c, struct kv_wire *out, struct err *e)
{
    assert_string_equal(c->endpoint, "the endpoint");
    *out = (struct kv_wire){.pack = pack,
                            .send = send_batch,
                            .subscribed = subscribed,
                            .wait = wait_for,
                            .take = take,
                            .answer = answer,
                            .close = close_wire};
    return 0;
}

/* ---- the test's side --------------------------------------------------------------------------------------------- */

struct rig {
    struct kv_publisher *p;
    struct kv_event_sink *sink;
    struct kv_event event;
    int32_t *tokens;
};

static bool post(struct rig *g, size_t n_tokens)
{
    const struct kv_event_batch b = {
        .model = "m/x", .page_tokens = 16, .v = &g->event, .n = 1, .n_tokens = n_tokens, .tokens = g->tokens};
    return g->sink->post(g->sink->arg, &b);
}

static void wait_sent(int n)
{
    pthread_mutex_lock(&wire.lock);
    while (wire.n < n) pthread_cond_wait(&wire.changed, &wire.lock);
    pthread_mutex_unlock(&wire.lock);
}

static void wait_ends(int n)
{
    pthread_mutex_lock(&wire.lock);
    while (wire.ends < n) pthread_cond_wait(&wire.changed, &wire.lock);
    pthread_mutex_unlock(&wire.lock);
}

static void wait_resync(struct rig *g, unsigned n)
{
    while (atomic_load(&g->sink->resync) < n) poll(NULL, 0, 1);
    assert_int_equal(atomic_load(&g->sink->resync), n);
}

static void ask(uint64_t from)
{
    pthread_mutex_lock(&wire.lock);
    wire.n_answered = 0;
    wire.asked[wire.n_asked++] = (struct kv_wire_request){.client = "c", .n_client = 1, .from = from};
    pthread_mutex_unlock(&wire.lock);
}

static int setup(void **state)
{
    struct rig *g = *state = mem_zalloc(sizeof *g);
    struct err e = {0};
    wire.stuck = wire.gone = false;
    wire.n = wire.n_asked = wire.taken = wire.subscribers = wire.full = wire.n_answered = wire.ends = 0;
    wire.late = NULL;
    seconds = 1000;
    g->tokens = mem_array((size_t)1 << 20, sizeof *g->tokens);
    g->event.kind = KV_CLEARED;
    g->p = kv_publisher_open(
        &(struct kv_publisher_config){.endpoint = "the endpoint", .replay = "", .topic = "a{model}b{m}"}, &e);
    g->sink = kv_publisher_sink(g->p);
    return 0;
}

static int teardown(void **state)
{
    struct rig *g = *state;
    kv_publisher_close(g->p);
    free(g->tokens);
    free(g);
    return 0;
}

static void set_stuck(bool stuck)
{
    pthread_mutex_lock(&wire.lock);
    wire.stuck = stuck;
    pthread_cond_broadcast(&wire.changed);
    pthread_mutex_unlock(&wire.lock);
}

static void numbers_batches_in_order(void **state)
{
    struct rig *g = *state;
    for (size_t i = 0; i < 100; i++) assert_true(post(g, i));
    wait_sent(100);
    for (size_t i = 0; i < 100; i++) assert_true(wire.number[i] == i && wire.bytes[i] == 4 * i + 1);
    assert_string_equal(wire.topic, "am/xb{m}");
    assert_int_equal(kv_publisher_counts(g->p).refused, 0);
}

/* An engine never waits: what does not fit is refused, and later there is room again. */
static void a_full_queue_refuses(void **state)
{
    struct rig *g = *state;
    set_stuck(true);
    int taken = 0;
    while (taken < 100 && post(g, 1 << 20)) taken++; /* 4 MiB each */
    assert_in_range(taken, 14, 18);
    assert_int_equal(kv_publisher_counts(g->p).refused, 1);
    set_stuck(false);
    wait_sent(taken);
    while (!post(g, 1)) { /* the last one is being counted */
    }
    wait_sent(taken + 1);
    for (int i = 0; i <= taken; i++) assert_int_equal(wire.number[i], i);
}

static void what_was_missed_is_sent_again(void **state)
{
    struct rig *g = *state;
    for (int i = 0; i < 50; i++) post(g, 1);
    wait_sent(50);
    wire.full = 3; /* it reads slowly */
    ask(20);
    wait_ends(1);
    assert_int_equal(wire.n_answered, 30);
    for (int i = 0; i < 30; i++) assert_int_equal(wire.answered[i], 20 + i);
    assert_int_equal(wire.full, 0);
    ask(50);
    wait_ends(2);
    assert_int_equal(wire.n_answered, 0);
    ask(UINT64_MAX);
    wait_ends(3);
    assert_int_equal(wire.n_answered, 0);
    struct kv_publisher_counts c = kv_publisher_counts(g->p);
    assert_true(c.batches == 50 && c.replays == 3 && c.resyncs == 0);
    assert_int_equal(atomic_load(&g->sink->resync), 0);
}

/* Whoever asks is answered with all that was posted before. */
static void an_answer_has_what_was_posted_before(void **state)
{
    struct rig *g = *state;
    wire.late = g->sink;
    for (int i = 0; i < 10; i++) {
        ask(0);
        wait_ends(i + 1);
        assert_int_equal(wire.n_answered, i + 1);
    }
}

/* By their number, and by their bytes. */
static void what_is_kept_is_bounded(void **state)
{
    struct rig *g = *state;
    for (int i = 0; i < 10100; i++)
        while (!post(g, 1)) {
        }
    wait_sent(10100);
    ask(0);
    wait_ends(1);
    assert_int_equal(wire.n_answered, 10000);
    assert_int_equal(wire.answered[0], 100);
    wait_resync(g, 1);
    for (int i = 0; i < 40; i++)
        while (!post(g, 1 << 20)) {
        }
    wait_sent(10140);
    ask(10125);
    wait_ends(2);
    assert_int_equal(wire.n_answered, 15); /* each is 4 MiB and a byte */
    assert_int_equal(kv_publisher_counts(g->p).resyncs, 1);
}

static void subscribe(int n)
{
    pthread_mutex_lock(&wire.lock);
    wire.subscribers = n;
    pthread_mutex_unlock(&wire.lock);
}

/* Returns after the thread has looked for requests twice. */
static void let_it_look(void)
{
    for (int i = 0; i < 2; i++) {
        int ends = wire.ends;
        ask(UINT64_MAX);
        wait_ends(ends + 1);
    }
}

/* Who subscribes is told everything: several at once by the same, a later one soon again.  Somebody who comes again and
 * again does not make the engines post everything all the time. */
static void a_new_subscriber_is_told_everything(void **state)
{
    struct rig *g = *state;
    for (unsigned i = 1; i <= 4; i++) {
        subscribe(3);
        wait_resync(g, i);
    }
    subscribe(1);
    let_it_look();
    seconds += 29;
    let_it_look();
    wait_resync(g, 4);
    seconds += 1;
    wait_resync(g, 5);
    subscribe(1);
    let_it_look();
    wait_resync(g, 5);
    seconds += 1000;
    for (unsigned i = 6; i <= 9; i++) {
        wait_resync(g, i);
        subscribe(1);
    }
    let_it_look();
    wait_resync(g, 9);
    assert_int_equal(kv_publisher_counts(g->p).resyncs, 9);
}

/* More subscribers than places, and one that left: all get their answer. */
static void many_ask_at_once(void **state)
{
    struct rig *g = *state;
    post(g, 1);
    wait_sent(1);
    pthread_mutex_lock(&wire.lock);
    wire.full = 40;
    for (int i = 0; i < ASKED; i++) wire.asked[i] = (struct kv_wire_request){.n_client = 1};
    wire.n_asked = ASKED;
    pthread_mutex_unlock(&wire.lock);
    wait_ends(ASKED);
    assert_int_equal(wire.n_answered, ASKED);
    assert_int_equal(kv_publisher_counts(g->p).replays, ASKED);
}

static void one_that_left_is_forgotten(void **state)
{
    struct rig *g = *state;
    post(g, 1);
    wait_sent(1);
    pthread_mutex_lock(&wire.lock);
    wire.gone = true;
    wire.asked[0] = (struct kv_wire_request){.n_client = 1};
    wire.n_asked = 1;
    while (!wire.taken) {
        pthread_mutex_unlock(&wire.lock);
        poll(NULL, 0, 1);
        pthread_mutex_lock(&wire.lock);
    }
    pthread_mutex_unlock(&wire.lock);
    post(g, 1);
    wait_sent(2);
    assert_int_equal(wire.n_answered + wire.ends, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(numbers_batches_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_queue_refuses, setup, teardown),
        cmocka_unit_test_setup_teardown(what_was_missed_is_sent_again, setup, teardown),
        cmocka_unit_test_setup_teardown(an_answer_has_what_was_posted_before, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_kept_is_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(a_new_subscriber_is_told_everything, setup, teardown),
        cmocka_unit_test_setup_teardown(many_ask_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(one_that_left_is_forgotten, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
