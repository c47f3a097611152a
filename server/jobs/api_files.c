/* /v1/files: upload, list, get, content, delete.
 *
 * An upload is parsed incrementally and written by the thread pool, one buffer at a time, to files/ID.tmp.  While one
 * buffer is written the next one fills; when both are full, reading from the connection pauses.  At the end: fsync,
 * rename, then insert the row.  The client is answered after the row's commit. */

#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "server/access/admission.h"
#include "server/config/settings.h"
#include "server/jobs/api_train.h"
#include "server/jobs/batch_db.h"
#include "server/jobs/evaluation_db.h"
#include "server/jobs/file_db.h"
#include "server/jobs/routes.h"
#include "server/json/json.h"
#include "server/net/http.h"
#include "server/net/multipart.h"
#include "server/store/data_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

enum { BUFFER = 256 * 1024, FIELD_MAX = 255, LIST_MAX = 10000 };

struct upload {
    struct http_req *req; /* NULL once closed */
    struct app *app;
    struct multipart form;
    struct err e; /* the first error */
    int status;   /* HTTP status for e */
    char id[DATA_ID_MAX], filename[MULTIPART_NAME + 1], purpose[FIELD_MAX + 1], seconds[32], anchor[32];
    char *field; /* destination of the current part; NULL: not a field */
    size_t field_len;
    bool in_file, has_file, complete, stored;
    uint64_t bytes;

    /* the sink: the loop owns filling; the pool owns writing while `busy` */
    struct buf filling, writing;
    uv_work_t work;
    bool busy, finish;
    bool abandoned; /* renamed to its final name, but will have no row */
    int fd;
    char *path, *temp;
    struct err write_error;
};

static void upload_delete(struct upload *u)
{
    buf_free(&u->filling);
    buf_free(&u->writing);
    free(u->path);
    free(u->temp);
    free(u);
}

/* Pool thread. */
static void leave_work(uv_work_t *w)
{
    struct upload *u = w->data;
    close(u->fd);
    if (!u->stored) unlink(u->temp);
    if (u->abandoned) unlink(u->path);
}

static void after_leave(uv_work_t *w, int status)
{
    (void)status;
    upload_delete(w->data);
}

/* On the pool, because closing and unlinking may block on the disk. */
static void upload_free(struct upload *u)
{
    if (u->busy) return; /* after_write calls this again */
    if (u->fd < 0)
        upload_delete(u);
    else
        CHECK(uv_queue_work(u->app->loop, &u->work, leave_work, after_leave) == 0);
}

/* ---- the row --------------------------------------------------------------------------------------------------- */

static void insert(struct store_request *c, struct db *db)
{
    struct upload *u = c->user;
    file_add_row(db, u->id, u->bytes, u->filename, u->purpose, atoll(u->seconds));
    file_put_by_id(db, &c->out, u->id);
}

/* Removes the file when its row was not committed. */
static void settle_insert(struct store_request *c, struct db *db)
{
    struct upload *u = c->user;
    (void)db;
    if (c->status >= 400) unlink(u->path);
}

static void after_insert(struct store_request *c)
{
    upload_free(c->user);
}

/* ---- the sink -------------------------------------------------------------------------------------------------- */

/* Pool thread. */
static void write_work(uv_work_t *w)
{
    struct upload *u = w->data;
    struct err *e = &u->write_error;
    if (u->fd < 0) {
        const char *dir = settings_data_dir(u->app->set); /* the store may be closed before the pool */
        struct err none = {0};
        if (mkdir(dir, 0750) == 0)
            data_sync_parent(dir, &none);
        else if (errno != EEXIST)
            err_set(e, ERR_IO, "%s: %s", dir, strerror(errno));
        if (!e->code && data_mkdir(dir, "files", NULL, e) == 0)
            u->fd = open(u->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0640);
        if (!e->code && u->fd < 0) err_set(e, ERR_IO, "%s: %s", u->temp, strerror(errno));
    }
    if (!e->code && file_write_all(u->fd, u->writing.data, u->writing.len))
        err_set(e, ERR_IO, "%s: %s", u->temp, strerror(errno));
    if (!u->finish || e->code) return;
    bool synced = fsync(u->fd) == 0;
    if (!synced || rename(u->temp, u->path)) err_set(e, ERR_IO, "%s: %s", u->path, strerror(errno));
    if (!e->code) data_sync_parent(u->path, e);
}

static void sink_go(struct upload *u);

static void refuse_upload(struct upload *u, int status, const struct err *e)
{
    if (!u->req || u->status) return;
    u->status = status;
    u->e = *e;
    if (!u->complete && !http_body_stop(u->req)) return; /* the connection has answered */
    store_request_reply_error(u->req, true, status, status >= 500 ? "storage" : "invalid_upload", "%s", u->e.msg);
}

