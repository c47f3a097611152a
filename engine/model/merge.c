#include "engine/model/merge.h"

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/files/model_file.h"
#include "engine/model/files.h"
#include "engine/model/gguf_source.h"
#include "engine/model/lora_targets.h"
#include "engine/model/merge_source.h"
#include "engine/model/quantize.h"
#include "engine/model/safetensors.h"
#include "engine/model/weights_packed.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { CONFIG_LIMIT = 16 << 20, HEADER_ROOM = 1 << 20 };

struct merge {
    const char *model;
    char *out;
    const struct merge_options *options;
    struct model_config c;
    struct adapter *adapter;
    struct tensor_source *base, *merged;
    struct tensor_source *raw; /* the file's tensors as they are, fused experts too; NULL: a GGUF file */
    enum tensor_type type;     /* that is written; TENSOR_OTHER: each tensor's own */
    bool gguf_base, dequantise;
    bool untie; /* the adapter changes the embedding table or the head, which are one matrix in the base */
    struct err *e;
};

/* ---- types ------------------------------------------------------------------------------------------------------- */

static const struct type {
    const char *name, *torch;
    enum tensor_type type;
    enum dtype dtype;
} types[] = {{"f32", "float32", TENSOR_F32, DT_F32},
             {"bf16", "bfloat16", TENSOR_BF16, DT_BF16},
             {"f16", "float16", TENSOR_F16, DT_F16}};
enum { TYPES = sizeof types / sizeof *types };

static bool is_gguf_type(const char *name)
{
    return strcmp(name, "q8_0") == 0 || strcmp(name, "q4_0") == 0;
}

/* Of a base whose tensors are quantised: as its configuration says, else as its embedding table is, else bf16. */
static enum tensor_type type_of_floats(const struct merge *m)
{
    for (int i = 0; i < TYPES; i++)
        if (types[i].dtype == m->c.dtype) return types[i].type;
    struct tensors tensors = tensors_of(&m->c, m->base);
    char stored[TENSOR_NAME_MAX], usual[TENSOR_NAME_MAX];
    tensors_embed_names(&tensors, stored, usual);
    const struct tensor *t = tensor_source_find(m->base, stored);
    return t && tensor_float_type(t->type) != DT_NONE ? t->type : TENSOR_BF16;
}

static int choose_type(struct merge *m)
{
    const char *name = m->options->type;
    m->type = TENSOR_OTHER;
    if (is_gguf_type(name)) {
        m->type = TENSOR_F32;
        return 0;
    }
    if (strcmp(name, "auto") == 0) {
        if (m->dequantise) m->type = type_of_floats(m);
        return 0;
    }
    for (int i = 0; i < TYPES; i++)
        if (strcmp(name, types[i].name) == 0) m->type = types[i].type;
    if (m->type != TENSOR_OTHER) return 0;
    return err_set(m->e, ERR_INVALID, "type \"%.40s\" is not auto, f32, bf16, f16, q8_0 or q4_0", name);
}

/* ---- the base and the adapter ------------------------------------------------------------------------------------ */

static bool has_blocks(const struct tensor_source *s)
{
    for (size_t i = 0; i < tensor_source_count(s); i++) {
        const struct tensor *t = tensor_source_at(s, i);
        if (t->form && t->form->blocks >= 0) return true;
    }
    return false;
}

static int open_base(struct merge *m)
{
    int rc = model_config_read(m->model, &m->c, m->e);
    if (!rc) rc = model_config_generates(&m->c, m->e);
    if (rc) return rc;
    if (!(m->base = model_source_open(m->model, &m->c, m->e))) return m->e->code;
    const char *layout = tensor_source_metadata(m->base, "layout");
    if (m->c.quant.method == QUANT_TANDEM && (!layout || strcmp(layout, WEIGHTS_CANONICAL)))
        return err_set(m->e, ERR_UNSUPPORTED,
                       "%s has weights that tandem quantize packed for a device: merge into the model that it was made "
                       "from, and quantise the result",
                       m->model);
    char *gguf = model_file_gguf(m->model);
    m->gguf_base = gguf != NULL;
    free(gguf);
    if (m->gguf_base && m->c.family->tensors->fused)
        return err_set(m->e, ERR_UNSUPPORTED,
                       "%s: merging into a GGUF file of a %s model is not supported; merge into "
                       "its safetensors",
                       m->model, m->c.family->model_type);
    if (!m->gguf_base && !(m->raw = safetensors_open_dir(m->model, m->e))) return m->e->code;
    bool quantised = m->c.quant.name[0] && m->c.quant.method != QUANT_MXFP4;
    m->dequantise = m->gguf_base || quantised;
    m->options->summary->dequantised = quantised || (m->gguf_base && has_blocks(m->base));
    return 0;
}

