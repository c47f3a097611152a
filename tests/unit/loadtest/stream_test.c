/* Events out of bytes however they are cut, what the protocols' events say, gauges out of Prometheus text, and figures
 * out of one request. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "loadtest/api.h"
#include "loadtest/gauges.h"
#include "loadtest/options.h"
#include "loadtest/sse.h"
#include "loadtest/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void gather(void *user, const char *data, size_t n, bool error)
{
    assert_int_equal(strlen(data), n);
    buf_printf(user, "%s[%s]", error ? "!" : "", data);
}

static void check_events(const char *text, const char *want)
{
    size_t n = strlen(text);
    for (size_t cut = 0; cut <= n; cut++) {
        struct buf got = {0};
        struct sse_reader r = {.on_event = gather, .user = &got};
        assert_true(sse_read(&r, text, cut) && sse_read(&r, text + cut, n - cut));
        if (strcmp(got.data ? got.data : "", want)) fail_msg("%s cut at %zu: %s, not %s", text, cut, got.data, want);
        sse_reader_free(&r);
        buf_free(&got);
    }
}

static void events_are_cut_anywhere(void **state)
{
    (void)state;
    check_events("data: a\n\ndata:b\n\n", "[a][b]");
    check_events("data: a\r\n\r\ndata: b\r\rdata: c\n\n", "[a][b][c]");
    check_events("data: a\ndata:  b\n\n", "[a\n b]");
    check_events(":\n\n: hi\n\nid: 7\nretry: 1\ndata: x\n\n\n\n", "[x]");
    check_events("event: error\ndata: {}\n\ndata: y\n\n", "![{}][y]");
    check_events("data\n\n", "[]");
    check_events("database: x\n\ndata: unfinished\n", "");
}

static void endless_lines_are_refused(void **state)
{
    (void)state;
    struct buf got = {0};
    struct sse_reader r = {.on_event = gather, .user = &got};
    char *part = malloc(1 << 20);
    memset(part, 'x', 1 << 20);
    bool fine = true;
    for (int i = 0; i < 8 && fine; i++) fine = sse_read(&r, part, 1 << 20);
    assert_false(fine);
    free(part);
    sse_reader_free(&r);
    buf_free(&got);
}

static struct api_event event(enum api_kind api, const char *text, bool known)
{
    struct api_event v;
    if (api_read_event(api, text, strlen(text), &v) != known) fail_msg("%s: known %d", text, !known);
    return v;
}

static void protocols_say_what_they_say(void **state)
{
    (void)state;
    struct api_event v = event(API_OPENAI, "{\"choices\":[{\"text\":\" a\",\"finish_reason\":null}]}", true);
    assert_true(v.token && v.text && !v.last && !v.error && v.tokens == -1);
    v = event(API_OPENAI, "{\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}],\"usage\":null}", true);
    assert_true(!v.token && v.last);
    v = event(API_OPENAI, "{\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":7}}", true);
    assert_true(!v.token && !v.last && v.tokens == 7 && v.prompt == 5);
    v = event(API_OPENAI, "[DONE]", true);
    assert_true(v.last && !v.token);
    v = event(API_CHAT, "{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}", true);
    assert_true(!v.token);
    v = event(API_CHAT, "{\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":null}]}", true);
    assert_true(v.token && v.text);
    v = event(API_CHAT, "{\"choices\":[{\"delta\":{\"tool_calls\":[{}]}}]}", true);
    assert_true(v.token);
    v = event(API_TGI, "{\"index\":1,\"token\":{\"id\":3,\"text\":\"\"},\"generated_text\":null,\"details\":null}",
              true);
    assert_true(v.token && !v.text && !v.last);
    v = event(
        API_TGI,
        "{\"token\":{\"text\":\"x\"},\"generated_text\":\"x\",\"details\":{\"generated_tokens\":9,\"input_length\":4}}",
        true);
    assert_true(v.token && v.text && v.last && v.tokens == 9 && v.prompt == 4);
    assert_true(event(API_TGI, "{\"error\":\"x\",\"error_type\":\"overloaded\"}", true).error);
    assert_true(event(API_OPENAI, "{\"error\":{\"message\":\"x\"}}", true).error);
    assert_false(event(API_OPENAI, "{\"error\":null,\"choices\":[]}", true).error);
    static const char *const strange[] = {
        "", "x", "[]", "7", "null", "\"a\"", "{}", "{\"choices\":7}", "{\"choices\":[7]}", "{\"token\":[]}"};
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++)
        for (int api = 0; api < API_KINDS; api++) event((enum api_kind)api, strange[i], false);
    v = event(API_OPENAI, "{\"choices\":[],\"usage\":{\"prompt_tokens\":-5,\"completion_tokens\":1e300}}", true);
    assert_true(v.tokens == -1 && v.prompt == -1);
}

static void requests_are_http(void **state)
{
    (void)state;
    struct target t = {.api = API_CHAT,
                       .host = "h:1",
                       .base = "/b",
                       .model = "\"m\\\"x\"",
                       .key = "k",
                       .headers = "X-A: b\r\n",
                       .ignore_eos = true,
                       .keep_alive = true};
    struct ask a = {.prompt = 3, .output = 5, .text = 1};
    for (int api = 0; api < API_KINDS; api++)
        for (unsigned bad = 0; bad < API_FAULTS; bad++)
            for (int kind = ASK_PLAIN; kind < ASK_KINDS; kind++) {
                struct buf b = {0};
                t.api = (enum api_kind)api, a.kind = (enum ask_kind)kind, a.bad = bad;
                api_put_ask(&b, &t, &a);
                char *body = strstr(b.data, "\r\n\r\n");
                assert_non_null(body);
                assert_non_null(strstr(b.data, " HTTP/1.1\r\nHost: h:1\r\n"));
                assert_non_null(strstr(b.data, "\r\nAuthorization: Bearer k\r\nX-A: b\r\n"));
                char *length = strstr(b.data, "Content-Length: ");
                if (length) assert_int_equal(atol(length + 16), b.len - (size_t)(body + 4 - b.data));
                buf_free(&b);
            }
}

static void gauges_are_found(void **state)
{
    (void)state;
    struct gauge g;
    gauges_read(&g, "# HELP x y\ntandem_requests_running 3\ntandem_requests_waiting 4\ntandem_kv_usage_ratio "
                    "0.5\nvllm:num_requests_running 99\n");
    assert_true(g.running == 3 && g.waiting == 4 && g.kv == 0.5);
    gauges_read(&g, "vllm:num_requests_running{model=\"a b} \"} 2.0\nvllm:num_requests_running{model=\"c\"} 5\n"
                    "vllm:num_requests_waiting_by_reason{reason=\"x\"} 7\nvllm:kv_cache_usage_perc{e=\"0\"} "
                    "0.1\nvllm:kv_cache_usage_perc{e=\"1\"} 0.3");
    assert_true(g.running == 7 && isnan(g.waiting) && g.kv == 0.3);
    gauges_read(&g, "tandem_requests_running\ntandem_requests_waiting{\ntandem_kv_usage_ratio NaN\n");
    assert_true(isnan(g.running) && isnan(g.waiting) && isnan(g.kv));
}

static void limits_are_read_and_judged(void **state)
{
    (void)state;
    struct slo s;
    assert_true(slo_parse(&s, "ttft:500,itl:50") && s.any && s.ms[SLO_TTFT] == 500 && s.ms[SLO_ITL] == 50 &&
                s.ms[SLO_E2E] == 0);
    assert_true(slo_parse(&s, "e2el:1.5,tpot:2") && s.ms[SLO_E2E] == 1.5 && s.ms[SLO_TPOT] == 2);
    static const char *const bad[] = {"",        "ttft",   "ttft:",   "ttft:x", "x:5", "ttft:5 itl:5",
                                      "ttft:-1", "ttft:0", "ttft:inf"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(slo_parse(&s, bad[i]));
    uint64_t gaps[] = {10000000, 10000000, 60000000};
    struct record r = {.outcome = OUT_OK,
                       .intended = 1000000,
                       .first = 101000000,
                       .last = 181000000,
                       .end = 182000000,
                       .tokens = 5,
                       .pieces = 4,
                       .gaps = gaps,
                       .n_gaps = 3};
    bool missed[SLO_KINDS];
    assert_true(slo_parse(&s, "ttft:100,itl:60,tpot:20,e2e:181") && slo_met(&s, &r, missed));
    assert_true(slo_parse(&s, "ttft:99") && !slo_met(&s, &r, missed) && missed[SLO_TTFT] && !missed[SLO_ITL]);
    assert_true(slo_parse(&s, "itl:59") && !slo_met(&s, &r, missed) && missed[SLO_ITL]);
    assert_true(slo_parse(&s, "tpot:19") && !slo_met(&s, &r, missed));
    assert_true(slo_parse(&s, "e2e:180") && !slo_met(&s, &r, missed));
}

static void the_window_bounds_rates(void **state)
{
    (void)state;
    struct slo none = {0};
    struct stats *s = stats_new(&none, 1000000000, 2000000000);
    struct record r = {.outcome = OUT_OK,
                       .status = 200,
                       .attempts = 1,
                       .intended = 500000000,
                       .issued = 500000000,
                       .sent = 500000001,
                       .first = 600000000,
                       .last = 1500000000,
                       .end = 1500000000,
                       .tokens = 20,
                       .pieces = 10,
                       .window_pieces = 5};
    stats_add(s, &r); /* arrived in the warm-up: its tokens and its end count, its latencies do not */
    assert_true(s->ok_in_window == 1 && s->tokens_in_window == 10 && s->h[M_TTFT]->n == 0);
    r.intended = 1200000000, r.first = 1300000000, r.end = r.last = 2100000000;
    stats_add(s, &r); /* ended after the window */
    assert_true(s->ok_in_window == 1 && s->h[M_TTFT]->n == 1 && s->requests == 2 && s->h[M_TTFT]->max == 100000000);
    r.ask.kind = ASK_SLOW;
    stats_add(s, &r);
    assert_true(s->h[M_TTFT]->n == 1 && s->outcomes[OUT_OK] == 3);
    for (int i = 0; i < 3 * POINTS_MAX; i++) {
        r.ask.kind = ASK_PLAIN;
        stats_add(s, &r);
    }
    assert_true(s->n_points <= POINTS_MAX && s->n_points > POINTS_MAX / 4 && s->stride == 4);
    stats_free(s);
}

