#include "server/hub/fetch.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { HOPS_MAX = 10, CONNECT_SECONDS = 20, RETRY_AFTER_MAX = 60 };
#define FIRST_DELAY_NS UINT64_C(500000000)

static void global_init(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

void fetch_global(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, global_init);
}

/* ---- where the token may go ------------------------------------------------------------------------------------- */

/* "scheme://host:port"; false: not a URL of HTTP */
static bool origin_of(const char *url, char out[static 300])
{
    CURLU *u = curl_url();
    char *scheme = NULL, *host = NULL, *port = NULL;
    bool good = u && !curl_url_set(u, CURLUPART_URL, url, 0) && !curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) &&
                !curl_url_get(u, CURLUPART_HOST, &host, 0) &&
                !curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) &&
                (strcasecmp(scheme, "http") == 0 || strcasecmp(scheme, "https") == 0) && strlen(host) < 256;
    if (good) {
        snprintf(out, 300, "%s://%s:%s", scheme, host, port);
        for (char *p = out; *p; p++) *p = (char)tolower((unsigned char)*p);
    }
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    curl_url_cleanup(u);
    return good;
}

static bool is_hub(const struct hub *h, const char *origin)
{
    char own[300] = "";
    if (origin_of(h->endpoint, own) && strcmp(own, origin) == 0) return true;
    return strcmp(origin, "https://huggingface.co:443") == 0 || strcmp(origin, "https://hf.co:443") == 0;
}

static void set_token(struct fetch *f, const char *url)
{
    char origin[300] = "";
    f->asked_storage = !origin_of(url, origin) || !is_hub(f->hub, origin);
    curl_slist_free_all(f->headers);
    f->headers = curl_slist_append(NULL, "Accept-Encoding: identity"); /* sizes are those of the files */
    if (f->asked_storage || !f->hub->token) {
        curl_easy_setopt(f->easy, CURLOPT_HTTPHEADER, f->headers);
        return;
    }
    struct buf line = {0};
    buf_printf(&line, "Authorization: Bearer %s", f->hub->token);
    f->headers = curl_slist_append(f->headers, line.data);
    explicit_bzero(line.data, line.len);
    buf_free(&line);
    curl_easy_setopt(f->easy, CURLOPT_HTTPHEADER, f->headers);
}

/* ---- answers ---------------------------------------------------------------------------------------------------- */

/* The value of the header `name`, in out without what is not printable; false: another header */
static bool header(const char *line, size_t n, const char *name, char *out, size_t size)
{
    size_t len = strlen(name), k = 0;
    if (n <= len || line[len] != ':' || strncasecmp(line, name, len) != 0) return false;
    const char *p = line + len + 1, *end = line + n;
    while (p < end && isspace((unsigned char)*p)) p++;
    while (end > p && isspace((unsigned char)end[-1])) end--;
    for (; p < end && k + 1 < size; p++)
        if ((unsigned char)*p >= 32 && (unsigned char)*p < 127) out[k++] = *p;
    out[k] = 0;
    return true;
}

static void set_etag(struct fetch *f, const char *value)
{
    if (strncmp(value, "W/", 2) == 0) value += 2;
    size_t n = strlen(value);
    if (n >= 2 && value[0] == '"' && value[n - 1] == '"') value++, n -= 2;
    if (n < sizeof f->etag) snprintf(f->etag, sizeof f->etag, "%.*s", (int)n, value);
}

static int64_t whole_number(const char *text)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    return errno || end == text || v < 0 ? -1 : v;
}

static size_t on_header(char *line, size_t size, size_t n, void *arg)
{
    struct fetch *f = arg;
    char v[200] = "";
    n *= size;
    if (n > 5 && strncmp(line, "HTTP/", 5) == 0) {
        f->error_code[0] = f->error_message[0] = 0;
        f->retry_after = 0;
        f->range_begin = -1;
    } else if (header(line, n, "X-Error-Code", v, sizeof f->error_code)) {
        strcpy(f->error_code, v);
    } else if (header(line, n, "X-Error-Message", v, sizeof f->error_message)) {
        strcpy(f->error_message, v);
    } else if (header(line, n, "Retry-After", v, sizeof v)) {
        int64_t s = whole_number(v);
        f->retry_after = s < 0 ? 0 : s > RETRY_AFTER_MAX ? RETRY_AFTER_MAX : (int)s;
    } else if (header(line, n, "Content-Range", v, sizeof v)) {
        f->range_begin = strncmp(v, "bytes ", 6) == 0 ? whole_number(v + 6) : -1;
    } else if (header(line, n, "X-Linked-Etag", v, sizeof v)) {
        set_etag(f, v);
    } else if (header(line, n, "X-Linked-Size", v, sizeof v)) {
        f->size = whole_number(v);
    } else if (header(line, n, "ETag", v, sizeof v) && !*f->etag) {
        set_etag(f, v);
    }
    return n;
}

