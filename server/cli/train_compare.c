#include "server/cli/train_compare.h"

#include "engine/base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEMBERS_MAX = 256, VALUE_MAX = 48, LABEL_MAX = 128 };

/* ---- the fields of a record -------------------------------------------------------------------------------------- */

/* The parts of a record that say what was asked for; of objects the members are settings. */
static const char *const sections[] = {"method",     "base",       "from",    "dataset",
                                       "validation", "batch_size", "options", "hyperparameters"};
enum { SECTIONS = sizeof sections / sizeof *sections };

static const cJSON *member(const cJSON *obj, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(obj, name);
    return cJSON_IsNull(v) ? NULL : v;
}

/* NAN: not there, or no number.  name: "a" or "a.b.c" */
static double number(const cJSON *obj, const char *name)
{
    char part[LABEL_MAX];
    for (const char *dot; obj && (dot = strchr(name, '.')); name = dot + 1) {
        snprintf(part, sizeof part, "%.*s", (int)(dot - name), name);
        obj = member(obj, part);
    }
    const cJSON *v = obj ? member(obj, name) : NULL;
    return cJSON_IsNumber(v) ? v->valuedouble : NAN;
}

int train_compare_check(const struct train_compared *c, struct err *e)
{
    if (!cJSON_IsObject(c->record) || !cJSON_IsObject(member(c->record, "hyperparameters")))
        return err_set(e, ERR_INVALID, "%s: not the record of a training job: it has no object hyperparameters",
                       c->name);
    for (size_t i = 0; i < SECTIONS; i++)
        if (cJSON_GetArraySize(member(c->record, sections[i])) > MEMBERS_MAX)
            return err_set(e, ERR_INVALID, "%s: %s has more than %d members", c->name, sections[i], MEMBERS_MAX);
    return 0;
}

/* ---- settings ---------------------------------------------------------------------------------------------------- */

typedef void setting_fn(void *arg, const char *label, const cJSON *a, const cJSON *b);

static void visit(setting_fn *fn, void *arg, const char *section, const cJSON *key, const cJSON *a, const cJSON *b)
{
    char label[LABEL_MAX];
    bool plain = strcmp(section, "hyperparameters") == 0; /* options of tandem train by the same names */
    if (a && b && json_equal(a, b)) return;
    if (!a && !b) return;
    snprintf(label, sizeof label, "%s%s%.60s", plain ? "" : section, plain || !key ? "" : ".", key ? key->string : "");
    fn(arg, label, a, b);
}

static void each_difference(const struct train_compared two[2], setting_fn *fn, void *arg)
{
    for (size_t i = 0; i < SECTIONS; i++) {
        const cJSON *a = member(two[0].record, sections[i]), *b = member(two[1].record, sections[i]), *v;
        if (!cJSON_IsObject(a) && !cJSON_IsObject(b)) {
            visit(fn, arg, sections[i], NULL, a, b);
            continue;
        }
        /* of an object against none every member differs */
        const cJSON *in_a = cJSON_IsObject(a) ? a : NULL, *in_b = cJSON_IsObject(b) ? b : NULL;
        cJSON_ArrayForEach(v, in_a) visit(fn, arg, sections[i], v, member(in_a, v->string), member(in_b, v->string));
        cJSON_ArrayForEach(v, in_b) if (!cJSON_GetObjectItemCaseSensitive(in_a, v->string))
            visit(fn, arg, sections[i], v, NULL, member(in_b, v->string));
    }
}

/* ---- figures ----------------------------------------------------------------------------------------------------- */

struct figure {
    const char *field, *label;
    double scale;
    int digits; /* of the scaled value after the point; negative: so many significant ones */
    bool share; /* of usage.seconds; in percent */
};

