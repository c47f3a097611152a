/* `tandem quantize`: a model directory rewritten with int8, int4 or nf4 matrices, the rest unchanged (the files' layout
 * is in docs/quantisation.md).  One stack of matrices is in memory at a time.  The weights file is renamed last, so a
 * directory with a model.safetensors is complete. */
#include "engine/model/quantize.h"

#include "engine/base/cpus.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/files/model_file.h"
#include "engine/model/calibrate.h"
#include "engine/model/config.h"
#include "engine/model/files.h"
#include "engine/model/gguf_source.h"
#include "engine/model/safetensors.h"
#include "engine/model/tensors.h"
#include "engine/model/weights_bnb.h"
#include "engine/model/weights_packed.h"
#include "engine/model/weights_read.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct output {
    const struct tensor_source *in;
    const struct model_config *c;
    struct tensors tensors; /* of both */
    const struct quantize_options *options;
    struct quantize_how how;
    struct calibration calibration;
    char stored[TENSOR_NAME_MAX], embed[TENSOR_NAME_MAX]; /* the embedding table's name in `in`, and the usual one */
    enum dtype dtype;                                     /* of the model, recorded while its matrices are read (nf4) */
    struct tensor *held;                                  /* nf4: small byte tensors, owned, written at the end */
    size_t n_held, cap_held;
    int threads;
    struct dev *d; /* device whose layout the stacks get; NULL: canonical */
    struct st_writer *w;
    char (*taken)[TENSOR_NAME_MAX]; /* tensors of `in` that are matrices */
    size_t n_taken, cap_taken;
    struct err *e;
};

static void take(struct output *o, const char *name)
{
    mem_grow(&o->taken, &o->cap_taken, o->n_taken + 1, sizeof *o->taken);
    snprintf(o->taken[o->n_taken++], TENSOR_NAME_MAX, "%s", name);
}

static bool taken(const struct output *o, const char *name)
{
    for (size_t i = 0; i < o->n_taken; i++)
        if (strcmp(o->taken[i], name) == 0) return true;
    return false;
}

/* NAME and NAME.scale, as ops.h has them */
static int write_canonical(struct output *o, const struct matrix_slot *slot, const struct weight_src *q)
{
    char name[TENSOR_NAME_MAX], scale[TENSOR_NAME_MAX + 8];
    bool int8 = q->t == DT_I8;
    int64_t rows = q->rows, groups = int8 ? 1 : (q->cols + q->group - 1) / q->group;
    int64_t row_bytes = int8 ? q->cols : groups * q->group / 2;
    snprintf(name, sizeof name, "%s", slot->table ? o->embed : slot->name);
    snprintf(scale, sizeof scale, "%s.scale", name);
    struct tensor data = {.name = name,
                          .type = int8 ? TENSOR_I8 : TENSOR_U8,
                          .n_dims = 2,
                          .dims = {rows, row_bytes},
                          .data = q->data,
                          .bytes = (size_t)(rows * row_bytes)};
    struct tensor scales = {.name = scale,
                            .type = int8 ? TENSOR_F32 : TENSOR_F16,
                            .n_dims = 2,
                            .dims = {rows, groups},
                            .data = q->scale,
                            .bytes = (size_t)(rows * groups) * (int8 ? 4 : 2)};
    int rc = st_writer_add(o->w, &data, PACKED_ALIGN, o->e);
    return rc ? rc : st_writer_add(o->w, &scales, PACKED_ALIGN, o->e);
}

/* One tensor of the packed bytes in the device's layout, to be used in place when the file is mapped. */
static int write_packed(struct output *o, const struct stack *m, struct parts *p)
{
    char description[DESCRIPTION_MAX];
    size_t bytes;
    struct weight *w = weights_pack(o->d, p);
    if (!w) return err_set(o->e, ERR_NOMEM, "no memory to pack %s", m->part[0].name);
    const void *data = o->d->ops->weight_packed(w, &bytes);
    weights_describe(m, p->src[0].t, p->src[0].group, description);
    st_writer_note(o->w, m->name, description);
    struct tensor t = {.name = (char *)m->name,
                       .type = TENSOR_U8,
                       .n_dims = 1,
                       .dims = {(int64_t)bytes},
                       .data = data,
                       .bytes = bytes};
    int rc = st_writer_add(o->w, &t, PACKED_ALIGN, o->e);
    o->d->ops->weight_free(o->d, w);
    return rc;
}

/* As bitsandbytes stores it; the head and the embedding table are unchanged.  No padding is written, since other
 * readers would take padding tensors for the model's: wide elements are written before bytes, so each tensor is
 * aligned. */