static size_t on_body(char *data, size_t size, size_t n, void *arg)
{
    struct fetch *f = arg;
    long status = 0;
    curl_easy_getinfo(f->easy, CURLINFO_RESPONSE_CODE, &status);
    f->status = status;
    if (status != 200 && status != 206) return n * size; /* the text of an error */
    return !f->sink || f->sink(f->arg, data, n * size) ? n * size : 0;
}

static int on_time(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    const struct fetch *f = arg;
    (void)a, (void)b, (void)c, (void)d;
    return f->hub->stop && *f->hub->stop;
}

/* ---- a request -------------------------------------------------------------------------------------------------- */

void fetch_open(struct fetch *f, const struct hub *h, const char *url, uint64_t from, bool head, fetch_sink *sink,
                void *arg)
{
    *f = (struct fetch){.hub = h, .sink = sink, .arg = arg, .head = head, .range_begin = -1, .size = -1};
    f->easy = curl_easy_init();
    curl_easy_setopt(f->easy, CURLOPT_URL, url);
    curl_easy_setopt(f->easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(f->easy, CURLOPT_USERAGENT, "tandem/" TANDEM_VERSION);
    curl_easy_setopt(f->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(f->easy, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl_easy_setopt(f->easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(f->easy, CURLOPT_LOW_SPEED_TIME, (long)h->timeout);
    curl_easy_setopt(f->easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(f->easy, CURLOPT_HEADERDATA, f);
    curl_easy_setopt(f->easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(f->easy, CURLOPT_WRITEDATA, f);
    curl_easy_setopt(f->easy, CURLOPT_XFERINFOFUNCTION, on_time);
    curl_easy_setopt(f->easy, CURLOPT_XFERINFODATA, f);
    curl_easy_setopt(f->easy, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(f->easy, CURLOPT_ERRORBUFFER, f->curl_error);
    curl_easy_setopt(f->easy, CURLOPT_BUFFERSIZE, 256L << 10);
    curl_easy_setopt(f->easy, CURLOPT_PRIVATE, arg);
    if (head) curl_easy_setopt(f->easy, CURLOPT_NOBODY, 1L);
    if (from) { /* not CURLOPT_RESUME_FROM, which fails where a server ignores ranges */
        char range[32];
        snprintf(range, sizeof range, "%llu-", (unsigned long long)from);
        curl_easy_setopt(f->easy, CURLOPT_RANGE, range);
    }
    set_token(f, url);
}

void fetch_close(struct fetch *f)
{
    if (f->easy) curl_easy_cleanup(f->easy);
    curl_slist_free_all(f->headers);
    f->easy = NULL;
    f->headers = NULL;
}

static bool is_https(const char *url)
{
    return strncasecmp(url, "https:", 6) == 0;
}

static enum fetch_end follow(struct fetch *f, const char *what, struct err *e)
{
    char *to = NULL, *url = NULL, origin[300] = "";
    curl_easy_getinfo(f->easy, CURLINFO_REDIRECT_URL, &to);
    curl_easy_getinfo(f->easy, CURLINFO_EFFECTIVE_URL, &url);
    if (!to || !origin_of(to, origin)) {
        err_set(e, ERR_IO, "%.200s: redirected to nowhere", what);
        return FETCH_FAILED;
    }
    if (++f->hops > HOPS_MAX || (url && is_https(url) && !is_https(to))) {
        err_set(e, ERR_IO,
                f->hops > HOPS_MAX ? "%.200s: redirected too often" : "%.200s: redirected from https to http", what);
        return FETCH_FAILED;
    }
    if (f->head && !is_hub(f->hub, origin)) return FETCH_DONE; /* the hub's own headers say what the file is */
    char *copy = mem_strdup(to);
    curl_easy_setopt(f->easy, CURLOPT_URL, copy);
    set_token(f, copy);
    free(copy);
    return FETCH_FOLLOW;
}

static const char *token_advice(const struct hub *h, struct buf *out)
{
    if (h->token)
        buf_printf(out, "the token of %s has no access", h->token_from);
    else
        buf_str(out, "no token is set: HF_TOKEN=hf_..., from https://huggingface.co/settings/tokens");
    return out->data;
}

/* 401, 403, 404: what the hub's codes mean (utils/_http.py: hf_raise_for_status). */
static void say_refused(const struct fetch *f, const struct repo_name *r, const char *what, struct err *e)
{
    struct buf advice = {0};
    token_advice(f->hub, &advice);
    if (strcmp(f->error_code, "GatedRepo") == 0)
        err_set(e, ERR_NOT_FOUND,
                "%s is gated: its conditions are accepted on %.100s/%s, by the account of the token; %s", r->id,
                f->hub->endpoint, r->id, advice.data);
    else if (strcmp(f->error_code, "RevisionNotFound") == 0)
        err_set(e, ERR_NOT_FOUND, "%s has no revision %s on the hub", r->id, r->revision);
    else if (strcmp(f->error_code, "EntryNotFound") == 0)
        err_set(e, ERR_NOT_FOUND, "%.200s is not there any more", what);
    else if (f->status == 401 && strcmp(f->error_message, "Invalid credentials in Authorization header") == 0)
        err_set(e, ERR_INVALID, "the hub does not take the token of %s: %s",
                f->hub->token_from ? f->hub->token_from : "none", f->error_message);
    else if (strcmp(f->error_code, "RepoNotFound") == 0 || f->status == 401 || (f->status == 404 && !*f->error_code))
        err_set(e, ERR_NOT_FOUND, "%s: no such directory, and no such model on the hub (%.100s), or it is private; %s",
                r->id, f->hub->endpoint, advice.data);
    else
        err_set(e, ERR_IO, "%.200s: the hub answered %ld%s%s", what, f->status, *f->error_message ? ": " : "",
                f->error_message);
    buf_free(&advice);
}

static enum fetch_end on_status(struct fetch *f, const struct repo_name *r, const char *what, struct err *e)
{
    long s = f->status;
    if (s == 200 || s == 206) {
        curl_off_t length = -1;
        curl_easy_getinfo(f->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
        if (f->head && f->size < 0) f->size = length;
        return FETCH_DONE;
    }
    if (s == 301 || s == 302 || s == 303 || s == 307 || s == 308) return follow(f, what, e);
    if (s == 408 || s == 429 || s >= 500) {
        err_set(e, ERR_IO, "%.200s: %s answered %ld%s%s%s", what, f->asked_storage ? "the hub's storage" : "the hub", s,
                s == 429 ? ": too many requests" : "", *f->error_message ? ": " : "", f->error_message);
        return FETCH_AGAIN;
    }
    if (f->asked_storage) { /* a signed address that is no longer valid: the hub gives a new one */
        err_set(e, ERR_IO, "%.200s: the hub's storage answered %ld", what, s);
        return s == 416 ? FETCH_FAILED : FETCH_AGAIN;
    }
    say_refused(f, r, what, e);
    return FETCH_FAILED;
}

enum fetch_end fetch_end(struct fetch *f, CURLcode code, const struct repo_name *r, const char *what, struct err *e)
{
    curl_easy_getinfo(f->easy, CURLINFO_RESPONSE_CODE, &f->status);
    if (f->hub->stop && *f->hub->stop) {
        err_set(e, ERR_IO, "interrupted; what was downloaded stays, and the same command goes on from there");
        return FETCH_FAILED;
    }
    if (code == CURLE_OK) return on_status(f, r, what, e);
    const char *why = code == CURLE_PARTIAL_FILE ? "the connection ended before the file did"
                      : *f->curl_error           ? f->curl_error
                                                 : curl_easy_strerror(code);
    char origin[300];
    char *url = NULL;
    curl_easy_getinfo(f->easy, CURLINFO_EFFECTIVE_URL, &url);
    if (!url || !origin_of(url, origin)) snprintf(origin, sizeof origin, "%.200s", f->hub->endpoint);
    err_set(e, ERR_IO, "%.200s: %s: %.160s", what, origin, why);
    f->unreachable = code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_CONNECT;
    switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_WRITE_ERROR: return FETCH_FAILED;
    default: return FETCH_AGAIN;
    }
}

uint64_t fetch_delay_ns(const struct fetch *f, int n)
{
    uint64_t delay = FIRST_DELAY_NS << (n < 1 ? 0 : n > 6 ? 5 : n - 1);
    uint64_t asked = (uint64_t)f->retry_after * 1000000000u;
    return delay > asked ? delay : asked;
}

/* ---- a text ----------------------------------------------------------------------------------------------------- */

struct text {
    struct buf *out;
    size_t limit;
    bool too_long;
};

static bool take_text(void *arg, const char *data, size_t n)
{
    struct text *t = arg;
    t->too_long = !t->out || n > t->limit - t->out->len || !buf_try_append(t->out, data, n);
    return !t->too_long;
}

static void pause_ns(const struct hub *h, uint64_t ns)
{
    for (uint64_t end = clock_now() + ns; clock_now() < end && !(h->stop && *h->stop);)
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
}

int fetch_text(const struct hub *h, const char *url, const struct repo_name *r, const char *what, size_t limit,
               struct buf *out, struct fetch *f, struct err *e)
{
    struct text t = {.out = out, .limit = limit};
    enum fetch_end end;
    fetch_global();
    for (int n = 1;; n++) {
        if (out) buf_clear(out);
        fetch_open(f, h, url, 0, !out, take_text, &t);
        do end = fetch_end(f, curl_easy_perform(f->easy), r, what, e);
        while (end == FETCH_FOLLOW);
        fetch_close(f);
        if (t.too_long) return err_set(e, ERR_INVALID, "%.200s: an answer of more than %zu MiB", what, limit >> 20);
        if (end != FETCH_AGAIN || n == FETCH_TRIES || (f->unreachable && n == 2)) break;
        pause_ns(h, fetch_delay_ns(f, n));
    }
    return end == FETCH_DONE ? 0 : e->code;
}
