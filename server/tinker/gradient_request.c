#include "server/tinker/gradient_request.h"

#include "engine/base/mem.h"
#include "server/tinker/protobuf.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Numbers of the fields in the package tinker_public. */
enum { REQUEST_MODEL = 1, REQUEST_SEQ, REQUEST_DATA, REQUEST_LOSS, REQUEST_CONFIG, REQUEST_FORWARD, REQUEST_CONFIG_V2 };
enum { DATUM_INPUT = 1, DATUM_TENSORS };
enum { CHUNK_TEXT = 1 };
enum { TENSOR_DENSE = 1, TENSOR_SPARSE, TENSOR_TYPE, TENSOR_SHAPE };
enum { TYPE_F32 = 1, TYPE_I64, TYPE_I32, TYPE_BF16 };
enum { OUTPUT_TYPE = 1, OUTPUT_ROWS, OUTPUT_METRICS };
enum { RECORD_TAG = 1, RECORD_FIELDS, RECORD_COUNT };
enum { SPARSE_VALUES = 1, SPARSE_ROWS, SPARSE_COLUMNS };
enum { BATCHED_DATA = 1, BATCHED_OFFSETS, BATCHED_TYPE, BATCHED_TRAILING };
enum { MAP_KEY = 1, MAP_VALUE };
enum { ROWS_MAX = 65536, ARRAYS = 7 /* of a row */, CANDIDATES_MAX = 1024 };

static struct protobuf_reader reader_of(const struct protobuf_field *f)
{
    return (struct protobuf_reader){.p = f->p, .end = f->p ? f->p + f->n : NULL};
}

static bool is_text(const struct protobuf_field *f, const char *text)
{
    return f->n == strlen(text) && !memcmp(f->p, text, f->n);
}

static int malformed(struct err *e, const char *where)
{
    return err_set(e, ERR_INVALID, "the body is no valid ForwardBackwardRequest: %s is malformed", where);
}

/* The entry of a map. */
static bool read_entry(const struct protobuf_field *f, struct protobuf_field *key, struct protobuf_field *value)
{
    struct protobuf_reader r = reader_of(f);
    struct protobuf_field part;
    *key = *value = (struct protobuf_field){0};
    while (protobuf_next(&r, &part)) {
        if (part.number == MAP_KEY) *key = part;
        if (part.number == MAP_VALUE) *value = part;
    }
    return !r.bad && key->wire == PROTOBUF_BYTES && key->p;
}

/* ---- a datum -------------------------------------------------------------------------------------------------------
 */

/* The bytes of the chunk's tokens. */
static int chunk_tokens(const struct protobuf_field *f, int row, struct protobuf_field *tokens, struct err *e)
{
    struct protobuf_reader r = reader_of(f);
    struct protobuf_field part, inner;
    *tokens = (struct protobuf_field){0};
    while (protobuf_next(&r, &part)) {
        if (part.number != CHUNK_TEXT)
            return err_set(e, ERR_UNSUPPORTED, "data[%d].model_input: models here read tokens only", row);
        struct protobuf_reader in = reader_of(&part);
        if (part.wire != PROTOBUF_BYTES) return malformed(e, "model_input");
        while (protobuf_next(&in, &inner))
            if (inner.number == 1 && inner.wire == PROTOBUF_BYTES) *tokens = inner;
        if (in.bad || tokens->n % sizeof(int32_t)) return malformed(e, "model_input");
    }
    return r.bad ? malformed(e, "model_input") : 0;
}

/* Positions of a datum, and with `id` their tokens. */
static int read_tokens(const struct protobuf_field *datum, int row, size_t *n, int32_t *id, struct err *e)
{
    struct protobuf_reader r = reader_of(datum);
    struct protobuf_field part, tokens;
    *n = 0;
    while (protobuf_next(&r, &part)) {
        if (part.number != DATUM_INPUT) continue;
        if (part.wire != PROTOBUF_BYTES) return malformed(e, "model_input");
        if (chunk_tokens(&part, row, &tokens, e)) return e->code;
        if (id && tokens.n) memcpy(id + *n, tokens.p, tokens.n);
        *n += tokens.n / sizeof(int32_t);
    }
    if (r.bad) return malformed(e, "a datum");
    return *n && *n <= INT32_MAX / 2 ? 0 : err_set(e, ERR_INVALID, "data[%d].model_input has no tokens", row);
}