static int write_bnb(struct output *o, const struct stack *m)
{
    struct parts p;
    struct tensor t[BNB_TENSORS];
    if (m->part[0].head || m->part[0].table) return 0;
    int rc = weights_parts(&o->tensors, m, &(struct quantize_how){.type = DT_NONE}, o->threads, &p, o->e);
    for (int i = 0; i < m->n && !rc; i++) {
        const char *name = m->part[i].name;
        o->dtype = p.src[i].t;
        rc = bnb_tensors(&p.src[i], name, o->threads, t, o->e);
        if (rc) err_prefix(o->e, "tensor %s", name);
        for (int k = 0; k < BNB_TENSORS && !rc; k++) {
            if (t[k].type == TENSOR_F32 || (k == 0 && t[k].bytes % 4 == 0)) {
                rc = st_writer_add(o->w, &t[k], 1, o->e);
                free(t[k].name);
                free((void *)t[k].data);
            } else {
                mem_grow(&o->held, &o->cap_held, o->n_held + 1, sizeof *o->held);
                o->held[o->n_held++] = t[k];
            }
        }
        take(o, name);
        tensor_source_release(o->in, tensor_source_find(o->in, name));
    }
    weights_parts_free(&p);
    return rc;
}

static int write_stack(struct output *o, const struct stack *m)
{
    if (m->n == 0 || m->floats) return 0; /* write_rest copies the tensors that stay floats */
    if (o->how.type == DT_NF4) return write_bnb(o, m);
    struct parts p;
    int rc = weights_parts(&o->tensors, m, &o->how, o->threads, &p, o->e);
    for (int i = 0; i < m->n && !rc; i++)
        if (!p.owned[i][1] || p.src[i].t == DT_BLOCK)
            rc = err_set(o->e, ERR_INVALID, "tensor %s is quantised already", m->part[i].name);
    if (!rc && o->d) rc = write_packed(o, m, &p);
    for (int i = 0; i < m->n && !rc; i++) {
        if (!o->d) rc = write_canonical(o, &m->part[i], &p.src[i]);
        take(o, m->part[i].name);
        tensor_source_release(o->in, tensor_source_find(o->in, m->part[i].name));
    }
    weights_parts_free(&p);
    return rc;
}

/* copies every float tensor of that width that is not a matrix; others (attention masks of old files) are dropped */
static int write_rest(struct output *o, bool wide)
{
    int rc = 0;
    for (size_t i = 0; i < tensor_source_count(o->in) && !rc; i++) {
        struct tensor t = *tensor_source_at(o->in, i);
        if (tensor_float_type(t.type) == DT_NONE || (t.type == TENSOR_F32) != wide || taken(o, t.name)) continue;
        if (strcmp(t.name, o->stored) == 0) t.name = o->embed;
        rc = st_writer_add(o->w, &t, o->how.type == DT_NF4 ? 1 : PACKED_ALIGN, o->e);
        tensor_source_release(o->in, &t);
    }
    return rc;
}

static void write_notes(struct output *o)
{
    if (o->how.type == DT_NF4) {
        st_writer_note(o->w, "format", "pt"); /* transformers requires it */
        return;
    }
    st_writer_note(o->w, "format", "tandem");
    st_writer_note(o->w, "version", WEIGHTS_VERSION);
    st_writer_note(o->w, "type", o->options->type);
    st_writer_note(o->w, "layout", o->d ? o->d->ops->layout : WEIGHTS_CANONICAL);
    char head[TENSOR_NAME_MAX];
    tensors_head_name(&o->tensors, head);
    take(o, head); /* a copy of a tied table is not needed */
}

static int write_weights(struct output *o, const char *path)
{
    enum { SUFFIX = 48 }; /* longest suffix that is added to a name of `in`, at most BNB_TENSORS of them */
    int n = tensors_stacks(o->c), rc = 0;
    size_t names = 0, tensors = tensor_source_count(o->in);
    for (size_t i = 0; i < tensors; i++) names += BNB_TENSORS * (strlen(tensor_source_at(o->in, i)->name) + SUFFIX);
    size_t texts = (size_t)n * (TENSOR_NAME_MAX + DESCRIPTION_MAX);
    if (!(o->w = st_writer_open(path, BNB_TENSORS * tensors + 2, names, texts, o->e))) return o->e->code;
    write_notes(o);
    for (int i = 0; i < n && !rc; i++) {
        struct stack m;
        tensors_stack(&o->tensors, i, &m);
        rc = write_stack(o, &m);
        if (!rc && o->options->progress) o->options->progress(o->options->arg, i + 1, n);
    }
    if (!rc) rc = write_rest(o, true);
    if (!rc) rc = write_rest(o, false);
    for (size_t i = 0; i < o->n_held && !rc; i++) rc = st_writer_add(o->w, &o->held[i], 1, o->e);
    return rc;
}

