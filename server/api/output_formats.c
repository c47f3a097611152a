#include "server/api/output_formats.h"

#include <string.h>

/* The marks of DeepSeek's models: U+FF5C and U+2581 in place of | and _ */
#define DS(words) "<\xef\xbd\x9c" words "\xef\xbd\x9c>"
#define DS_ "\xe2\x96\x81"
#define DS_CALLS DS("tool" DS_ "calls" DS_ "begin")
#define DS_CALLS_END DS("tool" DS_ "calls" DS_ "end")
#define DS_CALL DS("tool" DS_ "call" DS_ "begin")
#define DS_CALL_END DS("tool" DS_ "call" DS_ "end")
#define DS_SEP TOOL_DEEPSEEK_SEP

#define NAME "{\"name\": \""
#define ARGUMENTS "\", \"arguments\": "
#define LIST_OF_OBJECTS(mark, end)                                                                                     \
    {                                                                                                                  \
        .first = mark "[", .before = NAME, .between = ARGUMENTS, .after = "}", .next = ", ", .last = "]" end           \
    }

static const struct output_format formats[TOOL_FORMATS] = {
    [TOOL_FORMAT_NONE] = {.name = "none"},
    /* Hermes 2 Pro and 3, Qwen 2.5 and 3, Granite 4, SmolLM3: their chat templates. */
    [TOOL_FORMAT_HERMES] = {.name = "hermes",
                            .aliases = {"qwen3", "granite4"},
                            .needs = {"<tool_call>"},
                            .lacks = {"<function=", "<arg_key>"},
                            .open = {"<tool_call>"},
                            .close = {"</tool_call>"},
                            .marked = FORM_OBJECT,
                            .shape = {.first = "",
                                      .before = "<tool_call>\n" NAME,
                                      .between = ARGUMENTS,
                                      .after = "}\n</tool_call>",
                                      .next = "\n",
                                      .last = ""}},
    /* Qwen3-Coder, Qwen 3.5, Nemotron 3 Nano: their chat templates.  The models at times leave <tool_call> out. */
    [TOOL_FORMAT_QWEN3_CODER] = {.name = "qwen3_coder",
                                 .aliases = {"qwen3_xml"},
                                 .needs = {"<function=", "<parameter="},
                                 .group = {"<tool_call>"},
                                 .open = {"<function="},
                                 .close = {"</tool_call>"},
                                 .marked = FORM_XML,
                                 .shape = {.first = "",
                                           .before = "<tool_call>\n<function=",
                                           .between = ">\n",
                                           .after = "</function>\n</tool_call>",
                                           .next = "\n",
                                           .last = "",
                                           .arguments = ARGUMENTS_XML}},
    /* Llama 3.1 to 3.3: their chat templates. */
    [TOOL_FORMAT_LLAMA3] =
        {.name = "llama3_json",
         .aliases = {"llama4_json"},
         .group = {"<|python_start|>"},
         .open = {"<|python_tag|>"},
         .close = {"<|python_end|>"},
         .marked = FORM_OBJECT,
         .bare = FORM_OBJECT,
         .between = ';',
         .shape =
             {.first = "", .before = NAME, .between = "\", \"parameters\": ", .after = "}", .next = "; ", .last = ""}},
    /* Llama 4: Meta's chat template, and vLLM's tool_chat_template_llama4_pythonic.jinja. */
    [TOOL_FORMAT_LLAMA4] = {.name = "llama4_pythonic",
                            .needs = {"<|header_start|>", "[func_name1("},
                            .group = {"<|python_start|>", "<|python_tag|>"},
                            .close = {"<|python_end|>"},
                            .bare = FORM_PYTHON | FORM_OBJECT,
                            .between = ';',
                            .shape = {.first = "[",
                                      .before = "",
                                      .between = "(",
                                      .after = ")",
                                      .next = ", ",
                                      .last = "]",
                                      .arguments = ARGUMENTS_PYTHON}},
    /* Llama 3.2, ToolACE, Gemma 3 with vLLM's tool_chat_template_gemma3_pythonic.jinja. */
    [TOOL_FORMAT_PYTHONIC] = {.name = "pythonic",
                              .needs = {"[func_name1("},
                              .group = {"```tool_code"},
                              .close = {"```"},
                              .bare = FORM_PYTHON,
                              .shape = {.first = "[",
                                        .before = "",
                                        .between = "(",
                                        .after = ")",
                                        .next = ", ",
                                        .last = "]",
                                        .arguments = ARGUMENTS_PYTHON}},
    /* Mistral 7B v0.3, Nemo, Mixtral 8x22B: their chat templates. */
    [TOOL_FORMAT_MISTRAL] = {.name = "mistral",
                             .needs = {"[TOOL_CALLS]"},
                             .lacks = {"[ARGS]"},
                             .open = {"[TOOL_CALLS]"},
                             .marked = FORM_LIST | FORM_OBJECT | FORM_NAMED,
                             .shape = LIST_OF_OBJECTS("[TOOL_CALLS]", "")},
    /* Mistral Small 3.2, Devstral, Magistral, Ministral 3: their chat templates; vLLM's mistral parser for [CALL_ID].
     */
    [TOOL_FORMAT_MISTRAL_ARGS] =
        {.name = "mistral",
         .needs = {"[TOOL_CALLS]", "[ARGS]"},
         .open = {"[TOOL_CALLS]"},
         .marked = FORM_LIST | FORM_OBJECT | FORM_NAMED,
         .shape = {.first = "", .before = "[TOOL_CALLS]", .between = "[ARGS]", .after = "", .next = "", .last = ""}},
    /* DeepSeek V3 and R1: their chat templates. */
    [TOOL_FORMAT_DEEPSEEK_V3] = {.name = "deepseek_v3",
                                 .needs = {DS_CALLS, "```json"},
                                 .group = {DS_CALLS},
                                 .open = {DS_CALL},
                                 .close = {"```", DS_CALL_END, DS_CALLS_END},
                                 .marked = FORM_NAMED,
                                 .shape = {.first = DS_CALLS,
                                           .before = DS_CALL "function" DS_SEP,
                                           .between = "\n```json\n",
                                           .after = "\n```" DS_CALL_END,
                                           .next = "\n",
                                           .last = DS_CALLS_END}},
    /* DeepSeek V3.1: its chat template. */
    [TOOL_FORMAT_DEEPSEEK_V31] = {.name = "deepseek_v31",
                                  .needs = {DS_CALLS},
                                  .lacks = {"```json"},
                                  .group = {DS_CALLS},
                                  .open = {DS_CALL},
                                  .close = {DS_CALL_END, DS_CALLS_END},
                                  .marked = FORM_NAMED,
                                  .shape = {.first = DS_CALLS,
                                            .before = DS_CALL,
                                            .between = DS_SEP,
                                            .after = DS_CALL_END,
                                            .next = "",
                                            .last = DS_CALLS_END}},
    /* Granite 3.0 to 3.3: their chat templates; vLLM's granite parser for <tool_call> and a list without a mark. */
    [TOOL_FORMAT_GRANITE] = {.name = "granite",
                             .needs = {"<|tool_call|>"},
                             .lacks = {"functools"},
                             .open = {"<|tool_call|>", "<tool_call>"},
                             .marked = FORM_LIST | FORM_OBJECT,
                             .bare = FORM_LIST,
                             .shape = LIST_OF_OBJECTS("<|tool_call|>", "")},
    /* Phi-4 mini: its model card, and vLLM's tool_chat_template_phi4_mini.jinja. */
    [TOOL_FORMAT_PHI4] = {.name = "phi4_mini_json",
                          .needs = {"functools["},
                          .open = {"functools", "<|tool_call|>"},
                          .close = {"<|/tool_call|>"},
                          .none = {"functools[", "<|tool_call|>"}, /* the word alone is Python's module */
                          .marked = FORM_LIST,
                          .shape = LIST_OF_OBJECTS("functools", "")},
    /* Gemma 4: its chat template. */
    [TOOL_FORMAT_GEMMA4] = {.name = "gemma4",
                            .needs = {"<|tool_call>"},
                            .open = {"<|tool_call>"},
                            .marked = FORM_ESCAPED,
                            .end = "<tool_call|>",
                            .quote = "<|\"|>",
                            .shape = {.first = "",
                                      .before = "<|tool_call>call:",
                                      .between = "",
                                      .after = "<tool_call|>",
                                      .next = "",
                                      .last = "",
                                      .arguments = ARGUMENTS_ESCAPED,
                                      .quote = "<|\"|>"}},
    /* FunctionGemma: its model card. */
    [TOOL_FORMAT_FUNCTION_GEMMA] = {.name = "functiongemma",
                                    .needs = {"<start_function_call>"},
                                    .open = {"<start_function_call>"},
                                    .marked = FORM_ESCAPED,
                                    .end = "<end_function_call>",
                                    .quote = "<escape>",
                                    .shape = {.first = "",
                                              .before = "<start_function_call>call:",
                                              .between = "",
                                              .after = "<end_function_call>",
                                              .next = "",
                                              .last = "",
                                              .arguments = ARGUMENTS_ESCAPED,
                                              .quote = "<escape>"}},
    /* gpt-oss: OpenAI's harmony format, read by harmony.c. */
    [TOOL_FORMAT_HARMONY] = {.name = "openai",
                             .aliases = {"harmony", "gpt_oss"},
                             .needs = {"<|channel|>", "<|message|>"},
                             .open = {"<|channel|>", "<|message|>", "<|constrain|>", "<|start|>"},
                             .close = {"<|end|>", "<|call|>", "<|return|>"},
                             .shape = {.first = "",
                                       .before = "<|channel|>commentary to=functions.",
                                       .between = " <|constrain|>json<|message|>",
                                       .after = "",
                                       .next = "",
                                       .last = "",
                                       .single = true}},
};