static const struct figure figures[] = {
    {"step", "steps", 1, 0, false},
    {"loss", "loss of the last step", 1, 4, false},
    {"grad_norm", "gradient norm of the last step", 1, -4, false},
    {"eval_loss", "last evaluation: loss", 1, 4, false},
    {"best_eval_loss", "best evaluation: loss", 1, 4, false},
    {"skipped_steps", "skipped steps", 1, 0, false},
    {"plan.trainable_parameters", "trained parameters", 1, 0, false},
    {"usage.tokens_per_s", "tokens/s", 1, 0, false},
    {"usage.rows_per_s", "rows/s", 1, -4, false},
    {"usage.macs_per_s", "G multiply-adds/s", 1e-9, -4, false},
    {"usage.micro_batches_per_step", "micro-batches a step", 1, -4, false},
    {"usage.peak_host_bytes", "peak memory of the host, MiB", 0x1p-20, 0, false},
    {"usage.peak_device_bytes", "peak memory of the device, MiB", 0x1p-20, 0, false},
    {"usage.seconds", "steps, s", 1, -4, false},
    {"usage.evaluation_seconds", "evaluations, s", 1, -4, false},
    {"usage.checkpoint_seconds", "checkpoints, s", 1, -4, false},
    {"usage.step_seconds.data", "of a step: data, %", 100, 1, true},
    {"usage.step_seconds.forward", "of a step: forward, %", 100, 1, true},
    {"usage.step_seconds.backward", "of a step: backward, %", 100, 1, true},
    {"usage.step_seconds.optimizer", "of a step: optimizer, %", 100, 1, true},
    {"usage.step_seconds.wait", "of a step: wait, %", 100, 1, true},
    {"usage.step_seconds.ranks", "of a step: ranks, %", 100, 1, true},
    {"usage.step_seconds.other", "of a step: other, %", 100, 1, true},
    {"cost", "cost", 1, -4, false},
};
enum { FIGURES = sizeof figures / sizeof *figures };

static double cost(const cJSON *record, double per_hour)
{
    double seconds = number(record, "usage.seconds"), eval = number(record, "usage.evaluation_seconds");
    double checkpoints = number(record, "usage.checkpoint_seconds");
    if (per_hour <= 0) per_hour = number(record, "cost_per_hour");
    if (!(per_hour > 0)) return NAN;
    return (seconds + (isnan(eval) ? 0 : eval) + (isnan(checkpoints) ? 0 : checkpoints)) / 3600 * per_hour;
}

/* Unscaled; a share is between 0 and 1.  NAN: unknown. */
static double value_of(const struct figure *f, const cJSON *record, double per_hour)
{
    if (strcmp(f->field, "cost") == 0) return cost(record, per_hour);
    double v = number(record, f->field);
    return f->share ? v / number(record, "usage.seconds") : v;
}

