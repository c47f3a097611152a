#include "server/rewards/url.h"

#include "engine/base/mem.h"

#include <curl/curl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    URL_MAX = 2048,
    TIMEOUT_S = 60,
    RETRIES = 3,
    ASKED_MAX = 64 << 20, /* bytes of texts and rows */
    ANSWER_MAX = 4 << 20,
    PAUSE_MS = 500, /* before the first repetition; doubled each time */
    PAUSE_MOST_MS = 30000,
    POLL_MS = 50,
    CONNECT_S = 10,
};

static const char key_prefix[] = "TANDEM_REWARD_"; /* other variables are nobody's who may start a job */

struct reward_url {
    char path[40];
    char *url, *key_env; /* key_env NULL: no key */
    int64_t retries;
    double timeout_s;
};

/* A request under way. */
struct asking {
    bool (*stop)(void *);
    void *arg;
    struct buf answer;
    bool too_long;
};

static bool wrong(struct json_at *at, const char *name, const char *what)
{
    err_set(at->e, ERR_INVALID, "%s.%s: %.200s", at->path, name, what);
    return false;
}

static bool read_key(struct json_at *at, struct reward_url *u)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    const char *name;
    size_t n = sizeof key_prefix - 1;
    if (!json_get_string(at, "key_env", &name)) return at->e->code == 0;
    if (strncmp(name, key_prefix, n) != 0 || strlen(name) > 100 || name[strspn(name, letters)])
        return wrong(at, "key_env", "must be the name of an environment variable that begins with TANDEM_REWARD_");
    u->key_env = mem_strdup(name);
    return true;
}

struct reward_url *reward_url_read(struct json_at *at)
{
    struct reward_url *u = mem_zalloc(sizeof *u);
    const char *url = NULL;
    snprintf(u->path, sizeof u->path, "%s", at->path);
    u->timeout_s = TIMEOUT_S;
    u->retries = RETRIES;
    json_get_string(at, "url", &url);
    json_get_number(at, "timeout_s", &u->timeout_s);
    json_get_int(at, "retries", 0, 20, &u->retries);
    read_key(at, u);
    if (at->e->code) {
        /* it is said */
    } else if (!url) {
        wrong(at, "url", "is missing");
    } else if (strlen(url) > URL_MAX || (strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0)) {
        wrong(at, "url", "must begin with http:// or https:// and have at most 2048 bytes");
    } else if (!(u->timeout_s >= 0.1 && u->timeout_s <= 3600)) {
        wrong(at, "timeout_s", "must be from 0.1 to 3600");
    } else {
        u->url = mem_strdup(url);
        return u;
    }
    reward_url_free(u);
    return NULL;
}

void reward_url_free(struct reward_url *u)
{
    if (!u) return;
    free(u->url);
    free(u->key_env);
    free(u);
}

/* ---- one request ------------------------------------------------------------------------------------------------- */

static void put_body(struct buf *b, const struct reward_text *t, int n)
{
    buf_str(b, "{\"texts\":[");
    for (int i = 0; i < n; i++) {
        if (i) buf_char(b, ',');
        json_put_string(b, t[i].text, t[i].n);
    }
    buf_str(b, "],\"rows\":[");
    for (int i = 0; i < n; i++) {
        if (i) buf_char(b, ',');
        buf_append(b, t[i].row, t[i].n_row);
    }
    buf_str(b, "]}");
}

static size_t on_data(char *data, size_t size, size_t n, void *arg)
{
    struct asking *a = arg;
    size_t bytes = size * n;
    a->too_long = a->answer.len + bytes > ANSWER_MAX;
    if (a->too_long) return 0;
    buf_append(&a->answer, data, bytes);
    return bytes;
}

static int on_progress(void *arg, curl_off_t all, curl_off_t got, curl_off_t to_send, curl_off_t sent)
{
    const struct asking *a = arg;
    (void)all, (void)got, (void)to_send, (void)sent;
    return a->stop && a->stop(a->arg);
}