static void store_row(struct upload *u)
{
    struct http_req *req = u->req;
    u->stored = true;
    struct store_request *c = store_request_new(req, true, insert); /* takes req over and replaces on_close */
    u->req = NULL;
    c->user = u;
    c->settle = settle_insert;
    c->after = after_insert;
    store_request_send(c);
}

static void after_write(uv_work_t *w, int status)
{
    struct upload *u = w->data;
    (void)status;
    u->busy = false;
    buf_clear(&u->writing);
    if (!u->req) {
        u->abandoned = u->finish && !u->write_error.code; /* renamed, but the client disconnected */
        upload_free(u);
    } else if (u->write_error.code) {
        refuse_upload(u, 507, &u->write_error);
    } else if (u->finish) {
        store_row(u);
    } else {
        http_body_pause(u->req, false);
        sink_go(u);
    }
}

/* Passes full buffers to the pool; everything once the body is complete. */
static void sink_go(struct upload *u)
{
    if (u->busy || u->status || (u->filling.len < BUFFER && !u->complete)) return;
    struct buf empty = u->writing;
    u->writing = u->filling;
    u->filling = empty;
    u->finish = u->complete;
    u->busy = true;
    CHECK(uv_queue_work(u->app->loop, &u->work, write_work, after_write) == 0);
}

/* ---- the form -------------------------------------------------------------------------------------------------- */

static bool on_begin(void *arg, const struct multipart_part *part, struct err *e)
{
    struct upload *u = arg;
    u->field = NULL;
    u->field_len = 0;
    u->in_file = false;
    if (strcmp(part->name, "file") == 0) {
        if (u->has_file) return err_set(e, ERR_INVALID, "more than one part named file"), false;
        u->has_file = u->in_file = true;
        snprintf(u->filename, sizeof u->filename, "%s", part->filename[0] ? part->filename : "upload");
    } else if (strcmp(part->name, "purpose") == 0) {
        u->field = u->purpose;
    } else if (strcmp(part->name, "expires_after[seconds]") == 0) {
        u->field = u->seconds;
    } else if (strcmp(part->name, "expires_after[anchor]") == 0) {
        u->field = u->anchor;
    }
    return true;
}

static bool on_data(void *arg, const char *p, size_t n, struct err *e)
{
    struct upload *u = arg;
    if (u->in_file) {
        u->bytes += n;
        buf_append(&u->filling, p, n);
    } else if (u->field) {
        size_t most = u->field == u->purpose ? FIELD_MAX : sizeof u->seconds - 1;
        if (u->field_len + n > most) return err_set(e, ERR_INVALID, "a field of the form is too long"), false;
        memcpy(u->field + u->field_len, p, n);
        u->field_len += n;
        u->field[u->field_len] = 0;
    }
    return true;
}

static bool on_end(void *arg, struct err *e)
{
    struct upload *u = arg;
    (void)e;
    u->in_file = false;
    u->field = NULL;
    return true;
}

static void on_body(struct http_req *req, const char *p, size_t n)
{
    struct upload *u = req->user;
    struct err e = {0};
    if (u->status) return;
    if (multipart_feed(&u->form, p, n, &e)) {
        refuse_upload(u, 400, &e);
        return;
    }
    if (u->busy && u->filling.len >= BUFFER) http_body_pause(req, true);
    sink_go(u);
}

static void on_close(struct http_req *req)
{
    struct upload *u = req->user;
    u->req = NULL;
    upload_free(u);
}

void api_files_begin(struct http_req *req)
{
    static const struct multipart_events events = {on_begin, on_data, on_end};
    struct app *app = req->app;
    struct upload *u = mem_zalloc(sizeof *u);
    struct err e = {0};
    u->app = app;
    u->req = req;
    u->fd = -1;
    u->work.data = u;
    data_id(u->id, "file-");
    u->path = data_path(settings_data_dir(u->app->set), "files", u->id);
    u->temp = mem_alloc(strlen(u->path) + 5);
    strcpy(u->temp, u->path);
    strcat(u->temp, ".tmp");
    req->user = u;
    req->on_body = on_body;
    req->on_close = on_close;
    /* not before jobs_list_uploads has listed the files of an earlier process, or an upload would be taken for one of
     * them */
    if (app->state != SERVING_READY) {
        u->status = 503;
        if (http_body_stop(req)) train_refuses(req, true);
        return;
    }
    if (multipart_init(&u->form, http_header(req, "Content-Type"), &events, u, &e)) refuse_upload(u, 415, &e);
}

