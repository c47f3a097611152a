/* The configuration file: a YAML mapping of option names to scalars (or to a sequence, for an option that may be given
 * again).  Errors name file and line.  Main thread only. */
#include "server/config/settings.h"

#include "engine/base/file.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

struct reader {
    yaml_parser_t parser;
    const char *path;
    struct settings *s;
    bool seen[sizeof((struct settings *)0)->source];
    struct err *e;
};

static int fail(struct reader *r, size_t line, const char *what)
{
    return err_set(r->e, ERR_INVALID, "%s:%zu: %s", r->path, line + 1, what);
}

static int next_event(struct reader *r, yaml_event_t *ev)
{
    if (yaml_parser_parse(&r->parser, ev)) return 0;
    return fail(r, r->parser.problem_mark.line, r->parser.problem ? r->parser.problem : "not YAML");
}

/* null, ~ and an empty plain scalar leave the option as it is */
static bool is_null(const yaml_event_t *ev)
{
    const char *t = (const char *)ev->data.scalar.value;
    return ev->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && (!*t || strcmp(t, "~") == 0 || strcmp(t, "null") == 0);
}

static int set_scalar(struct reader *r, const struct setting_option *o, const yaml_event_t *ev)
{
    char where[300];
    if (strlen((const char *)ev->data.scalar.value) != ev->data.scalar.length)
        return fail(r, ev->start_mark.line, "a value holds a NUL character");
    if (is_null(ev)) return 0;
    snprintf(where, sizeof where, "%s:%zu: %s", r->path, ev->start_mark.line + 1, o->name);
    return settings_set(r->s, o, (const char *)ev->data.scalar.value, where, SETTING_FILE, r->e);
}

static int read_sequence(struct reader *r, const struct setting_option *o)
{
    for (;;) {
        yaml_event_t ev;
        if (next_event(r, &ev)) return ERR_INVALID;
        int rc = 0;
        bool end = ev.type == YAML_SEQUENCE_END_EVENT;
        if (!end)
            rc = ev.type == YAML_SCALAR_EVENT ? set_scalar(r, o, &ev) : fail(r, ev.start_mark.line, "expected a value");
        yaml_event_delete(&ev);
        if (rc || end) return rc;
    }
}

static int read_value(struct reader *r, const struct setting_option *o)
{
    yaml_event_t ev;
    int rc;
    if (next_event(r, &ev)) return ERR_INVALID;
    if (ev.type == YAML_SCALAR_EVENT)
        rc = set_scalar(r, o, &ev);
    else if (ev.type == YAML_SEQUENCE_START_EVENT && o->type == SETTING_LIST)
        rc = read_sequence(r, o);
    else
        rc = fail(r, ev.start_mark.line, "expected a single value (options are not nested)");
    yaml_event_delete(&ev);
    return rc;
}

static int find_key(struct reader *r, const yaml_event_t *ev, const struct setting_option **out)
{
    char what[160];
    const char *name = (const char *)ev->data.scalar.value;
    int n;
    const struct setting_option *o = settings_find(name, ev->data.scalar.length);
    if (o && o->flag_only) {
        snprintf(what, sizeof what, "%s belongs to one run: give it as --%s", o->name, o->name);
        return fail(r, ev->start_mark.line, what);
    }
    if (!o || strcmp(o->name, "config") == 0) {
        const char *near = settings_nearest(name, strlen(name), 0);
        snprintf(what, sizeof what, "unknown option '%.60s'%s%s", name, near ? "; did you mean " : "",
                 near ? near : "");
        return fail(r, ev->start_mark.line, what);
    }
    size_t row = (size_t)(o - settings_options(&n));
    if (r->seen[row]) {
        snprintf(what, sizeof what, "%s is set twice", o->name);
        return fail(r, ev->start_mark.line, what);
    }
    r->seen[row] = true;
    *out = o;
    return 0;
}

static int read_mapping(struct reader *r)
{
    for (;;) {
        yaml_event_t ev;
        const struct setting_option *o = NULL;
        int rc;
        if (next_event(r, &ev)) return ERR_INVALID;
        bool end = ev.type == YAML_MAPPING_END_EVENT;
        if (end)
            rc = 0;
        else if (ev.type == YAML_SCALAR_EVENT)
            rc = find_key(r, &ev, &o);
        else
            rc = fail(r, ev.start_mark.line, "expected the name of an option");
        yaml_event_delete(&ev);
        if (rc || end) return rc;
        if (read_value(r, o)) return ERR_INVALID;
    }
}

static int read_file(struct reader *r)
{
    bool mapped = false;
    for (;;) {
        yaml_event_t ev;
        int rc = 0;
        if (next_event(r, &ev)) return ERR_INVALID;
        yaml_event_type_t type = ev.type;
        size_t line = ev.start_mark.line;
        bool empty = type == YAML_SCALAR_EVENT && is_null(&ev);
        yaml_event_delete(&ev);
        if (type == YAML_STREAM_END_EVENT) return 0;
        if (type == YAML_MAPPING_START_EVENT && !mapped)
            mapped = true, rc = read_mapping(r);
        else if (type == YAML_DOCUMENT_START_EVENT && mapped)
            rc = fail(r, line, "a second document");
        else if (type != YAML_STREAM_START_EVENT && type != YAML_DOCUMENT_START_EVENT &&
                 type != YAML_DOCUMENT_END_EVENT && !empty)
            rc = fail(r, line, "expected lines of the form  name: value");
        if (rc) return rc;
    }
}

int settings_load_file(struct settings *s, const char *path, struct err *e)
{
    enum { LIMIT = 1 << 20 };
    char *text = NULL;
    size_t n;
    if (file_read(path, LIMIT, &text, &n, e)) return e ? e->code : ERR_IO;
    struct err local = {0};
    struct reader r = {.path = path, .s = s, .e = e ? e : &local};
    int rc;
    if (yaml_parser_initialize(&r.parser)) {
        yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, n);
        rc = read_file(&r);
        yaml_parser_delete(&r.parser);
    } else {
        rc = err_set(r.e, ERR_NOMEM, "%s: no memory", path);
    }
    free(text);
    return rc;
}
