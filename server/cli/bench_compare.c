#include "server/cli/bench_compare.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 96 };

/* ---- the rows of a report ---------------------------------------------------------------------------------------- */

static const char *const arrays[] = {"results", "rows", "switches", "ops"};

static const char *text_of(const cJSON *row, const char *field)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(row, field);
    return cJSON_IsString(v) ? v->valuestring : "";
}

/* NAN: not there, or no number.  field: "a" or "a.b" */
static double number_of(const cJSON *row, const char *field)
{
    char name[NAME_BYTES];
    for (const char *dot; row && (dot = strchr(field, '.')); field = dot + 1) {
        snprintf(name, sizeof name, "%.*s", (int)(dot - field), field);
        row = cJSON_GetObjectItemCaseSensitive(row, name);
    }
    const cJSON *v = row ? cJSON_GetObjectItemCaseSensitive(row, field) : NULL;
    return cJSON_IsNumber(v) ? v->valuedouble : NAN;
}

/* Phases are named as in the text: "prefill", "decode 8". */
static void name_of(const cJSON *row, char out[NAME_BYTES])
{
    const char *phase = text_of(row, "phase");
    if (strcmp(phase, "decode") == 0)
        snprintf(out, NAME_BYTES, "decode %.0f", number_of(row, "batch"));
    else
        snprintf(out, NAME_BYTES, "%s", *phase ? phase : text_of(row, "name"));
}

static const cJSON *find_row(const cJSON *report, const char *name)
{
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        const cJSON *row, *list = cJSON_GetObjectItemCaseSensitive(report, arrays[i]);
        cJSON_ArrayForEach(row, list)
        {
            char its[NAME_BYTES];
            name_of(row, its);
            if (strcmp(its, name) == 0) return row;
        }
    }
    return NULL;
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

/* least: relative change that counts; a field with a range also has FIELD_min and FIELD_max, and counts only when the
 * ranges are apart. */
static const struct figure {
    const char *field, *min, *max, *name;
    double least, scale;
} figures[] = {
    {"tokens_per_s", "tokens_per_s_min", "tokens_per_s_max", "tokens/s", 0.02, 1},
    {"weight_bytes", NULL, NULL, "weights, MB", 0.01, 1e-6},
    {"state_bytes", NULL, NULL, "parameters and moments, MB", 0.01, 1e-6},
    {"activation_bytes", NULL, NULL, "activations, MB", 0.01, 1e-6},
    {"peak_memory_bytes", NULL, NULL, "peak memory, MB", 0.05, 1e-6},
    {"peak_host_bytes", NULL, NULL, "peak of the host, MB", 0.05, 1e-6},
    {"peak_device_bytes", NULL, NULL, "peak of the device, MB", 0.05, 1e-6},
};

/* An op is timed by its best call: its noise is taken as a tenth. */
static const struct figure op_figure = {"seconds", NULL, NULL, "us", 0.1, 1e6};

static bool changed(const struct figure *f, const cJSON *before, const cJSON *now)
{
    double a = number_of(before, f->field), b = number_of(now, f->field);
    if (!(fabs(b - a) > f->least * fabs(a))) return false;
    if (!f->min) return true;
    double a_min = number_of(before, f->min), a_max = number_of(before, f->max);
    double b_min = number_of(now, f->min), b_max = number_of(now, f->max);
    return b_min > a_max || b_max < a_min;
}

static int compare_figure(struct buf *out, const char *name, const struct figure *f, const cJSON *before,
                          const cJSON *now)
{
    double a = number_of(before, f->field), b = number_of(now, f->field);
    if (!changed(f, before, now)) return 0;
    buf_printf(out, "%s: %s %.4g -> %.4g (%+.1f %%)", name, f->name, a * f->scale, b * f->scale, 100 * (b - a) / a);
    if (f->min)
        buf_printf(out, ", from %.4g..%.4g to %.4g..%.4g", number_of(before, f->min) * f->scale,
                   number_of(before, f->max) * f->scale, number_of(now, f->min) * f->scale,
                   number_of(now, f->max) * f->scale);
    buf_char(out, '\n');
    return 1;
}

