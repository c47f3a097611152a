/* Reads the rows of an evaluation: finds out of which kind they are, and checks every field. */
#include "engine/base/mem.h"
#include "engine/data/json.h"
#include "engine/data/row.h"
#include "engine/data/scan.h"
#include "engine/eval/evaluation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MESSAGES_MAX = 1024, LETTERS = 26 };

static const char *const prompt_names[] = {"prompt", "question", "context", "input", NULL};
static const char *const answer_names[] = {"answer", "gold", "label", NULL};
static const char *const reference_names[] = {"reference", "references", "answer", "answers",
                                              "target",    "completion", NULL};

#define KNOWN                                                                                                          \
    "a row has \"text\"; or a prompt (\"prompt\", \"question\", \"context\"), \"choices\" and \"answer\"; or a "       \
    "prompt or \"messages\", and \"reference\" or \"references\""

/* ---- fields ------------------------------------------------------------------------------------------------------ */

/* The first of the names that the row has, not null; its name is in (*v)->string. */
static const cJSON *field(const cJSON *row, const char *const *names)
{
    for (; *names; names++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(row, *names);
        if (v && !cJSON_IsNull(v)) return v;
    }
    return NULL;
}

static const cJSON *one_field(const cJSON *row, const char *name)
{
    return field(row, (const char *const[]){name, NULL});
}

static int read_prompt(const cJSON *row, struct evaluation_row *r, struct err *e)
{
    const cJSON *v = field(row, prompt_names);
    if (!v) return err_set(e, ERR_INVALID, "prompt: missing");
    if (!cJSON_IsString(v)) return err_set(e, ERR_INVALID, "%s: expected a string", v->string);
    r->prompt = v->valuestring;
    return 0;
}

static int read_messages(const cJSON *messages, struct evaluation_row *r, struct err *e)
{
    int n = cJSON_GetArraySize(messages), at = 0;
    if (!cJSON_IsArray(messages) || n < 1 || n > MESSAGES_MAX)
        return err_set(e, ERR_INVALID, "messages: expected a list of 1 to %d messages", MESSAGES_MAX);
    for (const cJSON *m = messages->child; m; m = m->next, at++) {
        const char *role = cJSON_GetStringValue(one_field(m, "role"));
        if (!cJSON_IsObject(m) || !role) return err_set(e, ERR_INVALID, "messages[%d].role: expected a string", at);
    }
    r->messages = messages;
    return 0;
}

/* Checks a text of a list and appends it. */
static int add_text(struct evaluation_row *r, const cJSON *v, const char *name, bool may_be_empty, struct err *e)
{
    if (!cJSON_IsString(v)) return err_set(e, ERR_INVALID, "%s: expected a string", name);
    size_t n = strlen(v->valuestring);
    if (!n && !may_be_empty) return err_set(e, ERR_INVALID, "%s: is empty", name);
    if (n > EVALUATION_REFERENCE_BYTES)
        return err_set(e, ERR_INVALID, "%s: %zu bytes; at most %d are possible", name, n, EVALUATION_REFERENCE_BYTES);
    r->list[r->n++] = v->valuestring;
    return 0;
}

/* A list of texts, or one text where that is allowed. */
static int read_list(const cJSON *v, int least, bool may_be_empty, struct evaluation_row *r, struct err *e)
{
    char name[64];
    int n = cJSON_IsArray(v) ? cJSON_GetArraySize(v) : 1, rc = 0;
    if (!cJSON_IsArray(v) && (least > 1 || !cJSON_IsString(v)))
        return err_set(e, ERR_INVALID, "%s: expected %sa list of strings", v->string, least > 1 ? "" : "a string or ");
    if (n < least || n > EVALUATION_LIST_MAX)
        return err_set(e, ERR_INVALID, "%s: has %d entries; %d to %d are possible", v->string, n, least,
                       EVALUATION_LIST_MAX);
    r->list = mem_array((size_t)n, sizeof *r->list);
    if (!cJSON_IsArray(v)) return add_text(r, v, v->string, may_be_empty, e);
    int at = 0;
    for (const cJSON *one = v->child; one && !rc; one = one->next, at++) {
        snprintf(name, sizeof name, "%.40s[%d]", v->string, at);
        rc = add_text(r, one, name, may_be_empty, e);
    }
    return rc;
}