struct tensor {
    struct protobuf_field dense, values, rows, columns; /* the last three: sparse CSR, with 8 bytes an index */
    uint64_t type, shape[2];
    int dims;
    bool sparse;
};

static void add_dim(struct tensor *t, uint64_t v)
{
    if (t->dims < 2) t->shape[t->dims] = v;
    if (t->dims < 3) t->dims++;
}

static bool read_shape(const struct protobuf_field *f, struct tensor *t)
{
    struct protobuf_reader r = reader_of(f);
    if (f->wire == PROTOBUF_VARINT) {
        add_dim(t, f->value);
        return true;
    }
    while (r.p < r.end) { /* packed */
        uint64_t v = 0;
        for (int shift = 0; r.p < r.end && shift < 63; shift += 7) {
            v |= (uint64_t)(*r.p & 0x7f) << shift;
            if (*r.p++ < 0x80) break;
        }
        add_dim(t, v);
    }
    return f->wire == PROTOBUF_BYTES;
}

static bool read_sparse(const struct protobuf_field *f, struct tensor *t)
{
    struct protobuf_reader r = reader_of(f);
    struct protobuf_field part;
    t->sparse = true;
    while (protobuf_next(&r, &part)) {
        if (part.number == SPARSE_VALUES) t->values = part;
        if (part.number == SPARSE_ROWS) t->rows = part;
        if (part.number == SPARSE_COLUMNS) t->columns = part;
    }
    return !r.bad && f->wire == PROTOBUF_BYTES;
}

static int read_tensor(const struct protobuf_field *f, struct tensor *t, struct err *e)
{
    struct protobuf_reader r = reader_of(f);
    struct protobuf_field part;
    *t = (struct tensor){0};
    while (protobuf_next(&r, &part)) {
        if (part.number == TENSOR_DENSE && part.wire == PROTOBUF_BYTES) t->dense = part;
        if (part.number == TENSOR_SPARSE && !read_sparse(&part, t)) return malformed(e, "sparse_csr");
        if (part.number == TENSOR_TYPE) t->type = part.value;
        if (part.number == TENSOR_SHAPE && !read_shape(&part, t)) return malformed(e, "shape");
    }
    return r.bad || f->wire != PROTOBUF_BYTES ? malformed(e, "a tensor") : 0;
}

/* Values a position: the second dimension, if there is one. */
static uint64_t candidates_of(const struct tensor *t)
{
    return t->dims == 2 ? t->shape[1] : t->dims < 2;
}

static double element(uint64_t type, const unsigned char *p, size_t i)
{
    float f = 0;
    int64_t l = 0;
    int32_t w = 0;
    uint16_t b = 0;
    uint32_t bits;
    switch (type) {
    case TYPE_F32: memcpy(&f, p + i * sizeof f, sizeof f); return (double)f;
    case TYPE_I64: memcpy(&l, p + i * sizeof l, sizeof l); return (double)l;
    case TYPE_I32: memcpy(&w, p + i * sizeof w, sizeof w); return w;
    default:
        memcpy(&b, p + i * sizeof b, sizeof b);
        bits = (uint32_t)b << 16;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    }
}

/* One of the inputs of a datum: where its values go. */
struct input {
    const char *name;
    struct gradient_row *row; /* (k) the datum's: one of each candidate */
    size_t datum, k;
    size_t ids, floats; /* offsets of one of the arrays in a row; 0: none */
};

static int put_value(const struct input *in, size_t i, size_t k, double v, struct err *e)
{
    bool ids = in->ids != 0;
    if (!isfinite(v) || (ids && (v < 0 || v > INT32_MAX || v != floor(v))))
        return err_set(e, ERR_INVALID, "data[%zu].%s[%zu] is no %s", in->datum, in->name, i,
                       ids ? "token" : "finite number");
    char *row = (char *)&in->row[k];
    if (ids)
        (*(int32_t **)(row + in->ids))[i] = (int32_t)v;
    else
        (*(float **)(row + in->floats))[i] = (float)v;
    return 0;
}

static int bad_csr(const struct input *in, struct err *e)
{
    return err_set(e, ERR_INVALID, "data[%zu].%s: its sparse_csr does not fit its shape", in->datum, in->name);
}