/* In the order in which templates are looked through: marks that stand in no other family's template come first. */
static const enum tool_format order[] = {
    TOOL_FORMAT_HARMONY,      TOOL_FORMAT_GEMMA4,       TOOL_FORMAT_FUNCTION_GEMMA, TOOL_FORMAT_DEEPSEEK_V3,
    TOOL_FORMAT_DEEPSEEK_V31, TOOL_FORMAT_MISTRAL_ARGS, TOOL_FORMAT_MISTRAL,        TOOL_FORMAT_PHI4,
    TOOL_FORMAT_GRANITE,      TOOL_FORMAT_QWEN3_CODER,  TOOL_FORMAT_HERMES,         TOOL_FORMAT_LLAMA4,
    TOOL_FORMAT_PYTHONIC,
};

static bool has(const char *s, size_t n, const char *what)
{
    return s && n && memmem(s, n, what, strlen(what));
}

static bool is_one_of(const char *text, size_t n, const char *const *list, size_t most)
{
    for (size_t i = 0; i < most && list[i]; i++)
        if (strlen(list[i]) == n && memcmp(list[i], text, n) == 0) return true;
    return false;
}

const struct output_format *output_format(enum tool_format f)
{
    return &formats[f];
}

static bool matches(const struct output_format *f, const char *source, size_t n)
{
    for (size_t i = 0; i < 2 && f->needs[i]; i++)
        if (!has(source, n, f->needs[i])) return false;
    for (size_t i = 0; i < 2 && f->lacks[i]; i++)
        if (has(source, n, f->lacks[i])) return false;
    return true;
}

