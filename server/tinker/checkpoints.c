#include "server/tinker/checkpoints.h"

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/train/tuner.h"
#include "engine/train/tuner_files.h"
#include "server/json/json.h"
#include "server/store/data_dir.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char ROOT[] = "tinker", SCHEME[] = "tinker://", NOTE[] = "checkpoint.json", PUBLIC[] = "public";
static const char *const kinds[] = {"weights", "sampler_weights"};
/* Of all directories: who reads one, replaces it, or finds that it has expired, sees it as it stays meanwhile. */
static pthread_mutex_t files = PTHREAD_MUTEX_INITIALIZER;
/* Taken before it, from counting a client's until one more is there: two at once would both find room for one. */
static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;
enum { UNFINISHED_SECONDS = 3600 /* after which what was begun is a killed process's */ };

void checkpoint_free(struct checkpoint *c)
{
    free(c->base);
    free(c->metadata);
    free(c->source);
    *c = (struct checkpoint){0};
}

/* ---- names ---------------------------------------------------------------------------------------------------------
 */

bool checkpoint_name_ok(const char *name)
{
    size_t n = strlen(name);
    return data_name_ok(name) && (n < 4 || strcmp(name + n - 4, ".old")); /* see dir_replace */
}

static int take(struct checkpoint *c, const char *run, size_t n_run, const char *id, struct err *e)
{
    const char *slash = strchr(id, '/');
    size_t n = slash ? (size_t)(slash - id) : 0;
    *c = (struct checkpoint){0};
    if (n_run < sizeof c->run) memcpy(c->run, run, n_run);
    for (size_t k = 0; k < 2; k++)
        if (n && n == strlen(kinds[k]) && !memcmp(id, kinds[k], n)) {
            c->sampler = k == 1;
            snprintf(c->name, sizeof c->name, "%.*s", (int)sizeof c->name - 1, slash + 1);
        }
    if (data_name_ok(c->run) && checkpoint_name_ok(c->name)) return 0;
    return err_set(e, ERR_INVALID, "a path must be tinker://RUN/weights/NAME or tinker://RUN/sampler_weights/NAME");
}

int checkpoint_parse(struct checkpoint *c, const char *path, struct err *e)
{
    const char *run = strncmp(path, SCHEME, sizeof SCHEME - 1) ? "" : path + sizeof SCHEME - 1;
    size_t n = strcspn(run, "/");
    return take(c, run, n, run[n] ? run + n + 1 : "", e);
}

int checkpoint_parse_id(struct checkpoint *c, const char *run, const char *id, struct err *e)
{
    return take(c, run, strlen(run), id, e);
}

void checkpoint_put_path(struct buf *b, const struct checkpoint *c)
{
    buf_printf(b, "%s%s/%s/%s", SCHEME, c->run, kinds[c->sampler], c->name);
}

void checkpoint_put_time(struct buf *b, int64_t ms)
{
    char text[40] = "1970-01-01T00:00:00";
    time_t at = (time_t)(ms / 1000);
    struct tm tm;
    if (gmtime_r(&at, &tm)) strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    buf_printf(b, "\"%s.%03dZ\"", text, (int)(ms % 1000));
}

void checkpoint_put(struct buf *b, const struct checkpoint *c)
{
    buf_printf(b, "{\"checkpoint_id\":\"%s/%s\",\"checkpoint_type\":\"%s\",\"tinker_path\":\"", kinds[c->sampler],
               c->name, c->sampler ? "sampler" : "training");
    checkpoint_put_path(b, c);
    buf_str(b, "\",\"time\":");
    checkpoint_put_time(b, c->created);
    buf_printf(b, ",\"size_bytes\":%lld,\"public\":%s", (long long)c->bytes, c->public ? "true" : "false");
    if (c->metadata) buf_printf(b, ",\"user_metadata\":%s", c->metadata);
    if (c->expires) {
        buf_str(b, ",\"expires_at\":");
        checkpoint_put_time(b, c->expires);
    }
    buf_char(b, '}');
}