/* The base that the adapter names, for messages. */
static void read_base_name(const char *adapter, struct merge_summary *s)
{
    char *path = file_join(adapter, ADAPTER_CONFIG), *text = NULL;
    size_t n;
    cJSON *j = file_read(path, CONFIG_LIMIT, &text, &n, NULL) ? NULL : cJSON_Parse(text);
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(j, "base_model_name_or_path");
    if (cJSON_IsString(name)) snprintf(s->of, sizeof s->of, "%s", name->valuestring);
    cJSON_Delete(j);
    free(text);
    free(path);
}

static int open_adapter(struct merge *m, const char *dir)
{
    struct merge_summary *s = m->options->summary;
    char *base = adapter_base_name(m->model);
    snprintf(s->base, sizeof s->base, "%s", base);
    free(base);
    read_base_name(dir, s);
    m->adapter = adapter_read(dir, &m->c, m->e);
    m->untie = s->untied = m->adapter && m->adapter->targets & TARGET_ENDS && m->c.tied;
    if (m->adapter && !m->adapter->score) return 0;
    if (m->adapter) err_set(m->e, ERR_UNSUPPORTED, "its head of scores has no place in a model that gives text");
    return s->of[0] ? err_prefix(m->e, "adapter %.80s, made for %.80s", dir, s->of)
                    : err_prefix(m->e, "adapter %.80s", dir);
}

/* ---- room -------------------------------------------------------------------------------------------------------- */

static int check_room(const struct merge *m, const char *dir, double bytes)
{
    struct statvfs v;
    if (statvfs(dir, &v)) return 0; /* writing will say */
    double room = (double)v.f_bavail * (double)v.f_frsize;
    if (room >= bytes) return 0;
    return err_set(m->e, ERR_IO, "not enough room on the disk: %s needs %.2f GB, and %.2f GB are free", m->out,
                   bytes * 1e-9, room * 1e-9);
}

static double elements_of(const struct tensor *t)
{
    double n = 1;
    for (int i = 0; i < t->n_dims; i++) n *= (double)t->dims[i];
    return n;
}

static enum tensor_type written_type(const struct merge *m, const struct tensor *t)
{
    bool floats = tensor_float_type(t->type) != DT_NONE;
    return floats && m->type != TENSOR_OTHER ? m->type : t->type;
}

/* ---- a directory ------------------------------------------------------------------------------------------------- */

static void *converted(const struct tensor *t, enum tensor_type type, size_t n)
{
    char *out = mem_try_alloc(n * tensor_type_bytes(type));
    for (size_t i = 0; out && i < n; i++) {
        float v = tensor_element(t, i);
        uint16_t h = type == TENSOR_BF16 ? f32_to_bf16(v) : f32_to_f16(v);
        if (type == TENSOR_F32)
            memcpy(out + 4 * i, &v, 4);
        else
            memcpy(out + 2 * i, &h, 2);
    }
    return out;
}

static int write_tensor(struct merge *m, struct st_writer *w, const struct tensor_source *from, const struct tensor *t)
{
    int rc = tensor_source_populate(from, t, m->e);
    if (rc) return rc;
    struct tensor own = *t;
    void *data = NULL;
    own.type = written_type(m, t);
    if (own.type != t->type) {
        size_t n = t->bytes / tensor_type_bytes(t->type);
        own.bytes = n * tensor_type_bytes(own.type);
        own.data = data = converted(t, own.type, n);
        if (!data) rc = err_set(m->e, ERR_NOMEM, "no memory for tensor %s", t->name);
    }
    if (!rc) rc = st_writer_add(w, &own, 1, m->e);
    free(data);
    tensor_source_release(from, t);
    return rc;
}

/* Whether a matrix is computed that the file does not have: an expert's that is fused with others there, then the
 * experts are written one by one, or the head of a model that had none of its own. */
static bool other_matrices(const struct merge *m)
{
    for (size_t i = 0; i < tensor_source_count(m->merged); i++) {
        const struct tensor *t = tensor_source_at(m->merged, i);
        if (merge_source_computes(m->merged, t) && !tensor_source_find(m->raw, t->name)) return true;
    }
    return false;
}

static int write_weights(struct merge *m, const char *dir)
{
    const struct tensor_source *list = m->dequantise || other_matrices(m) ? m->merged : m->raw;
    size_t n = tensor_source_count(list), names = 0;
    double bytes = HEADER_ROOM;
    for (size_t i = 0; i < n; i++) {
        const struct tensor *t = tensor_source_at(list, i);
        enum tensor_type type = written_type(m, t);
        names += strlen(t->name) + 1;
        bytes += type == t->type ? (double)t->bytes : elements_of(t) * (double)tensor_type_bytes(type);
    }
    int rc = check_room(m, dir, bytes);
    if (rc) return rc;
    char *path = file_join(dir, "model.safetensors");
    struct st_writer *w = st_writer_open(path, n, names, 64, m->e);
    free(path);
    if (!w) return m->e->code;
    st_writer_note(w, "format", "pt");
    for (size_t i = 0; i < n && !rc; i++) {
        const struct tensor *t = tensor_source_at(list, i), *own = tensor_source_find(m->merged, t->name);
        bool computed = own && merge_source_computes(m->merged, own);
        rc = write_tensor(m, w, computed ? m->merged : list, computed ? own : t);
        if (!rc && m->options->progress) m->options->progress(m->options->arg, (int)i + 1, (int)n);
    }
    if (!rc) return st_writer_finish(w, m->e);
    st_writer_abort(w);
    return rc;
}