static int write_config(const struct output *o, const char *dir, const char *out)
{
    char *text = NULL;
    size_t n;
    int rc = model_file_read(dir, "config.json", 16 << 20, &text, &n, o->e);
    if (rc) return rc;
    bool bnb = o->how.type == DT_NF4;
    cJSON *j = cJSON_Parse(text), *q = bnb ? bnb_config(o->dtype) : cJSON_CreateObject();
    free(text);
    cJSON_DeleteItemFromObjectCaseSensitive(j, "quantization_config"); /* null in some files */
    if (!bnb) {
        cJSON_AddStringToObject(q, "quant_method", "tandem");
        cJSON_AddStringToObject(q, "type", o->options->type);
        cJSON_AddNumberToObject(q, "group_size", o->how.type == DT_I4 ? INT4_GROUP : 0);
        cJSON_AddStringToObject(q, "layout", o->d ? o->d->ops->layout : WEIGHTS_CANONICAL);
    }
    cJSON_AddItemToObject(j, "quantization_config", q);
    char *printed = cJSON_Print(j);
    cJSON_Delete(j);
    char *path = file_join(out, "config.json");
    rc = file_write_sync(path, printed, strlen(printed), o->e);
    free(path);
    free(printed);
    return rc;
}

static int write_model(struct output *o, const char *dir, const char *out)
{
    static const char *const models[] = {"model.safetensors", "model.safetensors.index.json", "config.json"};
    char *path = file_join(out, "model.safetensors.tmp");
    bool half_done = access(path, F_OK) == 0; /* left by a killed run, perhaps with its config.json */
    int rc = 0;
    free(path);
    for (size_t i = 0; i < sizeof models / sizeof *models && !rc; i++) {
        path = file_join(out, models[i]);
        if (access(path, F_OK) == 0 && !(half_done && strcmp(models[i], "config.json") == 0))
            rc = err_set(o->e, ERR_INVALID, "%s is there already; choose another directory", path);
        free(path);
    }
    path = file_join(out, "model.safetensors");
    if (!rc) rc = dir_make(out, o->e);
    if (!rc) rc = write_weights(o, path);
    if (!rc) rc = model_files_copy(dir, out, false, o->e);
    if (!rc) rc = write_config(o, dir, out);
    if (!rc)
        rc = st_writer_finish(o->w, o->e); /* last: this creates model.safetensors */
    else
        st_writer_abort(o->w);
    free(path);
    return rc;
}

static int calibrate(struct output *o, const char *dir)
{
    const struct quantize_text *with = o->options->calibrate;
    if (o->options->no_calibration) return 0;
    if (!with) return calibration_default(&o->calibration, dir, o->c, o->how.type, 0, o->e);
    if (!with->text) return calibration_from_itself(&o->calibration, dir, NULL, 0, o->e);
    return calibration_from_text(&o->calibration, dir, NULL, 0, with->text, with->n, o->e);
}

int quantize_model(const char *dir, const char *out, const struct quantize_options *options, struct err *e)
{
    struct model_config c;
    char why[160] = "";
    const char *type = options->type, *layout = options->layout ? options->layout : "packed";
    enum dtype t = strcmp(type, "int8") == 0   ? DT_I8
                   : strcmp(type, "int4") == 0 ? DT_I4
                   : strcmp(type, "nf4") == 0  ? DT_NF4
                                               : DT_NONE;
    bool packed = strcmp(layout, "packed") == 0;
    if (t == DT_NONE) return err_set(e, ERR_INVALID, "type \"%.40s\" is not int8, int4 or nf4", type);
    if (t == DT_NF4 && options->calibrate)
        return err_set(e, ERR_INVALID, "nf4 is not calibrated; leave --calibrate out");
    if (!packed && strcmp(layout, WEIGHTS_CANONICAL))
        return err_set(e, ERR_INVALID, "layout \"%.40s\" is not packed or canonical", layout);
    int rc = model_config_read(dir, &c, e);
    if (!rc) rc = model_config_generates(&c, e);
    if (rc) return rc;
    if (c.quant.name[0]) return err_set(e, ERR_INVALID, "%s is quantised to %s already", dir, c.quant.name);
    struct tensor_source *in = model_source_open(dir, &c, e);
    if (!in) return e->code;
    struct dev *d = dev_open(&(struct dev_config){.name = "cpu", .threads = cpus_available()}, why);
    struct output o = {.in = in, .c = &c, .options = options, .how = {.type = (int)t}, .d = packed ? d : NULL, .e = e};
    if (d) o.threads = d->threads;
    o.tensors = tensors_of(&c, in);
    tensors_embed_names(&o.tensors, o.stored, o.embed);
    o.how.calibration = &o.calibration;
    rc = d ? calibrate(&o, dir) : err_set(e, ERR_UNSUPPORTED, "device cpu: %s", why);
    if (options->summary) *options->summary = (struct quantize_summary){o.calibration.experts, o.calibration.unseen};
    if (!rc) rc = write_model(&o, dir, out);
    calibration_close(&o.calibration);
    if (d) dev_close(d);
    for (size_t i = 0; i < o.n_held; i++) free(o.held[i].name), free((void *)o.held[i].data);
    free(o.held);
    free(o.taken);
    tensor_source_close(in);
    return rc;
}

int quantize_verify(const char *dir, struct err *e)
{
    struct tensor_source *f = safetensors_open_dir(dir, e);
    if (!f) return e->code;
    int rc = tensor_source_verify(f, e);
    if (rc) err_prefix(e, "%s", dir);
    tensor_source_close(f);
    return rc;
}