char *checkpoint_dir(const char *data, const struct checkpoint *c)
{
    struct buf b = {0};
    buf_printf(&b, "%s/%s/%s/%s/%s", data, ROOT, c->run, kinds[c->sampler], c->name);
    return b.data;
}

/* ---- the note ------------------------------------------------------------------------------------------------------
 */

static void put_note(struct buf *b, const struct checkpoint *c)
{
    buf_str(b, "{\"path\":\"");
    checkpoint_put_path(b, c);
    buf_str(b, "\",\"owner\":");
    json_put_string(b, c->owner, strlen(c->owner));
    buf_str(b, ",\"base_model\":");
    json_put_string(b, c->base, strlen(c->base));
    buf_printf(b, ",\"rank\":%d,\"train_attn\":%s,\"train_mlp\":%s,\"train_unembed\":%s,\"created\":%lld", c->rank,
               c->attn ? "true" : "false", c->mlp ? "true" : "false", c->unembed ? "true" : "false",
               (long long)c->created);
    if (c->expires) buf_printf(b, ",\"expires\":%lld", (long long)c->expires);
    if (c->metadata) buf_printf(b, ",\"user_metadata\":%s", c->metadata);
    if (c->source) buf_printf(b, ",\"copy_of\":\"%s\"", c->source);
    buf_str(b, "}\n");
}

static void read_note(struct checkpoint *c, const cJSON *tree, struct err *e)
{
    struct json_at at = {tree, "", e};
    const char *owner = "", *base = "", *source = NULL;
    const cJSON *metadata = NULL;
    int64_t rank = 0;
    json_get_string(&at, "owner", &owner);
    json_get_string(&at, "base_model", &base);
    json_get_int(&at, "rank", 0, INT32_MAX, &rank);
    json_get_int(&at, "created", 0, INT64_MAX / 2, &c->created);
    json_get_int(&at, "expires", 0, INT64_MAX / 2, &c->expires);
    json_get_bool(&at, "train_attn", &c->attn);
    json_get_bool(&at, "train_mlp", &c->mlp);
    json_get_bool(&at, "train_unembed", &c->unembed);
    snprintf(c->owner, sizeof c->owner, "%s", owner);
    c->base = mem_strdup(base);
    c->rank = (int)rank;
    if (json_get_string(&at, "copy_of", &source)) c->source = mem_strdup(source);
    if (!json_get_object(&at, "user_metadata", &metadata)) return;
    struct buf b = {0};
    json_put_value(&b, metadata, ",", ":");
    c->metadata = b.data;
}

/* When it was changed after it was saved. */
static void read_expiry(struct checkpoint *c, const char *dir)
{
    char *path = file_join(dir, "expires"), *text = NULL;
    size_t n;
    if (!file_read(path, 64, &text, &n, &(struct err){0})) {
        c->expires = strtoll(text, NULL, 10);
        if (c->expires < 0) c->expires = 0;
    }
    free(text);
    free(path);
}

/* All of it but whose it is, and whether it has expired. */
static int read_any(const char *data, struct checkpoint *c, struct err *e)
{
    char *dir = checkpoint_dir(data, c), *text = NULL;
    size_t n = 0;
    if (!tuner_files_read(dir, NOTE, &text, &n, &c->bytes, e)) {
        cJSON *tree = json_parse(text, n, e);
        if (tree) read_note(c, tree, e);
        json_free(tree);
        read_expiry(c, dir);
        char *public = file_join(dir, PUBLIC);
        c->public = !access(public, F_OK);
        free(public);
    }
    free(text);
    free(dir);
    return e->code;
}

static bool expired(const struct checkpoint *c)
{
    return c->expires && c->expires <= data_now_ms();
}

