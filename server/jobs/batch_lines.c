#include "server/jobs/batch_lines.h"

#include "engine/base/mem.h"
#include "server/api/routes.h"
#include "server/json/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct batch_endpoint batch_endpoints[] = {
    {"/v1/chat/completions", api_chat_completions},
    {"/v1/completions", api_completions},
    {"/v1/embeddings", api_embeddings},
    {"/v1/responses", api_responses},
};
const int batch_n_endpoints = sizeof batch_endpoints / sizeof *batch_endpoints;

int batch_endpoint_find(const char *path)
{
    for (int i = 0; i < batch_n_endpoints; i++)
        if (strcmp(batch_endpoints[i].path, path) == 0) return i;
    return -1;
}

const char *batch_custom_id(const struct batch_lines *l, size_t i)
{
    return l->ids.data + l->v[i].custom_id;
}

/* ---- what is wrong --------------------------------------------------------------------------------------------- */

/* Adds to the list of errors.  number: the line; 0: the file.  param: the field; NULL. */
__attribute__((format(printf, 5, 6))) static void add_wrong(struct batch_lines *l, int number, const char *code,
                                                            const char *param, const char *fmt, ...)
{
    char text[480];
    va_list ap;
    if (l->n_wrong++ >= BATCH_ERRORS_MAX) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (l->n_wrong == 1 && number)
        snprintf(l->first_wrong, sizeof l->first_wrong, "line %d: %s%s%.200s", number, param ? param : "",
                 param ? ": " : "", text);
    else if (l->n_wrong == 1)
        snprintf(l->first_wrong, sizeof l->first_wrong, "%.200s", text);
    buf_printf(&l->wrong, "%s{\"code\":\"%s\",\"message\":", l->wrong.len ? "," : "", code);
    json_put_string(&l->wrong, text, strlen(text));
    buf_str(&l->wrong, ",\"param\":");
    if (param)
        json_put_string(&l->wrong, param, strlen(param));
    else
        buf_str(&l->wrong, "null");
    if (number)
        buf_printf(&l->wrong, ",\"line\":%d}", number);
    else
        buf_str(&l->wrong, ",\"line\":null}");
}

/* ---- a line ---------------------------------------------------------------------------------------------------- */

/* Reads a text that must be there.  @return false: it is not, which was added to the errors. */
static bool read_text(struct batch_lines *l, struct json_at *at, int number, const char *name, const char **out)
{
    if (json_get_string(at, name, out) && **out) return true;
    add_wrong(l, number, at->e->code ? "invalid_type" : "missing_required_parameter", name, "%s",
              at->e->code ? at->e->msg
              : *out      ? "the text is empty"
                          : "the field is missing");
    at->e->code = 0;
    return false;
}

/* Checks the body's own fields that a batch cannot serve; all others are checked by the route's handler. */
static void check_body(struct batch_lines *l, const cJSON *body, int number)
{
    struct err e = {0};
    struct json_at at = {.obj = body, .path = "body", .e = &e};
    bool stream = false;
    if (json_get_bool(&at, "stream", &stream) && stream)
        add_wrong(l, number, "invalid_value", "body.stream", "the answers of a batch are not streamed");
}

static void read_fields(struct batch_lines *l, const cJSON *tree, struct batch_line *line,
                        const struct batch_limits *lim)
{
    struct err e = {0};
    struct json_at at = {.obj = tree, .path = "", .e = &e};
    const char *id = NULL, *method = NULL, *url = NULL;
    const cJSON *body = NULL;
    line->custom_id = l->ids.len;
    if (read_text(l, &at, line->number, "custom_id", &id)) {
        if (strlen(id) > BATCH_CUSTOM_ID_MAX)
            add_wrong(l, line->number, "invalid_value", "custom_id", "the text is longer than %d bytes",
                      BATCH_CUSTOM_ID_MAX);
        else
            buf_append(&l->ids, id, strlen(id) + 1);
    }
    if (read_text(l, &at, line->number, "method", &method) && strcmp(method, "POST") != 0)
        add_wrong(l, line->number, "invalid_method", "method", "must be POST");
    if (read_text(l, &at, line->number, "url", &url)) {
        line->endpoint = batch_endpoint_find(url);
        if (lim->endpoint >= 0 && line->endpoint != lim->endpoint)
            add_wrong(l, line->number, "mismatched_endpoint", "url", "must be the batch's endpoint, %s",
                      batch_endpoints[lim->endpoint].path);
        else if (line->endpoint < 0)
            add_wrong(l, line->number, "invalid_url", "url", "%.100s cannot be asked in a batch", url);
    }
    if (json_get_object(&at, "body", &body))
        check_body(l, body, line->number);
    else
        add_wrong(l, line->number, e.code ? "invalid_type" : "missing_required_parameter", "body", "%s",
                  e.code ? e.msg : "the field is missing");
}

