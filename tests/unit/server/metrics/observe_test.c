/* What strangers send and operators read: request ids, traceparent, log lines, the text of metrics. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/log.h"
#include "server/json/json.h"
#include "server/metrics/metrics.h"
#include "server/metrics/prometheus_text.h"
#include "server/net/request_id.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- ids ----------------------------------------------------------------------------------------------------------
 */

static void test_request_ids(void **state)
{
    (void)state;
    static const char *const good[] = {"a", "0", "req-1", "01J9Z3.x_y:z/+=@~-", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"};
    static const char *const bad[] = {"",     " ",   "a b", "a\tb", "a\nb", "a\"b",
                                      "a\\b", "a,b", "a;b", "a<b>", "\x7f", "\xc3\xa9"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_true(request_id_valid(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(request_id_valid(bad[i]));
    char longest[REQUEST_ID_MAX + 2], one[REQUEST_ID_MAX + 1], two[REQUEST_ID_MAX + 1];
    memset(longest, 'x', sizeof longest);
    longest[REQUEST_ID_MAX + 1] = 0;
    assert_false(request_id_valid(longest));
    longest[REQUEST_ID_MAX] = 0;
    assert_true(request_id_valid(longest));
    request_id_make(one);
    request_id_make(two);
    assert_int_equal(strlen(one), 32);
    assert_true(request_id_valid(one) && strcmp(one, two) != 0);
}

#define TRACE "0af7651916cd43dd8448eb211c80319c"
#define SPAN "b7ad6b7169203331"

static void test_traceparent(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool good, sampled;
    } cases[] = {
        {"00-" TRACE "-" SPAN "-01", true, true},
        {"00-" TRACE "-" SPAN "-00", true, false},
        {"00-" TRACE "-" SPAN "-fe", true, false},
        {"00-" TRACE "-" SPAN "-ff", true, true},
        {"cc-" TRACE "-" SPAN "-01", true, true},
        {"cc-" TRACE "-" SPAN "-01-what-the-future-brings", true, true},
        {"cc-" TRACE "-" SPAN "-01.", false, false},
        {"00-" TRACE "-" SPAN "-01-more", false, false},
        {"00-" TRACE "-" SPAN "-01-", false, false},
        {"ff-" TRACE "-" SPAN "-01", false, false},
        {"00-00000000000000000000000000000000-" SPAN "-01", false, false},
        {"00-" TRACE "-0000000000000000-01", false, false},
        {"00-0AF7651916CD43DD8448EB211C80319C-" SPAN "-01", false, false},
        {"00-" TRACE "-B7AD6B7169203331-01", false, false},
        {"00-" TRACE "-" SPAN "-0x", false, false},
        {"00-" TRACE "-" SPAN "-1", false, false},
        {"00-" TRACE "-" SPAN, false, false},
        {"00-" TRACE "-" SPAN "-", false, false},
        {"00-" TRACE SPAN "-01", false, false},
        {"0-" TRACE "-" SPAN "-01", false, false},
        {" 00-" TRACE "-" SPAN "-01", false, false},
        {"00-" TRACE "-" SPAN "-01 ", false, false},
        {"00", false, false},
        {"", false, false},
        {NULL, false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct trace_parent t = {.trace_id = "x"};
        if (trace_parent_parse(cases[i].text, &t) != cases[i].good) fail_msg("case %zu: %s", i, cases[i].text);
        assert_string_equal(t.trace_id, cases[i].good ? TRACE : "");
        assert_string_equal(t.span_id, cases[i].good ? SPAN : "");
        assert_int_equal(t.sampled, cases[i].sampled);
    }
}

/* ---- the log ------------------------------------------------------------------------------------------------------
 */

static int kept_stderr, pipe_out;

static void catch_log(void)
{
    int fd[2];
    assert_int_equal(pipe(fd), 0);
    kept_stderr = dup(STDERR_FILENO);
    dup2(fd[1], STDERR_FILENO);
    close(fd[1]);
    pipe_out = fd[0];
}

/* The line that was logged since catch_log. */
static const char *caught_line(void)
{
    static char text[16384];
    dup2(kept_stderr, STDERR_FILENO);
    close(kept_stderr);
    ssize_t n = read(pipe_out, text, sizeof text - 1);
    close(pipe_out);
    assert_true(n > 0);
    text[n] = 0;
    return text;
}

/* The same without the time. */
static const char *caught(void)
{
    const char *level = strstr(caught_line(), log_get_format() == LOG_JSON ? "\"level\"" : "level=");
    assert_non_null(level);
    return level;
}

#define LOGGED(expected, ...)                                                                                          \
    do {                                                                                                               \
        catch_log();                                                                                                   \
        log_write(LOG_WARN, __VA_ARGS__);                                                                              \
        assert_string_equal(caught(), expected);                                                                       \
    } while (0)

static void test_logfmt(void **state)
{
    (void)state;
    log_set_format(LOG_LOGFMT);
    LOGGED("level=warn msg=stopped\n", "stopped");
    LOGGED("level=warn msg=draining signal=15 timeout_s=60\n", "draining: signal=%d timeout_s=%g", 15, 60.0);
    LOGGED("level=warn msg=\"adapter left out\" name=x reason=\"no \\\"file\\\"\"\n",
           "adapter left out name=%s reason=\"%s\"", "x", "no \"file\"");
    LOGGED("level=warn msg=\"step failed\" op=\"a b\" empty=\"\" n=1\n", "step failed op=%s empty=%s n=%d", "a b", "",
           1);
    LOGGED("level=warn msg=\"100% x=1\"\n", "%s", "100% x=1"); /* fields are the format's, not an argument's */
    LOGGED("level=warn msg=a path=\"/x\\u000aforged level=error\"\n", "a path=%s", "/x\nforged level=error");
    LOGGED("level=warn msg=a path=\"\\u2028\\u2029\xe2\x80\xa6\"\n", "a path=%s",
           "\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xa6");
    LOGGED("level=warn msg=a path=\"\\u001b[31m\\u0085\xef\xbf\xbd\xc3\xa9\"\n", "a path=%s",
           "\x1b[31m\xc2\x85\xff\xc3\xa9");
}

static void test_json_log(void **state)
{
    (void)state;
    log_set_format(LOG_JSON);
    LOGGED("\"level\":\"warn\",\"msg\":\"stopped\"}\n", "stopped");
    LOGGED("\"level\":\"warn\",\"msg\":\"a\",\"path\":\"x\\\"},{\\u000a\"}\n", "a path=%s", "x\"},{\n");
    log_set_format(LOG_LOGFMT);
}

/* An argument with the mark that stands for a field, and one that is too long: one message, no field. */
static void test_marks_are_not_forged(void **state)
{
    (void)state;
    char path[2000];
    LOGGED("level=warn msg=\"a path=x level=error status=200\"\n", "a path=%s status=%d", "x\x1elevel=error", 200);
    memset(path, 'x', sizeof path);
    path[sizeof path - 1] = 0;
    memcpy(path + 900, "\x1elevel=error", 12); /* in the place of the mark that is cut off */
    catch_log();
    log_write(LOG_WARN, "a path=%s status=%d", path, 200);
    const char *line = caught();
    assert_non_null(strstr(line, " msg=\"a path=xxx"));
    assert_null(strstr(line, "\" level=error"));
    assert_null(strstr(line, "status"));
}

/* Whatever is logged, a line is a line and JSON is JSON. */
static void test_any_bytes(void **state)
{
    (void)state;
    unsigned seed = 7;
    log_set_format(LOG_JSON);
    for (int round = 0; round < 300; round++) {
        struct log_line l;
        char text[3000];
        size_t n = (size_t)(rand_r(&seed) % (int)(sizeof text - 1));
        for (size_t i = 0; i < n; i++)
            text[i] = (char)(rand_r(&seed) % 4 ? 1 + rand_r(&seed) % 31 : 1 + rand_r(&seed) % 255);
        catch_log();
        log_begin(&l, LOG_INFO, "any");
        log_bytes(&l, "first", text, n);
        log_bytes(&l, "second", text, n);
        log_number(&l, "number", -5);
        log_decimal(&l, "nothing", NAN);
        log_bytes(&l, "third", text, n);
        log_end(&l);
        const char *line = caught_line();
        size_t len = strlen(line);
        struct err e;
        assert_true(len > 2 && line[len - 1] == '\n' && strchr(line, '\n') == line + len - 1);
        cJSON *tree = json_parse(line, len, &e);
        if (!tree) fail_msg("%s: %s", e.msg, line);
        cJSON_Delete(tree);
    }
    log_set_format(LOG_LOGFMT);
}

/* ---- metrics ------------------------------------------------------------------------------------------------------
 */

static void test_histograms(void **state)
{
    (void)state;
    static const histogram_bounds bounds = {.5, 1, 2};
    struct histogram h = {0};
    struct buf out = {0};
    const double values[] = {.1, .5, .50001, 1, 2, 2.1, 100};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) histogram_add(&h, bounds, values[i]);
    assert_int_equal(histogram_count(&h), 7);
    prometheus_histogram(&out, "x", "", &h, bounds);
    assert_string_equal(out.data, "x_bucket{le=\"0.5\"} 2\nx_bucket{le=\"1\"} 4\nx_bucket{le=\"2\"} 5\n"
                                  "x_bucket{le=\"+Inf\"} 7\nx_sum 106.20001000000001\nx_count 7\n");
    buf_clear(&out);
    prometheus_by(&out, "y", "name", "a\"b\\c\nd", 0.25);
    prometheus_one(&out, "z", "gauge", "Help.", NAN);
    prometheus_value(&out, -INFINITY);
    assert_string_equal(out.data, "y{name=\"a\\\"b\\\\c\\nd\"} 0.25\n# HELP z Help.\n# TYPE z gauge\nz NaN\n-Inf\n");
    buf_free(&out);
}

/* Every row of every table is there: a reason that was added without its name would be NULL. */
static void test_tables(void **state)
{
    (void)state;
    for (int i = 0; i < REJECT_REASONS; i++) assert_non_null(metrics_reject_names[i]);
    for (int i = 0; i < ABORT_REASONS; i++) assert_non_null(metrics_abort_names[i]);
    for (int i = 0; i < STARTUP_PHASES; i++) assert_non_null(metrics_startup_names[i]);
    for (int i = FINISH_NONE + 1; i <= FINISH_ERROR; i++) assert_non_null(metrics_finish_name(i));
    assert_null(metrics_finish_name(FINISH_NONE));
    for (int i = 0; i < HISTOGRAMS; i++) {
        const double *b = metrics_hists[i].bounds;
        assert_non_null(metrics_hists[i].name);
        int n = 0;
        for (; b[n] > 0; n++) assert_true(n == 0 || b[n] > b[n - 1]);
        assert_true(n > 3 && n <= HISTOGRAM_BUCKETS);
        if (strstr(metrics_hists[i].name, "_seconds")) assert_true(b[0] <= .0005);
    }
}

static void test_finish(void **state)
{
    (void)state;
    static struct metrics m;
    metrics_init(&m);
    struct event done = {.kind = EV_DONE, .finish = FINISH_LENGTH, .n_prompt = 10, .n_generated = 5};
    done.times = (struct request_times){
        .submitted = 1000000000, .scheduled = 1500000000, .first_token = 2500000000, .done = 4500000000};
    metrics_finish(&m, &done, 900000000, 4600000000);
    assert_true(fabs(m.hist[HIST_QUEUE].sum - .5) < 1e-9);
    assert_true(fabs(m.hist[HIST_PREFILL].sum - 1) < 1e-9);
    assert_true(fabs(m.hist[HIST_DECODE].sum - 2) < 1e-9);
    assert_true(fabs(m.hist[HIST_INFERENCE].sum - 3) < 1e-9);
    assert_true(fabs(m.hist[HIST_TPOT].sum - .5) < 1e-9); /* four tokens after the first */
    assert_true(fabs(m.hist[HIST_E2E].sum - 3.7) < 1e-9);
    done.n_generated = 1; /* there is no time per token */
    metrics_finish(&m, &done, 900000000, 4600000000);
    assert_int_equal(histogram_count(&m.hist[HIST_TPOT]), 1);
    done.times = (struct request_times){.submitted = 5}; /* cancelled in the queue */
    done.finish = FINISH_CANCELLED;
    metrics_finish(&m, &done, 900000000, 4600000000);
    assert_int_equal(histogram_count(&m.hist[HIST_QUEUE]), 2);
    assert_int_equal(m.finished[FINISH_CANCELLED], 1);
}

/* No line is cut, however long the model's name is and whatever must be escaped in it. */
static void test_a_long_model_name(void **state)
{
    (void)state;
    static struct metrics m;
    static struct engine_stats stats;
    static struct engine_info info;
    struct buf out = {0};
    char name[1001];
    memset(name, '"', 1000);
    name[1000] = 0;
    info.kv_type = "bf16";
    metrics_init(&m);
    metrics_render_vllm(&m, &(struct metrics_view){.info = &info, .stats = &stats, .model_name = name}, &out);
    buf_char(&out, 0);
    int named = 0;
    for (char *line = strtok(out.data, "\n"); line; line = strtok(NULL, "\n")) {
        if (*line == '#' || !strstr(line, "model_name")) continue;
        const char *at = strstr(line, "model_name=\"") + strlen("model_name=\"");
        for (int i = 0; i < 1000; i++, at += 2) assert_memory_equal(at, "\\\"", 2);
        assert_memory_equal(at, "\",engine=\"0\"", strlen("\",engine=\"0\""));
        assert_non_null(strstr(at, "\"} "));
        named++;
    }
    assert_true(named > 20);
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request_ids),
        cmocka_unit_test(test_traceparent),
        cmocka_unit_test(test_logfmt),
        cmocka_unit_test(test_json_log),
        cmocka_unit_test(test_marks_are_not_forged),
        cmocka_unit_test(test_any_bytes),
        cmocka_unit_test(test_histograms),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_finish),
        cmocka_unit_test(test_a_long_model_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