static void addresses_and_options(void **state)
{
    (void)state;
    struct place p;
    struct err e = {0};
    assert_int_equal(place_parse(&p, "http://a.b:81/x/", &e), 0);
    assert_string_equal(p.host, "a.b");
    assert_string_equal(p.port, "81");
    assert_string_equal(p.base, "/x");
    assert_string_equal(p.authority, "a.b:81");
    assert_int_equal(place_parse(&p, "localhost", &e), 0);
    assert_string_equal(p.port, "80");
    assert_int_equal(place_parse(&p, "http://[::1]:8080", &e), 0);
    assert_string_equal(p.host, "::1");
    assert_string_equal(p.port, "8080");
    static const char *const bad[] = {"",           "https://a",       "http://",     "http://:80",
                                      "http://a:",  "http://a:123456", "http://[::1", "http://u@h",
                                      "http://a b", "http://a?x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (!place_parse(&p, bad[i], &e)) fail_msg("taken: %s", bad[i]);
    static char *const wrong[][3] = {
        {"x", "--rate", "0"},         {"x", "--rate", "1x"},      {"x", "--api", "grpc"},
        {"x", "--rates", "1"},        {"x", "rate", "1"},         {"x", "--quiet=1", "--quiet"},
        {"x", "--sweep", "1,,2"},     {"x", "--sweep", "0"},      {"x", "--prompt-tokens", "9-3"},
        {"x", "--header", "a"},       {"x", "--goodput", "x:1"},  {"x", "--quiet", "--rate"},
        {"x", "--arrivals", "trace"}, {"x", "--requests", "1.5"}, {"x", "--header", "a: b\r\nc: d"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct options o;
        e = (struct err){0};
        if (options_parse(&o, 3, (char **)wrong[i], &e) >= 0 || !e.msg[0])
            fail_msg("taken: %s %s", wrong[i][1], wrong[i][2]);
        options_free(&o);
    }
    struct options o;
    char *good[] = {"x", "--sweep=1,2,8", "--prompt-tokens", "5-9", "--header", "A: b", "--seed", "9", "--quiet"};
    assert_int_equal(options_parse(&o, 9, good, &e), 0);
    assert_true(o.n_sweep == 3 && o.sweep[2] == 8 && o.prompt.low == 5 && o.prompt.high == 9 && o.quiet &&
                o.arrivals == ARRIVE_CLOSED);
    assert_string_equal(o.headers.data, "A: b\r\n");
    options_free(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_cut_anywhere),
        cmocka_unit_test(endless_lines_are_refused),
        cmocka_unit_test(protocols_say_what_they_say),
        cmocka_unit_test(requests_are_http),
        cmocka_unit_test(gauges_are_found),
        cmocka_unit_test(limits_are_read_and_judged),
        cmocka_unit_test(the_window_bounds_rates),
        cmocka_unit_test(addresses_and_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
