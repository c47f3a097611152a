/* POST /evaluate's body (evaluation_spec.h).  Pure; runs on the store thread. */
#include "server/jobs/evaluation_spec.h"

#include "engine/base/mem.h"
#include "server/json/names.h"
#include "server/store/data_dir.h"

#include <stdlib.h>
#include <string.h>

enum { RESAMPLES_MAX = 10000, DELIMITER_MAX = 1024, EXTRACT_MAX = 4096 };

static const cJSON *field(const struct json_at *at, const char *name)
{
    const cJSON *found = NULL;
    for (const cJSON *c = at->obj->child; c; c = c->next)
        if (c->string && strcmp(c->string, name) == 0) found = c;
    return found && !cJSON_IsNull(found) ? found : NULL;
}

/* ---- data ------------------------------------------------------------------------------------------------------ */

static void set_rows(struct json_at *at, const char *name, const cJSON *list, struct data_spec *d)
{
    d->kind = DATA_ROWS;
    d->inline_ = list;
    d->size = cJSON_GetArraySize(list);
    if (!cJSON_IsArray(list))
        err_set(at->e, ERR_INVALID, "%s: expected an array", name);
    else if (!d->size)
        err_set(at->e, ERR_INVALID, "%s: the list is empty", name);
}

static void set_text(struct json_at *at, const char *name, const cJSON *text, struct data_spec *d)
{
    const char *value = cJSON_GetStringValue(text);
    if (!value || !*value) {
        err_set(at->e, ERR_INVALID, value ? "dataset.%s: is empty" : "dataset.%s: expected a string", name);
    } else if (strcmp(name, "text") == 0) {
        d->kind = DATA_TEXT;
        d->inline_ = text;
        d->size = (int64_t)strlen(value);
    } else {
        d->kind = strcmp(name, "path") == 0 ? DATA_PATH : DATA_FILE;
        data_spec_add(d, value, 0);
    }
}

/* {"path"} | {"file"} | {"rows"} | {"text"}: exactly one; or an array of rows. */
static void read_data(struct json_at *top, bool stored, struct data_spec *d)
{
    static const char *const names[] = {"path", "file", "rows", "text"};
    const cJSON *v = field(top, "dataset");
    struct json_at at = {.obj = v, .path = "dataset", .e = top->e};
    if (!v) {
        err_set(top->e, ERR_INVALID, "dataset: the field is missing");
    } else if (cJSON_IsArray(v)) {
        set_rows(top, "dataset", v, d);
    } else if (!cJSON_IsObject(v)) {
        err_set(top->e, ERR_INVALID, "dataset: expected an object, or an array of rows");
    } else if (json_only(&at, names, 4)) {
        const cJSON *given = NULL;
        for (int i = 0; i < 4; i++) {
            const cJSON *one = field(&at, names[i]);
            if (one && given) {
                err_set(at.e, ERR_INVALID, "dataset: `%s` and `%s` exclude each other", given->string, names[i]);
                return;
            }
            if (one) given = one;
        }
        if (!given) {
            err_set(at.e, ERR_INVALID, "dataset: needs one of `path`, `file`, `rows`, `text`");
        } else if (stored && cJSON_IsNumber(given)) {
            d->kind = strcmp(given->string, "rows") == 0 ? DATA_ROWS : DATA_TEXT;
            d->size = (int64_t)given->valuedouble;
        } else if (strcmp(given->string, "rows") == 0) {
            set_rows(&at, "dataset.rows", given, d);
        } else {
            set_text(&at, given->string, given, d);
        }
    }
}

/* ---- options --------------------------------------------------------------------------------------------------- */

/* A string or a list of at most `max`.  @return how many. */
static int read_texts(struct json_at *at, const char *name, int max, const char **out)
{
    const cJSON *v = field(at, name);
    int n = 0;
    if (!v || at->e->code) return 0;
    if (cJSON_IsString(v)) {
        out[n++] = v->valuestring;
        return n;
    }
    if (!cJSON_IsArray(v)) {
        err_set(at->e, ERR_INVALID, "%s: expected a string, or a list of them", name);
        return 0;
    }
    for (const cJSON *c = v->child; c; c = c->next, n++) {
        if (n == max) return err_set(at->e, ERR_INVALID, "%s: more than %d", name, max), 0;
        if (!cJSON_IsString(c)) return err_set(at->e, ERR_INVALID, "%s[%d]: expected a string", name, n), 0;
        out[n] = c->valuestring;
    }
    return n;
}

static void read_adapters(struct json_at *at, struct evaluation_spec *s)
{
    bool many = field(at, "adapters") != NULL;
    if (many && field(at, "adapter")) {
        err_set(at->e, ERR_INVALID, "adapter: excludes `adapters`");
        return;
    }
    const char *name = many ? "adapters" : "adapter";
    s->n_adapters = read_texts(at, name, EVALUATION_ADAPTERS_MAX, s->adapters);
    for (int i = 0; i < s->n_adapters && !at->e->code; i++) {
        if (!data_name_ok(s->adapters[i]))
            err_set(at->e, ERR_INVALID, "%s: %.100s is no adapter's name", name, s->adapters[i]);
        for (int k = 0; k < i && !at->e->code; k++)
            if (strcmp(s->adapters[i], s->adapters[k]) == 0)
                err_set(at->e, ERR_INVALID, "%s: %.100s is given twice", name, s->adapters[i]);
    }
}