/* What is not listed is 0. */
static int copy_sparse(const struct tensor *t, const struct input *in, size_t size, struct err *e)
{
    size_t n = (size_t)in->row->n, some = t->values.n / size;
    if (t->values.n % size || t->rows.n != (n + 1) * sizeof(int64_t) || t->columns.n != some * sizeof(int64_t))
        return bad_csr(in, e);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < in->k; k++)
            if (put_value(in, i, k, 0, e)) return e->code;
    double end = element(TYPE_I64, t->rows.p, 0);
    if (end != 0 || element(TYPE_I64, t->rows.p, n) != (double)some) return bad_csr(in, e);
    for (size_t i = 0; i < n; i++) {
        double from = end;
        end = element(TYPE_I64, t->rows.p, i + 1);
        if (!(end >= from && end <= (double)some)) return bad_csr(in, e);
        for (size_t j = (size_t)from; j < (size_t)end; j++) {
            double k = element(TYPE_I64, t->columns.p, j);
            if (!(k >= 0 && k < (double)in->k)) return bad_csr(in, e);
            if (put_value(in, i, (size_t)k, element(t->type, t->values.p, j), e)) return e->code;
        }
    }
    return 0;
}

static int copy_tensor(const struct tensor *t, const struct input *in, struct err *e)
{
    static const size_t sizes[] = {0, 4, 8, 4, 2};
    size_t n = (size_t)in->row->n;
    if (t->type < TYPE_F32 || t->type > TYPE_BF16)
        return err_set(e, ERR_INVALID, "data[%zu].%s has an unknown dtype", in->datum, in->name);
    if (t->dims && (t->dims > 2 || t->shape[0] != n || candidates_of(t) != in->k))
        return err_set(e, ERR_INVALID, "data[%zu].%s must have the shape [%zu, %zu], as model_input and target_tokens",
                       in->datum, in->name, n, in->k);
    if (t->sparse) return copy_sparse(t, in, sizes[t->type], e);
    if (t->dense.n != n * in->k * sizes[t->type])
        return err_set(e, ERR_INVALID, "data[%zu].%s must have %zu values, as model_input", in->datum, in->name,
                       n * in->k);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < in->k; k++)
            if (put_value(in, i, k, element(t->type, t->dense.p, i * in->k + k), e)) return e->code;
    return 0;
}

static int read_inputs(struct gradient_request *q, const struct protobuf_field *datum, size_t at, struct err *e)
{
    static const struct {
        const char *name;
        size_t ids, floats;
        bool of_ce, of_others;
    } inputs[] = {{"target_tokens", offsetof(struct gradient_row, target), 0, true, true},
                  {"weights", 0, offsetof(struct gradient_row, advantage), true, false},
                  {"logprobs", 0, offsetof(struct gradient_row, old), false, true},
                  {"advantages", 0, offsetof(struct gradient_row, advantage), false, true}};
    enum { N = sizeof inputs / sizeof *inputs };
    struct gradient_row *r = &q->row[at * q->candidates];
    struct protobuf_reader in = reader_of(datum);
    struct protobuf_field part, key, value;
    struct tensor t;
    bool ce = q->loss == LOSS_CROSS_ENTROPY, has[N] = {[1] = true}; /* weights are 1 unless given */
    for (size_t k = 0; k < q->candidates && ce; k++)
        for (int i = 0; i < r->n; i++) r[k].advantage[i] = 1;
    while (protobuf_next(&in, &part)) {
        if (part.number != DATUM_TENSORS) continue;
        if (part.wire != PROTOBUF_BYTES || !read_entry(&part, &key, &value)) return malformed(e, "loss_fn_inputs");
        if (read_tensor(&value, &t, e)) return e->code;
        for (size_t i = 0; i < N; i++) {
            if (!is_text(&key, inputs[i].name) || !(ce ? inputs[i].of_ce : inputs[i].of_others)) continue;
            struct input one = {inputs[i].name, r, at, q->candidates, inputs[i].ids, inputs[i].floats};
            if (copy_tensor(&t, &one, e)) return e->code;
            has[i] = true;
        }
    }
    for (size_t i = 0; i < N; i++)
        if (!has[i] && (ce ? inputs[i].of_ce : inputs[i].of_others))
            return err_set(e, ERR_INVALID, "data[%zu].loss_fn_inputs has no %s", at, inputs[i].name);
    return 0;
}

