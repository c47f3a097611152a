/* server/api/messages_params.c: which chat a body of Anthropic's becomes, and what is refused. */
#include "server/api/messages_params.h"
#include "server/json/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The chat's members after model and max_tokens; a refusal with "!" before it.  Free it. */
static char *chat_of(const char *members)
{
    static const char lead[] = "{\"model\":\"m\",\"max_tokens\":5,";
    struct messages_chat chat = {0};
    struct err e = {0};
    struct buf body = {0}, out = {0};
    buf_printf(&body, "{\"max_tokens\":5,\"model\":\"m\"%s%s}", *members ? "," : "", members);
    if (messages_to_chat(body.data, body.len, false, &chat, &e)) {
        cJSON *tree = json_parse(chat.text.data, chat.text.len, &e);
        assert_non_null(tree);
        json_free(tree);
        assert_memory_equal(chat.text.data, lead, sizeof lead - 1);
        buf_str(&out, chat.text.data + sizeof lead - 1);
        out.data[--out.len] = 0;
    } else {
        buf_printf(&out, "!%s", e.msg);
    }
    messages_chat_free(&chat);
    buf_free(&body);
    return out.data;
}

static void check(const char *members, const char *expected)
{
    char *chat = chat_of(members);
    assert_string_equal(chat, expected);
    free(chat);
}

#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define PART(text) "{\"type\":\"text\",\"text\":\"" text "\"}"
#define SAYS(role, parts) "{\"role\":\"" role "\",\"content\":[" parts "]}"
#define CHAT_HI "\"messages\":[" SAYS("user", PART("hi")) "]"

static void messages(void **state)
{
    (void)state;
    check(HI, CHAT_HI);
    check("\"system\":\"be\"," HI, "\"messages\":[" SAYS("system", PART("be")) "," SAYS("user", PART("hi")) "]");
    check("\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: cc_version=2; cch=1a2b3;\"},"
          "{\"type\":\"text\",\"text\":\"be\",\"cache_control\":{\"type\":\"ephemeral\"}}]," HI,
          "\"messages\":[" SAYS("system", PART("be")) "," SAYS("user", PART("hi")) "]");
    check("\"system\":\"x-anthropic-billing-header: cch=1a2b3;\\nbe\"," HI,
          "\"messages\":[" SAYS("system", PART("be")) "," SAYS("user", PART("hi")) "]");
    check("\"system\":\"x-anthropic-billing-header: cch=1a2b3;\"," HI, CHAT_HI);
    /* system messages: at the front they are joined, later they are the user's; neighbours of one role are joined */
    check(
        "\"system\":\"a\",\"messages\":[{\"role\":\"system\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"},"
        "{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"d\"}]},{\"role\":\"ctx\",\"content\":\"e\"},"
        "{\"role\":\"msg\",\"content\":\"f\"}]",
        "\"messages\":[" SAYS("system", PART("a") "," PART("b")) "," SAYS(
            "user", PART("c") "," PART("d") "," PART("e") "," PART("f")) "]");
    /* the assistant's last message is continued */
    check(
        "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"a\"}]",
        "\"messages\":[" SAYS("user", PART("hi")) "," SAYS("assistant", PART("a")) "],\"continue_final_message\":true");
}

static void blocks(void **state)
{
    (void)state;
    check("\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":"
          "\"\"},{\"type\":\"redacted_thinking\",\"data\":\"x\"},{\"type\":\"text\",\"text\":\"a\"},"
          "{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"f\",\"input\":{\"x\":1.5}},"
          "{\"type\":\"tool_use\",\"id\":\"t2\",\"name\":\"g\"}]},"
          "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"b\"},"
          "{\"type\":\"tool_result\",\"tool_use_id\":\"t1\",\"content\":\"r\"},"
          "{\"type\":\"tool_result\",\"tool_use_id\":\"t2\",\"is_error\":true,\"content\":"
          "[{\"type\":\"text\",\"text\":\"s\"},{\"type\":\"tool_reference\",\"tool_name\":\"h\"}]},"
          "{\"type\":\"tool_result\",\"tool_use_id\":\"t3\"}]}]",
          "\"messages\":[{\"role\":\"assistant\",\"content\":[" PART(
              "a") "],\"reasoning_content\":\"hm\","
                   "\"tool_calls\":[{\"type\":\"function\",\"id\":\"t1\",\"function\":{\"name\":\"f\",\"arguments\":{"
                   "\"x\":1.5}}},"
                   "{\"type\":\"function\",\"id\":\"t2\",\"function\":{\"name\":\"g\",\"arguments\":{}}}]},"
                   "{\"role\":\"tool\",\"tool_call_id\":\"t1\",\"content\":[" PART(
                       "r") "]},"
                            "{\"role\":\"tool\",\"tool_call_id\":\"t2\",\"content\":[\"Error:\"," PART("s") "," PART(
                                "h") "]},"
                                     "{\"role\":\"tool\",\"tool_call_id\":\"t3\",\"content\":[]}," SAYS("user",
                                                                                                        PART("b")) "]");
    /* results alone leave no empty message of the user */
    check("\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t\",\"content\":"
          "\"r\"}]}]",
          "\"messages\":[{\"role\":\"tool\",\"tool_call_id\":\"t\",\"content\":[" PART("r") "]}]");
}

