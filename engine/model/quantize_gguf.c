/* `tandem quantize --format gguf`: a model as a GGUF file.  The keys are written first and read back: what the format
 * cannot say of this model shows as a difference, before any matrix is rounded. */
#include "engine/model/quantize.h"

#include "engine/base/mem.h"
#include "engine/files/gguf_model.h"
#include "engine/files/gguf_write.h"
#include "engine/model/config.h"
#include "engine/model/fused_experts.h"
#include "engine/model/gguf_blocks.h"
#include "engine/model/gguf_config_write.h"
#include "engine/model/gguf_names.h"
#include "engine/model/gguf_source.h"
#include "engine/model/gguf_tokenizer_write.h"
#include "engine/model/tensors.h"
#include "engine/model/weights_gguf.h"
#include "engine/model/weights_read.h"
#include "engine/tokenizer/tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A tensor of the file, from one tensor of the model, or from those of all experts or heads. */
struct item {
    char name[GGUF_NAME_MAX];
    const struct gguf_name *row;
    enum ggml_type type;
    int rows, cols;             /* of one expert; a vector has one row */
    struct matrix_slot *slot;   /* of each expert; NULL: it is of vectors */
    struct vector_slot *vector; /* of each expert or head */
    size_t n, cap;
    bool is_vector; /* each is stored with one dimension */
};

struct output {
    const char *dir;
    const struct model_config *c;
    const struct gguf_arch *arch;
    const struct gguf_names *names;
    const struct quantize_options *options;
    enum ggml_type type;
    bool mxfp4; /* the experts stay as they are */
    struct tensors in, usual; /* usual: with the names of transformers, whatever the prefix of `in` */
    struct gguf_writer *w;
    struct item *item;
    size_t n, cap;
    float rope[2][ROPE_PAIRS_MAX];
    struct err *e;
};

/* ---- the list of tensors ----------------------------------------------------------------------------------------- */

static struct item *item_of(struct output *o, const char *usual, int *expert)
{
    char name[GGUF_NAME_MAX];
    const struct gguf_name *row = gguf_name_find(o->names, usual, name, expert);
    if (!row) {
        err_set(o->e, ERR_UNSUPPORTED, "tensor %s: a GGUF file of architecture %s has none like it", usual,
                o->arch->name);
        return NULL;
    }
    for (size_t i = o->n; *expert && i-- > 0;)
        if (strcmp(o->item[i].name, name) == 0) return &o->item[i];
    mem_grow(&o->item, &o->cap, o->n + 1, sizeof *o->item);
    struct item *item = &o->item[o->n++];
    *item = (struct item){.row = row};
    memcpy(item->name, name, sizeof name);
    return item;
}

static int add_matrix(struct output *o, const char *usual, const struct matrix_slot *slot, bool floats)
{
    int expert;
    struct item *t = item_of(o, usual, &expert);
    if (!t) return o->e->code;
    bool blocks = slot->cols % 32 == 0 && !floats;
    const struct tensor *stored = tensor_source_find(o->in.source, slot->name);
    t->rows = slot->rows, t->cols = slot->cols;
    t->type = !blocks ? GGML_F32 : slot->head || slot->table ? GGML_Q8_0 : o->type;
    if (stored && fused_is_mxfp4(stored)) t->type = GGML_MXFP4, o->mxfp4 = true;
    t->is_vector = t->row->flags & GGUF_ONE_ROW;
    mem_grow(&t->slot, &t->cap, t->n + 1, sizeof *t->slot);
    t->slot[t->n++] = *slot;
    return 0;
}

static int add_matrices(struct output *o)
{
    int n = tensors_stacks(o->c), rc = 0;
    for (int i = 0; i < n && !rc; i++) {
        struct stack in, usual;
        tensors_stack(&o->in, i, &in);
        tensors_stack(&o->usual, i, &usual);
        for (int k = 0; k < in.n && !rc; k++) rc = add_matrix(o, usual.part[k].name, &in.part[k], in.floats);
    }
    return rc;
}

static int add_vectors(struct output *o)
{
    int n = tensors_vectors(&o->in, NULL), rc = 0, expert;
    struct vector_slot *in = mem_array((size_t)n, sizeof *in), *usual = mem_array((size_t)n, sizeof *usual);
    tensors_vectors(&o->in, in);
    tensors_vectors(&o->usual, usual);
    for (int i = 0; i < n && !rc; i++) {
        struct item *t = item_of(o, usual[i].name, &expert);
        if (!t) {
            rc = o->e->code;
            break;
        }
        mem_grow(&t->vector, &t->cap, t->n + 1, sizeof *t->vector);
        t->vector[t->n++] = in[i];
        t->rows = in[i].rows, t->cols = in[i].cols;
        t->is_vector = !in[i].table;
    }
    free(in);
    free(usual);
    return rc;
}

