/* server/schema/lark.c: which strings a grammar in Lark's notation allows, and what is refused. */
#include "server/schema/lark.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Whether the texts (inside a JSON string: escaped) are allowed: good ones up to the first NULL, then bad ones. */
static void check(const char *grammar, const char *const *texts)
{
    struct err e = {0};
    struct jpool *p = jpool_new();
    jx root = json_lark(p, grammar, &e);
    struct grammar *g = e.code ? NULL : jexpr_grammar(p, root, &e);
    if (!g) fail_msg("%s: %s", grammar, e.msg);
    for (int good = 1; good >= 0; good--, texts++)
        for (; *texts; texts++)
            if (grammar_matches(g, *texts, strlen(*texts), &e) != good)
                fail_msg("%s: %s is %s", grammar, *texts, good ? "not allowed" : "allowed");
    grammar_unref(g);
    jpool_free(p);
    assert_true(lark_supported(grammar, &e));
}

#define TEXTS(...)                                                                                                     \
    (const char *const[])                                                                                              \
    {                                                                                                                  \
        __VA_ARGS__, NULL                                                                                              \
    }

static void notation(void **state)
{
    (void)state;
    check("start: \"a\"", TEXTS("a", NULL, "b", "", "aa"));
    check("start: \"a\" \"b\"? | \"c\"*", TEXTS("a", "ab", "", "cc", NULL, "b", "abc"));
    check("start: x+ -> many\n\n// a comment\n?x.2: \"1\"..\"3\"\n | B \"-\" # another\nB: \"b\"i",
          TEXTS("1", "23b-B-", NULL, "", "4", "b"));
    check("start: [\"a\" (\"b\"\n | \"c\")] \"d\"~2 \"e\"~1..2",
          TEXTS("dde", "abddee", "acdde", NULL, "ade", "addeee"));
    check("start: /[^\\/\\n]+/ \"\\u00e9\\\"\\n\"",
          TEXTS("xy\xc3\xa9\\\"\\n", NULL, "/\xc3\xa9\\\"\\n", "\xc3\xa9\\\"\\n"));
    check("%import common.LF -> END\n%import common (INT, ESCAPED_STRING)\nstart: INT END ESCAPED_STRING",
          TEXTS("12\\n\\\"a\\\\\\\"\\\"", NULL, "12 \\\"a\\\"", "\\n\\\"\\\""));
    check("start: \"(\" start? \")\"", TEXTS("()", "((()))", NULL, "(", "(()", "()()"));
}

static const char patch[] = "start: begin_patch hunk+ end_patch\n"
                            "begin_patch: \"*** Begin Patch\" LF\n"
                            "end_patch: \"*** End Patch\" LF?\n\n"
                            "hunk: add_hunk | delete_hunk | update_hunk\n"
                            "add_hunk: \"*** Add File: \" filename LF add_line+\n"
                            "delete_hunk: \"*** Delete File: \" filename LF\n"
                            "update_hunk: \"*** Update File: \" filename LF change_move? change?\n\n"
                            "filename: /(.+)/\n"
                            "add_line: \"+\" /(.*)/ LF -> line\n\n"
                            "change_move: \"*** Move to: \" filename LF\n"
                            "change: (change_context | change_line)+ eof_line?\n"
                            "change_context: (\"@@\" | \"@@ \" /(.+)/) LF\n"
                            "change_line: (\"+\" | \"-\" | \" \") /(.*)/ LF\n"
                            "eof_line: \"*** End of File\" LF\n\n"
                            "%import common.LF\n";

/* the grammar of Codex's apply_patch */
static void codex(void **state)
{
    (void)state;
    check(patch, TEXTS("*** Begin Patch\\n*** Update File: a.txt\\n@@\\n-old\\n+new \\\"x\\\"\\n*** End Patch\\n",
                       "*** Begin Patch\\n*** Add File: b\\n+\\n+\\ta\\n*** Delete File: c\\n*** End Patch", NULL,
                       "*** Begin Patch\\n*** End Patch", "*** Begin Patch\\n*** Add File: b\\nx\\n*** End Patch",
                       "*** Begin Patch\\n*** Delete File: c\\n"));
}

static void refused(void **state)
{
    static const char *const cases[][2] = {
        {"", "start is not defined"},
        {"start: a", "a is not defined"},
        {"start: \"a", "byte 9: a string does not end"},
        {"start: \"\\q\"", "byte 8: this escape"},
        {"start: (\"a\"", "a bracket is not closed"},
        {"start: \"a\" )", "expected the end of the line"},
        {"start \"a\"", "byte 6: expected a colon"},
        {"start: \"a\"\nstart: \"b\"", "defined twice"},
        {"start: x{\"a\"}\nx{b}: b", "templates are not supported"},
        {"%ignore \" \"\nstart: \"a\"", "only %import"},
        {"%import common.NOTHING\nstart: \"a\"", "cannot be imported"},
        {"%import other.A\nstart: \"a\"", "only `common`"},
        {"start: /a/i", "flags of regular"},
        {"start: /(?=a)/", "regular expression is not supported"},
        {"start: /a", "does not end"},
        {"start: \"b\"..\"a\"", "expected a range"},
        {"start: \"a\"~3..2", "wrong order"},
        {"start: \"a\"~99999999", "count of at most"},
        {"start: start \"a\" | \"b\"", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        assert_false(lark_supported(cases[i][0], &e));
        if (!e.code || !strstr(e.msg, cases[i][1])) fail_msg("%s: %s", cases[i][0], e.msg);
    }
    char deep[LARK_MAX + 2];
    memset(deep, '(', sizeof deep);
    memcpy(deep, "start: ", 7);
    deep[sizeof deep - 1] = 0;
    struct err e = {0};
    assert_false(lark_supported(deep, &e));
    deep[LARK_MAX - 1] = 0;
    assert_false(lark_supported(deep, &e));
    assert_non_null(strstr(e.msg, "too deeply"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(notation),
        cmocka_unit_test(codex),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
