/* What each check gives for a text, and which lists of checks are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/json/json.h"
#include "server/rewards/rewards.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct rewards *opened(const char *json, struct err *e)
{
    cJSON *list = json_parse(json, strlen(json), e);
    assert_non_null(list);
    struct rewards *r = rewards_open(list, "rewards", e);
    json_free(list);
    return r;
}

static const struct rewards_calls none;

static double score(const char *json, const char *text, int tokens)
{
    struct err e = {0};
    struct rewards *r = opened(json, &e);
    double sum = NAN;
    if (!r) fail_msg("%s: %s", json, e.msg);
    const char *row = "{\"answer\":\" 42 \",\"n\":7,\"id\":12345678901234567891,\"x\":[1.0,{\"y\":9007199254740993}],"
                      "\"word\":\"Cake\"}";
    struct reward_text t = {text, strlen(text), tokens, row, strlen(row)};
    if (rewards_score(r, &t, 1, &none, &sum, &e)) fail_msg("%s: %s", json, e.msg);
    rewards_free(r);
    return sum;
}

static void checks(void **state)
{
    (void)state;
    static const struct {
        const char *json, *text;
        int tokens;
        double want;
    } of[] = {
        {"[{\"type\":\"contains\",\"text\":\"cake\"}]", "a cake.", 3, 1},
        {"[{\"type\":\"contains\",\"text\":\"cake\"}]", "a Cake.", 3, 0},
        {"[{\"type\":\"contains\",\"field\":\"word\",\"ignore_case\":true}]", "a cake.", 3, 1},
        {"[{\"type\":\"exact\",\"field\":\"answer\"}]", "\n42", 3, 1},
        {"[{\"type\":\"exact\",\"field\":\"n\"}]", "7 ", 3, 1},
        {"[{\"type\":\"exact\",\"field\":\"n\"}]", "77", 3, 0},
        {"[{\"type\":\"exact\",\"field\":\"id\"}]", "12345678901234567891", 3, 1},
        {"[{\"type\":\"exact\",\"field\":\"id\"}]", "12345678901234567000", 3, 0},
        {"[{\"type\":\"contains\",\"field\":\"x\"}]", "of [1.0,{\"y\":9007199254740993}].", 3, 1},
        {"[{\"type\":\"exact\",\"text\":\"YES\",\"ignore_case\":true}]", "yes", 3, 1},
        {"[{\"type\":\"regex\",\"pattern\":\"\\\\.$\"}]", "The end.", 3, 1},
        {"[{\"type\":\"regex\",\"pattern\":\"^\\\\d+$\"}]", "12a", 3, 0},
        {"[{\"type\":\"regex\",\"pattern\":\"^(a+)+$\"}]", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", 3, 0},
        {"[{\"type\":\"json\"}]", " {\"a\": [1]}\n", 3, 1},
        {"[{\"type\":\"json\"}]", "{\"a\": [1}", 3, 0},
        {"[{\"type\":\"json_schema\",\"schema\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},"
         "\"required\":[\"a\"],\"additionalProperties\":false}}]",
         "{\"a\": 1}", 3, 1},
        {"[{\"type\":\"json_schema\",\"schema\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},"
         "\"required\":[\"a\"],\"additionalProperties\":false}}]",
         "{\"a\": \"1\"}", 3, 0},
        {"[{\"type\":\"length\",\"min\":10,\"max\":20}]", "", 10, 1},
        {"[{\"type\":\"length\",\"min\":10,\"max\":20}]", "", 25, 0.5},
        {"[{\"type\":\"length\",\"min\":10,\"max\":20}]", "", 31, 0},
        {"[{\"type\":\"length\",\"min\":10,\"falloff\":4}]", "", 9, 0.75},
        {"[{\"type\":\"contains\",\"text\":\"a\",\"weight\":2},{\"type\":\"contains\",\"text\":\"b\",\"weight\":-0.5}]",
         "ab", 3, 1.5},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        double got = score(of[i].json, of[i].text, of[i].tokens);
        if (got != of[i].want) fail_msg("%s of \"%s\": %g, not %g", of[i].json, of[i].text, got, of[i].want);
    }
}

static void refused(void **state)
{
    (void)state;
    static const char *const of[][2] = {
        {"{}", "rewards: expected a list"},
        {"[]", "rewards: the list is empty"},
        {"[1]", "rewards[0]: expected an object"},
        {"[{}]", "rewards[0].type: is missing"},
        {"[{\"type\":\"judge\"}]", "rewards[0].type: must be one of contains, exact, regex"},
        {"[{\"type\":\"json\",\"text\":\"a\"}]", "rewards[0].text"},
        {"[{\"type\":\"contains\"}]", "rewards[0]: needs one of `text`, `field`"},
        {"[{\"type\":\"contains\",\"text\":\"a\",\"field\":\"b\"}]", "rewards[0]: needs one of `text`, `field`"},
        {"[{\"type\":\"contains\",\"text\":\"\"}]", "rewards[0].text: must have from 1"},
        {"[{\"type\":\"json\"},{\"type\":\"regex\",\"pattern\":\"(\"}]", "rewards[1].pattern: at byte 1"},
        {"[{\"type\":\"regex\"}]", "rewards[0].pattern: is missing"},
        {"[{\"type\":\"length\"}]", "rewards[0]: needs `min`, `max`"},
        {"[{\"type\":\"length\",\"min\":9,\"max\":3}]", "rewards[0].max: must be at least `min`"},
        {"[{\"type\":\"length\",\"min\":-1}]", "rewards[0].min"},
        {"[{\"type\":\"json\",\"weight\":1e9}]", "rewards[0].weight: must be from -1000 to 1000"},
        {"[{\"type\":\"json\",\"weight\":\"1\"}]", "rewards[0].weight"},
        {"[{\"type\":\"json_schema\"}]", "rewards[0].schema: is missing"},
        {"[{\"type\":\"json_schema\",\"schema\":{\"type\":\"integer\",\"minimum\":3,\"maximum\":1}}]",
         "rewards[0].schema: "},
        {"[{\"type\":\"url\"}]", "rewards[0].url: is missing"},
        {"[{\"type\":\"url\",\"url\":\"file:///etc/passwd\"}]", "rewards[0].url: must begin with http"},
        {"[{\"type\":\"url\",\"url\":\"http://a\",\"key_env\":\"HOME\"}]", "rewards[0].key_env: must be the name"},
        {"[{\"type\":\"url\",\"url\":\"http://a\",\"timeout_s\":0}]", "rewards[0].timeout_s: must be from 0.1"},
        {"[{\"type\":\"url\",\"url\":\"http://a\",\"retries\":99}]", "rewards[0].retries"},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct err e = {0};
        struct rewards *r = opened(of[i][0], &e);
        if (r || !strstr(e.msg, of[i][1])) fail_msg("%s: \"%s\", not \"%s\"", of[i][0], e.msg, of[i][1]);
    }
}

static void a_field_that_is_missing(void **state)
{
    (void)state;
    struct err e = {0};
    struct rewards *r = opened("[{\"type\":\"exact\",\"field\":\"answer\"}]", &e);
    struct reward_text t = {"a", 1, 1, "{\"prompt\":\"x\"}", 14};
    double sum;
    assert_int_not_equal(rewards_score(r, &t, 1, &none, &sum, &e), 0);
    assert_non_null(strstr(e.msg, "rewards[0].field: a row has no field `answer`"));
    rewards_free(r);
}

/* A text for whose match the machine code of the pattern has no stack is matched all the same. */
static void a_long_match(void **state)
{
    (void)state;
    enum { N = 20000 };
    char *text = malloc(N + 1);
    assert_non_null(text);
    memset(text, 'a', N);
    text[N] = 0;
    assert_true(score("[{\"type\":\"regex\",\"pattern\":\"^(?:a|(b))+$\"}]", text, N) == 1);
    text[N - 1] = 'c';
    assert_true(score("[{\"type\":\"regex\",\"pattern\":\"^(?:a|(b))+$\"}]", text, N) == 0);
    free(text);
}