/* checkpoint_read, of who has `files`. */
static int read_for(const char *data, struct checkpoint *c, const char *owner, bool to_change, struct err *e)
{
    int rc = read_any(data, c, e);
    if (rc && rc != ERR_NOT_FOUND) return rc;
    bool may = !strcmp(c->owner, owner) || (c->public && !to_change);
    if (!rc && may && !expired(c)) return 0;
    struct buf b = {0};
    checkpoint_put_path(&b, c);
    *e = (struct err){0};
    err_set(e, ERR_NOT_FOUND, "there are no weights at %s", b.data);
    buf_free(&b);
    return e->code;
}

int checkpoint_read(const char *data, struct checkpoint *c, const char *owner, bool to_change, struct err *e)
{
    pthread_mutex_lock(&files);
    int rc = read_for(data, c, owner, to_change, e);
    pthread_mutex_unlock(&files);
    return rc;
}

/* ---- changing ------------------------------------------------------------------------------------------------------
 */

int checkpoint_expire(const char *data, const struct checkpoint *c, int64_t expires, struct err *e)
{
    char text[32], *dir = checkpoint_dir(data, c), *path = file_join(dir, "expires");
    int n = snprintf(text, sizeof text, "%lld\n", (long long)expires);
    pthread_mutex_lock(&files);
    int rc = file_replace(path, text, (size_t)n, e);
    if (!rc) rc = dir_sync(dir, e);
    pthread_mutex_unlock(&files);
    free(path);
    free(dir);
    return rc;
}

int checkpoint_publish(const char *data, const struct checkpoint *c, bool public, struct err *e)
{
    char *dir = checkpoint_dir(data, c), *path = file_join(dir, PUBLIC);
    pthread_mutex_lock(&files);
    int rc = public ? file_replace(path, "\n", 1, e) : 0;
    if (!public && unlink(path) && errno != ENOENT)
        rc = err_set(e, ERR_IO, "%s cannot be unpublished: %s", c->name, strerror(errno));
    if (!rc) rc = dir_sync(dir, e);
    pthread_mutex_unlock(&files);
    free(path);
    free(dir);
    return rc;
}

/* How many there are beside it. */
static void count(void *arg, const char *name)
{
    *(int *)arg += checkpoint_name_ok(name);
}

/* Whether there are weights of this name, which are not over; *was: these, to be freed. */
static bool is_there(const char *data, const struct checkpoint *c, struct checkpoint *was)
{
    struct err e = {0};
    *was = (struct checkpoint){.sampler = c->sampler};
    memcpy(was->run, c->run, sizeof was->run);
    memcpy(was->name, c->name, sizeof was->name);
    return read_any(data, was, &e) ? e.code != ERR_NOT_FOUND : !expired(was);
}

static size_t count_owned(const char *data, const char *owner)
{
    size_t n;
    struct checkpoint *v = checkpoint_list(data, NULL, owner, &n);
    for (size_t i = 0; i < n; i++) checkpoint_free(&v[i]);
    free(v);
    return n;
}

static int too_many(size_t owned, size_t most, struct err *e)
{
    return err_set(e, ERR_INVALID,
                   "you have %zu saved weights already, of at most %zu (--tinker-client-weights): delete some", owned,
                   most);
}

int checkpoint_save(const char *data, const struct checkpoint *c, struct tuner *t, const char *model_dir,
                    bool overwrite, size_t most, struct err *e)
{
    struct buf note = {0}, beside = {0};
    struct checkpoint was;
    char *dir = checkpoint_dir(data, c);
    int n = 0;
    buf_printf(&beside, "%s/%s/%s", ROOT, c->run, kinds[c->sampler]);
    put_note(&note, c);
    pthread_mutex_lock(&adding);
    size_t owned = count_owned(data, c->owner);
    pthread_mutex_lock(&files);
    data_list(data, beside.data, count, &n);
    bool there = is_there(data, c, &was);
    if (there && !overwrite)
        err_set(e, ERR_INVALID, "`path`: there are weights of the name %s already", c->name);
    else if (!there && n >= CHECKPOINTS_MAX)
        err_set(e, ERR_INVALID, "`path`: the run has %d saved weights already: delete some", CHECKPOINTS_MAX);
    else if (!there && owned >= most)
        too_many(owned, most, e);
    else
        tuner_save(t, dir, !c->sampler, model_dir, note.data, note.len, e);
    pthread_mutex_unlock(&files);
    pthread_mutex_unlock(&adding);
    checkpoint_free(&was);
    free(dir);
    buf_free(&note);
    buf_free(&beside);
    return e->code;
}

