/* Settings from flags, environment and file, all by way of settings_set.  Main thread only. */
#include "server/config/settings.h"

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/base/mem.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *field(struct settings *s, const struct setting_option *o)
{
    return (char *)s + o->offset;
}

static size_t row_of(const struct setting_option *o)
{
    int n;
    return (size_t)(o - settings_options(&n));
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

static int set_bool(bool *out, const char *text, const char *where, struct err *e)
{
    static const char *const yes[] = {"true", "yes", "on", "1"}, *const no[] = {"false", "no", "off", "0"};
    for (int i = 0; i < 4; i++) {
        if (strcasecmp(text, yes[i]) == 0) return *out = true, 0;
        if (strcasecmp(text, no[i]) == 0) return *out = false, 0;
    }
    return err_set(e, ERR_INVALID, "%s: '%s' is neither true nor false", where, text);
}

static int check_range(const struct setting_option *o, double v, const char *text, const char *where, struct err *e)
{
    if (o->min == 0 && o->max == 0) return 0;
    if (v >= o->min && v <= o->max) return 0;
    return err_set(e, ERR_INVALID, "%s: %s is not between %.12g and %.12g", where, text, o->min, o->max);
}

static int set_int(const struct setting_option *o, int *out, const char *text, const char *where, struct err *e)
{
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (end == text || *end || isspace((unsigned char)*text))
        return err_set(e, ERR_INVALID, "%s: '%s' is not a whole number", where, text);
    if (errno || v > INT32_MAX || v < INT32_MIN) return err_set(e, ERR_INVALID, "%s: %s is too large", where, text);
    if (check_range(o, (double)v, text, where, e)) return e ? e->code : ERR_INVALID;
    *out = (int)v;
    return 0;
}

static int set_u64(uint64_t *out, const char *text, const char *where, struct err *e)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || errno)
        return err_set(e, ERR_INVALID, "%s: '%s' is not a whole number from 0 to 18446744073709551615", where, text);
    *out = v;
    return 0;
}

/* "512", "512K", "1.5G", "2GiB", "100MB": powers of 1024 in every spelling */
static int set_bytes(const struct setting_option *o, size_t *out, const char *text, const char *where, struct err *e)
{
    char *end;
    double v = strtod(text, &end), scale = 1;
    static const char units[] = "KMGT";
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (unit) {
        for (const char *p = units; p <= unit; p++) scale *= 1024;
        end++;
        if (*end == 'i' && end[1] == 'B') end++;
    }
    if (*end == 'B' || *end == 'b') end++;
    if (!isdigit((unsigned char)*text) || *end || !isfinite(v))
        return err_set(e, ERR_INVALID, "%s: '%s' is not a size (such as 4096, 512K, 64M, 2G)", where, text);
    if (check_range(o, v * scale, text, where, e)) return e ? e->code : ERR_INVALID;
    *out = (size_t)(v * scale);
    return 0;
}

static int set_number(const struct setting_option *o, double *out, const char *text, const char *where, struct err *e)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v) || isspace((unsigned char)*text))
        return err_set(e, ERR_INVALID, "%s: '%s' is not a number", where, text);
    if (check_range(o, v, text, where, e)) return e ? e->code : ERR_INVALID;
    *out = v;
    return 0;
}

