/* server/api/choice.c: the text of a choice ends before its stop text, and nothing that may belong to one is let out
 * early, however the text is cut into tokens. */
#include "server/api/choice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t state = 1;

static uint32_t draw(uint32_t n)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 16) % n;
}

static void random_text(char *out, size_t n)
{
    for (size_t i = 0; i < n; i++) out[i] = (char)('a' + draw(2));
    out[n] = 0;
}

/* Where the earliest stop text ends in text; the first of those that end there.  0: nowhere. */
static size_t find_end(const struct gen_request *r, const char *text, int *index)
{
    for (size_t end = 1; end <= strlen(text); end++)
        for (int i = 0; i < r->n_stop; i++) {
            size_t n = strlen(r->stop[i]);
            if (n > end || memcmp(text + end - n, r->stop[i], n) != 0) continue;
            *index = i;
            return end;
        }
    return 0;
}

/* The text in tokens of one to three bytes, as the engine would send it; what comes out, token by token, is checked
 * against `expected`. */
static void feed(const struct choice_config *c, const char *text, size_t end, int index, const char *expected,
                 enum finish_reason why)
{
    struct choice v;
    struct buf out = {0};
    struct event_batch batch = {.text = text};
    size_t n = strlen(text), last = end ? end : n;
    choice_init(&v, c, NULL, 0);
    buf_str(&out, "");
    for (size_t at = 0; at < last;) {
        struct event ev = {.kind = EV_TOKEN, .text = (uint32_t)at, .text_len = 1 + draw(3), .stop_index = -1};
        if (at + ev.text_len > n) ev.text_len = (uint32_t)(n - at);
        bool over = at + ev.text_len >= last;
        ev.gen_len = (uint32_t)(over ? last - at : ev.text_len);
        ev.finish = !over ? FINISH_NONE : end ? why : FINISH_LENGTH;
        if (ev.finish == FINISH_STOP) ev.stop_index = index;
        choice_add(&v, &ev, &batch);
        if (over)
            choice_add(&v, &(struct event){.kind = EV_DONE, .finish = ev.finish, .stop_index = ev.stop_index}, &batch);
        buf_append(&out, v.text.data, v.text.len);
        choice_clear(&v);
        if (out.len > strlen(expected) || memcmp(out.data, expected, out.len) != 0) {
            print_error("%s, up to %zu: \"%s\" is no beginning of \"%s\"\n", text, at + ev.gen_len, out.data, expected);
            fail();
        }
        at += ev.text_len;
    }
    assert_string_equal(out.data, expected);
    assert_string_equal(choice_finish_name(&v), end ? "stop" : "length");
    assert_int_equal(v.stop_index, end ? index : -1);
    buf_free(&out);
    choice_free(&v);
}

static void stop_texts(void **unused)
{
    (void)unused;
    for (int round = 0; round < 20000; round++) {
        char text[16], stops[3][6], expected[16];
        struct openai_params p = {.logprobs = -1, .keep_stop = round % 4 == 0};
        p.gen.n_stop = (int)draw(4);
        p.gen.stop = p.stop;
        for (int i = 0; i < p.gen.n_stop; i++) {
            random_text(stops[i], 1 + draw(5));
            p.stop[i] = stops[i];
        }
        random_text(text, 1 + draw(14));
        int index = -1;
        size_t end = find_end(&p.gen, text, &index);
        struct choice_config c = {.params = &p, .route = OPENAI_COMPLETIONS};
        snprintf(expected, sizeof expected, "%s", text);
        if (end) expected[end - (p.keep_stop ? 0 : strlen(p.stop[index]))] = 0;
        feed(&c, text, end, index, expected, FINISH_STOP);
        /* the token that brought it was also the last one allowed: the engine says length, with the text cut there */
        if (end) feed(&c, text, end, index, expected, FINISH_LENGTH);
    }
}

static void ends_without_text(void **unused)
{
    (void)unused;
    struct openai_params p = {.logprobs = -1};
    struct choice_config c = {.params = &p, .route = OPENAI_CHAT};
    struct event_batch batch = {.text = "ab"};
    struct choice v;
    choice_init(&v, &c, "echo ", 5);
    choice_add(&v, &(struct event){.kind = EV_TOKEN, .text_len = 1, .gen_len = 1, .stop_index = -1}, &batch);
    /* an end-of-text token that is not special has text, which is not part of the answer */
    choice_add(&v,
               &(struct event){
                   .kind = EV_TOKEN, .text = 1, .text_len = 1, .gen_len = 1, .finish = FINISH_EOS, .stop_index = -1},
               &batch);
    choice_add(&v, &(struct event){.kind = EV_DONE, .finish = FINISH_EOS, .stop_index = -1}, &batch);
    assert_string_equal(v.text.data, "echo a");
    assert_string_equal(choice_finish_name(&v), "stop");
    choice_free(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_texts),
        cmocka_unit_test(ends_without_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
