/* Golden encoders and embedding models: the vectors and logits of tests/fixtures/encoders on every device against what
 * sentence-transformers and transformers computed (make_encoder_fixtures.py).
 *
 *   encoder_golden_test FIXTURES_DIR [DEVICE...]     by default levels of the cpu, ref, and simt where it is built
 *
 * One line per model and device; exit status 1 when any differs. */
#include "engine/base/mem.h"
#include "engine/files/model_file.h"
#include "engine/serve/manual_step.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double TOLERANCE = 1e-4; /* absolute, on values of about 1 */
enum { VALUES_MAX = 64, TEXTS_MAX = 16 };

struct answer {
    float values[VALUES_MAX];
    int n_values;
    bool embedded;
};

static void take(const struct event_batch *b, const struct event *v)
{
    struct answer *a = v->user;
    if (v->kind == EV_EMBEDDING && v->n_values <= VALUES_MAX) {
        a->n_values = v->n_values;
        memcpy(a->values, b->values + v->values, (size_t)v->n_values * sizeof *a->values);
    } else if (v->kind == EV_DONE) {
        a->embedded = v->finish == FINISH_EMBEDDED;
    }
}

static void run_out(struct engine *g)
{
    while (engine_step_once(g, false) > 0) {
        struct event_batch *all = engine_events(g);
        for (struct event_batch *b = all; b; b = b->next)
            for (int i = 0; i < b->n; i++) take(b, &b->v[i]);
        engine_events_done(g, all);
    }
}

/* Submits a text as the server does; the answer comes with run_out. */
static bool submit(struct engine *g, const char *text, struct answer *a, struct err *e)
{
    const struct engine_info *m = engine_info(g);
    const struct embedder *x = m->embedder;
    struct tokens t = {0};
    struct buf whole = {0}, types = {0};
    if (x->default_prompt >= 0) buf_str(&whole, x->prompts[x->default_prompt].text);
    buf_str(&whole, text);
    size_t most = (size_t)(x->max_tokens && x->max_tokens < m->max_total_tokens ? x->max_tokens : m->max_total_tokens);
    const struct encode_input in = {.text = whole.data, .n_text = whole.len, .max = most};
    int rc = tokenizer_encode_input(engine_tokenizer(g), &in, TOKENIZE_SPECIAL, &t, &types, e);
    while (t.n > 1 && t.v[t.n - 1].id == x->pad) t.n--;
    int32_t *ids = mem_array(t.n + 1, sizeof *ids);
    for (size_t i = 0; i < t.n; i++) ids[i] = t.v[i].id;
    const struct gen_request r = {.prompt = ids,
                                  .n_prompt = (int)t.n,
                                  .pooling = x->pooling,
                                  .types = m->token_types > 1 ? (unsigned char *)types.data : NULL,
                                  .user = a};
    if (!rc && !engine_submit(g, &r, e)) rc = e->code;
    free(ids);
    tokens_free(&t);
    buf_free(&whole);
    buf_free(&types);
    return rc == 0;
}

/* The largest difference from the row of numbers; INFINITY where their count differs. */
static double difference(const struct embedder *m, const struct answer *a, const cJSON *row)
{
    double sum = 0, worst = 0;
    if (!a->embedded || cJSON_GetArraySize(row) != a->n_values) return INFINITY;
    for (int i = 0; i < a->n_values; i++) sum += (double)a->values[i] * (double)a->values[i];
    double scale = m->normalize ? 1 / sqrt(sum) : 1;
    const cJSON *v = row->child;
    for (int i = 0; i < a->n_values; i++, v = v->next) {
        double d = fabs((double)a->values[i] * scale - v->valuedouble);
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

static bool compare(struct engine *g, const cJSON *expected, double *worst, struct err *e)
{
    const struct embedder *m = engine_info(g)->embedder;
    const cJSON *texts = cJSON_GetObjectItem(expected, m->classifies ? "single" : "texts");
    const cJSON *rows = cJSON_GetObjectItem(expected, m->classifies ? "logits" : "vectors");
    struct answer a[TEXTS_MAX] = {0};
    int n = cJSON_GetArraySize(texts), i = 0;
    if (n < 1 || n > TEXTS_MAX || cJSON_GetArraySize(rows) != n) return false;
    for (const cJSON *t = texts->child; t; t = t->next, i++)
        if (!submit(g, t->valuestring, &a[i], e)) return false;
    run_out(g);
    i = 0;
    for (const cJSON *r = rows->child; r; r = r->next, i++) {
        double d = difference(m, &a[i], r);
        if (!(d <= *worst)) *worst = d;
    }
    return *worst <= TOLERANCE;
}

static bool check_model(const char *root, const char *name, const cJSON *expected, const char *device)
{
    char dir[1024];
    struct err e = {0};
    double worst = 0;
    snprintf(dir, sizeof dir, "%.700s/%.255s", root, name);
    struct engine *g = engine_open(&(struct engine_config){.model = dir,
                                                           .device = device,
                                                           .kv_type = "f32",
                                                           .activations = "f32",
                                                           .threads = 2,
                                                           .max_seqs = 4,
                                                           .kv_cache_bytes = 1 << 20},
                                   &e);
    bool ok = g && compare(g, expected, &worst, &e);
    printf("%s %-20s %-14s worst difference %.2e%s%s\n", ok ? "ok  " : "FAIL", name, device, worst,
           e.msg[0] ? "; " : "", e.msg);
    engine_close(g);
    return ok;
}

int main(int argc, char **argv)
{
#ifdef TANDEM_SANITIZED
    const char *const devices[] = {"cpu"}; /* slow enough; the others run in the release build */
#elif defined(TANDEM_SIMT)
    const char *const devices[] = {"ref", "cpu:portable", "cpu", "simt"};
#else
    const char *const devices[] = {"ref", "cpu:portable", "cpu"};
#endif
    const char *const *names = argc > 2 ? (const char *const *)argv + 2 : devices;
    int n = argc > 2 ? argc - 2 : (int)(sizeof devices / sizeof *devices), models = 0, failed = 0;
    DIR *d = argc >= 2 ? opendir(argv[1]) : NULL;
    if (!d) {
        fprintf(stderr, "usage: encoder_golden_test FIXTURES_DIR [DEVICE...]\n");
        return 2;
    }
    for (struct dirent *f; (f = readdir(d));) {
        char dir[1024], *text = NULL;
        size_t size;
        struct err e = {0};
        snprintf(dir, sizeof dir, "%.700s/%.255s", argv[1], f->d_name);
        if (f->d_name[0] == '.' || model_file_read(dir, "expected.json", 1 << 20, &text, &size, &e)) continue;
        cJSON *expected = cJSON_Parse(text);
        free(text);
        models++;
        for (int i = 0; i < n; i++) failed += !check_model(argv[1], f->d_name, expected, names[i]);
        cJSON_Delete(expected);
    }
    closedir(d);
    printf("%d models, %d failures\n", models, failed);
    return failed || models < 10;
}
