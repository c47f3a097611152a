/* Packing weights for the device. */
#include "kernels/cuda/gemm/block.h"

#include <cstdlib>
#include <cstring>

namespace GPU_NAMESPACE {
namespace {

size_t round16(size_t n)
{
    return (n + 15) / 16 * 16;
}

size_t src_row_bytes(const struct weight_src *s, int n_groups)
{
    return s->t == DT_I4 ? (size_t)n_groups * (size_t)s->group / 2 : dtype_bytes(s->t, (size_t)s->cols);
}

size_t scale_row_bytes(enum dtype t, int n_groups)
{
    return (size_t)n_groups * (t == DT_I4 ? sizeof(uint16_t) : sizeof(float));
}

/* Columns that share a scale of fp8: a power of two of the kernels' vectors, 16 columns, or the whole row. */
int f8_group(const struct weight_src *s)
{
    return s->group ? s->group & -s->group : s->cols;
}

/* The scales of one part as w has them: the part's own, or in `made`, for the caller to free, where its groups are
 * smaller. @return NULL when out of memory. */
const void *scales_of(const gpu_weight *w, const struct weight_src *s, float **made)
{
    *made = nullptr;
    if (s->t != DT_F8 || !s->group || s->group == w->group) return s->scale;
    int from = (s->cols - 1) / s->group + 1, each = s->group / w->group;
    float *to = *made = static_cast<float *>(malloc((size_t)s->rows * (size_t)w->n_groups * sizeof *to));
    for (int r = 0; to && r < s->rows; r++)
        for (int g = 0; g < w->n_groups; g++)
            to[(size_t)r * (size_t)w->n_groups + (size_t)g] =
                static_cast<const float *>(s->scale)[(size_t)r * (size_t)from + (size_t)(g / each)];
    return to;
}

/* Computes everything but the memory. @return false for an impossible shape. */
bool plan(gpu_weight *w, const struct weight_src *parts, int n_parts)
{
    const struct weight_src *s = parts;
    size_t rows = 0;
    if (n_parts < 1) return false;
    for (int i = 0; i < n_parts; i++) {
        if (parts[i].t != s->t || parts[i].cols != s->cols || parts[i].group != s->group || parts[i].rows < 1 ||
            parts[i].cols < 1 || (s->t == DT_NF4 && s->cols % 64) || (s->t == DT_F8 && (s->group < 0 || s->group % 16)))
            return false;
        rows += (size_t)parts[i].rows;
    }
    if (rows > INT32_MAX) return false;
    int group = s->t == DT_F8 ? f8_group(s) : s->group;
    int n_groups = s->t == DT_I4 || s->t == DT_F8 ? (s->cols - 1) / group + 1
                   : s->t == DT_NF4               ? s->cols / 64
                   : s->t == DT_I8                ? 1
                                                  : 0;
    *w = {};
    w->t = s->t;
    w->rows = (int)rows;
    w->cols = s->cols;
    w->group = group;
    w->n_groups = n_groups;
    w->gate_up = s->gate_up;
    w->row_bytes = round16(src_row_bytes(s, n_groups));
    size_t data;
    if (__builtin_mul_overflow(rows, w->row_bytes, &data)) return false;
    w->bytes = data + round16(rows * scale_row_bytes(s->t, n_groups));
    return true;
}

enum { STAGING_BYTES = 4 << 20 }; /* staging chunk in host memory */

/* Copies rows of `from` bytes to rows of `to` bytes on the device, whose padding is zero already. @return false when
 * out of memory. */
bool send_rows(struct dev *head, uint8_t *device, const uint8_t *rows, size_t n, size_t from, size_t to)
{
    if (from == to) {
        gpu_upload(head, device, rows, n * from);
        return true;
    }
    size_t some = STAGING_BYTES / to ? STAGING_BYTES / to : 1;
    uint8_t *staging = static_cast<uint8_t *>(calloc(some < n ? some : n, to));
    if (!staging) return false;
    for (size_t at = 0; at < n; at += some) {
        size_t count = n - at < some ? n - at : some;
        for (size_t r = 0; r < count; r++) memcpy(staging + r * to, rows + (at + r) * from, from);
        gpu_upload(head, device + at * to, staging, count * to);
    }
    free(staging);
    return true;
}

} // namespace

/* Rows without padding are sent as they are, others padded a chunk at a time. */
struct weight *gpu_weight_pack(struct dev *head, const struct weight_src *parts, int n_parts)
{
    gpu_weight shape;
    if (n_parts > 0 && parts->t == DT_BLOCK) return block_pack(head, parts, n_parts);
    if (!plan(&shape, parts, n_parts)) return nullptr;
    gpu_weight *w = static_cast<gpu_weight *>(malloc(sizeof *w));
    if (!w) return nullptr;
    *w = shape;
    w->data = static_cast<uint8_t *>(gpu_alloc(head, w->bytes));
    bool ok = w->data != nullptr;
    uint8_t *scale = ok ? w->data + (size_t)w->rows * w->row_bytes : nullptr;
    size_t row = 0, from = src_row_bytes(parts, w->n_groups), scales = scale_row_bytes(w->t, w->n_groups);
    for (int i = 0; ok && i < n_parts; i++) {
        size_t n = (size_t)parts[i].rows;
        ok = send_rows(head, w->data + row * w->row_bytes, static_cast<const uint8_t *>(parts[i].data), n, from,
                       w->row_bytes);
        float *made;
        const void *its = scales_of(w, parts + i, &made);
        ok = ok && (!scales || its);
        if (ok && scales) gpu_upload(head, scale + row * scales, its, n * scales);
        free(made);
        row += n;
    }
    if (!ok) {
        gpu_weight_free(head, reinterpret_cast<struct weight *>(w));
        return nullptr;
    }
    w->scale = w->n_groups ? scale : nullptr;
    return reinterpret_cast<struct weight *>(w);
}

void gpu_weight_free(struct dev *head, struct weight *p)
{
    gpu_weight *w = reinterpret_cast<gpu_weight *>(p);
    if (!w) return;
    gpu_free(head, w->data);
    free(w->runs);
    free(w);
}

size_t gpu_weight_bytes(const struct weight *w)
{
    return weight_of(w)->bytes;
}

} // namespace GPU_NAMESPACE