/* What is there is the copy that is asked for: the same request again. */
static int check_same(const struct checkpoint *was, const struct checkpoint *copy, const char *source, struct err *e)
{
    if (was->source && !strcmp(was->source, source) && !strcmp(was->owner, copy->owner)) return 0;
    return err_set(e, ERR_INVALID,
                   "there are weights called %s of %s already, which are no copy of `source_path`: give another "
                   "`model_seq_id`, or the request a key of its own",
                   copy->name, copy->run);
}

static void share(const char *data, const struct checkpoint *from, const struct checkpoint *copy, char *source,
                  struct err *e)
{
    struct buf note = {0};
    struct checkpoint c = *copy;
    char *dir = checkpoint_dir(data, from), *to = checkpoint_dir(data, copy);
    c.base = from->base;
    c.metadata = from->metadata;
    c.source = source;
    c.rank = from->rank;
    c.attn = from->attn;
    c.mlp = from->mlp;
    c.unembed = from->unembed;
    put_note(&note, &c);
    tuner_files_share(dir, to, &(struct tuner_file){NOTE, note.data, note.len}, e);
    free(dir);
    free(to);
    buf_free(&note);
}

int checkpoint_copy(const char *data, struct checkpoint *from, const struct checkpoint *copy, size_t most,
                    struct err *e)
{
    struct buf source = {0};
    struct checkpoint was = {0};
    checkpoint_put_path(&source, from);
    pthread_mutex_lock(&adding);
    size_t owned = count_owned(data, copy->owner);
    pthread_mutex_lock(&files);
    if (read_for(data, from, copy->owner, false, e))
        err_prefix(e, "`source_path`");
    else if (is_there(data, copy, &was))
        check_same(&was, copy, source.data, e);
    else if (owned >= most)
        too_many(owned, most, e);
    else
        share(data, from, copy, source.data, e);
    pthread_mutex_unlock(&files);
    pthread_mutex_unlock(&adding);
    checkpoint_free(&was);
    buf_free(&source);
    return e->code;
}

/* The directory of a run's weights of this kind, and that of the run, where nothing is left in them. */
static void remove_empty(const char *data, const char *run, size_t kind)
{
    struct buf path = {0};
    buf_printf(&path, "%s/%s/%s/%s", data, ROOT, run, kinds[kind]);
    rmdir(path.data);
    *strrchr(path.data, '/') = 0;
    rmdir(path.data);
    buf_free(&path);
}

/* At once for readers, whatever a crash leaves of the files. */
static int delete(const char *data, const struct checkpoint *c, struct err *e)
{
    struct buf gone = {0}, old = {0};
    char *dir = checkpoint_dir(data, c);
    buf_printf(&gone, "%.*s.gone-%s", (int)(strrchr(dir, '/') + 1 - dir), dir, c->name);
    buf_printf(&old, "%s.old", dir); /* dir_replace's, which would come back */
    data_remove(gone.data);
    data_remove(old.data);
    if (rename(dir, gone.data))
        err_set(e, ERR_IO, "%s cannot be deleted: %s", c->name, strerror(errno));
    else
        dir_sync_parent(dir);
    data_remove(gone.data);
    remove_empty(data, c->run, c->sampler);
    free(dir);
    buf_free(&gone);
    buf_free(&old);
    return e->code;
}