/* config.json without quantization_config, and with the type; whether the head is the embedding table, too. */
static int write_config(const struct merge *m, const char *dir)
{
    char *text = NULL;
    size_t n;
    int rc = model_file_read(m->model, "config.json", CONFIG_LIMIT, &text, &n, m->e);
    if (rc) return rc;
    cJSON *j = cJSON_Parse(text);
    free(text);
    if (m->dequantise) cJSON_DeleteItemFromObjectCaseSensitive(j, "quantization_config");
    for (int i = 0; i < TYPES; i++) {
        if (types[i].type != m->type) continue;
        const char *key = cJSON_GetObjectItemCaseSensitive(j, "dtype") ? "dtype" : "torch_dtype";
        cJSON_DeleteItemFromObjectCaseSensitive(j, key);
        cJSON_AddStringToObject(j, key, types[i].torch);
    }
    if (m->untie) {
        cJSON_DeleteItemFromObjectCaseSensitive(j, "tie_word_embeddings");
        cJSON_AddBoolToObject(j, "tie_word_embeddings", false);
    }
    char *printed = cJSON_Print(j), *path = file_join(dir, "config.json");
    cJSON_Delete(j);
    rc = printed ? file_write_sync(path, printed, strlen(printed), m->e)
                 : err_set(m->e, ERR_NOMEM, "no memory for config.json");
    free(path);
    free(printed);
    return rc;
}

static int write_dir(struct merge *m)
{
    struct buf tmp = {0};
    buf_printf(&tmp, "%s.tmp", m->out);
    dir_remove(tmp.data); /* of a killed run */
    bool as_is = m->type == TENSOR_OTHER && !m->untie;
    int rc = dir_make(tmp.data, m->e);
    if (!rc) rc = write_weights(m, tmp.data);
    if (!rc) rc = model_files_copy(m->model, tmp.data, as_is, m->e);
    if (!rc && !as_is) rc = write_config(m, tmp.data);
    if (!rc) rc = dir_sync(tmp.data, m->e);
    if (!rc) rc = dir_replace(tmp.data, m->out, m->e);
    if (rc) dir_remove(tmp.data);
    buf_free(&tmp);
    return rc;
}

/* ---- a GGUF file ------------------------------------------------------------------------------------------------- */

static int write_gguf(struct merge *m)
{
    double bytes = HEADER_ROOM, block = strcmp(m->options->type, "q8_0") == 0 ? 34 : 18;
    for (size_t i = 0; i < tensor_source_count(m->merged); i++)
        bytes += elements_of(tensor_source_at(m->merged, i)) * block / 32;
    char *slash = strrchr(m->out, '/');
    if (slash) *slash = 0;
    char *parent = mem_strdup(!slash ? "." : slash == m->out ? "/" : m->out);
    if (slash) *slash = '/';
    int rc = check_room(m, parent, bytes);
    free(parent);
    struct quantize_options o = {.type = m->options->type,
                                 .progress = m->options->progress,
                                 .arg = m->options->arg,
                                 .weights = m->merged,
                                 .untie = m->untie};
    return rc ? rc : quantize_gguf(m->model, m->out, &o, m->e);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static int check_out(const struct merge *m)
{
    struct stat st;
    if (stat(m->out, &st)) return 0;
    if (S_ISDIR(st.st_mode) && !is_gguf_type(m->options->type) && rmdir(m->out) == 0) return 0;
    return err_set(m->e, ERR_INVALID, "%s is there already; choose another name", m->out);
}

static int run(struct merge *m, const char *adapter)
{
    int rc = check_out(m);
    if (!rc) rc = open_base(m);
    if (!rc) rc = choose_type(m);
    if (!rc) rc = open_adapter(m, adapter);
    if (rc) return rc;
    struct merge_plan plan = {
        .c = &m->c, .adapter = m->adapter, .type = m->type, .dequantise = m->dequantise, .untie = m->untie};
    m->merged = merge_source(m->base, &plan, &m->options->summary->matrices);
    return is_gguf_type(m->options->type) ? write_gguf(m) : write_dir(m);
}

int merge_adapter(const char *model, const char *adapter, const char *out, const struct merge_options *options,
                  struct err *e)
{
    struct merge m = {.model = model, .out = mem_strdup(out), .options = options, .e = e};
    for (size_t n = strlen(m.out); n > 1 && m.out[n - 1] == '/';) m.out[--n] = 0;
    *options->summary = (struct merge_summary){0};
    int rc = run(&m, adapter);
    tensor_source_close(m.merged);
    tensor_source_close(m.raw);
    tensor_source_close(m.base);
    adapter_free(m.adapter);
    free(m.out);
    return rc;
}