#define RESULT(id, blocks)                                                                                             \
    "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"" id "\",\"content\":[" blocks "]}]}"
#define GIVES(id, parts) "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":[" parts "]}"
#define FOUND(name) "{\"type\":\"tool_reference\",\"tool_name\":\"" name "\"}"

/* What is no text does not end the conversation; a deferred tool is told of where it is first found. */
static void results(void **state)
{
    (void)state;
    check("\"messages\":[" RESULT(
              "t", "{\"type\":\"image\",\"source\":{\"type\":\"base64\"}},{\"type\":\"document\",\"source\":"
                   "{\"type\":\"text\",\"data\":\"d\"}},{\"type\":\"a\\n%s\"}") "]",
          "\"messages\":[" GIVES("t", PART("[image: not shown, since this model reads only text]") "," PART(
                                          "d") "," PART("[a: not shown, since this model reads only text]")) "]");
    check("\"messages\":[" RESULT("t", FOUND("f") "," FOUND("g") "," FOUND("h")) "," RESULT(
              "u", FOUND("g")) "],\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\"}},{\"name\":\"g\","
                               "\"description\":\"d\",\"defer_loading\":true,\"input_schema\":{\"type\":\"object\"}}]",
          "\"messages\":[" GIVES(
              "t", PART("f") ","
                             "{\"type\":\"text\",\"text\":\"<function>{\\\"name\\\": \\\"g\\\", "
                             "\\\"description\\\": \\\"d\\\", \\\"parameters\\\": "
                             "{\\\"type\\\":\\\"object\\\"}}</function>\"}"
                             "," PART("h")) "," GIVES("u", PART("g")) "],\"tools\":[{\"type\":\"function\","
                                                                      "\"function\":{\"name\":\"f\","
                                                                      "\"description\":\"\",\"parameters\":{"
                                                                      "\"type\":\"object\"}}},{\"type\":"
                                                                      "\"function\",\"function\":{\"name\":"
                                                                      "\"g\",\"description\":\"d\","
                                                                      "\"parameters\":{\"type\":\"object\"}},"
                                                                      "\"defer_loading\":true}]");
}

/* Tools that come and go in the middle. */
static void changes(void **state)
{
    (void)state;
    check("\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"system\",\"content\":[{\"type\":\"tool_"
          "addition\",\"tool\":{\"type\":"
          "\"tool_definition\",\"definition\":{\"name\":\"g\",\"input_schema\":{}}}},{\"type\":\"tool_removal\","
          "\"tool\":{\"type\":"
          "\"tool_reference\",\"name\":\"f\"}},{\"type\":\"tool_addition\",\"tool\":{\"type\":\"tool_reference\","
          "\"name\":\"f\"}}]}]",
          "\"messages\":[" SAYS(
              "user",
              PART("a") "," PART(
                  "This tool can be called now:") ",{\"type\":\"text\",\"text\":\"<function>{"
                                                  "\\\"name\\\": \\\"g\\\", \\\"description\\\": "
                                                  "\\\"\\\", \\\"parameters\\\": "
                                                  "{}}</function>\"}," PART(
                                                      "This tool can no longer be "
                                                      "called:") "," PART("f") "," PART("This tool can be called "
                                                                                        "now:") "," PART("f")) "]");
    check("\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_addition\",\"tool\":{\"definition\":{"
          "\"name\":\"g\"}}}]}]",
          "!messages[0].content[0].tool: expected a tool by its name");
    check("\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_removal\",\"tool\":5}]}]",
          "!messages[0].content[0].tool: expected a tool by its name");
    check("\"thread\":{\"type\":\"create\"}," HI,
          "!thread: conversations are not kept, so each request has all its messages");
    check("\"mcp_servers\":[]," HI, CHAT_HI);
    check("\"mcp_servers\":[{\"type\":\"url\"}]," HI,
          "!mcp_servers is not supported: the client connects to them, and sends their `tools`");
    check("\"compaction\":{}," HI, "!compaction is not supported: ask for a summary in a message");
}

