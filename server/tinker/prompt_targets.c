#include "server/tinker/prompt_targets.h"

#include "engine/base/mem.h"
#include "server/tinker/tensors.h"

#include <stdlib.h>
#include <string.h>

#define FIELD "target_prompt_logprobs"

/* The field's parts. */
struct tensor_json {
    const cJSON *data, *shape, *begin, *column; /* the last two: NULL when it is dense */
};

static bool whole(const cJSON *v, double min, double max)
{
    return cJSON_IsNumber(v) && v->valuedouble >= min && v->valuedouble <= max &&
           v->valuedouble == (double)(int64_t)v->valuedouble;
}

static int read_parts(struct tensor_json *t, const cJSON *v, struct err *e)
{
    const char *type = NULL;
    struct json_at at = {v, FIELD, e};
    if (!cJSON_IsObject(v)) return err_set(e, ERR_INVALID, "`" FIELD "` must be an object");
    json_get_string(&at, "dtype", &type);
    json_get_array(&at, "data", &t->data);
    json_get_array(&at, "shape", &t->shape);
    json_get_array(&at, "sparse_crow_indices", &t->begin);
    json_get_array(&at, "sparse_col_indices", &t->column);
    if (e->code) return e->code;
    if (!type || strcmp(type, "int64")) return err_set(e, ERR_INVALID, "`" FIELD ".dtype` must be int64");
    if (!t->data || !t->shape) return err_set(e, ERR_INVALID, "`" FIELD "` needs `data` and `shape`");
    if (!t->begin != !t->column)
        return err_set(e, ERR_INVALID, "`" FIELD "` needs both of `sparse_crow_indices` and `sparse_col_indices`");
    return 0;
}

static int read_shape(struct prompt_targets *p, const cJSON *shape, int n_prompt, struct err *e)
{
    const cJSON *rows = shape->child, *width = rows ? rows->next : NULL;
    if (cJSON_GetArraySize(shape) != 2 || !whole(rows, n_prompt - 1, n_prompt - 1) || !whole(width, 1, INT32_MAX))
        return err_set(e, ERR_INVALID,
                       "`" FIELD ".shape` must be [%d, K]: a row for each token of the prompt after the"
                       " first",
                       n_prompt - 1);
    p->rows = n_prompt - 1;
    p->width = (int64_t)width->valuedouble;
    return 0;
}

/* The next entry of row `row`, the at-th of all. */
static int add(struct prompt_targets *p, int row, int64_t at, int64_t column, const cJSON *v, struct err *e)
{
    if (!whole(v, -1, INT32_MAX)) return err_set(e, ERR_INVALID, "`" FIELD ".data` must be ids of tokens, or -1");
    int32_t id = (int32_t)v->valuedouble;
    p->column[at] = column;
    p->id[at] = id;
    if (id >= 0 && p->first == p->rows) p->first = row;
    if (id > p->largest) p->largest = id;
    return 0;
}

static int end_row(struct prompt_targets *p, int row, int64_t at, struct err *e)
{
    int64_t n = at - p->begin[row];
    p->begin[row + 1] = at;
    if (n > ENGINE_TOP_MAX)
        return err_set(e, ERR_INVALID, "`" FIELD "` may have %d ids in a row. Row %d has %lld", ENGINE_TOP_MAX, row,
                       (long long)n);
    if (n > p->widest) p->widest = (int)n;
    return 0;
}

static int read_dense(struct prompt_targets *p, const struct tensor_json *t, size_t n, struct err *e)
{
    const cJSON *v = t->data->child;
    int64_t at = 0;
    if (n / (size_t)p->width != (size_t)p->rows || n % (size_t)p->width)
        return err_set(e, ERR_INVALID, "`" FIELD ".data` has %zu values, which is not its `shape`", n);
    for (int row = 0; row < p->rows; row++) {
        for (int64_t column = 0; column < p->width; column++, v = v->next) {
            if (cJSON_IsNumber(v) && v->valuedouble == -1) continue;
            if (add(p, row, at++, column, v, e)) return e->code;
        }
        if (end_row(p, row, at, e)) return e->code;
    }
    return 0;
}

