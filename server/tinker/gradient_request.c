#include "server/tinker/gradient_request.h"

#include "engine/base/mem.h"
#include "server/tinker/protobuf.h"

#include <math.h>
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
enum { BATCHED_DATA = 1, BATCHED_OFFSETS, BATCHED_TYPE };
enum { MAP_KEY = 1, MAP_VALUE };
enum { ROWS_MAX = 65536, COLUMNS = 7 /* arrays of a row */ };

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
    const unsigned char *p;
    size_t n;
    uint64_t type;
    bool sparse, wide; /* wide: several values a position */
};

static bool read_shape(const struct protobuf_field *f, int *dims, struct tensor *t)
{
    uint64_t v = f->value;
    struct protobuf_reader r = reader_of(f);
    if (f->wire == PROTOBUF_VARINT) {
        t->wide |= (*dims)++ && v != 1;
        return true;
    }
    while (r.p < r.end) { /* packed */
        int shift = 0;
        for (v = 0; r.p < r.end && shift < 63; shift += 7) {
            v |= (uint64_t)(*r.p & 0x7f) << shift;
            if (*r.p++ < 0x80) break;
        }
        t->wide |= (*dims)++ && v != 1;
    }
    return f->wire == PROTOBUF_BYTES;
}

static int read_tensor(const struct protobuf_field *f, struct tensor *t, struct err *e)
{
    struct protobuf_reader r = reader_of(f);
    struct protobuf_field part;
    int dims = 0;
    *t = (struct tensor){0};
    while (protobuf_next(&r, &part)) {
        if (part.number == TENSOR_DENSE && part.wire == PROTOBUF_BYTES) t->p = part.p, t->n = part.n;
        if (part.number == TENSOR_SPARSE) t->sparse = true;
        if (part.number == TENSOR_TYPE) t->type = part.value;
        if (part.number == TENSOR_SHAPE && !read_shape(&part, &dims, t)) return malformed(e, "shape");
    }
    return r.bad || f->wire != PROTOBUF_BYTES ? malformed(e, "a tensor") : 0;
}

static double element(const struct tensor *t, size_t i)
{
    float f = 0;
    int64_t l = 0;
    int32_t w = 0;
    uint16_t b = 0;
    uint32_t bits;
    switch (t->type) {
    case TYPE_F32: memcpy(&f, t->p + i * sizeof f, sizeof f); return (double)f;
    case TYPE_I64: memcpy(&l, t->p + i * sizeof l, sizeof l); return (double)l;
    case TYPE_I32: memcpy(&w, t->p + i * sizeof w, sizeof w); return w;
    default:
        memcpy(&b, t->p + i * sizeof b, sizeof b);
        bits = (uint32_t)b << 16;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    }
}

/* Copies a tensor of one value a position to ids or floats. */
static int copy_tensor(const struct tensor *t, const char *name, int row, int n, int32_t *ids, float *floats,
                       struct err *e)
{
    static const size_t sizes[] = {0, 4, 8, 4, 2};
    if (t->sparse || t->wide)
        return err_set(e, ERR_UNSUPPORTED, "data[%d].%s: one value a position is supported here", row, name);
    if (t->type < TYPE_F32 || t->type > TYPE_BF16)
        return err_set(e, ERR_INVALID, "data[%d].%s has an unknown dtype", row, name);
    if (t->n != (size_t)n * sizes[t->type])
        return err_set(e, ERR_INVALID, "data[%d].%s must have %d values, as model_input", row, name, n);
    for (int i = 0; i < n; i++) {
        double v = element(t, (size_t)i);
        if (!isfinite(v) || (ids && (v < 0 || v > INT32_MAX || v != floor(v))))
            return err_set(e, ERR_INVALID, "data[%d].%s[%d] is no %s", row, name, i, ids ? "token" : "finite number");
        if (ids) ids[i] = (int32_t)v;
        if (floats) floats[i] = (float)v;
    }
    return 0;
}