static void read_stop(struct json_at *at, struct evaluation_spec *s)
{
    s->options.stop = s->stop;
    s->options.n_stop = read_texts(at, "stop", ENGINE_STOP_MAX, s->stop);
    for (int i = 0; i < s->options.n_stop && !at->e->code; i++)
        if (!*s->stop[i] || strlen(s->stop[i]) > ENGINE_STOP_BYTES)
            err_set(at->e, ERR_INVALID, "stop[%d]: must have 1 to %d bytes", i, ENGINE_STOP_BYTES);
}

static void read_ignore(struct json_at *at, struct evaluation_spec *s)
{
    const char *words[8] = {"space"};
    bool given = field(at, "ignore") != NULL;
    int n = given ? read_texts(at, "ignore", 8, words) : 1;
    for (int i = 0; i < n && !at->e->code; i++)
        if (!match_ignore_parse(words[i], strlen(words[i]), &s->options.ignore))
            err_set(at->e, ERR_INVALID, "ignore: '%.40s' is not one of " MATCH_IGNORE_WORDS, words[i]);
}

static void read_text(struct json_at *at, const char *name, size_t max, const char **out)
{
    if (json_get_string(at, name, out) && strlen(*out) > max)
        err_set(at->e, ERR_INVALID, "%s: more than %zu bytes", name, max);
}

static void read_numbers(struct json_at *at, struct evaluation_spec *s)
{
    int64_t most = 128, window = 0, resamples = 1000;
    json_get_int(at, "max_new_tokens", 1, 16777216, &most);
    json_get_int(at, "window", 0, 16777216, &window);
    json_get_int(at, "resamples", 0, RESAMPLES_MAX, &resamples);
    json_get_int(at, "limit", 0, EVALUATION_ROWS_MAX, &s->limit);
    json_get_u64(at, "seed", &s->seed);
    s->options.max_new_tokens = (int)most;
    s->options.window = (int)window;
    s->resamples = (int)resamples;
}

int evaluation_spec_read(struct evaluation_spec *s, const cJSON *tree, bool stored, struct err *e)
{
    static const char *const names[] = {"dataset",  "adapter",      "adapters",  "limit",   "max_new_tokens",
                                        "stop",     "window",       "delimiter", "special", "seed",
                                        "extract",  "extract_last", "ignore",    "stem",    "resamples",
                                        "metadata", "model"};
    *s = (struct evaluation_spec){.options = {.delimiter = " ", .special = true}};
    e->code = 0;
    struct json_at at = {.obj = tree, .path = "", .e = e};
    if (!json_only(&at, names, sizeof names / sizeof *names)) return e->code;
    read_data(&at, stored, &s->data);
    read_adapters(&at, s);
    json_get_string(&at, "model", &s->model);
    read_stop(&at, s);
    read_ignore(&at, s);
    read_numbers(&at, s);
    read_text(&at, "delimiter", DELIMITER_MAX, &s->options.delimiter);
    read_text(&at, "extract", EXTRACT_MAX, &s->options.extract);
    json_get_bool(&at, "special", &s->options.special);
    json_get_bool(&at, "extract_last", &s->options.extract_last);
    json_get_bool(&at, "stem", &s->options.stem);
    if (!e->code) s->metadata = train_metadata_read(&at);
    return e->code;
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

static void put_text(struct buf *b, const char *name, const char *text)
{
    buf_printf(b, ",\"%s\":", name);
    if (text)
        json_put_string(b, text, strlen(text));
    else
        buf_str(b, "null");
}

static void put_texts(struct buf *b, const char *name, const char *const *v, int n)
{
    buf_printf(b, ",\"%s\":[", name);
    for (int i = 0; i < n; i++) {
        if (i) buf_char(b, ',');
        json_put_string(b, v[i], strlen(v[i]));
    }
    buf_char(b, ']');
}

static void put_flag(struct buf *b, const char *name, bool v)
{
    buf_printf(b, ",\"%s\":%s", name, v ? "true" : "false");
}

static void put_ignore(struct buf *b, unsigned ignore)
{
    static const char *const names[] = {"case", "punctuation", "numbers", "space"};
    const char *given[4];
    int n = 0;
    for (int i = 0; i < 4; i++)
        if (ignore & 1u << i) given[n++] = names[i];
    put_texts(b, "ignore", given, n);
}

void evaluation_spec_put(struct buf *b, const struct evaluation_spec *s)
{
    static const char *const kinds[] = {"", "path", "file", "rows", "text"};
    const struct evaluation_options *o = &s->options;
    buf_printf(b, "{\"dataset\":{\"%s\":", kinds[s->data.kind]);
    if (s->data.n_refs)
        json_put_string(b, s->data.ref[0].name, strlen(s->data.ref[0].name));
    else
        buf_printf(b, "%lld", (long long)s->data.size);
    buf_char(b, '}');
    put_text(b, "model", s->model);
    put_texts(b, "adapters", s->adapters, s->n_adapters);
    buf_printf(b, ",\"limit\":%lld,\"max_new_tokens\":%d", (long long)s->limit, o->max_new_tokens);
    put_texts(b, "stop", s->stop, o->n_stop);
    buf_printf(b, ",\"window\":%d", o->window);
    put_text(b, "delimiter", o->delimiter);
    put_flag(b, "special", o->special);
    put_text(b, "extract", o->extract);
    put_flag(b, "extract_last", o->extract_last);
    put_ignore(b, o->ignore);
    put_flag(b, "stem", o->stem);
    buf_printf(b, ",\"resamples\":%d,\"seed\":%llu,\"metadata\":%s}", s->resamples, (unsigned long long)s->seed,
               s->metadata ? s->metadata : "null");
}

void evaluation_spec_free(struct evaluation_spec *s)
{
    data_spec_clear(&s->data);
    free(s->metadata);
    s->metadata = NULL;
}