/* Candidates of the datum's target_tokens. */
static int read_candidates(const struct gradient_request *q, const struct protobuf_field *datum, size_t at, uint64_t *k,
                           bool *wide, struct err *e)
{
    struct protobuf_reader in = reader_of(datum);
    struct protobuf_field part, key, value;
    struct tensor t;
    *k = 1;
    while (protobuf_next(&in, &part)) {
        if (part.number != DATUM_TENSORS) continue;
        if (part.wire != PROTOBUF_BYTES || !read_entry(&part, &key, &value)) return malformed(e, "loss_fn_inputs");
        if (!is_text(&key, "target_tokens")) continue;
        if (read_tensor(&value, &t, e)) return e->code;
        *k = candidates_of(&t);
        *wide = t.dims > 1;
    }
    if (*k < 1 || *k > CANDIDATES_MAX)
        return err_set(e, ERR_INVALID, "data[%zu].target_tokens must have 1 to %d values a position", at,
                       CANDIDATES_MAX);
    if (*k > 1 && q->loss != LOSS_CROSS_ENTROPY)
        return err_set(e, ERR_UNSUPPORTED, "data[%zu].target_tokens: several values a position are for cross_entropy",
                       at);
    return 0;
}

/* ---- the request ---------------------------------------------------------------------------------------------------
 */

static int set_config(struct gradient_request *q, const struct protobuf_field *key, double v, struct err *e)
{
    if (!isfinite(v)) return err_set(e, ERR_INVALID, "loss_fn_config: %.*s is not finite", (int)key->n, key->p);
    if (is_text(key, "clip_low_threshold"))
        q->config.low = v;
    else if (is_text(key, "clip_high_threshold"))
        q->config.high = v;
    else if (is_text(key, "beta"))
        q->config.beta = v;
    return 0;
}

static int read_config(struct gradient_request *q, const struct protobuf_field *f, bool second, struct err *e)
{
    struct protobuf_field key, value, number;
    if (f->wire != PROTOBUF_BYTES || !read_entry(f, &key, &value)) return malformed(e, "loss_fn_config");
    if (!second) return value.wire == PROTOBUF_64 ? set_config(q, &key, protobuf_double(&value), e) : 0;
    struct protobuf_reader r = reader_of(&value);
    while (protobuf_next(&r, &number))
        if (number.number == 1 && number.wire == PROTOBUF_64 && set_config(q, &key, protobuf_double(&number), e))
            return e->code;
    return r.bad ? malformed(e, "loss_fn_config_v2") : 0;
}

static int read_head(struct gradient_request *q, const void *body, size_t n, struct err *e)
{
    struct protobuf_reader r = {.p = body, .end = (const unsigned char *)body + n};
    struct protobuf_field f;
    char loss[64] = "";
    while (protobuf_next(&r, &f)) {
        bool bytes = f.wire == PROTOBUF_BYTES;
        if (f.number == REQUEST_MODEL && bytes && f.n < sizeof q->model_id) memcpy(q->model_id, f.p, f.n);
        if (f.number == REQUEST_SEQ) q->seq = (int32_t)f.value;
        if (f.number == REQUEST_LOSS && bytes) snprintf(loss, sizeof loss, "%.*s", (int)(f.n < 60 ? f.n : 60), f.p);
        if (f.number == REQUEST_FORWARD) q->forward_only = f.value != 0;
        if (f.number == REQUEST_DATA) q->n_data++;
        if (f.number == REQUEST_DATA && !bytes) return malformed(e, "data");
    }
    if (r.bad) return malformed(e, "a field");
    if (q->n_data < 1 || q->n_data > ROWS_MAX) return err_set(e, ERR_INVALID, "data must have 1 to %d rows", ROWS_MAX);
    if (!loss_find(loss, &q->loss, &q->config))
        return err_set(e, ERR_UNSUPPORTED,
                       "loss_fn must be cross_entropy, importance_sampling, ppo, cispo, dro or gspo, not \"%s\"", loss);
    return 0;
}