/* Which choice the answer names: by its index from 0, by its text, or by its letter. */
static int find_choice(const cJSON *v, const struct evaluation_row *r)
{
    if (cJSON_IsNumber(v)) {
        int at = v->valueint;
        return at >= 0 && at < r->n && v->valuedouble == (double)at ? at : -1;
    }
    const char *text = cJSON_GetStringValue(v);
    for (int i = 0; text && i < r->n; i++)
        if (strcmp(text, r->list[i]) == 0) return i;
    if (!text || !text[0] || text[1]) return -1;
    int at = text[0] >= 'a' && text[0] <= 'z' ? text[0] - 'a' : text[0] - 'A';
    return at >= 0 && at < LETTERS && at < r->n ? at : -1;
}

static int read_choice(const cJSON *row, struct evaluation_row *r, struct err *e)
{
    const cJSON *answer = field(row, answer_names);
    int rc = read_prompt(row, r, e);
    if (!rc) rc = read_list(one_field(row, "choices"), 2, false, r, e);
    if (!rc && !answer) rc = err_set(e, ERR_INVALID, "answer: missing");
    if (rc) return rc;
    r->answer = find_choice(answer, r);
    if (r->answer >= 0) return 0;
    return err_set(e, ERR_INVALID,
                   "%s: names none of the %d choices: expected an index from 0, a letter, or the text of one",
                   answer->string, r->n);
}