static int read_inputs(struct gradient_request *q, const struct protobuf_field *datum, int row, struct err *e)
{
    struct gradient_row *r = &q->row[row];
    struct protobuf_reader in = reader_of(datum);
    struct protobuf_field part, key, value;
    struct tensor t;
    bool ce = q->loss == LOSS_CROSS_ENTROPY;
    for (int i = 0; i < r->n && ce; i++) r->advantage[i] = 1;
    while (protobuf_next(&in, &part)) {
        if (part.number != DATUM_TENSORS) continue;
        if (part.wire != PROTOBUF_BYTES || !read_entry(&part, &key, &value)) return malformed(e, "loss_fn_inputs");
        if (read_tensor(&value, &t, e)) return e->code;
        int rc = 0;
        if (is_text(&key, "target_tokens"))
            rc = copy_tensor(&t, "target_tokens", row, r->n, r->target, NULL, e), r->has_target = true;
        else if (ce && is_text(&key, "weights"))
            rc = copy_tensor(&t, "weights", row, r->n, NULL, r->advantage, e);
        else if (!ce && is_text(&key, "logprobs"))
            rc = copy_tensor(&t, "logprobs", row, r->n, NULL, r->old, e), r->has_old = true;
        else if (!ce && is_text(&key, "advantages"))
            rc = copy_tensor(&t, "advantages", row, r->n, NULL, r->advantage, e), r->has_advantage = true;
        if (rc) return rc;
    }
    const char *lacks = !r->has_target      ? "target_tokens"
                        : ce                ? NULL
                        : !r->has_old       ? "logprobs"
                        : !r->has_advantage ? "advantages"
                                            : NULL;
    return lacks ? err_set(e, ERR_INVALID, "data[%d].loss_fn_inputs has no %s", row, lacks) : 0;
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
        if (f.number == REQUEST_DATA) q->n_rows++;
        if (f.number == REQUEST_DATA && !bytes) return malformed(e, "data");
    }
    if (r.bad) return malformed(e, "a field");
    if (q->n_rows < 1 || q->n_rows > ROWS_MAX) return err_set(e, ERR_INVALID, "data must have 1 to %d rows", ROWS_MAX);
    if (!loss_find(loss, &q->loss, &q->config))
        return err_set(e, ERR_UNSUPPORTED,
                       "loss_fn must be cross_entropy, importance_sampling, ppo, cispo, dro or gspo, not \"%s\"", loss);
    return 0;
}

/* Memory for rows whose lengths are known. */
static int take_memory(struct gradient_request *q, size_t positions, struct err *e)
{
    if (!reserve(&q->held, positions * COLUMNS * sizeof(float), "the rows", e)) return e->code;
    q->values = mem_array(positions * COLUMNS, sizeof *q->values);
    for (int i = 0, at = 0; i < q->n_rows; at += COLUMNS * q->row[i++].n) {
        float *v = q->values + at;
        int n = q->row[i].n;
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

int gradient_request_read(struct gradient_request *q, const void *body, size_t n, struct err *e)
{
    struct protobuf_reader r = {.p = body, .end = (const unsigned char *)body + n}, again = r;
    struct protobuf_field f;
    size_t positions = 0, tokens;
    int row = 0;
    if (read_head(q, body, n, e)) return e->code;
    q->row = mem_array((size_t)q->n_rows, sizeof *q->row);
    while (protobuf_next(&r, &f)) {
        if ((f.number == REQUEST_CONFIG || f.number == REQUEST_CONFIG_V2) &&
            read_config(q, &f, f.number == REQUEST_CONFIG_V2, e))
            return e->code;
        if (f.number != REQUEST_DATA) continue;
        if (read_tokens(&f, row, &tokens, NULL, e)) return e->code;
        q->row[row++].n = (int)tokens;
        positions += tokens;
    }
    if (positions > INT32_MAX / COLUMNS) return err_set(e, ERR_INVALID, "data has too many tokens");
    if (take_memory(q, positions, e)) return e->code;
    for (row = 0; protobuf_next(&again, &f);)
        if (f.number == REQUEST_DATA) {
            if (read_tokens(&f, row, &tokens, q->row[row].id, e) || read_inputs(q, &f, row, e)) return e->code;
            row++;
        }
    return 0;
}

int gradient_request_fits(const struct gradient_request *q, int vocab, int longest, struct err *e)
{
    for (int i = 0; i < q->n_rows; i++) {
        const struct gradient_row *r = &q->row[i];
        if (r->n > longest)
            return err_set(e, ERR_INVALID, "data[%d] has %d tokens: the model takes %d", i, r->n, longest);
        for (int k = 0; k < r->n; k++)
            if (r->id[k] < 0 || r->id[k] >= vocab || r->target[k] >= vocab)
                return err_set(e, ERR_INVALID, "data[%d] has a token that is not below %d, the vocabulary's size", i,
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
    for (int i = 0; i < q->n_rows; i++) {
        buf_append(&data, q->row[i].logprob, (size_t)q->row[i].n * sizeof(float));
        at = (int64_t)data.len;
        buf_append(&offsets, &at, sizeof at);
    }
    protobuf_put_bytes(&tensor, BATCHED_DATA, data.data, data.len);
    protobuf_put_bytes(&tensor, BATCHED_OFFSETS, offsets.data, offsets.len);
    protobuf_put_int(&tensor, BATCHED_TYPE, TYPE_F32);
    protobuf_put_bytes(&record, RECORD_TAG, type, sizeof type - 1);
    put_entry(&record, RECORD_FIELDS, "logprobs", &tensor);
    protobuf_put_int(&record, RECORD_COUNT, q->n_rows);
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