/* Memory for rows whose lengths are known. */
static int take_memory(struct gradient_request *q, size_t positions, struct err *e)
{
    if (!reserve(&q->held, positions * ARRAYS * sizeof(float), "the rows", e)) return e->code;
    q->values = mem_array(positions * ARRAYS, sizeof *q->values);
    float *v = q->values;
    for (int i = 0; i < q->n_rows; v += ARRAYS * (size_t)q->row[i++].n) {
        size_t n = (size_t)q->row[i].n;
        q->row[i].id = (int32_t *)v;
        q->row[i].target = (int32_t *)(v + n);
        q->row[i].old = v + 2 * n;
        q->row[i].advantage = v + 3 * n;
        q->row[i].weight = v + 4 * n;
        q->row[i].logprob = v + 5 * n;
        q->row[i].sampled = v + 6 * n;
    }
    return 0;
}

/* Lengths, candidates, the configuration of the loss. */
static int read_sizes(struct gradient_request *q, struct protobuf_reader r, size_t *positions, struct err *e)
{
    struct protobuf_field f;
    size_t at = 0, tokens, *length = mem_array((size_t)q->n_data, sizeof *length);
    uint64_t k = 1;
    for (; !e->code && protobuf_next(&r, &f);) {
        if (f.number == REQUEST_CONFIG || f.number == REQUEST_CONFIG_V2)
            read_config(q, &f, f.number == REQUEST_CONFIG_V2, e);
        if (f.number != REQUEST_DATA || read_tokens(&f, (int)at, &tokens, NULL, e) ||
            read_candidates(q, &f, at, &k, &q->wide, e))
            continue;
        if (!at) q->candidates = (size_t)k;
        if (k != q->candidates)
            err_set(e, ERR_INVALID, "data[%zu].target_tokens must have %zu values a position, as data[0]", at,
                    q->candidates);
        length[at++] = tokens;
        *positions += tokens * q->candidates;
        if (*positions > INT32_MAX / ARRAYS) err_set(e, ERR_INVALID, "data has too many tokens");
    }
    if (!e->code && (size_t)q->n_data * q->candidates > INT32_MAX / ARRAYS)
        err_set(e, ERR_INVALID, "data has too many rows");
    if (!e->code) {
        q->n_rows = q->n_data * (int)q->candidates;
        q->row = mem_array((size_t)q->n_rows, sizeof *q->row);
        for (int i = 0; i < q->n_rows; i++) q->row[i].n = (int)length[(size_t)i / q->candidates];
    }
    free(length);
    return e->code;
}

int gradient_request_read(struct gradient_request *q, const void *body, size_t n, struct err *e)
{
    struct protobuf_reader r = {.p = body, .end = (const unsigned char *)body + n};
    struct protobuf_field f;
    size_t positions = 0, tokens;
    if (read_head(q, body, n, e) || read_sizes(q, r, &positions, e) || take_memory(q, positions, e)) return e->code;
    for (size_t at = 0; protobuf_next(&r, &f);) {
        if (f.number != REQUEST_DATA) continue;
        struct gradient_row *row = &q->row[at * q->candidates];
        if (read_tokens(&f, (int)at, &tokens, row->id, e) || read_inputs(q, &f, at, e)) return e->code;
        for (size_t k = 1; k < q->candidates; k++) memcpy(row[k].id, row->id, tokens * sizeof *row->id);
        at++;
    }
    return 0;
}

int gradient_request_fits(const struct gradient_request *q, int vocab, int longest, struct err *e)
{
    for (int i = 0; i < q->n_rows; i++) {
        const struct gradient_row *r = &q->row[i];
        size_t at = (size_t)i / q->candidates;
        if (r->n > longest)
            return err_set(e, ERR_INVALID, "data[%zu] has %d tokens: the model takes %d", at, r->n, longest);
        for (int k = 0; k < r->n; k++)
            if (r->id[k] < 0 || r->id[k] >= vocab || r->target[k] >= vocab)
                return err_set(e, ERR_INVALID, "data[%zu] has a token that is not below %d, the vocabulary's size", at,
                               vocab);
    }
    return 0;
}

/* What sampling said of the tokens that have an advantage: of the others, as a prompt's, callers write anything. */
static void note_sampled(struct gradient_row *r)
{
    for (int i = 0; i < r->n; i++) r->sampled[i] = r->advantage[i] != 0 ? r->old[i] : NAN;
}