static void other_fields(void **state)
{
    (void)state;
    check("\"stream\":true,\"stop_sequences\":[\"x\"],\"top_k\":3,\"metadata\":{\"user_id\":\"u\"},\"betas\":[1]," HI,
          "\"stop_sequences\":[\"x\"],\"stream\":true,\"top_k\":3," CHAT_HI);
    check("\"tools\":[]," HI, CHAT_HI);
    check("\"tools\":[{\"name\":\"f\",\"input_schema\":{\"properties\":{}}}],\"tool_choice\":{\"type\":\"any\","
          "\"disable_parallel_tool_use\":true}," HI,
          CHAT_HI ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"\",\"parameters\":"
                  "{\"properties\":{},\"type\":\"object\"}}}],\"parallel_tool_calls\":false,\"tool_choice\":"
                  "\"required\"");
    check("\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\"}," HI,
          CHAT_HI ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}");
    check("\"thinking\":{\"type\":\"disabled\"},\"output_config\":{\"effort\":\"low\",\"format\":{\"type\":"
          "\"json_schema\",\"schema\":{}}},\"chat_template_kwargs\":{\"a\":1}," HI,
          CHAT_HI ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"answer\",\"schema\":{}}},"
                  "\"chat_template_kwargs\":{\"a\":1,\"enable_thinking\":false,\"reasoning_effort\":\"low\"}");
    check("\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024}," HI,
          CHAT_HI ",\"chat_template_kwargs\":{\"enable_thinking\":true},\"thinking_token_budget\":1024");
    check("\"thinking\":{\"type\":\"disabled\",\"budget_tokens\":1024}," HI,
          CHAT_HI ",\"chat_template_kwargs\":{\"enable_thinking\":false}");
    check("\"thinking\":{\"type\":\"enabled\"},\"chat_template_kwargs\":{\"enable_thinking\":false}," HI,
          CHAT_HI ",\"chat_template_kwargs\":{\"enable_thinking\":false}");
}

static void refused(void **state)
{
    (void)state;
    check("", "!messages: the field is missing");
    check("\"messages\":[]", "!messages: the list is empty");
    check("\"messages\":[1]", "!messages[0]: expected an object");
    check("\"messages\":[{\"role\":\"tool\"}]", "!messages[0].role: expected \"user\", \"assistant\" or \"system\"");
    check("\"messages\":[{\"role\":\"user\"}]", "!messages[0].content: expected a string or a list of blocks");
    check("\"messages\":[{\"role\":\"user\",\"content\":[{}]}]", "!messages[0].content[0].type: expected a string");
    check("\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image\"}]}]",
          "!messages[0].content[1]: \"image\" is not supported, only text is");
    check("\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\","
          "\"input\":\"{}\"}]}]",
          "!messages[0].content[0].input: expected an object");
    check("\"system\":5," HI, "!system: expected a string or a list of blocks");
    check("\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"web_search\"}]," HI,
          "!tools[0].type: \"web_search_20250305\" is not supported: only tools with a name and an input_schema are");
    check("\"tools\":[{\"name\":\"f\"}]," HI, "!tools[0].input_schema: expected a JSON schema");
    check("\"tool_choice\":{\"type\":\"tool\"}," HI,
          "!tool_choice: expected the type \"auto\", \"any\", \"none\", or \"tool\" with a `name`");
}

static void counted(void **state)
{
    (void)state;
    struct messages_chat chat;
    struct err e = {0};
    static const char body[] = "{\"model\":\"m\",\"temperature\":9," HI "}", no_model[] = "{" HI "}";
    assert_true(messages_to_chat(body, sizeof body - 1, true, &chat, &e));
    assert_string_equal(chat.text.data, "{\"model\":\"m\"," CHAT_HI "}");
    messages_chat_free(&chat);
    assert_false(messages_to_chat(body, sizeof body - 1, false, &chat, &e));
    assert_string_equal(e.msg, "max_tokens: the field is missing");
    messages_chat_free(&chat);
    assert_false(messages_to_chat(no_model, sizeof no_model - 1, true, &chat, &e));
    assert_string_equal(e.msg, "model: the field is missing");
    messages_chat_free(&chat);
    assert_false(messages_to_chat("[]", 2, true, &chat, &e));
    assert_string_equal(e.msg, "expected a JSON object");
    messages_chat_free(&chat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages),     cmocka_unit_test(blocks),  cmocka_unit_test(results), cmocka_unit_test(changes),
        cmocka_unit_test(other_fields), cmocka_unit_test(refused), cmocka_unit_test(counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