static int read_sparse(struct prompt_targets *p, const struct tensor_json *t, size_t n, struct err *e)
{
    const cJSON *begin = t->begin->child, *column = t->column->child, *v = t->data->child;
    int64_t at = 0;
    if (cJSON_GetArraySize(t->begin) != p->rows + 1 || (size_t)cJSON_GetArraySize(t->column) != n ||
        !whole(begin, 0, 0))
        return err_set(e, ERR_INVALID, "`" FIELD "`: its sparse indices do not fit its `shape` and `data`");
    for (int row = 0; row < p->rows; row++) {
        begin = begin->next;
        if (!whole(begin, (double)at, (double)n))
            return err_set(e, ERR_INVALID, "`" FIELD ".sparse_crow_indices[%d]` is wrong", row + 1);
        for (; at < (int64_t)begin->valuedouble; at++, column = column->next, v = v->next) {
            if (!whole(column, 0, (double)(p->width - 1)))
                return err_set(e, ERR_INVALID, "`" FIELD ".sparse_col_indices[%lld]` is wrong", (long long)at);
            if (add(p, row, at, (int64_t)column->valuedouble, v, e)) return e->code;
        }
        if (end_row(p, row, at, e)) return e->code;
    }
    if (at != (int64_t)n)
        return err_set(e, ERR_INVALID, "`" FIELD "`: the last of its `sparse_crow_indices` must be %zu", n);
    return 0;
}

int prompt_targets_read(struct prompt_targets *p, const cJSON *v, int n_prompt, struct err *e)
{
    struct tensor_json t = {0};
    if (read_parts(&t, v, e) || read_shape(p, t.shape, n_prompt, e)) return e->code;
    size_t n = (size_t)cJSON_GetArraySize(t.data), rows = (size_t)p->rows;
    if (!reserve(&p->held, (rows + 1) * sizeof *p->begin + n * (sizeof *p->column + sizeof *p->id), "the ids to score",
                 e))
        return e->code;
    p->begin = mem_array(rows + 1, sizeof *p->begin);
    p->column = mem_array(n, sizeof *p->column);
    p->id = mem_array(n, sizeof *p->id);
    p->sparse = t.begin != NULL;
    p->first = p->rows;
    p->largest = -1;
    if (p->sparse ? read_sparse(p, &t, n, e) : read_dense(p, &t, n, e)) return e->code;
    return p->largest < 0 ? err_set(e, ERR_INVALID, "`" FIELD "` names no id") : 0;
}

void prompt_targets_free(struct prompt_targets *p)
{
    free(p->begin);
    free(p->column);
    free(p->id);
    reservation_free(&p->held);
    *p = (struct prompt_targets){0};
}

int32_t *prompt_targets_scored(const struct prompt_targets *p, int from)
{
    size_t rows = (size_t)(p->rows - from), widest = (size_t)p->widest;
    int32_t *ids = mem_array(rows * widest, sizeof *ids);
    for (size_t i = 0; i < rows; i++) {
        const int64_t *begin = &p->begin[(size_t)from + i];
        for (size_t k = 0; k < widest; k++)
            ids[i * widest + k] = (int64_t)k < begin[1] - begin[0] ? p->id[begin[0] + (int64_t)k] : -1;
    }
    return ids;
}

/* Of entry `at`, in row `row`. */
static float logprob_of(const struct prompt_targets *p, const struct generation_result *r, int row, int64_t at)
{
    int missing = p->rows + 1 - (int)r->n_prompt; /* tokens of the prompt that the result does not have */
    if (p->id[at] < 0 || row + 1 < missing) return 0;
    const struct generation_token *t = &r->prompt[row + 1 - missing];
    return t->n_scored ? r->top[t->scored + (uint32_t)(at - p->begin[row])].logprob : 0;
}

void prompt_targets_put(struct buf *out, unsigned field, const struct prompt_targets *p,
                        const struct generation_result *r)
{
    size_t n = (size_t)p->begin[p->rows], rows = (size_t)p->rows;
    size_t cells = p->sparse ? n : rows * (size_t)p->width;
    float *v = mem_array(cells, sizeof *v);
    memset(v, 0, cells * sizeof *v);
    for (int row = 0; row < p->rows; row++)
        for (int64_t at = p->begin[row]; at < p->begin[row + 1]; at++)
            v[p->sparse ? at : row * p->width + p->column[at]] = logprob_of(p, r, row, at);
    int64_t shape[2] = {p->rows, p->width};
    if (p->sparse)
        tensor_put_sparse(out, field, TENSOR_F32, v, cells * sizeof *v, p->begin, rows + 1, p->column, n, shape);
    else
        tensor_put(out, field, TENSOR_F32, v, cells * sizeof *v, shape);
    free(v);
}

size_t prompt_targets_bytes(const struct prompt_targets *p)
{
    size_t n = p->rows ? (size_t)p->begin[p->rows] : 0, rows = (size_t)p->rows;
    if (!p->rows) return 0;
    return 128 + (p->sparse ? n * (sizeof(float) + sizeof(int64_t)) + (rows + 1) * sizeof(int64_t)
                            : rows * (size_t)p->width * sizeof(float));
}
