/* Formats settings as text, and applies changed ones.  Main thread only. */
#include "server/config/settings.h"

#include "engine/base/buf.h"

#include <stdlib.h>
#include <string.h>

static const void *at(const struct settings *s, const struct setting_option *o)
{
    return (const char *)s + o->offset;
}

static const char *string_at(const struct settings *s, const struct setting_option *o)
{
    const char *v = *(char *const *)at(s, o);
    return v ? v : "";
}

void settings_format(const struct settings *s, const struct setting_option *o, struct buf *out)
{
    switch (o->type) {
    case SETTING_BOOL: buf_str(out, *(const bool *)at(s, o) ? "true" : "false"); break;
    case SETTING_INT: buf_printf(out, "%d", *(const int *)at(s, o)); break;
    case SETTING_U64: buf_printf(out, "%llu", (unsigned long long)*(const uint64_t *)at(s, o)); break;
    case SETTING_BYTES: buf_printf(out, "%zu", *(const size_t *)at(s, o)); break;
    case SETTING_NUMBER: buf_printf(out, "%.12g", *(const double *)at(s, o)); break;
    case SETTING_STRING:
    case SETTING_MAYBE:
    case SETTING_CHOICE: buf_str(out, string_at(s, o)); break;
    case SETTING_LIST: {
        const struct string_list *l = at(s, o);
        for (int i = 0; i < l->n; i++) buf_printf(out, "%s%s", i ? "," : "", l->v[i]);
        break;
    }
    }
}

/* @return NUL-terminated text, "" when unset; the caller frees it */
static char *text_of(const struct settings *s, const struct setting_option *o)
{
    struct buf b = {0};
    settings_format(s, o, &b);
    buf_append(&b, "", 0);
    return b.data;
}

void settings_describe(const struct settings *s, enum command cmd, struct buf *out)
{
    static const char *const sources[] = {"", "  (file)", "  (environment)", "  (flag)"};
    int n;
    const struct setting_option *o = settings_options(&n);
    for (int i = 0; i < n; i++) {
        if (!(o[i].commands & (unsigned)cmd)) continue;
        buf_printf(out, "%s = ", o[i].name);
        if (o[i].secret)
            buf_str(out, s->source[i] == SETTING_DEFAULT ? "" : "(set)");
        else
            settings_format(s, &o[i], out);
        buf_printf(out, "%s\n", sources[s->source[i]]);
    }
}

/* Swaps the values, so that each struct still owns one. */
static void swap(struct settings *a, struct settings *b, const struct setting_option *o)
{
    static const size_t sizes[] = {[SETTING_BOOL] = sizeof(bool),
                                   [SETTING_INT] = sizeof(int),
                                   [SETTING_U64] = sizeof(uint64_t),
                                   [SETTING_BYTES] = sizeof(size_t),
                                   [SETTING_NUMBER] = sizeof(double),
                                   [SETTING_STRING] = sizeof(char *),
                                   [SETTING_MAYBE] = sizeof(char *),
                                   [SETTING_CHOICE] = sizeof(char *),
                                   [SETTING_LIST] = sizeof(struct string_list)};
    char *x = (char *)a + o->offset, *y = (char *)b + o->offset, t;
    for (size_t k = 0; k < sizes[o->type]; k++) t = x[k], x[k] = y[k], y[k] = t;
}

int settings_reload(struct settings *live, struct settings *fresh, enum command cmd, settings_change_fn *fn, void *arg)
{
    int n, taken = 0;
    const struct setting_option *o = settings_options(&n);
    for (int i = 0; i < n; i++) {
        if (!(o[i].commands & (unsigned)cmd)) continue;
        char *was = text_of(live, &o[i]), *now = text_of(fresh, &o[i]);
        if (strcmp(was, now) != 0) {
            if (o[i].reloadable) {
                swap(live, fresh, &o[i]);
                live->source[i] = fresh->source[i];
                taken++;
            }
            if (fn) fn(arg, &o[i], o[i].secret ? "(set)" : was, o[i].secret ? "(set)" : now, o[i].reloadable);
        }
        free(was);
        free(now);
    }
    return taken;
}