static bool check_form(struct upload *u, struct err *e)
{
    static const char *const purposes[] = {"fine-tune", "fine-tune-results", "assistants", "batch",
                                           "vision",    "user_data",         "evals"};
    size_t i = 0;
    if (multipart_end(&u->form, e)) return false;
    if (!u->has_file) return err_set(e, ERR_INVALID, "the form has no part named file"), false;
    if (!u->purpose[0]) return err_set(e, ERR_INVALID, "the form has no purpose"), false;
    while (i < sizeof purposes / sizeof *purposes && strcmp(u->purpose, purposes[i]) != 0) i++;
    if (i == sizeof purposes / sizeof *purposes)
        return err_set(e, ERR_INVALID,
                       "purpose: must be one of fine-tune, assistants, batch, vision, user_data, evals, "
                       "fine-tune-results"),
               false;
    if (u->anchor[0] && strcmp(u->anchor, "created_at") != 0)
        return err_set(e, ERR_INVALID, "expires_after[anchor]: must be created_at"), false;
    long long seconds = atoll(u->seconds);
    if (u->seconds[0] && (seconds < 3600 || seconds > 2592000))
        return err_set(e, ERR_INVALID, "expires_after[seconds]: must be between 3600 and 2592000"), false;
    if (!u->bytes) return err_set(e, ERR_INVALID, "the file is empty"), false;
    return true;
}

/* The body is complete. */
void api_files_create(struct http_req *req)
{
    struct upload *u = req->user;
    struct err e = {0};
    if (!u) { /* no body was sent */
        store_request_reply_error(req, true, 400, "invalid_upload",
                                  "expected multipart/form-data with a file and a purpose");
        return;
    }
    u->complete = true;
    if (u->status) return;
    if (check_form(u, &e))
        sink_go(u);
    else
        refuse_upload(u, 400, &e);
}

/* ---- the other routes ------------------------------------------------------------------------------------------ */

static void no_file(struct store_request *c)
{
    store_request_fail(c, 404, "not_found", "id", "No such File object: %.80s", c->param);
}

static void get_one(struct store_request *c, struct db *db)
{
    if (!file_put_by_id(db, &c->out, c->param)) no_file(c);
}

static void list(struct store_request *c, struct db *db)
{
    struct err e = {0};
    int64_t limit, from = 0;
    char text[64], purpose[64] = "";
    bool ascending = query_get(c->query, "order", text, sizeof text) && strcmp(text, "asc") == 0;
    if (!query_int(c->query, "limit", 1, LIST_MAX, LIST_MAX, &limit, &e)) {
        store_request_fail(c, 400, "validation", "limit", "%s", e.msg);
        return;
    }
    from = ascending ? 0 : INT64_MAX;
    if (query_get(c->query, "after", text, sizeof text)) {
        from = db_number(db, -1, "SELECT seq FROM files WHERE id = ?", "t", text);
        if (from < 0) {
            store_request_fail(c, 400, "validation", "after", "after: there is no file %s", text);
            return;
        }
    }
    bool given = query_get(c->query, "purpose", purpose, sizeof purpose);
    sqlite3_stmt *q = ascending ? db_query(db,
                                           "SELECT " FILE_COLUMNS " FROM files WHERE seq > ? AND (?2 IS NULL OR"
                                           " purpose = ?2) ORDER BY seq LIMIT ?3",
                                           "iti", from, given ? purpose : NULL, limit + 1)
                                : db_query(db,
                                           "SELECT " FILE_COLUMNS " FROM files WHERE seq < ? AND (?2 IS NULL OR"
                                           " purpose = ?2) ORDER BY seq DESC LIMIT ?3",
                                           "iti", from, given ? purpose : NULL, limit + 1);
    char first[48] = "", last[48] = "";
    int64_t n = 0;
    bool more = false;
    buf_str(&c->out, "{\"object\":\"list\",\"data\":[");
    for (; db_step(db, q); n++) {
        if (n == limit) {
            more = true;
            db_done(q);
            break;
        }
        if (n) buf_char(&c->out, ',');
        file_put(&c->out, q);
        snprintf(n ? last : first, sizeof first, "%s", db_text(q, 0));
    }
    if (n == 1) memcpy(last, first, sizeof last);
    buf_printf(&c->out, "],\"first_id\":%s%s%s,\"last_id\":%s%s%s,\"has_more\":%s}", n ? "\"" : "", n ? first : "null",
               n ? "\"" : "", n ? "\"" : "", n ? last : "null", n ? "\"" : "", more ? "true" : "false");
}

