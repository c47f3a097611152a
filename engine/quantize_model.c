/* `tandem quantize`: a model directory rewritten with int8 or int4 matrices, the rest as it was.  The quantised
 * matrices are kept in memory until the file is written; config.json comes out with a quantization_config that
 * weights.c knows. */
#include "engine/quantize.h"

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/calibrate.h"
#include "engine/config.h"
#include "engine/safetensors.h"
#include "engine/weights.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct output {
    const struct safetensors *in;
    const struct model_config *c;
    enum dtype type;
    int threads;
    struct calibration calibration;
    char embed_usual[TENSOR_NAME_MAX]; /* the embedding table's name in the output */
    struct st_tensor *v;               /* what will be written */
    size_t n, cap;
    void **owned; /* data to free */
    size_t n_owned, cap_owned;
    int done, total;
    void (*progress)(void *, int, int);
    void *arg;
    struct err *e;
};

static void add(struct output *o, const char *name, const char *suffix, enum st_type type, int n_dims, int64_t d0,
                int64_t d1, const void *data, size_t bytes, bool owned)
{
    struct buf full = {0};
    buf_printf(&full, "%s%s", name, suffix);
    mem_grow(&o->v, &o->cap, o->n + 1, sizeof *o->v);
    o->v[o->n++] = (struct st_tensor){
        .name = full.data, .type = type, .n_dims = n_dims, .dims = {d0, d1}, .data = data, .bytes = bytes};
    if (!owned) return;
    mem_grow(&o->owned, &o->cap_owned, o->n_owned + 1, sizeof *o->owned);
    o->owned[o->n_owned++] = (void *)data;
}

static int quantize_slot(void *arg, const struct matrix_slot *slot)
{
    struct output *o = arg;
    struct weight_src src, q;
    void *owned;
    int rc = weights_matrix(o->in, slot, &src, &owned, o->e);
    if (rc) return rc;
    if (src.t == DT_I8 || src.t == DT_I4)
        return err_set(o->e, ERR_INVALID, "tensor %s is quantised already",
                       slot->name); /* it points into the file: nothing owned */
    struct quantize_fit fit = {o->type, false, calibration_feedback(&o->calibration, slot->product)};
    rc = quantize_matrix(&src, &fit, o->threads, &q, o->e);
    free(owned);
    if (rc) {
        err_prefix(o->e, "tensor %s", slot->name);
        return rc;
    }
    const char *name = slot->table ? o->embed_usual : slot->name;
    int64_t rows = slot->rows, groups = (slot->cols + INT4_GROUP - 1) / INT4_GROUP;
    bool int8 = o->type == DT_I8;
    int64_t row_bytes = int8 ? slot->cols : groups * INT4_GROUP / 2, scales = int8 ? 1 : groups;
    add(o, name, "", int8 ? ST_I8 : ST_U8, 2, rows, row_bytes, q.data, (size_t)(rows * row_bytes), true);
    add(o, name, ".scale", int8 ? ST_F32 : ST_F16, 2, rows, scales, q.scale, (size_t)(rows * scales) * (int8 ? 4 : 2),
        true);
    if (o->progress) o->progress(o->arg, ++o->done, o->total);
    return 0;
}

static bool has(const struct output *o, const char *name)
{
    for (size_t i = 0; i < o->n; i++)
        if (strcmp(o->v[i].name, name) == 0) return true;
    return false;
}

/* every float tensor that is not a quantised matrix, as it is; others (attention masks of old files) are left out */
static void add_rest(struct output *o)
{
    for (size_t i = 0; i < safetensors_count(o->in); i++) {
        const struct st_tensor *t = safetensors_at(o->in, i);
        bool tied_copy = o->c->tied && strcmp(t->name, "lm_head.weight") == 0; /* the table is the head */
        if (st_float_type(t->type) == DT_NONE || has(o, t->name) || tied_copy) continue;
        add(o, t->name, "", t->type, t->n_dims, t->dims[0], t->dims[1], t->data, t->bytes, false);
        memcpy(o->v[o->n - 1].dims, t->dims, sizeof t->dims);
    }
}

static int width(const struct st_tensor *t)
{
    return t->type == ST_F32 ? 4 : t->type == ST_I8 || t->type == ST_U8 ? 1 : 2;
}