static int compare_rows(struct buf *out, const char *name, const cJSON *before, const cJSON *now)
{
    bool op = isnan(number_of(now, "tokens_per_s")) && !isnan(number_of(now, "seconds"));
    int n = op ? compare_figure(out, name, &op_figure, before, now) : 0;
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        n += compare_figure(out, name, &figures[i], before, now);
    bool had = isnan(number_of(before, "tokens_per_s")), has = isnan(number_of(now, "tokens_per_s"));
    if (had == has) return n;
    buf_printf(out, "%s: %s\n", name, has ? "could not be measured any more" : "could not be measured before");
    return n + 1;
}

/* Rows of `one` that `other` lacks. */
static void put_missing(struct buf *out, const cJSON *one, const cJSON *other, const char *says)
{
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        const cJSON *row, *list = cJSON_GetObjectItemCaseSensitive(one, arrays[i]);
        cJSON_ArrayForEach(row, list)
        {
            char name[NAME_BYTES];
            name_of(row, name);
            if (!find_row(other, name)) buf_printf(out, "%s: %s\n", name, says);
        }
    }
}

int bench_compare(struct buf *out, const cJSON *before, const cJSON *now)
{
    static const char *const same[] = {"cpu", "device", "threads"};
    const cJSON *a = cJSON_GetObjectItemCaseSensitive(before, "system"),
                *b = cJSON_GetObjectItemCaseSensitive(now, "system");
    int n = 0;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        const cJSON *was = cJSON_GetObjectItemCaseSensitive(a, same[i]),
                    *is = cJSON_GetObjectItemCaseSensitive(b, same[i]);
        if (was && is && !json_equal(was, is)) buf_printf(out, "not the same %s as in the baseline\n", same[i]);
    }
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        const cJSON *row, *list = cJSON_GetObjectItemCaseSensitive(now, arrays[i]);
        cJSON_ArrayForEach(row, list)
        {
            char name[NAME_BYTES];
            name_of(row, name);
            const cJSON *was = find_row(before, name);
            if (was) n += compare_rows(out, name, was, row);
        }
    }
    put_missing(out, now, before, "not in the baseline");
    put_missing(out, before, now, "only in the baseline");
    if (!n) buf_str(out, "nothing changed beyond the noise\n");
    return n;
}

/* ---- targets ----------------------------------------------------------------------------------------------------- */

/* @return 1: missed, 0: met, -1: *e. */
static int check_figure(struct buf *out, const char *name, const cJSON *target, const cJSON *row, struct err *e)
{
    double v = row ? number_of(row, target->string) : NAN;
    double min = number_of(target, "min"), max = number_of(target, "max");
    const cJSON *limit;
    cJSON_ArrayForEach(
        limit,
        target) if ((strcmp(limit->string, "min") && strcmp(limit->string, "max")) ||
                    !cJSON_IsNumber(limit)) return err_set(e, ERR_INVALID,
                                                           "--check: %.60s, %.40s: has numbers min and max, not %.40s",
                                                           name, target->string, limit->string),
        -1;
    if (!cJSON_IsObject(target) || (isnan(min) && isnan(max)))
        return err_set(e, ERR_INVALID, "--check: %.60s, %.40s: wants {\"min\": N}, {\"max\": N} or both", name,
                       target->string),
               -1;
    bool missed = isnan(v) || v < min || v > max;
    buf_printf(out, "%s: %s %s ", missed ? "missed" : "met", name, target->string);
    if (isnan(v))
        buf_str(out, "is not in the report");
    else
        buf_printf(out, "is %.6g", v);
    if (!isnan(min)) buf_printf(out, ", at least %.6g", min);
    if (!isnan(max)) buf_printf(out, ", at most %.6g", max);
    buf_char(out, '\n');
    return missed;
}

int bench_check(struct buf *out, const cJSON *targets, const cJSON *report, struct err *e)
{
    int missed = 0;
    const cJSON *row, *target;
    if (!cJSON_IsObject(targets) || !targets->child)
        return err_set(e, ERR_INVALID,
                       "--check: wants an object of rows, {\"decode 8\": {\"tokens_per_s\": {\"min\": 500}}}"),
               -1;
    cJSON_ArrayForEach(row, targets)
    {
        if (!cJSON_IsObject(row) || !row->child)
            return err_set(e, ERR_INVALID, "--check: %.60s: wants an object of figures", row->string), -1;
        cJSON_ArrayForEach(target, row)
        {
            int one = check_figure(out, row->string, target, find_row(report, row->string), e);
            if (one < 0) return -1;
            missed += one;
        }
    }
    return missed;
}