static bool at_the_third(void *arg)
{
    return ++*(int *)arg == 3;
}

static void stopped_between_texts(void **state)
{
    (void)state;
    struct err e = {0};
    struct rewards *r = opened("[{\"type\":\"contains\",\"text\":\"a\"}]", &e);
    struct reward_text t[4];
    double sum[4] = {-1, -1, -1, -1};
    int asked = 0;
    struct rewards_calls calls = {.stop = at_the_third, .arg = &asked};
    for (int i = 0; i < 4; i++) t[i] = (struct reward_text){"a", 1, 1, "{}", 2};
    assert_int_equal(rewards_score(r, t, 4, &calls, sum, &e), ERR_FULL);
    assert_true(asked == 3 && sum[1] == 1 && sum[3] == -1);
    rewards_free(r);
}

/* An adapter's numbers are 1, 2 and so on here. */
static int numbers(void *arg, const char *name, double *value, struct err *e)
{
    if (strcmp(name, "judge")) return err_set(e, ERR_NOT_FOUND, "no adapter is called \"%s\"", name);
    for (int i = 0; i < *(const int *)arg; i++) value[i] = i + 1;
    return 0;
}

static void an_adapter_is_asked(void **state)
{
    (void)state;
    struct err e = {0};
    struct reward_text t[2];
    double sum[2];
    int n = 2;
    struct rewards_calls calls = {.model = numbers, .arg = &n};
    struct rewards *r =
        opened("[{\"type\":\"contains\",\"text\":\"a\"},{\"type\":\"model\",\"model\":\"judge\",\"weight\":0.5}]", &e);
    assert_non_null(r);
    assert_string_equal(rewards_model(r, 1), "judge");
    assert_null(rewards_model(r, 0));
    assert_false(rewards_ask_others(r));
    for (int i = 0; i < n; i++) t[i] = (struct reward_text){i ? "b" : "a", 1, 1, "{}", 2};
    assert_int_equal(rewards_score(r, t, n, &calls, sum, &e), 0);
    assert_true(sum[0] == 1.5 && sum[1] == 1);
    assert_int_not_equal(rewards_score(r, t, n, &none, sum, &e), 0);
    assert_non_null(strstr(e.msg, "rewards[1]: there is no engine that has adapter judge"));
    rewards_free(r);
    r = opened("[{\"type\":\"model\",\"model\":\"other\"}]", &e);
    assert_int_not_equal(rewards_score(r, t, n, &calls, sum, &e), 0);
    assert_non_null(strstr(e.msg, "rewards[0]: no adapter is called \"other\""));
    rewards_free(r);
}

