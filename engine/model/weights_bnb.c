#include "engine/model/weights_bnb.h"

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/model/nf4.h"
#include "engine/model/stored_parts.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char state_suffix[] = ".quant_state.bitsandbytes__nf4";

/* the tensor NAME + suffix, or NULL; sets full to its name */
enum { FULL_NAME = TENSOR_NAME_MAX + 40 };
static const struct tensor *beside(const struct tensor_source *f, const char *name, const char *suffix,
                                   char full[FULL_NAME])
{
    snprintf(full, FULL_NAME, "%s%s", name, suffix);
    return tensor_source_find(f, full);
}

bool bnb_is_quantized(const struct tensor_source *f, const char *name)
{
    static const char *const signs[] = {state_suffix, ".quant_state.bitsandbytes__fp4", ".absmax", ".quant_map"};
    char full[FULL_NAME];
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (beside(f, name, signs[i], full)) return true;
    return stored_part(f, name, ".SCB") != NULL; /* LLM.int8() */
}

/* ---- reading ---- */

struct stored {
    struct nf4_state s;
    const struct tensor *weight, *absmax, *nested, *nested_map;
    size_t n, blocks;
};

/* NAME + suffix, which must be a vector of n of the type */
static int find_vector(const struct tensor_source *f, const char *name, const char *suffix, enum tensor_type type,
                       size_t n, const struct tensor **out, struct err *e)
{
    char full[FULL_NAME];
    const struct tensor *t = beside(f, name, suffix, full);
    if (!t) return err_set(e, ERR_NOT_FOUND, "tensor %s is missing", full);
    if (t->type != type || t->n_dims != 1 || t->dims[0] != (int64_t)n)
        return err_set(e, ERR_INVALID, "tensor %s is not %s [%zu]", full, tensor_type_name(type), n);
    *out = t;
    return 0;
}

static float f32_at(const struct tensor *t, size_t i)
{
    float v;
    memcpy(&v, (const char *)t->data + i * sizeof v, sizeof v);
    return v;
}

static int check_finite(const char *name, const char *suffix, const struct tensor *t, size_t n, struct err *e)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(f32_at(t, i)))
            return err_set(e, ERR_INVALID, "tensor %s%s: element %zu is not finite", name, suffix, i);
    return 0;
}

static int read_state(const struct tensor_source *f, const struct matrix_slot *slot, struct nf4_state *s, struct err *e)
{
    char full[FULL_NAME];
    const struct tensor *t = beside(f, slot->name, state_suffix, full);
    if (!t && beside(f, slot->name, ".quant_state.bitsandbytes__fp4", full))
        return err_set(e, ERR_UNSUPPORTED, "tensor %s: bitsandbytes fp4 is not supported, only nf4", slot->name);
    t = beside(f, slot->name, state_suffix, full);
    if (!t) return err_set(e, ERR_NOT_FOUND, "tensor %s%s is missing", slot->name, state_suffix);
    if (t->type != TENSOR_U8) return err_set(e, ERR_INVALID, "tensor %s is not U8", full);
    int rc = nf4_state_parse(t->data, t->bytes, s, e);
    if (rc) return err_prefix(e, "tensor %s", full);
    if (s->rows != slot->rows || s->cols != slot->cols)
        return err_set(e, ERR_INVALID, "tensor %s: shape is not [%d, %d] as config.json says", full, slot->rows,
                       slot->cols);
    return 0;
}

/* bitsandbytes uses its own table and ignores the file's; here the file's must be equal to it */
static int check_map(const struct tensor_source *f, const char *name, struct err *e)
{
    const struct tensor *map = NULL;
    int rc = find_vector(f, name, ".quant_map", TENSOR_F32, 16, &map, e);
    for (size_t i = 0; i < 16 && !rc; i++)
        if (!(fabsf(f32_at(map, i) - nf4_code[i]) <= 1e-6f))
            rc = err_set(e, ERR_UNSUPPORTED, "tensor %s.quant_map: element %zu is not nf4's", name, i);
    return rc;
}