static bool is_choice(const char *choices, const char *text)
{
    size_t n = strlen(text);
    for (const char *p = choices; n && p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
        if (strncmp(p, text, n) == 0 && (p[n] == '|' || !p[n])) return true;
    return false;
}

static void set_string(char **out, const char *text)
{
    char *copy = mem_strdup(text); /* before the free: text may be the old value */
    free(*out);
    *out = copy;
}

static void list_clear(struct string_list *l)
{
    for (int i = 0; i < l->n; i++) free(l->v[i]);
    free(l->v);
    *l = (struct string_list){0};
}

int settings_set(struct settings *s, const struct setting_option *o, const char *text, const char *where,
                 enum setting_source source, struct err *e)
{
    void *p = field(s, o);
    int rc = 0;
    switch (o->type) {
    case SETTING_BOOL: rc = set_bool(p, text, where, e); break;
    case SETTING_INT: rc = set_int(o, p, text, where, e); break;
    case SETTING_U64: rc = set_u64(p, text, where, e); break;
    case SETTING_BYTES: rc = set_bytes(o, p, text, where, e); break;
    case SETTING_NUMBER: rc = set_number(o, p, text, where, e); break;
    case SETTING_STRING:
    case SETTING_MAYBE: set_string(p, text); break;
    case SETTING_CHOICE:
        if (!is_choice(o->choices, text))
            return err_set(e, ERR_INVALID, "%s: '%s' is not one of %s", where, text, o->choices);
        set_string(p, text);
        break;
    case SETTING_LIST: {
        struct string_list *l = p;
        if (s->source[row_of(o)] != source) list_clear(l);
        l->v = mem_resize(l->v, (size_t)l->n + 1, sizeof *l->v);
        l->v[l->n++] = mem_strdup(text);
        break;
    }
    }
    if (rc == 0) s->source[row_of(o)] = (unsigned char)source;
    return rc;
}

void settings_defaults(struct settings *s)
{
    *s = (struct settings){0};
    int n;
    const struct setting_option *o = settings_options(&n);
    for (int i = 0; i < n; i++)
        if (o[i].value) CHECK(settings_set(s, &o[i], o[i].value, "default", SETTING_DEFAULT, NULL) == 0);
}

const char *settings_model_dir(const struct settings *s)
{
    return s->model_dir ? s->model_dir : s->model;
}

void settings_free(struct settings *s)
{
    int n;
    free(s->model_dir);
    free(s->draft_dir);
    free(s->model_name);
    list_clear(&s->adapter_dirs);
    const struct setting_option *o = settings_options(&n);
    for (int i = 0; i < n; i++) {
        if (o[i].type == SETTING_STRING || o[i].type == SETTING_MAYBE || o[i].type == SETTING_CHOICE) {
            char **p = field(s, &o[i]);
            free(*p);
            *p = NULL; /* options of several commands may share it */
        } else if (o[i].type == SETTING_LIST) {
            list_clear(field(s, &o[i]));
        }
    }
    *s = (struct settings){0};
}

bool settings_given(const struct settings *s, const char *name)
{
    const struct setting_option *o = settings_find(name, strlen(name));
    CHECK(o);
    return s->source[row_of(o)] != SETTING_DEFAULT;
}

/* ---- names ----------------------------------------------------------------------------------------------------- */

/* @return the first option of that name that one of the commands has. */
static const struct setting_option *find_for(const char *name, size_t len, unsigned commands)
{
    int n;
    const struct setting_option *o = settings_options(&n);
    for (int i = 0; i < n; i++) {
        size_t k = 0;
        while (k < len && o[i].name[k] && o[i].name[k] == (name[k] == '_' ? '-' : name[k])) k++;
        if (k == len && !o[i].name[k] && (o[i].commands & commands)) return &o[i];
    }
    return NULL;
}

const struct setting_option *settings_find(const char *name, size_t len)
{
    return find_for(name, len, ~0U);
}

/* Edit distance with swaps of neighbours, for names of up to 40 bytes. */
static int distance(const char *a, size_t n, const char *b, size_t m)
{
    enum { MAX = 40 };
    if (n > MAX || m > MAX) return MAX;
    int d[MAX + 1][MAX + 1];
    for (size_t i = 0; i <= n; i++) d[i][0] = (int)i;
    for (size_t j = 0; j <= m; j++) d[0][j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        for (size_t j = 1; j <= m; j++) {
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    }
    return d[n][m];
}

const char *settings_nearest(const char *name, size_t len, unsigned cmd)
{
    int n, best = 1 + (int)len / 3;
    const char *found = NULL;
    const struct setting_option *o = settings_options(&n);
    for (int i = 0; i < n; i++) {
        if (cmd && !(o[i].commands & cmd)) continue;
        size_t m = strlen(o[i].name);
        int d = distance(name, len, o[i].name, m);
        /* "--temp" means temperature: a prefix of a name is near, too */
        if (len >= 3 && len < m && strncmp(name, o[i].name, len) == 0 && d > 1) d = 1;
        if (d < best)
            best = d, found = o[i].name;
        else if (d == best && !found)
            found = o[i].name;
    }
    return found;
}

/* ---- flags ---------------------------------------------------------------------------------------------------- */

/* One flag of argv.  Fills option and value; @return how many words it consumed, or an error code. */
static int read_flag(enum command cmd, int argc, char *const *argv, const struct setting_option **opt,
                     const char **value, struct err *e)
{
    const char *name = argv[0] + 2, *eq = strchr(name, '=');
    size_t len = eq ? (size_t)(eq - name) : strlen(name);
    const struct setting_option *o = find_for(name, len, (unsigned)cmd);
    bool negated = false;
    if (!o) o = settings_find(name, len);
    if (!o && len > 3 && strncmp(name, "no-", 3) == 0 && !eq) {
        o = find_for(name + 3, len - 3, (unsigned)cmd);
        if (!o) o = settings_find(name + 3, len - 3);
        negated = o && o->type == SETTING_BOOL;
        if (!negated) o = NULL;
    }
    if (!o || !(o->commands & (unsigned)cmd)) {
        const char *near = o ? NULL : settings_nearest(name, len, (unsigned)cmd);
        return err_set(e, ERR_INVALID, o ? "--%.*s is not an option of this command%s%s" : "unknown option --%.*s%s%s",
                       (int)len, name, near ? "; did you mean --" : "", near ? near : "");
    }
    *opt = o;
    if (o->type == SETTING_BOOL && !eq) return *value = negated ? "false" : "true", 1;
    if (eq) return *value = eq + 1, 1;
    if (o->type == SETTING_MAYBE && (argc < 2 || strncmp(argv[1], "--", 2) == 0)) return *value = "", 1;
    if (argc < 2) return err_set(e, ERR_INVALID, "--%s needs a value", o->name);
    *value = argv[1];
    return 2;
}

static int set_flag(struct settings *s, const struct setting_option *o, const char *value, struct err *e)
{
    char where[64];
    snprintf(where, sizeof where, "--%s", o->name);
    return settings_set(s, o, value, where, SETTING_FLAG, e);
}

/* @return whether the command has no --model option, or it is given. */
static bool given_model(enum command cmd, int argc, char *const *argv)
{
    const struct setting_option *o = settings_find("model", 5);
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--model") == 0 || strncmp(argv[i], "--model=", 8) == 0) return true;
    return !(o->commands & (unsigned)cmd);
}

int settings_parse(struct settings *s, enum command cmd, int argc, char *const *argv, struct err *e)
{
    settings_defaults(s);
    const char *file = getenv("TANDEM_CONFIG");
    /* First pass: every word is checked, and the file is found, before anything is set. */
    for (int i = 0, took; i < argc; i += took) {
        const struct setting_option *o;
        const char *value;
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) return SETTING_HELP;
        if (strncmp(argv[i], "--", 2) != 0 || !argv[i][2])
            return err_set(e, ERR_INVALID,
                           argv[i][0] && argv[i][0] != '-' && !given_model(cmd, argc, argv)
                               ? "unexpected argument '%.200s'; a model is given as --model %.200s"
                               : "unexpected argument '%.200s'",
                           argv[i], argv[i]);
        took = read_flag(cmd, argc - i, argv + i, &o, &value, e);
        if (took < 0) return took;
        if (o->offset == offsetof(struct settings, config)) file = value;
    }
    if (file && *file && settings_load_file(s, file, e)) return e ? e->code : ERR_INVALID;
    if (settings_read_env(s, cmd, e)) return e ? e->code : ERR_INVALID;
    for (int i = 0, took; i < argc; i += took) {
        const struct setting_option *o;
        const char *value;
        took = read_flag(cmd, argc - i, argv + i, &o, &value, e);
        CHECK(took > 0);
        if (set_flag(s, o, value, e)) return e ? e->code : ERR_INVALID;
    }
    return 0;
}

const char *settings_data_dir(const struct settings *s)
{
    const char *state = getenv("STATE_DIRECTORY"); /* systemd's, for StateDirectory= */
    if (s->data_dir && *s->data_dir) return s->data_dir;
    if (state && *state == '/' && !strchr(state, ':')) return state;
    return geteuid() == 0 ? "/var/lib/tandem" : "./tandem-data";
}