int gradient_request_run(struct gradient_request *q, struct tuner *t, struct err *e)
{
    struct tuner_row *row = mem_array((size_t)q->n_rows, sizeof *row);
    bool twice = loss_needs_forward(q->loss) && !q->forward_only, back = !q->forward_only;
    for (int i = 0; i < q->n_rows; i++) {
        struct gradient_row *r = &q->row[i];
        bool ce = q->loss == LOSS_CROSS_ENTROPY;
        row[i] = (struct tuner_row){r->n, r->id, r->target, ce ? r->advantage : r->weight, r->logprob, NULL};
        if (ce) continue;
        note_sampled(r);
        row[i].sampled = r->sampled;
    }
    int rc = twice ? tuner_run(t, row, q->n_rows, false, e) : 0;
    for (int i = 0; i < q->n_rows && twice && !rc; i++) {
        const struct gradient_row *r = &q->row[i];
        loss_of(q->loss, &q->config, r->n, r->logprob, r->old, r->advantage, r->weight);
    }
    if (!rc) rc = tuner_run(t, row, q->n_rows, back, e);
    q->sum = 0;
    for (int i = 0; i < q->n_rows && !rc; i++) {
        const struct gradient_row *r = &q->row[i];
        q->sum += loss_of(q->loss, &q->config, r->n, r->logprob, r->old, r->advantage, NULL);
        if (q->loss != LOSS_CROSS_ENTROPY) loss_count(&q->stats, r->n, r->logprob, r->old, r->advantage);
    }
    free(row);
    return rc;
}

/* ---- the answer ----------------------------------------------------------------------------------------------------
 */

static void put_entry(struct buf *out, unsigned field, const char *key, const struct buf *value)
{
    struct buf b = {0};
    protobuf_put_bytes(&b, MAP_KEY, key, strlen(key));
    protobuf_put_bytes(&b, MAP_VALUE, value->data ? value->data : "", value->len);
    protobuf_put_bytes(out, field, b.data, b.len);
    buf_free(&b);
}

static void put_metric(struct buf *out, const char *key, double v)
{
    struct buf b = {0};
    protobuf_put_bytes(&b, MAP_KEY, key, strlen(key));
    protobuf_put_double(&b, MAP_VALUE, v);
    protobuf_put_bytes(out, OUTPUT_METRICS, b.data, b.len);
    buf_free(&b);
}

void gradient_put_output(struct buf *out, const struct gradient_request *q)
{
    static const char type[] = "TensorData";
    struct buf data = {0}, offsets = {0}, tensor = {0}, record = {0};
    int64_t at = 0;
    buf_append(&offsets, &at, sizeof at);
    for (const struct gradient_row *r = q->row; r < q->row + q->n_rows; r += q->candidates) {
        for (int i = 0; i < r->n; i++)
            for (size_t k = 0; k < q->candidates; k++) buf_append(&data, &r[k].logprob[i], sizeof(float));
        at = (int64_t)data.len;
        buf_append(&offsets, &at, sizeof at);
    }
    protobuf_put_bytes(&tensor, BATCHED_DATA, data.data, data.len);
    protobuf_put_bytes(&tensor, BATCHED_OFFSETS, offsets.data, offsets.len);
    protobuf_put_int(&tensor, BATCHED_TYPE, TYPE_F32);
    if (q->wide) protobuf_put_int(&tensor, BATCHED_TRAILING, (int64_t)q->candidates);
    protobuf_put_bytes(&record, RECORD_TAG, type, sizeof type - 1);
    put_entry(&record, RECORD_FIELDS, "logprobs", &tensor);
    protobuf_put_int(&record, RECORD_COUNT, q->n_data);
    protobuf_put_bytes(out, OUTPUT_TYPE, type, sizeof type - 1);
    protobuf_put_bytes(out, OUTPUT_ROWS, record.data, record.len);
    put_metric(out, "loss:sum", q->sum);
    if (q->stats.tokens > 0) {
        put_metric(out, "tokens:sum", q->stats.tokens);
        put_metric(out, "kl:sum", q->stats.kl);
        put_metric(out, "ratio:min", q->stats.low);
        put_metric(out, "ratio:max", q->stats.high);
    }
    buf_free(&data);
    buf_free(&offsets);
    buf_free(&tensor);
    buf_free(&record);
}

void gradient_request_free(struct gradient_request *q)
{
    free(q->row);
    free(q->values);
    reservation_free(&q->held);
    *q = (struct gradient_request){0};
}