/* Wide elements first: tensors lie end to end in the file, and so each is aligned. */
static int by_width(const void *a, const void *b)
{
    int d = width(b) - width(a);
    return d ? d : strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

static int write_text(const char *dir, const char *name, const char *text, size_t n, struct err *e)
{
    char *path = file_join(dir, name);
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(text, 1, n, f) == n;
    if (f) ok = fclose(f) == 0 && ok;
    int rc = ok ? 0 : err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    free(path);
    return rc;
}

static int write_config(const char *dir, const char *out, const char *type, struct err *e)
{
    char *path = file_join(dir, "config.json"), *text = NULL;
    size_t n;
    int rc = file_read(path, 16 << 20, &text, &n, e);
    free(path);
    if (rc) return rc;
    cJSON *j = cJSON_Parse(text), *q = cJSON_CreateObject();
    free(text);
    cJSON_DeleteItemFromObjectCaseSensitive(j, "quantization_config"); /* null in some files */
    cJSON_AddStringToObject(q, "quant_method", "tandem");
    cJSON_AddStringToObject(q, "type", type);
    cJSON_AddNumberToObject(q, "group_size", strcmp(type, "int4") ? 0 : INT4_GROUP);
    cJSON_AddItemToObject(j, "quantization_config", q);
    char *printed = cJSON_Print(j);
    cJSON_Delete(j);
    rc = write_text(out, "config.json", printed, strlen(printed), e);
    free(printed);
    return rc;
}

/* the small files beside the weights, when they are there */
static int copy_others(const char *dir, const char *out, struct err *e)
{
    static const char *const names[] = {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
                                        "special_tokens_map.json", "chat_template.jinja"};
    int rc = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && !rc; i++) {
        char *path = file_join(dir, names[i]), *text = NULL;
        size_t n = 0;
        if (access(path, F_OK) == 0) {
            rc = file_read(path, 256 << 20, &text, &n, e);
            if (!rc) rc = write_text(out, names[i], text, n, e);
        }
        free(text);
        free(path);
    }
    return rc;
}

static int write_model(struct output *o, const char *dir, const char *out, const char *type, struct err *e)
{
    static const char *const models[] = {"model.safetensors", "model.safetensors.index.json", "config.json"};
    char *path = NULL;
    int rc = 0;
    for (size_t i = 0; i < sizeof models / sizeof *models && !rc; i++) {
        path = file_join(out, models[i]);
        if (access(path, F_OK) == 0)
            rc = err_set(e, ERR_INVALID, "%s is there already; choose another directory", path);
        free(path);
    }
    path = file_join(out, "model.safetensors");
    if (!rc && mkdir(out, 0777) && errno != EEXIST) rc = err_set(e, ERR_IO, "%s: %s", out, strerror(errno));
    if (!rc) rc = weights_each_matrix(o->in, o->c, quantize_slot, o, e);
    if (!rc) {
        const char *meta[] = {"format", "tandem", "version", "1", "type", type, NULL};
        add_rest(o);
        qsort(o->v, o->n, sizeof *o->v, by_width);
        rc = copy_others(dir, out, e);
        if (!rc) rc = write_config(dir, out, type, e);
        if (!rc) rc = safetensors_write(path, o->v, o->n, meta, e); /* last: a directory with it is whole */
    }
    free(path);
    return rc;
}

static int calibrate_for(struct calibration *out, const char *dir, const struct model_config *c, enum dtype t,
                         const struct quantize_text *text, struct err *e)
{
    if (!text) return calibration_default(out, dir, c, (int)t, 0, e);
    if (!text->text) return calibration_from_itself(out, dir, NULL, 0, e);
    return calibration_from_text(out, dir, NULL, 0, text->text, text->n, e);
}

int quantize_model(const char *dir, const char *out, const char *type, const struct quantize_text *calibrate,
                   void (*progress)(void *, int, int), void *arg, struct err *e)
{
    struct model_config c;
    enum dtype t = strcmp(type, "int8") == 0 ? DT_I8 : strcmp(type, "int4") == 0 ? DT_I4 : DT_NONE;
    if (t == DT_NONE) return err_set(e, ERR_INVALID, "type \"%.40s\" is not int8 or int4", type);
    int rc = model_config_read(dir, &c, e);
    if (rc) return rc;
    if (c.quant[0]) return err_set(e, ERR_INVALID, "%s is quantised to %s already", dir, c.quant);
    struct safetensors *in = safetensors_open_dir(dir, e);
    if (!in) return e->code;
    int slots = c.family == FAMILY_GPT2 ? 4 : c.family == FAMILY_PHI ? 6 : 7;
    struct output o = {.in = in,
                       .c = &c,
                       .type = t,
                       .threads = (int)sysconf(_SC_NPROCESSORS_ONLN),
                       .total = c.layers * slots + (c.tied ? 1 : 2),
                       .progress = progress,
                       .arg = arg,
                       .e = e};
    char stored[TENSOR_NAME_MAX];
    weights_embed_names(in, &c, stored, o.embed_usual);
    rc = calibrate_for(&o.calibration, dir, &c, t, calibrate, e);
    if (!rc) rc = write_model(&o, dir, out, type, e);
    calibration_close(&o.calibration);
    for (size_t i = 0; i < o.n; i++) free(o.v[i].name);
    for (size_t i = 0; i < o.n_owned; i++) free(o.owned[i]);
    free(o.v);
    free(o.owned);
    safetensors_close(in);
    return rc;
}