/* @return 0; ERR_FULL when there is no memory for the line's tree now. */
static int read_line(struct batch_lines *l, struct batch_line *line, const struct batch_limits *lim, struct err *e)
{
    if (line->len > lim->line_bytes) {
        add_wrong(l, line->number, "line_too_long", NULL, "the line has %zu bytes; %zu are possible", line->len,
                  lim->line_bytes);
        return 0;
    }
    cJSON *tree = json_parse_body(l->map.data + line->at, line->len, e);
    if (!tree && e->code == ERR_FULL) return e->code;
    if (!tree)
        add_wrong(l, line->number, "invalid_json_line", NULL, "%s", e->msg);
    else if (!cJSON_IsObject(tree))
        add_wrong(l, line->number, "invalid_json_line", NULL, "expected an object");
    else
        read_fields(l, tree, line, lim);
    json_free(tree);
    e->code = 0;
    return 0;
}

/* ---- the file -------------------------------------------------------------------------------------------------- */

static bool is_blank(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r", p[i]) || !p[i]) return false;
    return true;
}

/* @return the bytes up to the line's end. */
static size_t line_length(const char *p, size_t n)
{
    const char *end = n ? memchr(p, '\n', n) : NULL;
    return end ? (size_t)(end - p) : n;
}

struct named {
    const char *id;
    size_t line;
};

static int by_name(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    int d = strcmp(x->id, y->id);
    return d ? d : (x->line > y->line) - (x->line < y->line);
}

/* Fills by_id, and reports custom ids that occur twice. */
static void sort_ids(struct batch_lines *l)
{
    struct named *names = mem_array(l->n + 1, sizeof *names);
    for (size_t i = 0; i < l->n; i++) names[i] = (struct named){batch_custom_id(l, i), i};
    qsort(names, l->n, sizeof *names, by_name);
    l->by_id = mem_array(l->n + 1, sizeof *l->by_id);
    for (size_t i = 0; i < l->n; i++) {
        l->by_id[i] = names[i].line;
        if (i && strcmp(names[i].id, names[i - 1].id) == 0)
            add_wrong(l, l->v[names[i].line].number, "duplicate_custom_id", "custom_id",
                      "%.100s is that of line %d, too", names[i].id, l->v[names[i - 1].line].number);
    }
    free(names);
}

static int read_lines(struct batch_lines *l, const struct batch_limits *lim, struct err *e)
{
    size_t at = 0, n;
    int number = 0;
    for (; at < l->map.size; at += n + 1) {
        n = line_length(l->map.data + at, l->map.size - at);
        number++;
        if (is_blank(l->map.data + at, n)) continue;
        if (l->n == lim->lines) {
            add_wrong(l, number, "too_many_tasks", NULL, "a batch has at most %zu lines", lim->lines);
            return 0;
        }
        mem_grow(&l->v, &l->cap, l->n + 1, sizeof *l->v);
        l->v[l->n] = (struct batch_line){.at = at, .len = n, .number = number, .endpoint = -1};
        if (read_line(l, &l->v[l->n++], lim, e)) return e->code;
        if (l->n_wrong >= BATCH_ERRORS_MAX) return 0;
    }
    if (!l->n) add_wrong(l, 0, "empty_file", NULL, "the file has no lines");
    return 0;
}

