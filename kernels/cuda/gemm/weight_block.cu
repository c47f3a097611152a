/* Packs DT_BLOCK weights (block.h). */
#include "kernels/block.h"
#include "kernels/cuda/gemm/block.h"

#include <cstdlib>
#include <cstring>

namespace GPU_NAMESPACE {
namespace {

enum { STAGING_BYTES = 4 << 20 };

size_t round16(size_t n)
{
    return (n + 15) / 16 * 16;
}

/* ---- forms ----------------------------------------------------------------------------------------------------- */

bool exact_in(float x, enum dtype t)
{
    float back = t == DT_F16 ? f16_to_f32(f32_to_f16(x)) : bf16_to_f32(f32_to_bf16(x));
    return f32_bits(back) == f32_bits(x);
}

bool all_exact(const struct weight_src *s, enum dtype t)
{
    const struct weight_block *b = s->block;
    size_t n = (size_t)s->rows * (size_t)block_supers(s);
    for (size_t i = 0; i < n; i++)
        if (!exact_in(b->super_scale[i], t) || (b->super_min && !exact_in(b->super_min[i], t))) return false;
    return true;
}

int log2_of(int n)
{
    return 31 - __builtin_clz((unsigned)n);
}

void choose_codes(block_form *f, const struct weight_block *b)
{
    bool affine = true;
    uint8_t table[16] = {};
    for (int i = 1; i < 1 << b->bits; i++) affine = affine && b->value[i] == b->value[0] + i;
    if (b->bits == 2)
        f->codes = BLOCK_2;
    else if (b->bits <= 4)
        f->codes = affine ? BLOCK_4 : BLOCK_TABLE;
    else
        f->codes = affine && b->bits <= 6 ? BLOCK_6 : BLOCK_8;
    f->zero = f->codes == BLOCK_4 || f->codes == BLOCK_6 ? b->value[0] : 0;
    for (int i = 0; (f->codes == BLOCK_2 || f->codes == BLOCK_TABLE) && i < 1 << b->bits; i++)
        table[i] = (uint8_t)b->value[i];
    for (int i = 0; i < 16; i++) f->table[i / 4] |= (unsigned)table[i] << (i % 4 * 8);
}

/* Bits of a column in the first plane. */
int first_bits(enum block_codes c)
{
    return c == BLOCK_2 ? 2 : c == BLOCK_8 ? 8 : 4;
}

/* All but the arrays. */
block_form form_of(const struct weight_src *s)
{
    const struct weight_block *b = s->block;
    block_form f = {};
    size_t cols = (size_t)block_padded(s->cols);
    int per_super = b->super / b->group;
    choose_codes(&f, b);
    f.group_shift = log2_of(b->group);
    f.n_groups = (int)(cols >> f.group_shift);
    f.minimum = b->super_min;
    bool one = block_supers(s) == 1, two_levels = one || (per_super & (per_super - 1)) == 0;
    if (two_levels) {
        f.super_shift = one ? log2_of(f.n_groups) + 1 : log2_of(per_super);
        f.sub_scale = b->sub_scale;
        f.sub_minimum = b->sub_min;
        f.floats = all_exact(s, DT_F16) ? DT_F16 : all_exact(s, DT_BF16) ? DT_BF16 : DT_F32;
    } else {
        f.floats = DT_F32;
    }
    f.n_supers = ((f.n_groups - 1) >> f.super_shift) + 1;
    f.row_bytes = cols * (size_t)first_bits(f.codes) / 8;
    if (f.codes == BLOCK_6) {
        f.second = f.row_bytes;
        f.row_bytes += cols / 4;
    }
    return f;
}

bool same_form(const block_form *a, const block_form *b)
{
    return a->codes == b->codes && a->floats == b->floats && a->minimum == b->minimum && a->sub_scale == b->sub_scale &&
           a->sub_minimum == b->sub_minimum && a->zero == b->zero && memcmp(a->table, b->table, sizeof a->table) == 0 &&
           a->group_shift == b->group_shift && a->super_shift == b->super_shift;
}

size_t scale_row(const block_form *f)
{
    return (size_t)f->n_supers * (f->floats == DT_F32 ? 4 : 2) * (f->minimum ? 2 : 1);
}

size_t sub_row(const block_form *f)
{
    return (size_t)f->n_groups * ((f->sub_scale ? 1 : 0) + (f->sub_minimum ? 1 : 0));
}

/* ---- a row ----------------------------------------------------------------------------------------------------- */

/* Eight 2-bit codes as BLOCK_2 stores them. */
void put_twos(uint8_t *to, const uint8_t *code, int shift)
{
    for (int j = 0; j < 4; j++)
        to[j / 2] = (uint8_t)(to[j / 2] | (code[j] >> shift | code[j + 4] >> shift << 2) << (j % 2 * 4));
}

/* Codes of a row; `to` is zeros, `code` padded to a multiple of eight. */
void put_codes(uint8_t *to, const block_form *f, const int8_t *value, const uint8_t *code, int cols)
{
    for (int c = 0; c < cols; c += 8, code += 8) {
        uint8_t *first = to + c * first_bits(f->codes) / 8;
        switch (f->codes) {
        case BLOCK_2: put_twos(first, code, 0); break;
        case BLOCK_4:
            for (int j = 0; j < 4; j++) first[j] = (uint8_t)(code[j] | code[j + 4] << 4);
            break;
        case BLOCK_TABLE:
            for (int j = 0; j < 4; j++) first[j] = (uint8_t)(code[2 * j] | code[2 * j + 1] << 4);
            break;
        case BLOCK_6:
            for (int j = 0; j < 4; j++) first[j] = (uint8_t)((code[j] & 15) | code[j + 4] << 4);
            put_twos(to + f->second + c / 4, code, 4);
            break;
        case BLOCK_8:
            for (int j = 0; j < 8; j++) first[j] = (uint8_t)value[code[j]];
        }
    }
}

void put_float(uint8_t *to, enum dtype t, size_t i, float x)
{
    if (t == DT_F32) {
        memcpy(to + i * 4, &x, 4);
    } else {
        uint16_t h = t == DT_F16 ? f32_to_f16(x) : f32_to_bf16(x);
        memcpy(to + i * 2, &h, 2);
    }
}

void put_scales(uint8_t *scale, uint8_t *sub, const block_form *f, const struct weight_src *s, int r)
{
    const struct weight_block *b = s->block;
    size_t groups = (size_t)block_groups(s), at = 0;
    for (int g = 0; g < block_groups(s); g += 1 << f->super_shift) {
        size_t super = (size_t)r * (size_t)block_supers(s) + (size_t)((int64_t)g * b->group / b->super);
        put_float(scale, f->floats, at++, f->sub_scale ? b->super_scale[super] : block_scale(s, r, g));
        if (f->minimum)
            put_float(scale, f->floats, at++, f->sub_minimum ? b->super_min[super] : block_minimum(s, r, g));
    }
    for (size_t i = (size_t)r * groups; i < ((size_t)r + 1) * groups; i++) {
        if (f->sub_scale) *sub++ = (uint8_t)b->sub_scale[i];
        if (f->sub_minimum) *sub++ = b->sub_min[i];
    }
}

/* ---- a weight -------------------------------------------------------------------------------------------------- */

/* Sends all rows of a part to its place, whose padding is zero already; f->data, scale and sub are those of its first
 * row. @return false when out of memory. */
bool send(struct dev *head, const struct weight_src *s, const block_form *f)
{
    size_t cols = (size_t)s->cols, padded = (cols + 7) / 8 * 8, scale = scale_row(f), sub = sub_row(f);
    size_t one = f->row_bytes + scale + sub, some = STAGING_BYTES / one ? STAGING_BYTES / one : 1;
    if (some > (size_t)s->rows) some = (size_t)s->rows;
    uint8_t *staging = static_cast<uint8_t *>(calloc(some, one)), *row = static_cast<uint8_t *>(calloc(padded, 1));
    bool ok = staging && row;
    for (size_t r = 0; ok && r < (size_t)s->rows; r += some) {
        size_t n = (size_t)s->rows - r < some ? (size_t)s->rows - r : some;
        uint8_t *scales = staging + n * f->row_bytes, *subs = scales + n * scale;
        if (r) memset(staging, 0, n * one);
        for (size_t i = 0; i < n; i++) {
            memcpy(row, static_cast<const uint8_t *>(s->data) + (r + i) * cols, cols);
            put_codes(staging + i * f->row_bytes, f, s->block->value, row, s->cols);
            put_scales(scales + i * scale, subs + i * sub, f, s, (int)(r + i));
        }
        gpu_upload(head, const_cast<uint8_t *>(f->data) + r * f->row_bytes, staging, n * f->row_bytes);
        gpu_upload(head, static_cast<uint8_t *>(const_cast<void *>(f->scale)) + r * scale, scales, n * scale);
        if (sub) gpu_upload(head, const_cast<uint8_t *>(f->sub) + r * sub, subs, n * sub);
    }
    free(staging), free(row);
    return ok;
}

/* Fills w's runs, but for their arrays. @return false when a part is not valid. */
bool plan(gpu_weight *w, const struct weight_src *parts, int n_parts)
{
    int64_t rows = 0;
    for (int i = 0; i < n_parts; i++) {
        const struct weight_src *s = parts + i;
        if (s->t != DT_BLOCK || s->cols != parts->cols || block_error(s) || !block_codes_ok(s)) return false;
        if (s->cols > INT32_MAX - BLOCK_PAD || rows + s->rows > INT32_MAX) return false;
        block_form f = form_of(s);
        block_run *last = w->n_runs ? w->runs + w->n_runs - 1 : nullptr;
        int first = (int)rows;
        rows += s->rows;
        if (last && same_form(&last->form, &f))
            last->end = (int)rows;
        else
            w->runs[w->n_runs++] = {first, (int)rows, f};
    }
    w->rows = (int)rows;
    return block_order_ok(parts, n_parts);
}

/* @return the bytes of everything in device memory; sets the runs' arrays and the order when the memory is there. */
size_t place(gpu_weight *w, bool order)
{
    size_t bytes = round16((size_t)w->n_runs * sizeof *w->runs);
    auto take = [&](size_t n) {
        uint8_t *at = w->data ? w->data + bytes : nullptr;
        bytes += round16(n);
        return at;
    };
    for (int i = 0; i < w->n_runs; i++) {
        block_form *f = &w->runs[i].form;
        size_t n = (size_t)(w->runs[i].end - w->runs[i].first);
        f->data = take(n * f->row_bytes);
        f->scale = take(n * scale_row(f));
        f->sub = take(n * sub_row(f));
    }
    if (order) w->order = reinterpret_cast<const uint32_t *>(take((size_t)w->cols * sizeof *w->order));
    return bytes;
}

} // namespace

block_form block_from(const block_form &f, size_t row)
{
    block_form from = f;
    from.data += row * f.row_bytes;
    from.scale = static_cast<const uint8_t *>(f.scale) + row * scale_row(&f);
    from.sub += row * sub_row(&f);
    return from;
}

struct weight *block_pack(struct dev *head, const struct weight_src *parts, int n_parts)
{
    if (n_parts < 1) return nullptr;
    gpu_weight *w = static_cast<gpu_weight *>(calloc(1, sizeof *w));
    block_run *runs = static_cast<block_run *>(calloc((size_t)n_parts, sizeof *runs));
    const uint32_t *order = nullptr;
    bool ok = w && runs;
    if (ok) {
        w->t = DT_BLOCK;
        w->cols = parts->cols;
        w->gate_up = parts->gate_up;
        w->runs = runs;
        ok = plan(w, parts, n_parts);
        if (ok) order = parts->block->order;
    }
    if (ok) {
        w->bytes = place(w, order);
        w->data = static_cast<uint8_t *>(gpu_alloc(head, w->bytes));
        ok = w->data != nullptr;
    }
    if (ok) {
        place(w, order);
        gpu_upload(head, w->data, runs, (size_t)w->n_runs * sizeof *runs);
        if (order) gpu_upload(head, const_cast<uint32_t *>(w->order), order, (size_t)w->cols * sizeof *order);
    }
    size_t row = 0;
    for (int i = 0, run = 0; ok && i < n_parts; row += (size_t)parts[i++].rows) {
        while (row >= (size_t)runs[run].end) run++;
        block_form f = block_from(runs[run].form, row - (size_t)runs[run].first);
        ok = send(head, parts + i, &f);
    }
    if (ok) return reinterpret_cast<struct weight *>(w);
    if (!w) free(runs);
    gpu_weight_free(head, reinterpret_cast<struct weight *>(w));
    return nullptr;
}

} // namespace GPU_NAMESPACE