static void remove_one(struct store_request *c, struct db *db)
{
    sqlite3_stmt *q =
        db_query(db, "SELECT id FROM jobs WHERE status IN ('queued', 'running', 'paused') AND instr(spec, ?) > 0", "t",
                 c->param);
    if (strlen(c->param) >= 10 && db_step(db, q)) {
        store_request_fail(c, 409, "file_in_use", "id", "%s is used by ft%s, which is not over", c->param,
                           db_text(q, 0));
        db_done(q);
        return;
    }
    db_done(q);
    q = db_query(db,
                 "SELECT id FROM batches WHERE input_file = ?1 AND status IN " BATCH_ACTIVE
                 " UNION ALL SELECT id FROM evaluations WHERE file = ?1 AND status IN " EVALUATION_ACTIVE,
                 "t", c->param);
    if (db_step(db, q)) {
        store_request_fail(c, 409, "file_in_use", "id", "%s is used by %s, which is not over", c->param, db_text(q, 0));
        db_done(q);
        return;
    }
    db_done(q);
    if (db_run(db, "DELETE FROM files WHERE id = ?", "t", c->param) != 1) {
        no_file(c);
        return;
    }
    free(c->path);
    c->path = data_path(db->dir, "files", c->param);
    buf_str(&c->out, "{\"id\":");
    json_put_string(&c->out, c->param, strlen(c->param));
    buf_str(&c->out, ",\"object\":\"file\",\"deleted\":true}");
}

/* Removes the file after its row: a crash in between leaves an orphan, which the next start removes. */
static void settle_remove(struct store_request *c, struct db *db)
{
    (void)db;
    if (c->status < 400 && c->path) unlink(c->path);
}

void api_files_list(struct http_req *req)
{
    store_request_start(req, true, list, NULL);
}

void api_files_get(struct http_req *req)
{
    store_request_start(req, true, get_one, NULL);
}

void api_files_delete(struct http_req *req)
{
    struct store_request *c = store_request_new(req, true, remove_one);
    c->settle = settle_remove;
    store_request_send(c);
}

/* ---- content --------------------------------------------------------------------------------------------------- */

/* A download: the pool reads one block at a time, while the client's write queue has room. */
struct download {
    struct http_req *req; /* NULL once closed */
    struct app *app;
    uv_work_t work;
    int fd;
    bool busy;
    ssize_t n;
    char block[BUFFER];
};

/* Pool thread.  Closing may free the blocks of a file deleted meanwhile, which takes time. */
static void close_work(uv_work_t *w)
{
    close(((struct download *)w->data)->fd);
}

static void after_close(uv_work_t *w, int status)
{
    (void)status;
    free(w->data);
}

static void download_free(struct download *d)
{
    if (!d->busy) CHECK(uv_queue_work(d->app->loop, &d->work, close_work, after_close) == 0);
}

static void read_work(uv_work_t *w)
{
    struct download *d = w->data;
    do d->n = read(d->fd, d->block, sizeof d->block);
    while (d->n < 0 && errno == EINTR);
}

static void after_read(uv_work_t *w, int status);

static void read_next(struct download *d)
{
    if (d->busy) return;
    d->busy = true;
    CHECK(uv_queue_work(d->app->loop, &d->work, read_work, after_read) == 0);
}

static void on_room(struct http_req *req)
{
    read_next(req->user);
}

static void after_read(uv_work_t *w, int status)
{
    struct download *d = w->data;
    (void)status;
    d->busy = false;
    if (!d->req) {
        download_free(d);
    } else if (d->n < 0) {
        http_abort(d->req); /* the head was sent, so only aborting the connection can report the error */
    } else if (d->n == 0) {
        http_end(d->req);
    } else if (http_write(d->req, d->block, (size_t)d->n)) {
        read_next(d);
    }
}

static void on_download_close(struct http_req *req)
{
    struct download *d = req->user;
    d->req = NULL;
    download_free(d);
}

static void find_content(struct store_request *c, struct db *db)
{
    struct download *d = c->user;
    if (!db_number(db, 0, "SELECT count(*) FROM files WHERE id = ?", "t", c->param)) {
        no_file(c);
        return;
    }
    char *path = data_path(db->dir, "files", c->param);
    size_t size;
    struct err e = {0};
    if (d->fd < 0) d->fd = file_open(path, &size, &e);
    if (d->fd < 0) store_request_fail(c, 500, "storage", NULL, "%.80s: %s", c->param, e.msg);
    free(path);
}

static void after_find(struct store_request *c)
{
    struct download *d = c->user;
    d->app = c->app;
    d->work.data = d;
    if (!c->req || c->status >= 400) {
        if (d->fd >= 0)
            download_free(d);
        else
            free(d);
        return;
    }
    c->answered = true;
    d->req = c->req;
    d->req->user = d;
    d->req->on_close = on_download_close;
    d->req->on_drain = on_room;
    http_start(d->req, 200, "application/octet-stream");
    read_next(d);
}

void api_files_content(struct http_req *req)
{
    struct store_request *c = store_request_new(req, true, find_content);
    struct download *d = mem_zalloc(sizeof *d);
    d->fd = -1;
    c->user = d;
    c->after = after_find;
    store_request_send(c);
}