int batch_lines_open(struct batch_lines *l, const char *path, const struct batch_limits *lim, struct err *e)
{
    enum { LINE_MEMORY = 2 * (sizeof(struct batch_line) + sizeof(struct named) + sizeof(size_t)) };
    *l = (struct batch_lines){0};
    if (file_map(&l->map, path, e)) return e->code;
    /* a line of a good file has at least 64 bytes, and its custom_id is among them */
    size_t lines = l->map.size / 64 + 1 < lim->lines ? l->map.size / 64 + 1 : lim->lines, ids = lines;
    ids = ids * (BATCH_CUSTOM_ID_MAX + 1) < l->map.size ? ids * (BATCH_CUSTOM_ID_MAX + 1) : l->map.size;
    if (!reserve(&l->held, lines * LINE_MEMORY + 2 * ids, "the batch's lines", e) || read_lines(l, lim, e))
        return e->code;
    if (!l->n_wrong) sort_ids(l);
    size_t used = l->cap * sizeof *l->v + (l->n + 1) * sizeof *l->by_id + l->ids.cap;
    if (used < l->held.bytes) reservation_shrink(&l->held, l->held.bytes - used);
    return 0;
}

void batch_lines_free(struct batch_lines *l)
{
    file_unmap(&l->map);
    free(l->v);
    free(l->by_id);
    buf_free(&l->ids);
    buf_free(&l->wrong);
    reservation_free(&l->held);
    *l = (struct batch_lines){0};
}

int batch_line_body(const struct batch_lines *l, size_t i, struct buf *out, struct err *e)
{
    const cJSON *body = NULL;
    cJSON *tree = json_parse_body(l->map.data + l->v[i].at, l->v[i].len, e);
    struct json_at at = {.obj = tree, .path = "", .e = e};
    if (tree && json_get_object(&at, "body", &body)) json_put_value(out, body, ",", ":");
    json_free(tree);
    return e->code;
}

/* ---- what is answered already ---------------------------------------------------------------------------------- */

static struct batch_line *find_line(struct batch_lines *l, const char *custom_id)
{
    size_t low = 0, high = l->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int d = strcmp(custom_id, batch_custom_id(l, l->by_id[mid]));
        if (d == 0) return &l->v[l->by_id[mid]];
        if (d < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

static int mark_line(struct batch_lines *l, const char *p, size_t n, int *good, int *bad, struct err *e)
{
    const char *id = NULL;
    const cJSON *response = NULL, *error = NULL;
    int64_t status = 0;
    cJSON *tree = json_parse(p, n, e);
    struct json_at at = {.obj = tree, .path = "", .e = e};
    if (tree && !cJSON_IsObject(tree)) err_set(e, ERR_INVALID, "expected an object");
    if (!e->code && !json_get_string(&at, "custom_id", &id) && !e->code)
        err_set(e, ERR_INVALID, "custom_id: the field is missing");
    if (!e->code && json_get_object(&at, "response", &response)) {
        struct json_at in = {.obj = response, .path = "response", .e = e};
        json_get_int(&in, "status_code", 0, 999, &status);
    } else if (!e->code && !json_get_object(&at, "error", &error) && !e->code) {
        err_set(e, ERR_INVALID, "response: the field is missing");
    }
    struct batch_line *line = e->code ? NULL : find_line(l, id);
    if (!e->code && !line) err_set(e, ERR_INVALID, "custom_id: the input has no line with %.100s", id);
    if (line && line->done) err_set(e, ERR_INVALID, "custom_id: %.100s is answered twice", id);
    if (line) line->done = true;
    if (!e->code) *(status && status < 400 ? good : bad) += 1;
    json_free(tree);
    return e->code;
}

int batch_lines_mark(struct batch_lines *l, const char *output, size_t bytes, int *good, int *bad, struct err *e)
{
    struct file_map map = {0};
    size_t n, at = 0;
    int number = 1;
    if (file_map(&map, output, e)) return e->code;
    if (map.size < bytes) err_set(e, ERR_INVALID, "%s: has %zu bytes, and %zu were written", output, map.size, bytes);
    for (; at < bytes && !e->code; at += n + 1, number++) {
        n = line_length(map.data + at, bytes - at);
        if (mark_line(l, map.data + at, n, good, bad, e)) err_prefix(e, "%s, line %d", output, number);
    }
    file_unmap(&map);
    return e->code;
}