static void list_tensors(struct output *o)
{
    const char *names[2];
    int pairs, tables = gguf_rope_tensors(o->c, names, o->rope, &pairs);
    for (int i = 0; i < tables; i++) gguf_write_tensor(o->w, names[i], GGML_F32, 1, &(int64_t){pairs});
    for (size_t i = 0; i < o->n; i++) {
        const struct item *t = &o->item[i];
        int64_t dims[3] = {t->cols, t->rows};
        int n = t->is_vector ? 1 : 2;
        if (t->row->flags & GGUF_STACKED) dims[n++] = (int64_t)t->n;
        gguf_write_tensor(o->w, t->name, t->type, n, dims);
    }
}

/* ---- data -------------------------------------------------------------------------------------------------------- */

static float element(const struct weight_src *s, size_t i)
{
    if (s->t == DT_F32) return ((const float *)s->data)[i];
    uint16_t h = ((const uint16_t *)s->data)[i];
    return s->t == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

/* The row of the family's matrix that is each stored row. */
static int *row_order(const struct output *o, const struct item *t)
{
    int *from = mem_array((size_t)t->rows, sizeof *from);
    struct tensor_form f = {.blocks = -1};
    bool pairs = o->arch->rope == GGUF_ROPE_PAIRS;
    if (pairs && t->row->flags & GGUF_PAIRS) f.pairs = o->c->heads;
    if (pairs && t->row->flags & GGUF_PAIRS_KV) f.pairs = o->c->kv_heads;
    if (t->row->flags & GGUF_THIRDS) f.thirds = o->c->heads;
    for (int r = 0; r < t->rows; r++) from[gguf_stored_row(&f, t->rows, r)] = r;
    return from;
}

/* One row as it is stored. @return false: a value, or the scale of a block, is not finite */
static bool store_row(const struct item *t, const float *row, uint8_t *out)
{
    bool ok = true;
    for (int k = 0; k < t->cols; k++) ok &= isfinite(row[k]) != 0;
    if (!ok) return false;
    if (t->type != GGML_F32) return gguf_quantise_row(t->type, row, t->cols / 32, out);
    memcpy(out, row, (size_t)t->cols * sizeof *row);
    return true;
}

static int write_rows(struct output *o, const struct item *t, const struct weight_src *src, const char *name)
{
    int elements = 1, bytes = 4, rc = 0;
    ggml_type_block(t->type, &elements, &bytes);
    size_t cols = (size_t)t->cols, n = cols / (size_t)elements * (size_t)bytes;
    float *row = mem_array(cols, sizeof *row);
    uint8_t *stored = mem_alloc(n);
    int *from = row_order(o, t);
    for (int r = 0; r < t->rows && !rc; r++) {
        for (size_t k = 0; k < cols; k++) row[k] = element(src, (size_t)from[r] * cols + k);
        rc = store_row(t, row, stored)
                 ? gguf_write_data(o->w, stored, n, o->e)
                 : err_set(o->e, ERR_INVALID, "tensor %s: row %d has a value that is not finite or too large", name,
                           from[r]);
    }
    free(row);
    free(stored);
    free(from);
    return rc;
}

static int write_floats(struct output *o, const struct item *t, const struct matrix_slot *slot)
{
    struct weight_src src;
    void *owned = NULL;
    int rc = weights_matrix(o->in.source, &o->c->quant, slot, &src, &owned, o->e);
    if (!rc && src.t != DT_F32 && src.t != DT_BF16 && src.t != DT_F16)
        rc = err_set(o->e, ERR_INVALID, "tensor %s is quantised already", slot->name);
    if (!rc) rc = write_rows(o, t, &src, slot->name);
    free(owned);
    return rc;
}

static int write_mxfp4(struct output *o, const struct tensor *stored)
{
    size_t n = (size_t)stored->dims[1] / 32 * 17;
    uint8_t *row = mem_alloc(n);
    int rc = tensor_source_populate(o->in.source, stored, o->e);
    for (int r = 0; r < stored->dims[0] && !rc; r++) {
        fused_mxfp4_row(stored, r, row);
        rc = gguf_write_data(o->w, row, n, o->e);
    }
    free(row);
    return rc;
}

static int write_matrix(struct output *o, const struct item *t, const struct matrix_slot *slot)
{
    const struct tensor *stored = tensor_source_find(o->in.source, slot->name);
    int rc = stored && o->options->weights ? tensor_source_populate(o->in.source, stored, o->e) : 0;
    if (!rc) rc = stored && t->type == GGML_MXFP4 ? write_mxfp4(o, stored) : write_floats(o, t, slot);
    if (stored) tensor_source_release(o->in.source, stored);
    return rc;
}

/* A vector, in the file's order and with what the architecture adds, or a table. */
static int write_vector(struct output *o, const struct item *t, const struct vector_slot *v)
{
    const struct tensor *s = NULL;
    int rc =
        weights_find_floats(o->in.source, v->name, v->table ? 2 : 1, v->table ? v->rows : v->cols, v->cols, &s, o->e);
    if (rc) return rc;
    size_t n = (size_t)v->rows * (size_t)v->cols;
    struct item rows = *t;
    if (!v->table) rows.rows = v->cols, rows.cols = 1;
    float *p = mem_try_alloc(n * sizeof *p);
    if (!p) return err_set(o->e, ERR_NOMEM, "no memory for tensor %s", v->name);
    for (size_t i = 0; i < n; i++) p[i] = tensor_element(s, i) + (t->row->flags & GGUF_PLUS_ONE ? 1 : 0);
    rc = write_rows(o, &rows, &(struct weight_src){.t = DT_F32, .rows = rows.rows, .cols = rows.cols, .data = p},
                    v->name);
    free(p);
    return rc;
}

/* The first tensors of the file: the configuration is read back from them too. */
static int write_rope_tensors(struct output *o)
{
    const char *names[2];
    int pairs, tables = gguf_rope_tensors(o->c, names, o->rope, &pairs), rc = 0;
    for (int i = 0; i < tables && !rc; i++) rc = gguf_write_data(o->w, o->rope[i], (size_t)pairs * sizeof(float), o->e);
    return rc;
}

static int write_tensors(struct output *o)
{
    int rc = 0;
    for (size_t i = 0; i < o->n && !rc; i++) {
        const struct item *t = &o->item[i];
        for (size_t x = 0; x < t->n && !rc; x++)
            rc = t->slot ? write_matrix(o, t, &t->slot[x]) : write_vector(o, t, &t->vector[x]);
        if (!rc && o->options->progress) o->options->progress(o->options->arg, (int)i + 1, (int)o->n);
    }
    return rc;
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static void write_general(const struct output *o)
{
    enum { FILE_Q4_0 = 2, FILE_Q8_0 = 7, FILE_MXFP4 = 38, QUANTISATION = 2 }; /* llama.h, enum llama_ftype; ggml.h */
    const struct model_config *c = o->c;
    const char *end = o->dir + strlen(o->dir);
    while (end > o->dir && end[-1] == '/') end--;
    const char *name = end;
    while (name > o->dir && name[-1] != '/') name--;
    gguf_write_text(o->w, "general.architecture", o->arch->name, strlen(o->arch->name));
    gguf_write_text(o->w, "general.type", "model", 5);
    gguf_write_text(o->w, "general.name", name, (size_t)(end - name));
    gguf_write_u32(o->w, "general.file_type",
                   o->mxfp4                ? FILE_MXFP4
                   : o->type == GGML_Q8_0 ? FILE_Q8_0
                                           : FILE_Q4_0);
    gguf_write_u32(o->w, "general.quantization_version", QUANTISATION);
    if (!isnan(c->temperature)) gguf_write_f32(o->w, "general.sampling.temp", c->temperature);
    if (!isnan(c->top_p)) gguf_write_f32(o->w, "general.sampling.top_p", c->top_p);
    if (c->top_k >= 0) gguf_write_u32(o->w, "general.sampling.top_k", (uint32_t)c->top_k);
    if (!isnan(c->repetition_penalty)) gguf_write_f32(o->w, "general.sampling.penalty_repeat", c->repetition_penalty);
}

/* Texts of what tokenizers differ in: cases, digits, contractions, spaces, lines, signs, scripts. */
static const char sample[] = "Hello, World! I'm here; YOU'RE there, it's 3.14159 or 20260 -- don't.\n\n  Two  "
                             "spaces,\ttabs \r\n\n and   more   \n"
                             "def f(x_1, y):\n    return x_1**2 + 10*y // 3 != 0x7F\n<a href=\"/b/c\">caf\xc3\xa9 "
                             "na\xc3\xafve \xc3\x89t\xc3\xa9</a> "
                             "\xe4\xbd\xa0\xe5\xa5\xbd\xef\xbc\x8c\xe4\xb8\x96\xe7\x95\x8c\xe3\x80\x82 "
                             "\xd0\x9f\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82 "
                             "\xd8\xb3\xd9\x84\xd8\xa7\xd9\x85 12\xd9\xa3 "
                             "\xf0\x9f\x98\x80\xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd CamelCaseWords ABCdef";

static int check_tokenizer(struct output *o, const struct tokenizer *want, const struct tokenizer *got)
{
    struct tokens a = {0}, b = {0};
    int rc = tokenizer_encode(want, sample, sizeof sample - 1, TOKENIZE_SPECIAL, &a, o->e);
    if (!rc) rc = tokenizer_encode(got, sample, sizeof sample - 1, TOKENIZE_SPECIAL, &b, o->e);
    bool same = a.n == b.n;
    for (size_t i = 0; i < a.n && same; i++) same = a.v[i].id == b.v[i].id;
    if (!rc && !same)
        rc = err_set(o->e, ERR_UNSUPPORTED,
                     "tokenizer.json: its tokens of a sample text are others when they are read "
                     "from a GGUF file");
    tokens_free(&a);
    tokens_free(&b);
    return rc;
}

/* Opens the file as far as it is written, and compares what its keys say with the model. */
static int check_keys(struct output *o)
{
    struct buf config = {0}, tokens = {0};
    struct model_config got;
    struct gguf *g = gguf_open(gguf_writer_path(o->w), o->e);
    int rc = g ? gguf_config_json(g, &config, o->e) : o->e->code;
    if (!rc) rc = model_config_parse(config.data, NULL, &got, o->e);
    if (!rc) rc = gguf_config_check(o->c, &got, o->e);
    if (!rc) rc = gguf_tokenizer_json(g, &tokens, o->e);
    struct tokenizer *theirs = rc ? NULL : tokenizer_parse(tokens.data, tokens.len, o->e);
    struct tokenizer *ours = theirs ? tokenizer_open_dir(o->dir, o->e) : NULL;
    if (!rc) rc = ours ? check_tokenizer(o, ours, theirs) : o->e->code;
    tokenizer_close(ours);
    tokenizer_close(theirs);
    buf_free(&config);
    buf_free(&tokens);
    gguf_close(g);
    return rc;
}

static int write_file(struct output *o, const char *out)
{
    int rc = add_matrices(o);
    if (!rc) rc = add_vectors(o);
    if (rc || !(o->w = gguf_writer_open(out, o->e))) return o->e->code;
    write_general(o);
    gguf_config_write(o->w, o->arch, o->c);
    rc = gguf_tokenizer_write(o->w, o->dir, o->c->vocab, o->c->eos, o->c->n_eos, o->e);
    if (!rc) list_tensors(o);
    if (!rc) rc = gguf_write_header(o->w, o->e);
    if (!rc) rc = write_rope_tensors(o);
    if (!rc) rc = check_keys(o);
    if (!rc) rc = write_tensors(o);
    if (!rc) return gguf_writer_finish(o->w, o->e);
    gguf_writer_abort(o->w);
    return rc;
}

int quantize_gguf(const char *dir, const char *out, const struct quantize_options *options, struct err *e)
{
    struct model_config c;
    bool q8 = strcmp(options->type, "q8_0") == 0;
    if (!q8 && strcmp(options->type, "q4_0"))
        return err_set(e, ERR_INVALID, "type \"%.40s\" is not one of a GGUF file: q8_0 or q4_0", options->type);
    if (options->calibrate) return err_set(e, ERR_INVALID, "q8_0 and q4_0 are not calibrated; leave --calibrate out");
    int rc = model_config_read(dir, &c, e);
    if (!rc) rc = model_config_generates(&c, e);
    if (rc) return rc;
    if (options->untie) c.tied = false;
    if (c.quant.name[0] && c.quant.method != QUANT_MXFP4 && !options->weights)
        return err_set(e, ERR_INVALID, "%s is quantised to %s already", dir, c.quant.name);
    struct output o = {.dir = dir, .c = &c, .options = options, .type = q8 ? GGML_Q8_0 : GGML_Q4_0, .e = e};
    o.arch = gguf_arch_of(c.family->model_type);
    if (!o.arch) return err_set(e, ERR_UNSUPPORTED, "a %s model cannot be written as a GGUF file", c.family->model_type);
    o.names = gguf_names_of(o.arch->model_type);
    struct tensor_source *own = options->weights ? NULL : model_source_open(dir, &c, e);
    const struct tensor_source *in = options->weights ? options->weights : own;
    if (!in) return e->code;
    o.in = tensors_of(&c, in);
    struct model_config alone = c; /* GGUF has the text model's names, whatever it is a part of */
    alone.with_images = false;
    o.usual = tensors_of(&alone, NULL);
    rc = write_file(&o, out);
    for (size_t i = 0; i < o.n; i++) free(o.item[i].slot), free(o.item[i].vector);
    free(o.item);
    tensor_source_close(own);
    return rc;
}
