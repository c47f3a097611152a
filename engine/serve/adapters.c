#include "engine/serve/adapters.h"

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void adapters_init(struct adapters *s, int max, int max_rank)
{
    *s = (struct adapters){.max = max, .max_rank = max_rank};
    pthread_mutex_init(&s->lock, NULL);
}

static void free_list(struct adapter_version *v, struct model *m)
{
    while (v) {
        struct adapter_version *next = v->next;
        model_free_adapter(m, &v->lora);
        free(v->score);
        free(v);
        v = next;
    }
}

void adapters_close(struct adapters *s, struct model *m)
{
    for (struct adapter_version *v = s->current; v; v = v->next) CHECK(v->refs == 1);
    free_list(s->current, m);
    free_list(s->buried, m);
    pthread_mutex_destroy(&s->lock);
    *s = (struct adapters){0};
}

/* ---- the table, under the lock ---- */

static struct adapter_version **find_link(struct adapters *s, const char *name)
{
    struct adapter_version **at = &s->current;
    while (*at && strcmp((*at)->info.name, name) < 0) at = &(*at)->next;
    return at;
}

static struct adapter_version *find(struct adapters *s, const char *name)
{
    struct adapter_version *v = *find_link(s, name);
    return v && strcmp(v->info.name, name) == 0 ? v : NULL;
}

/* @return true: it was the last reference and adapters_sweep must be called */
static bool let_go(struct adapters *s, struct adapter_version *v)
{
    CHECK(v->refs > 0);
    if (--v->refs) return false;
    v->next = s->buried;
    s->buried = v;
    s->bytes -= v->lora.bytes; /* the sweep follows immediately */
    return true;
}

static bool take_out(struct adapters *s, const char *name)
{
    struct adapter_version **at = find_link(s, name), *v = *at;
    *at = v->next;
    s->n--;
    return let_go(s, v);
}

static int check_room(struct adapters *s, const char *name, struct err *e)
{
    if (find(s, name) || s->n < s->max) return 0;
    return err_set(e, ERR_FULL, "%d adapters are loaded, as many as --max-adapters allows", s->n);
}

static bool is_unlisted(const char *name)
{
    return name[0] == '@';
}

/* "; loaded: a, b and 3 more" */
static void unknown(struct adapters *s, const char *name, struct err *e)
{
    struct buf b = {0};
    int left = 0;
    for (const struct adapter_version *v = s->current; v; v = v->next) left += !is_unlisted(v->info.name);
    buf_str(&b, left ? "; loaded: " : "; none is loaded");
    const char *between = "";
    for (const struct adapter_version *v = s->current; v && b.len < 200; v = v->next) {
        if (is_unlisted(v->info.name)) continue;
        buf_printf(&b, "%s%s", between, v->info.name);
        between = ", ";
        left--;
    }
    if (left) buf_printf(&b, " and %d more", left);
    err_set(e, ERR_NOT_FOUND, "no adapter is called \"%.*s\"%s", ADAPTER_NAME_MAX, name, b.data);
    buf_free(&b);
}

/* ---- loading ---- */

static int check_name(const char *name, struct err *e)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-";
    size_t most = ADAPTER_NAME_MAX, n;
    if (is_unlisted(name)) name++, most--;
    n = strlen(name);
    if (n && n <= most && strspn(name, allowed) == n && !strchr("._:-", name[0])) return 0;
    return err_set(e, ERR_INVALID,
                   "an adapter's name is a letter or digit, then up to %d letters, digits, '.', '_', ':' or '-'",
                   ADAPTER_NAME_MAX - 1);
}

static int max_rank(const struct adapter *a)
{
    int r = 0;
    for (int i = 0; i < a->layers * a->n_modules; i++)
        if (a->pair[i].r > r) r = a->pair[i].r;
    return r;
}