enum tool_format tool_format_detect(const char *source, size_t n)
{
    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        if (matches(&formats[order[i]], source, n)) return order[i];
    if (has(source, n, "<tool_call>")) return TOOL_FORMAT_NONE; /* another form between these marks (GLM) */
    bool llama =
        has(source, n, "<|python_tag|>") || (has(source, n, "{\"name\": ") && has(source, n, "\"parameters\": "));
    return llama ? TOOL_FORMAT_LLAMA3 : TOOL_FORMAT_NONE;
}

static bool is_named(enum tool_format f, const char *option)
{
    const struct output_format *row = &formats[f];
    return strcmp(row->name, option) == 0 || is_one_of(option, strlen(option), row->aliases, 3);
}

enum tool_format tool_format_choose(const char *option, enum tool_format detected)
{
    if (is_named(detected, option)) return detected;
    for (int f = 0; f < TOOL_FORMATS; f++)
        if (is_named((enum tool_format)f, option)) return (enum tool_format)f;
    return detected;
}

bool tool_format_known(const char *option)
{
    for (int f = 0; f < TOOL_FORMATS; f++)
        if (is_named((enum tool_format)f, option)) return true;
    return strcmp(option, "auto") == 0;
}

bool tool_format_is_mark(enum tool_format format, const char *text, size_t n)
{
    const struct output_format *f = &formats[format];
    static const char *const inside[] = {"[ARGS]", "[CALL_ID]", DS_SEP};
    if (is_one_of(text, n, f->open, FORMAT_MARKS) || is_one_of(text, n, f->group, FORMAT_MARKS) ||
        is_one_of(text, n, f->close, FORMAT_MARKS))
        return true;
    if (f->end && is_one_of(text, n, &f->end, 1)) return true;
    if (f->quote && is_one_of(text, n, &f->quote, 1)) return true;
    return f->marked & FORM_NAMED && is_one_of(text, n, inside, sizeof inside / sizeof *inside);
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* The first of them in s (n bytes), or its end. */
static size_t find(const char *s, size_t n, const char *what)
{
    const char *at = memmem(s, n, what, strlen(what));
    return at ? (size_t)(at - s) : n;
}

/* "NAME", "NAME[ARGS]", "NAME[CALL_ID]...[ARGS]", "NAME<sep>", "function<sep>NAME\n```json\n" */
size_t tool_header_name(const char *s, size_t n, const char **name)
{
    size_t sep = find(s, n, DS_SEP), fence = find(s, n, "```json");
    if (fence < n) { /* the word before the mark is the kind of tool */
        size_t from = sep < n ? sep + strlen(DS_SEP) : 0;
        if (from > fence) return 0;
        s += from;
        n = fence - from;
    } else {
        n = sep;
        n = find(s, n, "[CALL_ID]");
        n = find(s, n, "[ARGS]");
    }
    while (n && is_space(s[n - 1])) n--;
    while (n && is_space(*s)) s++, n--;
    for (size_t i = 0; i < n; i++)
        if (is_space(s[i]) || s[i] == '[' || s[i] == '"' || s[i] == '<') return 0;
    *name = s;
    return n;
}

/* ---- thoughts -------------------------------------------------------------------------------------------------- */

static const struct reasoning_marks marks[REASONING_FORMATS] = {
    [REASONING_NONE] = {.name = "none"},
    /* Qwen 3, DeepSeek, SmolLM3 and most others: their chat templates. */
    [REASONING_THINK] = {.name = "think",
                         .aliases = {"deepseek_r1", "deepseek_v3", "qwen3", "glm45", "nemotron_v3"},
                         .begin = "<think>",
                         .end = "</think>",
                         .stop = "</think>\n\n",
                         .specials = {"<think>", "</think>"}},
    /* Magistral, Ministral 3: their chat templates. */
    [REASONING_MISTRAL] = {.name = "mistral",
                           .begin = "[THINK]",
                           .end = "[/THINK]",
                           .stop = "[/THINK]",
                           .specials = {"[THINK]", "[/THINK]"}},
    /* Gemma 4: its chat template. */
    [REASONING_GEMMA4] = {.name = "gemma4",
                          .begin = "<|channel>thought",
                          .end = "<channel|>",
                          .stop = "\n<channel|>",
                          .specials = {"<|channel>", "<channel|>"}},
    /* gpt-oss: OpenAI's harmony format. */
    [REASONING_HARMONY] = {.name = "openai_gptoss",
                           .aliases = {"harmony", "gpt_oss", "openai"},
                           .begin = "<|channel|>analysis<|message|>",
                           .end = "<|end|>",
                           .stop = "<|end|><|start|>assistant<|channel|>final<|message|>",
                           .specials = {"<|channel|>", "<|message|>", "<|end|>", "<|start|>"},
                           .again = true},
};

const struct reasoning_marks *reasoning_marks(enum reasoning_format f)
{
    return &marks[f];
}

enum reasoning_format reasoning_detect(const char *source, size_t n)
{
    if (has(source, n, "<|channel|>") && has(source, n, "<|message|>")) return REASONING_HARMONY;
    if (has(source, n, "<|channel>thought")) return REASONING_GEMMA4;
    return has(source, n, "[THINK]") ? REASONING_MISTRAL : REASONING_THINK;
}

static bool reasoning_named(int f, const char *option)
{
    return strcmp(marks[f].name, option) == 0 || is_one_of(option, strlen(option), marks[f].aliases, 6);
}

enum reasoning_format reasoning_choose(const char *option, enum reasoning_format detected)
{
    for (int f = 0; f < REASONING_FORMATS; f++)
        if (reasoning_named(f, option)) return (enum reasoning_format)f;
    return detected;
}

bool reasoning_known(const char *option)
{
    for (int f = 0; f < REASONING_FORMATS; f++)
        if (reasoning_named(f, option)) return true;
    return strcmp(option, "auto") == 0;
}

bool reasoning_is_mark(enum reasoning_format f, const char *text, size_t n)
{
    return is_one_of(text, n, marks[f].specials, 4);
}

bool reasoning_prompt_thinks(enum reasoning_format f, const char *prompt, size_t n)
{
    const char *mark = marks[f].begin;
    size_t len = mark ? strlen(mark) : 0;
    while (n && is_space(prompt[n - 1])) n--;
    return len && n >= len && memcmp(prompt + n - len, mark, len) == 0;
}
