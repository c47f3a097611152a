#include "server/schema/answer.h"

#include "server/schema/calls.h"
#include "server/schema/marks.h"

#include <stdio.h>

/* Sources: the chat templates of the formats (server/api/output_formats.c), and for channels OpenAI's harmony format. */

static const cJSON *field(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* The messages of an answer in gpt-oss' form: thoughts and what is said before a call, then the answer or the call.
 * The marks are in the order of output_formats.c: channel, message, constrain, start. */
static jx channels(struct jpool *p, const cJSON *marks, jx text, jx calls)
{
    jx mark[4];
    for (int i = 0; i < 4; i++) mark[i] = calls_text(p, cJSON_GetStringValue(cJSON_GetArrayItem(marks, i)));
    jx end = calls_text(p, cJSON_GetStringValue(cJSON_GetArrayItem(marks, 4)));
    jx name = jx_alt2(p, jx_text(p, "analysis"), jx_text(p, "commentary"));
    jx before = jx_seq(p, (jx[]){mark[0], name, mark[1], text, end, mark[3], jx_text(p, "assistant")}, 7);
    jx final = jx_seq(p, (jx[]){mark[0], jx_text(p, "final"), mark[1], text}, 4);
    return jx_seq2(p, jx_repeat(p, before, 0, JX_MANY), jx_alt2(p, final, calls));
}

jx answer_expression(struct jpool *p, const cJSON *free_text, jx calls)
{
    const cJSON *list = field(free_text, "marks"), *thoughts = field(free_text, "thoughts"), *v;
    const char *starts = cJSON_GetStringValue(field(free_text, "starts"));
    char texts[MARKS_MAX + 1][MARK_MAX + 2];
    const char *marks[MARKS_MAX];
    size_t n = 0;
    cJSON_ArrayForEach(v, list) if (n < MARKS_MAX - 1) marks[n] = marks_bare(cJSON_GetStringValue(v), texts[n]), n++;
    /* Else what looks like a call behind the thoughts would be a text that begins with their mark. */
    if (thoughts && starts && *starts) marks[n] = marks_bare(cJSON_GetStringValue(thoughts->child), texts[n]), n++;
    jx text = text_without_marks(p, marks, n, "");
    calls = jx_shared(p, calls);
    if (cJSON_IsTrue(field(free_text, "channels"))) return channels(p, list, text, calls);
    bool bare_calls = starts && *starts;
    char behind[STARTS_MAX] = ""; /* a call: what begins another, or stands between two */
    if (bare_calls) snprintf(behind, sizeof behind, "%s;", starts);
    jx more = jx_repeat(p, jx_seq2(p, calls, text_without_marks(p, marks, n, behind)), 0, JX_MANY), answer;
    if (bare_calls)
        answer = jx_alt2(p, jx_seq2(p, text_without_marks(p, marks, n, starts), more), jx_seq3(p, white_space(p), calls, more));
    else
        answer = jx_seq2(p, text, more);
    if (!thoughts) return answer;
    answer = jx_shared(p, answer);
    const char *end = marks_bare(cJSON_GetStringValue(cJSON_GetArrayItem(thoughts, 1)), texts[MARKS_MAX]);
    jx thought = text_without_marks(p, &end, 1, "");
    jx closed = jx_seq2(p, calls_text(p, cJSON_GetStringValue(cJSON_GetArrayItem(thoughts, 1))), answer);
    jx begun = jx_seq3(p, white_space(p), calls_text(p, cJSON_GetStringValue(thoughts->child)), thought);
    return jx_alt2(p, jx_seq2(p, begun, jx_optional(p, closed)), answer);
}