int checkpoint_delete(const char *data, const struct checkpoint *c, struct err *e)
{
    pthread_mutex_lock(&files);
    int rc = delete(data, c, e);
    pthread_mutex_unlock(&files);
    return rc;
}

/* ---- listing -------------------------------------------------------------------------------------------------------
 */

struct names {
    char **v;
    size_t n, cap;
};

static void add_name(void *arg, const char *name)
{
    struct names *all = arg;
    mem_grow(&all->v, &all->cap, all->n + 1, sizeof *all->v);
    all->v[all->n++] = mem_strdup(name);
}

static struct names names_in(const char *data, const char *folder)
{
    struct names all = {0};
    data_list(data, folder, add_name, &all);
    return all;
}

static void names_free(struct names *all)
{
    for (size_t i = 0; i < all->n; i++) free(all->v[i]);
    free(all->v);
}

static bool unfinished(const char *path)
{
    struct stat st;
    return !stat(path, &st) && st.st_mtime + UNFINISHED_SECONDS < time(NULL);
}

struct walk {
    const char *data, *owner; /* owner NULL: sweep */
    struct checkpoint *v;
    size_t n, cap;
};

static void visit(struct walk *w, const char *run, size_t kind, const char *name)
{
    struct checkpoint c = {.sampler = kind == 1};
    struct err e = {0};
    snprintf(c.run, sizeof c.run, "%.*s", RUN_ID - 1, run);
    snprintf(c.name, sizeof c.name, "%.*s", CHECKPOINT_NAME - 1, name);
    if (!w->owner && (!strncmp(name, ".tmp-", 5) || !strncmp(name, ".gone-", 6))) {
        struct buf path = {0};
        buf_printf(&path, "%s/%s/%s/%s/%s", w->data, ROOT, run, kinds[kind], name);
        if (unfinished(path.data)) data_remove(path.data);
        buf_free(&path);
    } else if (checkpoint_name_ok(name) && !read_any(w->data, &c, &e)) {
        if (!w->owner && expired(&c)) delete(w->data, &c, &e);
        if (w->owner && !expired(&c) && !strcmp(c.owner, w->owner)) {
            mem_grow(&w->v, &w->cap, w->n + 1, sizeof *w->v);
            w->v[w->n++] = c;
            return;
        }
    }
    checkpoint_free(&c);
}

static void visit_run(struct walk *w, const char *run)
{
    if (!data_name_ok(run) || strlen(run) >= RUN_ID) return;
    for (size_t kind = 0; kind < 2; kind++) {
        struct buf folder = {0};
        buf_printf(&folder, "%s/%s/%s", ROOT, run, kinds[kind]);
        struct names all = names_in(w->data, folder.data);
        for (size_t i = 0; i < all.n; i++) {
            pthread_mutex_lock(&files);
            visit(w, run, kind, all.v[i]);
            pthread_mutex_unlock(&files);
        }
        if (!w->owner) {
            pthread_mutex_lock(&files);
            remove_empty(w->data, run, kind);
            pthread_mutex_unlock(&files);
        }
        names_free(&all);
        buf_free(&folder);
    }
}

static void visit_all(struct walk *w)
{
    struct names runs = names_in(w->data, ROOT);
    for (size_t i = 0; i < runs.n; i++) visit_run(w, runs.v[i]);
    names_free(&runs);
}

static int older_first(const void *a, const void *b)
{
    const struct checkpoint *x = a, *y = b;
    if (x->created != y->created) return x->created < y->created ? -1 : 1;
    return strcmp(x->name, y->name);
}

struct checkpoint *checkpoint_list(const char *data, const char *run, const char *owner, size_t *n)
{
    struct walk w = {.data = data, .owner = owner};
    if (run)
        visit_run(&w, run);
    else
        visit_all(&w);
    if (w.n) qsort(w.v, w.n, sizeof *w.v, older_first);
    *n = w.n;
    return w.v;
}

void checkpoints_sweep(const char *data)
{
    visit_all(&(struct walk){.data = data});
}