static int find_parts(const struct tensor_source *f, const struct matrix_slot *slot, struct stored *p, struct err *e)
{
    const char *name = slot->name;
    int rc = read_state(f, slot, &p->s, e);
    if (rc) return rc;
    p->n = (size_t)slot->rows * (size_t)slot->cols;
    p->blocks = nf4_blocks(p->n, (size_t)p->s.block);
    p->weight = tensor_source_find(f, name);
    if (!p->weight) return err_set(e, ERR_NOT_FOUND, "tensor %s is missing", name);
    /* the shape is [bytes, 1], or fewer elements of a wider type when quant_storage was set; the bytes are the same */
    if (p->weight->bytes != (p->n + 1) / 2)
        return err_set(e, ERR_INVALID, "tensor %s has %zu bytes; nf4 of [%d, %d] has %zu", name, p->weight->bytes,
                       slot->rows, slot->cols, (p->n + 1) / 2);
    if ((rc = check_map(f, name, e))) return rc;
    bool nested = p->s.nested_block > 0;
    rc = find_vector(f, name, ".absmax", nested ? TENSOR_U8 : TENSOR_F32, p->blocks, &p->absmax, e);
    if (!nested) return rc ? rc : check_finite(name, ".absmax", p->absmax, p->blocks, e);
    size_t n = nf4_blocks(p->blocks, (size_t)p->s.nested_block);
    if (!rc) rc = find_vector(f, name, ".nested_absmax", TENSOR_F32, n, &p->nested, e);
    if (!rc) rc = find_vector(f, name, ".nested_quant_map", TENSOR_F32, NF4_MAP, &p->nested_map, e);
    if (!rc) rc = check_finite(name, ".nested_absmax", p->nested, n, e);
    return rc ? rc : check_finite(name, ".nested_quant_map", p->nested_map, NF4_MAP, e);
}

/* f32 scales, one per block of the file; NULL: out of memory */
static float *scales_of(const struct stored *p)
{
    float *absmax = mem_try_alloc(p->blocks * sizeof *absmax), map[NF4_MAP];
    if (!absmax) return NULL;
    if (!p->nested) {
        memcpy(absmax, p->absmax->data, p->absmax->bytes);
        return absmax;
    }
    float *nested = mem_try_alloc(p->nested->bytes);
    if (!nested) return free(absmax), NULL;
    memcpy(nested, p->nested->data, p->nested->bytes);
    memcpy(map, p->nested_map->data, sizeof map);
    nf4_unnest(p->absmax->data, p->blocks, map, nested, (size_t)p->s.nested_block, p->s.offset, absmax);
    free(nested);
    return absmax;
}

/* A block of 128 becomes two of 64 with the same scale. */
static float *per_64(float *absmax, const struct stored *p)
{
    size_t n = p->n / NF4_GROUP, each = (size_t)p->s.block / NF4_GROUP;
    if (each == 1) return absmax;
    float *out = mem_try_alloc(n * sizeof *out);
    for (size_t i = 0; out && i < n; i++) out[i] = absmax[i / each];
    free(absmax);
    return out;
}

/* LLM.int8(): a weight is q * SCB / 127, SCB the largest magnitude of its output.  (bitsandbytes 0.50, functional.py,
 * int8_vectorwise_dequant.) */
static int int8_matrix(const struct tensor_source *f, const struct matrix_slot *slot, struct weight_src *src,
                       void **owned, struct err *e)
{
    const struct tensor *w = NULL, *scb = NULL;
    int rc = stored_part_find(f, slot->name, ".weight", TENSOR_I8, slot->rows, slot->cols, &w, e);
    if (!rc) rc = stored_part_find(f, slot->name, ".SCB", TENSOR_F32, slot->rows, 0, &scb, e);
    if (!rc && memchr(w->data, 0x80, w->bytes)) rc = err_set(e, ERR_INVALID, "tensor %s: -128 is there", w->name);
    if (rc) return rc;
    float *scale = mem_try_alloc((size_t)slot->rows * sizeof *scale);
    if (!scale) return err_set(e, ERR_NOMEM, "no memory for tensor %s", slot->name);
    for (int r = 0; r < slot->rows && !rc; r++) {
        rc = stored_part_float(scb, (size_t)r, &scale[r], e);
        scale[r] *= 1.0f / 127;
    }
    *owned = scale;
    *src = (struct weight_src){.t = DT_I8, .rows = slot->rows, .cols = slot->cols, .data = w->data, .scale = scale};
    return rc;
}