/* An array of n finite numbers, or an object with it. */
static int read_answer(const struct reward_url *u, const struct buf *b, int n, double *value, struct err *e)
{
    struct err why = {0};
    cJSON *tree = json_parse(b->data ? b->data : "", b->len, &why);
    const cJSON *list = cJSON_IsObject(tree) ? cJSON_GetObjectItemCaseSensitive(tree, "rewards") : tree;
    int i = 0;
    if (!tree)
        err_set(e, ERR_IO, "%s.url: the answer is no JSON: %.200s", u->path, why.msg);
    else if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != n)
        err_set(e, ERR_IO, "%s.url: the answer is no list of %d numbers", u->path, n);
    for (const cJSON *v = e->code ? NULL : list->child; v; v = v->next, i++) {
        if (!cJSON_IsNumber(v) || !isfinite(v->valuedouble) || fabs(v->valuedouble) > 1e9) {
            err_set(e, ERR_IO, "%s.url: the answer's element %d is no number up to 1e9", u->path, i);
            break;
        }
        value[i] = v->valuedouble;
    }
    json_free(tree);
    return e->code;
}

static struct curl_slist *headers_of(const struct reward_url *u, struct err *e)
{
    struct curl_slist *h = curl_slist_append(NULL, "Content-Type: application/json");
    const char *key = u->key_env ? getenv(u->key_env) : NULL;
    struct buf line = {0};
    if (u->key_env && !key) {
        err_set(e, ERR_INVALID, "%s.key_env: the environment variable %s is not set", u->path, u->key_env);
    } else if (key) {
        buf_printf(&line, "Authorization: Bearer %s", key);
        h = curl_slist_append(h, line.data);
    }
    buf_free(&line);
    return h;
}

/* @return 0; an err code; *again: it may be better later. */
static int ask(const struct reward_url *u, const struct buf *body, struct asking *a, int n, double *value, bool *again,
               struct err *e)
{
    char why[CURL_ERROR_SIZE] = "";
    long status = 0;
    CURL *c = curl_easy_init();
    struct curl_slist *h = headers_of(u, e);
    buf_clear(&a->answer);
    *again = false;
    if (!c) err_set(e, ERR_NOMEM, "%s.url: no memory for a request", u->path);
    if (e->code) {
        curl_slist_free_all(h);
        if (c) curl_easy_cleanup(c);
        return e->code;
    }
    curl_easy_setopt(c, CURLOPT_URL, u->url);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, h);
    curl_easy_setopt(c, CURLOPT_POSTFIELDS, body->data);
    curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body->len);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)(u->timeout_s * 1000));
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, a);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, a);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, why);
    CURLcode rc = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_cleanup(c);
    curl_slist_free_all(h);
    if (a->stop && a->stop(a->arg)) return err_set(e, ERR_FULL, "stopped");
    if (a->too_long) return err_set(e, ERR_IO, "%s.url: the answer has more than %d bytes", u->path, ANSWER_MAX);
    *again = rc != CURLE_OK || status >= 500 || status == 408 || status == 429;
    if (rc != CURLE_OK) return err_set(e, ERR_IO, "%s.url: %.200s", u->path, *why ? why : curl_easy_strerror(rc));
    if (status != 200) return err_set(e, ERR_IO, "%s.url: it answers with status %ld", u->path, status);
    return read_answer(u, &a->answer, n, value, e);
}

static bool pause_for(const struct asking *a, int ms)
{
    for (int at = 0; at < ms; at += POLL_MS) {
        if (a->stop && a->stop(a->arg)) return false;
        nanosleep(&(struct timespec){0, POLL_MS * 1000000L}, NULL);
    }
    return true;
}

static void init_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

int reward_url_score(struct reward_url *u, const struct reward_text *text, int n, bool (*stop)(void *), void *arg,
                     double *value, struct err *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct asking a = {.stop = stop, .arg = arg};
    struct buf body = {0};
    int ms = PAUSE_MS;
    bool again = true;
    size_t bytes = 0;
    for (int i = 0; i < n; i++) bytes += text[i].n + text[i].n_row;
    if (bytes > ASKED_MAX)
        return err_set(e, ERR_INVALID, "%s.url: the texts and rows of a step have more than %d MiB", u->path,
                       ASKED_MAX >> 20);
    pthread_once(&once, init_curl);
    put_body(&body, text, n);
    for (int64_t i = 0; again; i++) {
        e->code = 0;
        if (!ask(u, &body, &a, n, value, &again, e) || !again) break;
        if (i == u->retries) {
            err_prefix(e, "after %lld attempt%s", (long long)i + 1, i ? "s" : "");
            break;
        }
        if (!pause_for(&a, ms)) {
            e->code = 0;
            err_set(e, ERR_FULL, "stopped");
            break;
        }
        ms = ms * 2 < PAUSE_MOST_MS ? ms * 2 : PAUSE_MOST_MS;
    }
    buf_free(&a.answer);
    buf_free(&body);
    return e->code;
}