static int read_generation(const cJSON *row, struct evaluation_row *r, struct err *e)
{
    const cJSON *messages = one_field(row, "messages"), *reference = field(row, reference_names);
    int rc = messages ? read_messages(messages, r, e) : read_prompt(row, r, e);
    if (!rc && !reference) rc = err_set(e, ERR_INVALID, "reference: missing");
    return rc ? rc : read_list(reference, 1, true, r, e);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static int row_kind(const cJSON *row, enum evaluation_kind *kind, struct err *e)
{
    bool asks = one_field(row, "messages") || field(row, prompt_names);
    if (cJSON_IsString(row)) {
        *kind = EVALUATION_TEXT;
    } else if (one_field(row, "choices")) {
        *kind = EVALUATION_CHOICE;
    } else if (asks && field(row, reference_names)) {
        *kind = EVALUATION_GENERATION;
    } else if (one_field(row, "text")) {
        *kind = EVALUATION_TEXT;
    } else {
        struct buf seen = {0};
        row_describe(&seen, row);
        err_set(e, ERR_INVALID, "not a row to evaluate: %.160s; " KNOWN, seen.data);
        buf_free(&seen);
        return e->code;
    }
    return 0;
}

static int read_text(const cJSON *row, struct evaluation_row *r, struct err *e)
{
    const cJSON *v = cJSON_IsString(row) ? row : one_field(row, "text");
    if (!cJSON_IsString(v)) return err_set(e, ERR_INVALID, "text: expected a string");
    if (!*v->valuestring) return err_set(e, ERR_INVALID, "text: is empty");
    r->prompt = v->valuestring;
    return 0;
}

static int read_fields(const cJSON *row, enum evaluation_kind kind, struct evaluation_row *r, struct err *e)
{
    const cJSON *id = one_field(row, "id");
    if (cJSON_IsString(id) || cJSON_IsNumber(id)) r->id = id;
    if (kind == EVALUATION_TEXT) return read_text(row, r, e);
    return kind == EVALUATION_CHOICE ? read_choice(row, r, e) : read_generation(row, r, e);
}

static void row_clear(struct evaluation_row *r)
{
    free(r->list);
    cJSON_Delete(r->json);
}

static bool holds(const cJSON *v, const char *text)
{
    return text && (v->valuestring == text || (v->child && v->child->valuestring == text));
}

/* Frees the members that nothing points into: a value takes many times its bytes in the file. */
static void drop_others(struct evaluation_row *r)
{
    cJSON *next;
    for (cJSON *v = cJSON_IsObject(r->json) ? r->json->child : NULL; v; v = next) {
        next = v->next;
        if (v == r->id || v == r->messages || holds(v, r->prompt) || holds(v, r->n ? r->list[0] : NULL)) continue;
        cJSON_Delete(cJSON_DetachItemViaPointer(r->json, v));
    }
}

/* Appends the row, whose JSON it owns from here. */
static int add_row(struct evaluation_rows *rows, cJSON *json, uint64_t line, struct err *e)
{
    static const char *const kinds[] = {"texts", "choices", "references"};
    struct evaluation_row r = {.line = line, .json = json};
    enum evaluation_kind kind = EVALUATION_TEXT;
    int rc = row_kind(json, &kind, e);
    if (!rc && !rows->n) rows->kind = kind;
    if (!rc && kind != rows->kind)
        rc = err_set(e, ERR_INVALID, "a row with %s among rows with %s: a file has rows of one kind", kinds[kind],
                     kinds[rows->kind]);
    if (!rc) rc = read_fields(json, kind, &r, e);
    if (!rc && rows->n == EVALUATION_ROWS_MAX) rc = err_set(e, ERR_INVALID, "more than %d rows", EVALUATION_ROWS_MAX);
    if (rc) {
        row_clear(&r);
        return rc;
    }
    drop_others(&r);
    mem_grow(&rows->v, &rows->cap, rows->n + 1, sizeof *rows->v);
    rows->v[rows->n++] = r;
    return 0;
}

static int read_rows(struct evaluation_rows *rows, struct source *s, enum scan_kind kind, size_t limit, struct err *e)
{
    struct scan scan;
    struct scan_row at = {0};
    struct buf bytes = {0};
    int rc;
    scan_open(&scan, s, kind, EVALUATION_ROW_BYTES);
    while ((rc = scan_next(&scan, &bytes, &at, e)) > 0) {
        cJSON *json = NULL;
        rc = 0;
        if (at.too_large) rc = err_set(e, ERR_INVALID, "a row of more than %d bytes", EVALUATION_ROW_BYTES);
        if (!rc && !(json = row_parse(bytes.data, bytes.len, e))) rc = e->code;
        if (!rc) rc = add_row(rows, json, at.line, e);
        if (rc) err_prefix(e, kind == SCAN_ARRAY ? "%s: row %llu" : "%s:%llu", rows->name, (unsigned long long)at.line);
        if (rc || rows->n == limit) break;
        buf_clear(&bytes);
    }
    buf_free(&bytes);
    scan_close(&scan);
    return rc;
}

/* A file of plain text is one row. */
static int read_plain(struct evaluation_rows *rows, struct source *s, struct err *e)
{
    struct buf text = {0};
    char block[65536];
    ssize_t n;
    while ((n = source_read(s, block, sizeof block, e)) > 0 && text.len <= EVALUATION_PLAIN_BYTES)
        buf_append(&text, block, (size_t)n);
    int rc = n < 0 ? (int)n : 0;
    if (!rc && text.len > EVALUATION_PLAIN_BYTES)
        rc = err_set(e, ERR_INVALID, "more than %d bytes: divide it into rows", EVALUATION_PLAIN_BYTES);
    if (!rc) rc = row_check_text(text.data, text.len, e);
    if (!rc) rc = add_row(rows, cJSON_CreateString(text.data), 1, e);
    if (rc && n >= 0) err_prefix(e, "%s", rows->name);
    buf_free(&text);
    return rc;
}

static bool is_text_name(const struct source *s)
{
    return source_is_named(s, ".txt") || source_is_named(s, ".text") || source_is_named(s, ".md");
}

/* Whether the first byte that is not white space begins an array. */
static int array_begins(struct source *s, bool *is, struct err *e)
{
    char block[4096];
    ssize_t n = source_read(s, block, sizeof block, e);
    if (n < 0) return (int)n;
    ssize_t at = n >= 3 && memcmp(block, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (at < n && memchr(" \t\r\n", block[at], 4)) at++;
    *is = at < n && block[at] == '[';
    return source_rewind(s, e);
}

int evaluation_rows_read(struct evaluation_rows *rows, const char *path, const char *name, size_t limit, struct err *e)
{
    struct source s;
    bool array = false;
    *rows = (struct evaluation_rows){.name = mem_strdup(name ? name : path)};
    if (source_open(&s, &(struct dataset_source){.path = path, .name = name}, EVALUATION_FILE_BYTES, e)) return e->code;
    int rc = array_begins(&s, &array, e);
    if (!rc && is_text_name(&s))
        rc = read_plain(rows, &s, e);
    else if (!rc)
        rc = read_rows(rows, &s, array ? SCAN_ARRAY : SCAN_LINES, limit, e);
    source_close(&s);
    if (!rc && !rows->n) rc = err_set(e, ERR_INVALID, "%s: has no rows", rows->name);
    return rc;
}

void evaluation_rows_free(struct evaluation_rows *rows)
{
    for (size_t i = 0; i < rows->n; i++) row_clear(&rows->v[i]);
    free(rows->v);
    free(rows->name);
    *rows = (struct evaluation_rows){0};
}