int bnb_matrix(const struct tensor_source *f, const struct matrix_slot *slot, struct weight_src *src, void **owned,
               struct err *e)
{
    struct stored p = {0};
    *owned = NULL;
    if (stored_part(f, slot->name, ".SCB")) return int8_matrix(f, slot, src, owned, e);
    int rc = find_parts(f, slot, &p, e);
    if (rc) return rc;
    *src = (struct weight_src){.t = DT_NF4, .rows = slot->rows, .cols = slot->cols, .group = NF4_GROUP};
    float *scale = scales_of(&p);
    if (slot->cols % NF4_GROUP == 0 && p.s.block % NF4_GROUP == 0) {
        if (scale) scale = per_64(scale, &p);
        src->data = p.weight->data;
        src->scale = *owned = scale;
    } else {
        float *w = scale ? mem_try_alloc(p.n * sizeof *w) : NULL;
        if (w) nf4_dequantize(p.weight->data, scale, (size_t)p.s.block, p.n, w);
        free(scale);
        src->t = DT_F32, src->group = 0;
        src->data = *owned = w;
    }
    return *owned ? 0 : err_set(e, ERR_NOMEM, "no memory for tensor %s", slot->name);
}

/* ---- writing ---- */

static struct tensor tensor(const char *name, const char *suffix, enum tensor_type type, size_t n, const void *data,
                            size_t bytes)
{
    struct buf full = {0};
    buf_printf(&full, "%s%s", name, suffix);
    return (struct tensor){
        .name = full.data, .type = type, .n_dims = 1, .dims = {(int64_t)n}, .data = data, .bytes = bytes};
}

int bnb_tensors(const struct weight_src *src, const char *name, int threads, struct tensor out[BNB_TENSORS],
                struct err *e)
{
    struct nf4_matrix m;
    struct buf text = {0};
    int rc = nf4_matrix_make(src, threads, &m, e);
    if (rc) return rc;
    size_t nested = nf4_blocks(m.blocks, NF4_NEST), bytes = ((size_t)m.rows * (size_t)m.cols + 1) / 2;
    float *map = mem_array(NF4_MAP, sizeof *map), *code = mem_array(16, sizeof *code);
    memcpy(code, nf4_code, sizeof nf4_code);
    nf4_dynamic_map(map);
    nf4_state_print(&(struct nf4_state){NF4_GROUP, NF4_NEST, m.offset, src->t, m.rows, m.cols}, &text);
    out[0] = tensor(name, "", TENSOR_U8, bytes, m.codes, bytes);
    out[0].n_dims = 2, out[0].dims[1] = 1;
    out[1] = tensor(name, ".absmax", TENSOR_U8, m.blocks, m.q, m.blocks);
    out[2] = tensor(name, ".nested_absmax", TENSOR_F32, nested, m.nested, nested * sizeof *m.nested);
    out[3] = tensor(name, ".nested_quant_map", TENSOR_F32, NF4_MAP, map, NF4_MAP * sizeof *map);
    out[4] = tensor(name, ".quant_map", TENSOR_F32, 16, code, 16 * sizeof *code);
    out[5] = tensor(name, state_suffix, TENSOR_U8, text.len, text.data, text.len);
    return 0;
}

struct cJSON *bnb_config(enum dtype dtype)
{
    const char *compute = dtype == DT_BF16 ? "bfloat16" : dtype == DT_F16 ? "float16" : "float32";
    cJSON *q = cJSON_CreateObject();
    cJSON_AddBoolToObject(q, "_load_in_4bit", true);
    cJSON_AddBoolToObject(q, "_load_in_8bit", false);
    cJSON_AddStringToObject(q, "bnb_4bit_compute_dtype", compute);
    cJSON_AddStringToObject(q, "bnb_4bit_quant_storage", "uint8");
    cJSON_AddStringToObject(q, "bnb_4bit_quant_type", "nf4");
    cJSON_AddBoolToObject(q, "bnb_4bit_use_double_quant", true);
    cJSON_AddBoolToObject(q, "llm_int8_enable_fp32_cpu_offload", false);
    cJSON_AddBoolToObject(q, "llm_int8_has_fp16_weight", false);
    cJSON_AddNullToObject(q, "llm_int8_skip_modules");
    cJSON_AddRawToObject(q, "llm_int8_threshold", "6.0"); /* transformers rejects an integer here */
    cJSON_AddBoolToObject(q, "load_in_4bit", true);
    cJSON_AddBoolToObject(q, "load_in_8bit", false);
    cJSON_AddStringToObject(q, "quant_method", "bitsandbytes");
    return q;
}