int adapters_check_new(struct adapters *s, const char *name, struct err *e)
{
    if (check_name(name, e)) return e->code;
    pthread_mutex_lock(&s->lock);
    int rc = check_room(s, name, e);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int adapters_read(struct adapters *s, const char *name, const char *dir, const struct model_config *c,
                  struct adapter **out, struct err *e)
{
    int rc = check_name(name, e);
    if (!rc) rc = model_config_generates(c, e);
    if (rc) return rc;
    pthread_mutex_lock(&s->lock);
    rc = check_room(s, name, e);
    pthread_mutex_unlock(&s->lock);
    if (rc) return rc;
    struct adapter *a = adapter_read(dir, c, e);
    if (!a) return e->code;
    int r = max_rank(a);
    if (r > s->max_rank) {
        adapter_free(a);
        return err_set(e, ERR_INVALID, "%s: rank %d; --max-lora-rank is %d", dir, r, s->max_rank);
    }
    *out = a;
    return 0;
}

static void describe(struct adapter_info *info, const char *name, const struct adapter *a, size_t bytes)
{
    *info = (struct adapter_info){
        .r = max_rank(a), .alpha = a->alpha, .rslora = a->rslora, .scores = a->score, .bytes = bytes};
    snprintf(info->name, sizeof info->name, "%s", name);
    size_t len = 0;
    for (int m = 0; m < a->n_modules; m++) {
        bool any = false, said = false; /* two modules are named c_proj */
        for (int l = 0; l < a->layers; l++) any |= a->pair[l * a->n_modules + m].r > 0;
        for (int k = 0; k < m; k++) said |= strcmp(a->module[k].name, a->module[m].name) == 0;
        if (!any || said || len >= sizeof info->targets) continue;
        len += (size_t)snprintf(info->targets + len, sizeof info->targets - len, "%s%s", len ? "," : "",
                                a->module[m].name);
    }
}

int adapters_publish(struct adapters *s, struct model *m, const char *name, const struct adapter *a, uint64_t *version,
                     struct err *e)
{
    struct adapter_version *v = mem_zalloc(sizeof *v);
    size_t hidden = (size_t)m->c.hidden;
    int rc = model_upload_adapter(m, &v->lora, a, e);
    if (rc) {
        free(v);
        return rc;
    }
    describe(&v->info, name, a, v->lora.bytes);
    memcpy(v->content, a->content, sizeof v->content);
    if (a->score)
        v->score = memcpy(mem_array(hidden, sizeof *v->score), a->score, hidden * sizeof *v->score);
    v->refs = 1;
    pthread_mutex_lock(&s->lock);
    rc = check_room(s, name, e); /* other loads may have finished meanwhile */
    if (!rc) {
        if (find(s, name)) take_out(s, name);
        *version = v->info.version = ++s->last;
        struct adapter_version **at = find_link(s, name);
        v->next = *at;
        *at = v;
        s->n++;
        s->bytes += v->lora.bytes;
    }
    pthread_mutex_unlock(&s->lock);
    adapters_sweep(s, m);
    if (!rc) {
        /* the server's own come with every step of a training */
        log_write(*name == '@' ? LOG_DEBUG : LOG_INFO, "adapter name=%s version=%llu rank=%d bytes=%zu", name,
                  (unsigned long long)*version, v->info.r, v->lora.bytes);
        return 0;
    }
    model_free_adapter(m, &v->lora);
    free(v->score);
    free(v);
    return rc;
}

int adapters_remove(struct adapters *s, const char *name, bool *buried, struct err *e)
{
    int rc = 0;
    *buried = false;
    pthread_mutex_lock(&s->lock);
    if (find(s, name)) {
        *buried = take_out(s, name);
    } else {
        unknown(s, name, e);
        rc = ERR_NOT_FOUND;
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* ---- holding ---- */

struct adapter_version *adapters_acquire(struct adapters *s, const char *name, struct err *e)
{
    pthread_mutex_lock(&s->lock);
    struct adapter_version *v = find(s, name);
    if (v)
        v->refs++;
    else
        unknown(s, name, e);
    pthread_mutex_unlock(&s->lock);
    return v;
}

int adapters_check(struct adapters *s, const char *name, struct err *e)
{
    pthread_mutex_lock(&s->lock);
    bool known = !is_unlisted(name) && find(s, name) != NULL;
    if (!known) unknown(s, name, e);
    pthread_mutex_unlock(&s->lock);
    return known ? 0 : ERR_NOT_FOUND;
}

bool adapters_current(struct adapters *s, uint64_t version, char name[ADAPTER_NAME_MAX + 1])
{
    bool found = false;
    pthread_mutex_lock(&s->lock);
    for (const struct adapter_version *v = s->current; v && !found; v = v->next) {
        found = v->info.version == version && !is_unlisted(v->info.name);
        if (found) memcpy(name, v->info.name, sizeof v->info.name);
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

bool adapters_scores(struct adapters *s, const char *name)
{
    bool any = false;
    pthread_mutex_lock(&s->lock);
    for (const struct adapter_version *v = s->current; v; v = v->next)
        any |= v->score && !is_unlisted(v->info.name) && (!name || strcmp(v->info.name, name) == 0);
    pthread_mutex_unlock(&s->lock);
    return any;
}

void adapters_run(struct adapters *s, struct adapter_version *v, int more)
{
    pthread_mutex_lock(&s->lock);
    v->running += more;
    pthread_mutex_unlock(&s->lock);
}

bool adapters_release(struct adapters *s, struct adapter_version *v)
{
    if (!v) return false;
    pthread_mutex_lock(&s->lock);
    bool due = let_go(s, v);
    pthread_mutex_unlock(&s->lock);
    return due;
}

void adapters_sweep(struct adapters *s, struct model *m)
{
    pthread_mutex_lock(&s->lock);
    struct adapter_version *v = s->buried;
    s->buried = NULL;
    pthread_mutex_unlock(&s->lock);
    free_list(v, m);
}

int adapters_count(struct adapters *s, size_t *bytes)
{
    pthread_mutex_lock(&s->lock);
    int n = s->n;
    *bytes = s->bytes;
    pthread_mutex_unlock(&s->lock);
    return n;
}

int adapters_list(struct adapters *s, struct adapter_info *out, int max)
{
    int n = 0;
    pthread_mutex_lock(&s->lock);
    for (const struct adapter_version *v = s->current; v && n < max; v = v->next) {
        if (is_unlisted(v->info.name)) continue;
        out[n] = v->info;
        out[n].running = v->running;
        out[n++].requests = v->refs - 1;
    }
    pthread_mutex_unlock(&s->lock);
    return n;
}

uint64_t adapter_root(const struct adapter_version *v)
{
    return 1ull << 63 | (uint64_t)v->lora.up << 62 | v->info.version;
}