static void too_much_to_ask(void **state)
{
    (void)state;
    enum { N = 65, MIB = 1 << 20 };
    struct err e = {0};
    struct rewards *r = opened("[{\"type\":\"url\",\"url\":\"http://127.0.0.1:1/\",\"retries\":0}]", &e);
    struct reward_text t[N];
    char *row = malloc(MIB);
    double sum[N];
    assert_non_null(row);
    memset(row, ' ', MIB);
    memcpy(row, "{}", 2);
    for (int i = 0; i < N; i++) t[i] = (struct reward_text){"a", 1, 1, row, MIB};
    assert_int_not_equal(rewards_score(r, t, N, &none, sum, &e), 0);
    assert_non_null(strstr(e.msg, "rewards[0].url: the texts and rows of a step have more than 64 MiB"));
    assert_int_not_equal(rewards_score(r, t, 1, &none, sum, &e), 0);
    assert_non_null(strstr(e.msg, "after 1 attempt: rewards[0].url: "));
    free(row);
    rewards_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checks),
        cmocka_unit_test(refused),
        cmocka_unit_test(a_field_that_is_missing),
        cmocka_unit_test(a_long_match),
        cmocka_unit_test(stopped_between_texts),
        cmocka_unit_test(an_adapter_is_asked),
        cmocka_unit_test(too_much_to_ask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
