#include "loadtest/api.h"

#include <cjson/cJSON.h>
#include <string.h>

const char *const api_names[API_KINDS] = {"openai", "openai-chat", "tgi"};

static const char *const paths[API_KINDS] = {"/v1/completions", "/v1/chat/completions", "/generate_stream"};

void api_put_call(struct buf *out, const struct target *t, const char *method, const char *path, const char *body,
                  size_t bytes)
{
    buf_printf(out, "%s %s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: tandem-loadtest\r\n", method, t->base, path, t->host);
    if (t->key) buf_printf(out, "Authorization: Bearer %s\r\n", t->key);
    buf_str(out, t->headers);
    if (!t->keep_alive) buf_str(out, "Connection: close\r\n");
    if (body) buf_printf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", bytes);
    buf_str(out, "\r\n");
    if (body) buf_append(out, body, bytes);
}

/* ---- the body ---------------------------------------------------------------------------------------------------- */

static void put_openai(struct buf *b, const struct target *t, const struct ask *a, int words)
{
    bool chat = t->api == API_CHAT;
    buf_str(b, "{");
    if (t->model) buf_printf(b, "\"model\":%s,", t->model);
    buf_str(b, chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"" : "\"prompt\":\"");
    ask_put_prompt(b, a, words);
    buf_str(b, chat ? "\"}]" : "\"");
    buf_printf(b, ",\"%s\":%d,\"temperature\":%.6g,\"stream\":true,\"stream_options\":{\"include_usage\":true}",
               "max_tokens", a->output, t->temperature);
    if (t->temperature > 0) buf_printf(b, ",\"seed\":%u", (unsigned)(a->text >> 33));
    if (t->ignore_eos) buf_str(b, ",\"ignore_eos\":true");
    if (t->exact) buf_printf(b, ",\"truncate_prompt_tokens\":%d", a->prompt);
    buf_str(b, "}");
}

static void put_tgi(struct buf *b, const struct target *t, const struct ask *a, int words)
{
    buf_str(b, "{\"inputs\":\"");
    ask_put_prompt(b, a, words);
    buf_printf(b, "\",\"parameters\":{\"max_new_tokens\":%d,\"details\":true", a->output);
    if (t->temperature > 0)
        buf_printf(b, ",\"do_sample\":true,\"temperature\":%.6g,\"seed\":%u", t->temperature,
                   (unsigned)(a->text >> 33));
    if (t->ignore_eos) buf_str(b, ",\"ignore_eos\":true");
    if (t->exact) buf_printf(b, ",\"truncate\":%d", a->prompt);
    buf_str(b, "}}");
}

/* Faults that any server must refuse.  Returns the path and the method. */
static const char *put_fault(struct buf *b, const struct target *t, unsigned fault, const char **method)
{
    bool tgi = t->api == API_TGI;
    const char *count = tgi ? "max_new_tokens" : "max_tokens";
    const char *open = tgi ? "{\"inputs\":\"time\",\"parameters\":{"
                           : "{\"prompt\":\"time\",\"messages\":[{\"role\":\"user\",\"content\":\"time\"}],";
    const char *close = tgi ? "}}" : "}";
    *method = "POST";
    switch (fault % API_FAULTS) {
    case 0: buf_str(b, "this is not JSON"); break;
    case 1: buf_str(b, "{}"); break;
    case 2: buf_str(b, "{\"inputs\":{\"a\":1},\"prompt\":{\"a\":1},\"messages\":7}"); break;
    case 3: buf_printf(b, "%s\"%s\":-1%s", open, count, close); break;
    case 4: buf_printf(b, "%s\"temperature\":\"hot\"%s", open, close); break;
    case 5: buf_printf(b, "%s\"%s\":1000000000%s", open, count, close); break;
    case 6:
        buf_str(b, "{\"inputs\":\"\xff\xfe\",\"prompt\":\"\xff\xfe\",\"messages\":[\"\xff\"]}");
        break; /* not UTF-8 */
    case 7:
        for (int i = 0; i < 5000; i++) buf_char(b, '[');
        break;
    case 8: buf_str(b, "{}"); return "/no/such/route";
    default: *method = "GET"; break;
    }
    return paths[t->api];
}

