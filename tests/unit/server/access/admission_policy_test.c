/* Admission as a decision: limits, buckets, estimates, and clocks that go back. */
#include "server/access/admission_policy.h"

#include "kernels/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define SECOND UINT64_C(1000000000)

#define assert_near(x, y)                                                                                              \
    do {                                                                                                               \
        double x_ = (x), y_ = (y);                                                                                     \
        if (!(fabs(x_ - y_) < 1e-6)) fail_msg("%s = %.9g, not %.9g", #x, x_, y_);                                      \
    } while (0)

static struct admission_policy a;
static uint64_t now;
static double retry;

static void begin(int max_seqs, int max_queue, int64_t max_tokens, double max_wait)
{
    policy_free(&a);
    policy_init(&a, &(struct policy_limits){
                        .max_seqs = max_seqs, .max_queue = max_queue, .max_tokens = max_tokens, .max_wait = max_wait});
    now = 1000 * SECOND;
}

static int setup(void **state)
{
    policy_init(&a, &(struct policy_limits){.max_seqs = 1, .max_queue = 1, .max_tokens = 1});
    return 0;
}

static int teardown(void **state)
{
    policy_free(&a);
    return 0;
}

static enum policy_verdict ask(struct policy_request q)
{
    enum policy_verdict v = policy_decide(&a, &q, now, &retry);
    if (v == POLICY_YES) policy_admit(&a, &q, now);
    return v;
}

/* n sequences with so many prompt tokens in all */
static enum policy_verdict plain(int n, int64_t tokens)
{
    return ask((struct policy_request){.n = n, .tokens = tokens});
}

/* What runs, and a rate of prompts: tokens in a second. */
static void see(int running, double tokens, double seconds)
{
    struct policy_sample s = a.last;
    s.running = running;
    s.prefill_tokens += (uint64_t)tokens;
    s.prefill_ns += (uint64_t)(seconds * 1e9);
    policy_observe(&a, &s);
}

/* ---- the queue --------------------------------------------------------------------------------------------------- */

static void test_sequences_are_bounded(void **state)
{
    begin(2, 3, 1000, 0);
    for (int i = 0; i < 5; i++) assert_int_equal(plain(1, 1), POLICY_YES);
    assert_int_equal(plain(1, 1), POLICY_QUEUE_FULL);
    policy_release(&a, NULL, 1, 1);
    assert_int_equal(plain(2, 2), POLICY_QUEUE_FULL); /* n counts n */
    assert_int_equal(plain(1, 1), POLICY_YES);
    assert_int_equal(plain(6, 6), POLICY_TOO_MANY); /* never, whoever leaves */
    policy_release(&a, NULL, 5, 5);
    assert_int_equal(plain(5, 5), POLICY_YES);
}

static void test_tokens_are_bounded(void **state)
{
    begin(8, 8, 100, 0);
    assert_int_equal(plain(1, 60), POLICY_YES);
    assert_int_equal(plain(1, 41), POLICY_QUEUE_TOKENS);
    assert_int_equal(plain(1, 40), POLICY_YES);
    assert_int_equal(plain(1, 500), POLICY_QUEUE_TOKENS);
    policy_release(&a, NULL, 0, 99);
    assert_int_equal(plain(1, 500), POLICY_QUEUE_TOKENS); /* a token waits */
    policy_release(&a, NULL, 0, 1);
    assert_int_equal(plain(1, 500), POLICY_YES); /* larger than the limit, and alone */
    assert_int_equal(plain(1, 1), POLICY_QUEUE_TOKENS);
}

static void test_more_of_the_same_request(void **state)
{
    begin(2, 2, 100, 0);
    assert_int_equal(plain(1, 50), POLICY_YES);
    /* it turns out to be 4 sequences of 50 tokens: alone, so its own tokens are not in its way */
    struct policy_request more = {.n = 4, .tokens = 200, .held_n = 1, .held_tokens = 50};
    assert_int_equal(ask(more), POLICY_YES);
    assert_int_equal(a.active, 4);
    assert_int_equal(a.queued, 200);
    more.n = 5, more.held_n = 4, more.held_tokens = 200;
    assert_int_equal(ask(more), POLICY_TOO_MANY);
    assert_int_equal(plain(1, 1), POLICY_QUEUE_FULL);
    more.n = 1;
    assert_int_equal(ask(more), POLICY_YES); /* fewer than it held */
    assert_int_equal(a.active, 1);
}

static void test_a_guess_of_tokens(void **state)
{
    begin(1, 1, 1, 0);
    assert_int_equal(policy_estimate_tokens(&a, NULL, 0, 1), 1);
    assert_int_equal(policy_estimate_tokens(&a, NULL, 4000, 1), 1000);
    for (int i = 0; i < 100; i++) policy_record_tokens(&a, NULL, 10000, 10000); /* a script of a token for each byte */
    assert_in_range(policy_estimate_tokens(&a, NULL, 4000, 1), 3900, 4000);
    for (int i = 0; i < 1000; i++) policy_record_tokens(&a, NULL, 10000, 1000);
    assert_in_range(policy_estimate_tokens(&a, NULL, 4000, 1), 400, 420);
    assert_true(policy_estimate_tokens(&a, NULL, UINT64_MAX, 1) > 0);
}

/* ---- estimates --------------------------------------------------------------------------------------------------- */

static void test_wait_for_slots(void **state)
{
    begin(4, 100, 1 << 30, 0);
    assert_int_equal(policy_estimate_wait(&a, 10, now), 0); /* nothing is known */
    plain(24, 0);
    see(4, 0, 0);
    for (int i = 0; i < 100; i++) policy_record_end(&a, 8, now);
    /* 20 wait, and one more: one of four that take 8 s each ends every 2 s */
    assert_near(policy_estimate_wait(&a, 10, now), 42);
    now += 16 * SECOND; /* nothing has ended for twice as long as it should take */
    assert_near(policy_estimate_wait(&a, 10, now), 84);
    policy_record_end(&a, 8, now);
    assert_near(policy_estimate_wait(&a, 10, now), 42);
}

static void test_idle_time_is_no_stall(void **state)
{
    begin(1, 100, 1 << 30, 0);
    plain(1, 0);
    see(1, 0, 0);
    now += 2 * SECOND;
    policy_record_end(&a, 2, now);
    policy_release(&a, NULL, 1, 0);
    now += 3600 * SECOND;
    plain(1, 0);
    assert_near(policy_estimate_wait(&a, 0, now), 2);
}

static void test_wait_for_prompts(void **state)
{
    begin(64, 64, 1 << 30, 0);
    see(1, 4000, 5); /* 800 a second */
    plain(10, 8000);
    assert_near(policy_estimate_wait(&a, 800, now), 11);
    for (int i = 0; i < 20; i++) see(1, 1600, 1); /* it became faster; what was before is forgotten */
    assert_in_range((int)policy_estimate_wait(&a, 0, now), 5, 6);
    struct policy_sample s = a.last;
    s.prefill_tokens = s.prefill_ns = 0; /* another engine: its counts begin anew */
    policy_observe(&a, &s);
    see(1, 1600, 1);
    assert_in_range((int)policy_estimate_wait(&a, 0, now), 5, 6);
}

static void test_pages_may_be_the_limit(void **state)
{
    begin(8, 8, 1 << 30, 0);
    plain(4, 0);
    policy_record_end(&a, 3, now);
    policy_observe(&a, &(struct policy_sample){.running = 2, .slots = 2});
    assert_near(policy_estimate_wait(&a, 0, now), 3 * 3 / 2.0);
}

static void test_retry_when_half_of_the_queue_is_gone(void **state)
{
    begin(2, 10, 1000, 0);
    for (int i = 0; i < 30; i++) policy_record_end(&a, 4, now);
    plain(12, 120);
    see(2, 0, 0);
    assert_int_equal(plain(1, 10), POLICY_QUEUE_FULL);
    assert_near(retry, 10); /* five of ten, one every 2 s */
    assert_int_equal(plain(8, 10), POLICY_QUEUE_FULL);
    assert_near(retry, 16); /* eight places need eight ends */
    see(2, 100, 20);
    assert_int_equal(plain(1, 10), POLICY_QUEUE_FULL);
    assert_near(retry, 12); /* but 120 tokens take 24 s */
    policy_release(&a, NULL, 4, -1900);
    assert_int_equal(plain(1, 400), POLICY_QUEUE_TOKENS);
    assert_near(retry, 120); /* of a queue, never longer */
}

static void test_long_waits_are_refused(void **state)
{
    begin(1, 100, 1 << 30, 10);
    for (int i = 0; i < 30; i++) policy_record_end(&a, 4, now);
    see(1, 0, 0);
    for (int i = 0; i < 3; i++) assert_int_equal(plain(1, 0), POLICY_YES); /* 0, 4, 8 s */
    assert_int_equal(plain(1, 0), POLICY_WAIT);                            /* 12 s */
    assert_near(retry, 7);                                                 /* then it would be 5 */
    see(1, 10, 1);
    policy_release(&a, NULL, 3, 0);
    assert_int_equal(plain(1, 1000), POLICY_YES); /* its own prompt takes longer: it waits for nobody */
    assert_int_equal(plain(1, 1), POLICY_WAIT);
}

static void test_deadlines_that_cannot_be_met(void **state)
{
    begin(1, 100, 1 << 30, 0);
    for (int i = 0; i < 30; i++) policy_record_end(&a, 4, now);
    see(1, 0, 0);
    struct policy_request q = {.n = 1, .time_left = 5};
    assert_int_equal(ask(q), POLICY_YES);
    assert_int_equal(ask(q), POLICY_YES);
    assert_int_equal(ask(q), POLICY_DEADLINE);
    assert_near(retry, 8 - 2.5);
    q.time_left = 9;
    assert_int_equal(ask(q), POLICY_YES);
    struct policy_request none = {.n = 0, .time_left = 1e-3};
    assert_int_equal(ask(none), POLICY_YES); /* it computes nothing */
    begin(1, 100, 1 << 30, 0);
    plain(5, 100);
    see(1, 1, 1);
    now += 100 * SECOND;
    assert_int_equal(ask(q), POLICY_YES); /* nothing has ended yet: nothing is known */
    begin(1, 100, 1 << 30, 0);
    q.time_left = 1e-3;
    assert_int_equal(ask(q), POLICY_YES); /* nobody is before it */
}

static void test_seconds_of_a_header(void **state)
{
    assert_int_equal(policy_seconds(0), 1);
    assert_int_equal(policy_seconds(-5), 1);
    assert_int_equal(policy_seconds(1), 1);
    assert_int_equal(policy_seconds(1.2), 2);
    assert_int_equal(policy_seconds(59.9999999999), 60);
    assert_int_equal(policy_seconds(1e300), 3600);
    assert_int_equal(policy_seconds(INFINITY), 3600);
    assert_int_equal(policy_seconds(NAN), 1);
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static enum policy_verdict keyed(const char *name, struct policy_key_limits per, int n, int64_t tokens)
{
    return ask((struct policy_request){.n = n, .tokens = tokens, .client = policy_client(&a, name, now), .per = per});
}

/* The request is over. */
static void leave(const char *name, int n, int64_t tokens)
{
    policy_release(&a, policy_client(&a, name, now), n, tokens);
}

static void test_requests_a_minute(void **state)
{
    const struct policy_key_limits per = {.requests_per_minute = 6};
    begin(100, 100, 1 << 30, 0);
    for (int i = 0; i < 6; i++) assert_int_equal(keyed("a", per, 1, 1), POLICY_YES); /* a minute's worth at once */
    assert_int_equal(keyed("a", per, 1, 1), POLICY_KEY_RATE);
    assert_near(retry, 10);
    assert_int_equal(keyed("b", per, 1, 1), POLICY_YES); /* each key its own */
    now += 9 * SECOND;
    assert_int_equal(keyed("a", per, 1, 1), POLICY_KEY_RATE);
    assert_near(retry, 1);
    now += SECOND;
    assert_int_equal(keyed("a", per, 1, 1), POLICY_YES);
    assert_int_equal(keyed("a", per, 1, 1), POLICY_KEY_RATE);
    now += 3600 * SECOND;
    for (int i = 0; i < 6; i++) assert_int_equal(keyed("a", per, 1, 1), POLICY_YES); /* no more than a minute's worth */
    assert_int_equal(keyed("a", per, 1, 1), POLICY_KEY_RATE);
}

static void test_a_slow_rate_allows_one(void **state)
{
    const struct policy_key_limits per = {.requests_per_minute = 0.5};
    begin(100, 100, 1 << 30, 0);
    assert_int_equal(keyed("a", per, 1, 1), POLICY_YES);
    assert_int_equal(keyed("a", per, 1, 1), POLICY_KEY_RATE);
    assert_near(retry, 120);
    now += 120 * SECOND;
    assert_int_equal(keyed("a", per, 1, 1), POLICY_YES);
}

static void test_a_clock_that_goes_back(void **state)
{
    const struct policy_key_limits per = {.requests_per_minute = 60};
    begin(1000, 1000, 1 << 30, 0);
    for (int i = 0; i < 60; i++) keyed("a", per, 1, 1);
    now -= 500 * SECOND; /* nothing is given, nothing taken */
    assert_int_equal(keyed("a", per, 1, 1), POLICY_KEY_RATE);
    assert_near(retry, 1);
    now += SECOND; /* and it fills from there */
    assert_int_equal(keyed("a", per, 1, 1), POLICY_YES);
    assert_int_equal(keyed("a", per, 1, 1), POLICY_KEY_RATE);
    now = 0;
    assert_int_equal(keyed("a", per, 1, 1), POLICY_KEY_RATE);
    now = SECOND;
    assert_int_equal(keyed("a", per, 1, 1), POLICY_YES);
    now = 1; /* the estimates, too */
    assert_true(policy_estimate_wait(&a, 10, now) >= 0);
    policy_record_end(&a, 1, now);
    now = UINT64_MAX;
    assert_true(isfinite(policy_estimate_wait(&a, 10, now)));
}

static void test_sequences_at_once(void **state)
{
    const struct policy_key_limits per = {.max_concurrent = 3};
    begin(100, 100, 1 << 30, 0);
    for (int i = 0; i < 30; i++) policy_record_end(&a, 6, now);
    assert_int_equal(keyed("a", per, 4, 1), POLICY_KEY_TOO_MANY);
    assert_int_equal(keyed("a", per, 2, 1), POLICY_YES);
    assert_int_equal(keyed("a", per, 2, 1), POLICY_KEY_CONCURRENCY);
    assert_near(retry, 3); /* one of two that take 6 s */
    assert_int_equal(keyed("b", per, 3, 1), POLICY_YES);
    assert_int_equal(keyed("a", per, 1, 1), POLICY_YES);
    assert_int_equal(keyed("a", per, 1, 1), POLICY_KEY_CONCURRENCY);
    leave("a", 2, 2);
    assert_int_equal(keyed("a", per, 2, 1), POLICY_YES);
}

static void test_tokens_a_minute(void **state)
{
    const struct policy_key_limits per = {.tokens_per_minute = 600};
    begin(100, 100, 1 << 30, 0);
    struct policy_client *k = policy_client(&a, "a", now);
    assert_int_equal(keyed("a", per, 1, 500), POLICY_YES);
    assert_int_equal(keyed("a", per, 1, 200), POLICY_KEY_TOKENS);
    assert_near(retry, 10);           /* 100 more, 10 a second */
    policy_charge(k, &per, 700, now); /* what was generated: a debt of 600 */
    assert_int_equal(keyed("a", per, 1, 1), POLICY_KEY_TOKENS);
    assert_near(retry, 60.1);
    policy_charge(k, &per, -700, now); /* the estimate was too high */
    assert_int_equal(keyed("a", per, 1, 100), POLICY_YES);
    now += 60 * SECOND;
    assert_int_equal(keyed("a", per, 1, 5000), POLICY_YES); /* more than it holds: when it is full */
    assert_int_equal(keyed("a", per, 1, 1), POLICY_KEY_TOKENS);
    assert_near(retry, 440.1);
    assert_int_equal(policy_seconds(retry), 441);
    /* more of a request that is in: only what is new counts */
    begin(100, 100, 1 << 30, 0);
    assert_int_equal(keyed("a", per, 1, 300), POLICY_YES);
    struct policy_request more = {
        .n = 2, .tokens = 600, .held_n = 1, .held_tokens = 300, .client = policy_client(&a, "a", now), .per = per};
    assert_int_equal(ask(more), POLICY_YES);
    assert_int_equal(keyed("a", per, 1, 1), POLICY_KEY_TOKENS);
}

/* A request that the queue refuses costs its key nothing. */
static void test_a_refusal_is_free(void **state)
{
    const struct policy_key_limits per = {.requests_per_minute = 2, .tokens_per_minute = 100};
    begin(1, 1, 1 << 30, 0);
    plain(2, 0);
    for (int i = 0; i < 10; i++) assert_int_equal(keyed("a", per, 1, 50), POLICY_QUEUE_FULL);
    policy_release(&a, NULL, 2, 0);
    assert_int_equal(keyed("a", per, 1, 50), POLICY_YES);
    assert_int_equal(keyed("a", per, 1, 50), POLICY_YES);
    assert_int_equal(keyed("a", per, 1, 50), POLICY_KEY_RATE);
}

static void test_a_limit_that_changes(void **state)
{
    struct policy_key_limits per = {.requests_per_minute = 600};
    begin(1000, 1000, 1 << 30, 0);
    assert_int_equal(keyed("a", per, 1, 0), POLICY_YES);
    per.requests_per_minute = 3; /* the file was read again */
    for (int i = 0; i < 3; i++) assert_int_equal(keyed("a", per, 1, 0), POLICY_YES);
    assert_int_equal(keyed("a", per, 1, 0), POLICY_KEY_RATE);
    per.requests_per_minute = 0;
    for (int i = 0; i < 100; i++) assert_int_equal(keyed("a", per, 1, 0), POLICY_YES);
}

/* More keys than there are places: those in use keep theirs. */
static void test_places_for_keys_are_bounded(void **state)
{
    char name[32];
    begin(1, 1, 1, 0);
    struct policy_client *used = policy_client(&a, "used", now);
    used->users = 1;
    used->active = 7;
    int misses = 0;
    for (int i = 0; i < 3 * POLICY_SETS * POLICY_WAYS; i++) {
        snprintf(name, sizeof name, "key-%d", i);
        misses += policy_client(&a, name, ++now) == NULL;
    }
    assert_int_equal(misses, 0);
    assert_ptr_equal(policy_client(&a, "used", now), used);
    assert_int_equal(used->active, 7);
    used->users = used->active = 0;
    for (int i = 0; i < 2 * POLICY_SETS * POLICY_WAYS; i++) { /* all of them in use */
        snprintf(name, sizeof name, "key-%d", i);
        struct policy_client *k = policy_client(&a, name, ++now);
        if (k)
            k->users = 1;
        else
            misses++;
    }
    assert_true(misses > POLICY_SETS * POLICY_WAYS / 2);
}

/* ---- clients ------------------------------------------------------------------------------------------------------
 */

static enum policy_verdict from(const char *name, int n, int64_t tokens)
{
    return keyed(name, (struct policy_key_limits){0}, n, tokens);
}

/* One client may have all there is; others come in all the same, with no more than their share. */
static void test_a_full_queue_lets_newcomers_in(void **state)
{
    begin(4, 8, 1 << 30, 0);
    for (int i = 0; i < 12; i++) assert_int_equal(from("hog", 1, 1), POLICY_YES);
    assert_int_equal(from("hog", 1, 1), POLICY_QUEUE_FULL);
    assert_int_equal(a.n_present, 1);
    for (int i = 0; i < 6; i++) assert_int_equal(from("b", 1, 1), POLICY_YES); /* half of twelve */
    assert_int_equal(from("b", 1, 1), POLICY_QUEUE_FULL);
    assert_true(retry > 0 || !a.n_ended);
    assert_int_equal(from("c", 5, 5), POLICY_QUEUE_FULL);
    assert_int_equal(from("c", 4, 4), POLICY_YES); /* a third */
    assert_int_equal(from("hog", 1, 1), POLICY_QUEUE_FULL);
    assert_int_equal(from("d", 2, 2), POLICY_YES);
    assert_int_equal(a.n_present, 4);
    assert_int_equal(from("e", 1, 1), POLICY_QUEUE_FULL); /* never more than twice the limit */
    leave("b", 6, 6);
    assert_int_equal(a.n_present, 3);
    assert_int_equal(from("e", 1, 1), POLICY_YES);
    leave("hog", 12, 12); /* below the limit everybody comes in again */
    assert_int_equal(from("c", 3, 3), POLICY_YES);
}

static void test_waiting_tokens_are_shared(void **state)
{
    begin(100, 100, 1000, 0);
    assert_int_equal(from("hog", 1, 900), POLICY_YES);
    assert_int_equal(from("hog", 1, 200), POLICY_QUEUE_TOKENS);
    assert_int_equal(from("b", 1, 700), POLICY_YES); /* it has none queued: its first request comes in */
    assert_int_equal(from("b", 1, 10), POLICY_QUEUE_TOKENS);
    assert_int_equal(from("c", 1, 100), POLICY_YES);
    assert_int_equal(from("c", 1, 233), POLICY_YES); /* a third of the limit */
    assert_int_equal(from("c", 1, 1), POLICY_QUEUE_TOKENS);
    assert_int_equal(from("d", 1, 68), POLICY_QUEUE_TOKENS); /* never more than twice the limit */
    assert_int_equal(from("d", 1, 67), POLICY_YES);
    leave("hog", 0, 900);
    leave("b", 0, 700);
    assert_int_equal(from("b", 1, 600), POLICY_YES);
}

/* The finding: a client whose texts are all too long must not keep others out, whatever its bodies weigh. */
static void test_large_bodies_that_are_refused(void **state)
{
    begin(64, 256, 131072, 0);
    a.limits.max_prompt = 512;
    struct policy_client *hog = policy_client(&a, "hog", now);
    int64_t guess = policy_estimate_tokens(&a, hog, 1000000, 1);
    assert_int_equal(guess, 512);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(from("hog", 1, guess), POLICY_YES);
        assert_int_equal(from("b", 1, 20), POLICY_YES);
        leave("b", 1, 20);
    }
}

/* What one client sends says nothing of another's bodies, and never that text is free. */
static void test_bodies_teach_of_their_client_only(void **state)
{
    begin(1, 1, 1, 0);
    struct policy_client *hog = policy_client(&a, "hog", now), *b = policy_client(&a, "b", now);
    for (int i = 0; i < 1000; i++) policy_record_tokens(&a, hog, 1000000, 1); /* large bodies with short prompts */
    assert_int_equal(policy_estimate_tokens(&a, hog, 16000, 1), 1000);
    assert_int_equal(policy_estimate_tokens(&a, b, 16000, 1), 4000);
    for (int i = 0; i < 1000; i++)
        policy_record_tokens(&a, hog, 10, 100000); /* and the other way round: many texts of one */
    assert_int_equal(policy_estimate_tokens(&a, hog, 16000, 1), 16000);
    assert_int_equal(policy_estimate_tokens(&a, b, 16000, 1), 4000);
    a.limits.max_prompt = 100;
    assert_int_equal(policy_estimate_tokens(&a, b, 16000, 1), 100);
    assert_int_equal(policy_estimate_tokens(&a, b, 16000, 3), 300);
    assert_int_equal(policy_estimate_tokens(&a, b, 0, 3), 1);
}

/* Clients have their turns: a newcomer does not wait for what a hog has queued. */
static void test_waits_are_a_clients_own(void **state)
{
    begin(4, 100, 1 << 30, 10);
    for (int i = 0; i < 30; i++) policy_record_end(&a, 8, now); /* 4 at once: one ends every 2 s */
    see(4, 4000, 5);
    for (int i = 0; i < 9; i++) assert_int_equal(from("hog", 1, 1000), POLICY_YES);
    assert_int_equal(from("hog", 1, 1000), POLICY_WAIT); /* 6 ends: 12 s */
    assert_int_equal(from("b", 1, 100), POLICY_YES);     /* 2 ends: one for each */
    struct policy_request late = {.n = 1, .tokens = 100, .time_left = 3, .client = policy_client(&a, "c", now)};
    assert_int_equal(ask(late), POLICY_DEADLINE);
    late.time_left = 7;
    assert_int_equal(ask(late), POLICY_YES);
    assert_true(policy_estimate_wait(&a, 0, now) > 10); /* all that is queued */
}

/* ---- random requests --------------------------------------------------------------------------------------------- */

static uint64_t draw;

static int pick(int n)
{
    return (int)(rng_at(11, draw++) % (uint64_t)n);
}

/* The sums are those of what is in; the limits hold; a refusal says a time that is no nonsense. */
static void test_random_requests(void **state)
{
    enum { LIVE = 64 };
    struct {
        int n;
        int64_t tokens;
        struct policy_client *client;
    } live[LIVE] = {0};
    static const char *const names[] = {"a", "b", "c"};
    static const struct policy_key_limits limits[] = {
        {.requests_per_minute = 10}, {.tokens_per_minute = 5000}, {.max_concurrent = 9}};
    int counts[POLICY_DEADLINE + 1] = {0};
    begin(8, 16, 4000, 2);
    for (int op = 0; op < 200000; op++) {
        int i = pick(LIVE), active = 0;
        int64_t queued = 0;
        now += (uint64_t)pick(20) * (SECOND / 1000);
        if (pick(5000) == 0) now -= (uint64_t)pick(30) * SECOND; /* on the whole it goes forward */
        see(a.active < 8 ? a.active : 8, pick(50), 0.01);
        if (live[i].n) {
            if (pick(3)) continue;
            policy_release(&a, live[i].client, live[i].n, live[i].tokens);
            if (live[i].client) live[i].client->users--;
            live[i].n = 0;
            policy_record_end(&a, 0.01 * pick(300), now);
            continue;
        }
        struct policy_request q = {.n = 1 + pick(6), .tokens = pick(900), .time_left = pick(3) ? 0 : 0.1 * pick(40)};
        int who = pick(6);
        if (who < 3) q.client = policy_client(&a, names[who], now), q.per = limits[who];
        bool present = a.n_present > 0;
        enum policy_verdict v = ask(q);
        counts[v]++;
        if (!(retry >= 0 && retry < 1e6)) fail_msg("verdict %d: again after %g s", v, retry);
        if (v == POLICY_YES) {
            live[i].n = q.n, live[i].tokens = q.tokens, live[i].client = q.client;
            if (q.client) q.client->users++;
        } else if (v != POLICY_TOO_MANY && v != POLICY_KEY_TOO_MANY) {
            assert_true(retry > 0 || v == POLICY_KEY_CONCURRENCY || v == POLICY_QUEUE_FULL || v == POLICY_QUEUE_TOKENS);
        }
        for (int k = 0; k < LIVE; k++)
            if (live[k].n) active += live[k].n, queued += live[k].tokens;
        assert_int_equal(a.active, active);
        assert_int_equal(a.queued, queued);
        assert_true(active <= 48 && queued <= 8000);
        if (v == POLICY_YES && !present) assert_true(active <= 24 && queued <= 4000 + 900);
        if (v == POLICY_YES && active > 24) assert_true(q.client && q.client->active <= 24 / a.n_present);
        assert_true(policy_client(&a, "c", now)->active <= 9);
    }
    for (enum policy_verdict v = POLICY_YES; v <= POLICY_DEADLINE; v++)
        if (v != POLICY_TOO_MANY && v != POLICY_KEY_TOO_MANY && !counts[v]) fail_msg("verdict %d never came", v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sequences_are_bounded),
        cmocka_unit_test(test_tokens_are_bounded),
        cmocka_unit_test(test_more_of_the_same_request),
        cmocka_unit_test(test_a_guess_of_tokens),
        cmocka_unit_test(test_wait_for_slots),
        cmocka_unit_test(test_idle_time_is_no_stall),
        cmocka_unit_test(test_wait_for_prompts),
        cmocka_unit_test(test_pages_may_be_the_limit),
        cmocka_unit_test(test_retry_when_half_of_the_queue_is_gone),
        cmocka_unit_test(test_long_waits_are_refused),
        cmocka_unit_test(test_deadlines_that_cannot_be_met),
        cmocka_unit_test(test_seconds_of_a_header),
        cmocka_unit_test(test_requests_a_minute),
        cmocka_unit_test(test_a_slow_rate_allows_one),
        cmocka_unit_test(test_a_clock_that_goes_back),
        cmocka_unit_test(test_sequences_at_once),
        cmocka_unit_test(test_tokens_a_minute),
        cmocka_unit_test(test_a_refusal_is_free),
        cmocka_unit_test(test_a_limit_that_changes),
        cmocka_unit_test(test_places_for_keys_are_bounded),
        cmocka_unit_test(test_a_full_queue_lets_newcomers_in),
        cmocka_unit_test(test_waiting_tokens_are_shared),
        cmocka_unit_test(test_large_bodies_that_are_refused),
        cmocka_unit_test(test_bodies_teach_of_their_client_only),
        cmocka_unit_test(test_waits_are_a_clients_own),
        cmocka_unit_test(test_random_requests),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