static double change(double a, double b)
{
    return a != 0 ? (b - a) / fabs(a) : NAN;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

struct table {
    struct row {
        char label[LABEL_MAX], a[VALUE_MAX + 4], b[VALUE_MAX + 4], more[24];
    } * row;
    size_t n, cap;
};

static struct row *add_row(struct table *t, const char *label)
{
    mem_grow(&t->row, &t->cap, t->n + 1, sizeof *t->row);
    t->row[t->n] = (struct row){0};
    snprintf(t->row[t->n].label, sizeof t->row->label, "%s", label);
    return &t->row[t->n++];
}

/* A terminal reads it. */
static void printable(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = '?';
}

/* Cuts `text` to VALUE_MAX bytes, at a character. */
static void put_cut(char out[VALUE_MAX + 4], const char *text)
{
    size_t n = strlen(text);
    if (n > VALUE_MAX) {
        n = VALUE_MAX;
        while (n && ((unsigned char)text[n] & 0xc0) == 0x80) n--;
        snprintf(out, VALUE_MAX + 4, "%.*s...", (int)n, text);
    } else {
        snprintf(out, VALUE_MAX + 4, "%s", text);
    }
}

static void put_setting(char out[VALUE_MAX + 4], const cJSON *v)
{
    struct buf text = {0};
    if (cJSON_IsString(v))
        buf_str(&text, v->valuestring);
    else if (v)
        json_put_value(&text, v, ", ", ": ");
    else
        buf_char(&text, '-');
    put_cut(out, text.data ? text.data : "");
    buf_free(&text);
    printable(out);
}

static void add_setting(void *arg, const char *label, const cJSON *a, const cJSON *b)
{
    struct row *r = add_row(arg, label);
    printable(r->label);
    put_setting(r->a, a);
    put_setting(r->b, b);
}

static void put_figure(char out[VALUE_MAX + 4], const struct figure *f, double v)
{
    if (isnan(v))
        snprintf(out, VALUE_MAX + 4, "-");
    else if (f->digits >= 0)
        snprintf(out, VALUE_MAX + 4, "%.*f", f->digits, v * f->scale);
    else
        snprintf(out, VALUE_MAX + 4, "%.*g", -f->digits, v * f->scale);
}

static void add_figure(struct table *t, const struct figure *f, double a, double b)
{
    if (isnan(a) && isnan(b)) return;
    struct row *r = add_row(t, f->label);
    put_figure(r->a, f, a);
    put_figure(r->b, f, b);
    double c = f->share ? NAN : change(a, b);
    if (!isnan(c) && strcmp(r->a, r->b) != 0) snprintf(r->more, sizeof r->more, "%+.1f %%", 100 * c);
}

static void put_rows(struct buf *out, const struct table *t, size_t from, size_t to, const size_t width[2])
{
    for (size_t i = from; i < to; i++) {
        const struct row *r = &t->row[i];
        buf_printf(out, "  %-*s  %-*s  ", (int)width[0], r->label, (int)width[1], r->a);
        if (*r->more)
            buf_printf(out, "%-*s  %s\n", (int)width[1], r->b, r->more);
        else
            buf_printf(out, "%s\n", r->b);
    }
}

void train_compare_text(struct buf *out, const struct train_compared two[2], double cost_per_hour)
{
    struct table t = {0};
    size_t width[2] = {0, 0};
    struct row *head = add_row(&t, "");
    put_cut(head->a, two[0].name);
    put_cut(head->b, two[1].name);
    each_difference(two, add_setting, &t);
    size_t settings = t.n;
    for (size_t i = 0; i < FIGURES; i++)
        add_figure(&t, &figures[i], value_of(&figures[i], two[0].record, cost_per_hour),
                   value_of(&figures[i], two[1].record, cost_per_hour));
    for (size_t i = 0; i < t.n; i++) {
        const size_t w[2] = {strlen(t.row[i].label), strlen(t.row[i].a)};
        for (int k = 0; k < 2; k++) width[k] = w[k] > width[k] ? w[k] : width[k];
    }
    put_rows(out, &t, 0, 1, width);
    buf_str(out, settings > 1 ? "settings that differ\n" : "no setting differs\n");
    put_rows(out, &t, 1, settings, width);
    buf_str(out, "figures\n");
    put_rows(out, &t, settings, t.n, width);
    for (int i = 0; i < 2; i++) {
        double all = number(two[i].record, "step"), measured = number(two[i].record, "usage.steps");
        if (measured < all)
            buf_printf(out, "%s was resumed: speed, times and cost are those of its last %.0f steps\n", two[i].name,
                       measured);
    }
    free(t.row);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

struct list {
    struct buf *out;
    bool any;
};

static void put_member(struct buf *out, const char *name, const cJSON *v)
{
    buf_printf(out, ",\"%s\":", name);
    if (v)
        json_put_value(out, v, ",", ":");
    else
        buf_str(out, "null");
}

static void put_name(struct list *l, const char *name)
{
    buf_printf(l->out, "%s{\"name\":", l->any ? "," : "");
    json_put_string(l->out, name, strlen(name));
    l->any = true;
}

static void put_difference(void *arg, const char *label, const cJSON *a, const cJSON *b)
{
    struct list *l = arg;
    put_name(l, label);
    put_member(l->out, "a", a);
    put_member(l->out, "b", b);
    buf_char(l->out, '}');
}

/* Bytes have more digits than json_put_number writes. */
static void put_double(struct buf *out, const char *name, double v)
{
    if (isfinite(v))
        buf_printf(out, ",\"%s\":%.12g", name, v);
    else
        buf_printf(out, ",\"%s\":null", name);
}

void train_compare_json(struct buf *out, const struct train_compared two[2], double cost_per_hour)
{
    buf_str(out, "{\"a\":");
    json_put_string(out, two[0].name, strlen(two[0].name));
    buf_str(out, ",\"b\":");
    json_put_string(out, two[1].name, strlen(two[1].name));
    buf_str(out, ",\"settings\":[");
    struct list l = {.out = out};
    each_difference(two, put_difference, &l);
    buf_str(out, "],\"figures\":[");
    l.any = false;
    for (size_t i = 0; i < FIGURES; i++) {
        const struct figure *f = &figures[i];
        double a = value_of(f, two[0].record, cost_per_hour), b = value_of(f, two[1].record, cost_per_hour);
        if (isnan(a) && isnan(b)) continue;
        put_name(&l, f->field);
        put_double(out, "a", a);
        put_double(out, "b", b);
        put_double(out, "change", change(a, b));
        buf_char(out, '}');
    }
    buf_str(out, "]}\n");
}