void api_put_ask(struct buf *out, const struct target *t, const struct ask *a)
{
    struct buf body = {0};
    const char *method = "POST", *path = paths[t->api];
    int words = a->prompt + (t->exact ? 8 : 0); /* every word is at least a token: enough to cut from */
    if (a->kind == ASK_BAD)
        path = put_fault(&body, t, a->bad, &method);
    else if (t->api == API_TGI)
        put_tgi(&body, t, a, words);
    else
        put_openai(&body, t, a, words);
    api_put_call(out, t, method, path, body.data, body.len);
    buf_free(&body);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static bool is_text(const cJSON *v)
{
    return cJSON_IsString(v) && v->valuestring[0];
}

static int count_in(const cJSON *object, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(v) && v->valuedouble >= 0 && v->valuedouble < 1e9 ? (int)v->valuedouble : -1;
}

static bool read_tgi(const cJSON *json, struct api_event *out)
{
    const cJSON *token = cJSON_GetObjectItemCaseSensitive(json, "token");
    const cJSON *details = cJSON_GetObjectItemCaseSensitive(json, "details");
    if (!cJSON_IsObject(token)) return false;
    out->token = true;
    out->text = is_text(cJSON_GetObjectItemCaseSensitive(token, "text"));
    out->last = cJSON_IsString(cJSON_GetObjectItemCaseSensitive(json, "generated_text"));
    if (cJSON_IsObject(details)) {
        out->tokens = count_in(details, "generated_tokens");
        out->prompt = count_in(details, "input_length");
    }
    return true;
}

static bool read_openai(enum api_kind api, const cJSON *json, struct api_event *out)
{
    const cJSON *choices = cJSON_GetObjectItemCaseSensitive(json, "choices");
    const cJSON *usage = cJSON_GetObjectItemCaseSensitive(json, "usage");
    if (cJSON_IsObject(usage)) {
        out->tokens = count_in(usage, "completion_tokens");
        out->prompt = count_in(usage, "prompt_tokens");
    }
    if (!cJSON_IsArray(choices)) return cJSON_IsObject(usage);
    const cJSON *choice = choices->child;
    if (!choice) return true; /* the chunk with the usage has none */
    if (!cJSON_IsObject(choice)) return false;
    if (api == API_CHAT) {
        const cJSON *delta = cJSON_GetObjectItemCaseSensitive(choice, "delta");
        out->text = is_text(cJSON_GetObjectItemCaseSensitive(delta, "content")) ||
                    is_text(cJSON_GetObjectItemCaseSensitive(delta, "reasoning_content")) ||
                    is_text(cJSON_GetObjectItemCaseSensitive(delta, "reasoning")) ||
                    cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(delta, "tool_calls"));
    } else {
        out->text = is_text(cJSON_GetObjectItemCaseSensitive(choice, "text"));
    }
    out->token = out->text;
    out->last = cJSON_IsString(cJSON_GetObjectItemCaseSensitive(choice, "finish_reason"));
    return true;
}

bool api_read_event(enum api_kind api, const char *data, size_t n, struct api_event *out)
{
    *out = (struct api_event){.tokens = -1, .prompt = -1};
    if (api != API_TGI && n == 6 && !memcmp(data, "[DONE]", 6)) {
        out->last = true;
        return true;
    }
    cJSON *json = cJSON_ParseWithLength(data, n);
    bool known = cJSON_IsObject(json);
    if (known && cJSON_GetObjectItemCaseSensitive(json, "error") &&
        !cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(json, "error")))
        out->error = true;
    else if (known)
        known = api == API_TGI ? read_tgi(json, out) : read_openai(api, json, out);
    cJSON_Delete(json);
    return known;
}
