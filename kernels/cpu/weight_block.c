/* Packs DT_BLOCK weights from the canonical form (block.h). */
#include "kernels/cpu/block.h"

#include "kernels/block.h"

#include <stdlib.h>
#include <string.h>

/* ---- forms ----------------------------------------------------------------------------------------------------- */

/* Whether a float survives being stored as t. */
static bool exact_in(float x, enum dtype t)
{
    float back = t == DT_F16 ? f16_to_f32(f32_to_f16(x)) : bf16_to_f32(f32_to_bf16(x));
    return f32_bits(back) == f32_bits(x);
}

static bool all_exact(const struct weight_src *s, enum dtype t)
{
    const struct weight_block *b = s->block;
    size_t n = (size_t)s->rows * (size_t)block_supers(s);
    for (size_t i = 0; i < n; i++)
        if (!exact_in(b->super_scale[i], t) || (b->super_min && !exact_in(b->super_min[i], t))) return false;
    return true;
}

static void form_sizes(struct block_form *f, int cols)
{
    f->n_groups = (cols + f->group - 1) / f->group;
    if (f->per_super > f->n_groups) f->per_super = f->n_groups;
    f->head = block_sub_mins_at(f) + (f->sub_minimum ? (size_t)f->per_super * PAIR : 0);
    f->head = (f->head + 63) / 64 * 64;
    f->group_bytes = (size_t)(f->group / codes_step(f->codes)) * codes_bytes(f->codes);
    size_t supers = (size_t)(f->n_groups + f->per_super - 1) / (size_t)f->per_super;
    f->pair_bytes = supers * f->head + (size_t)f->n_groups * f->group_bytes;
}

static struct block_form form_of(const struct weight_src *s)
{
    const struct weight_block *b = s->block;
    struct block_form f = {.minimum = b->super_min,
                           .sub_scale = b->sub_scale,
                           .sub_minimum = b->sub_min,
                           .group = b->group,
                           .per_super = b->super / b->group};
    bool affine = true;
    for (int i = 1; i < 1 << b->bits; i++) affine = affine && b->value[i] == b->value[0] + i;
    f.zero = affine ? b->value[0] : -128;
    if (b->bits <= 4) {
        f.codes = affine ? CODES_4 : CODES_TABLE;
        for (int i = 0; !affine && i < 1 << b->bits; i++) f.table[i] = (uint8_t)(b->value[i] - f.zero);
    } else if (affine && b->bits <= 6) {
        f.codes = b->bits == 5 && b->group % 32 == 0 ? CODES_5 : CODES_6;
    } else {
        f.codes = CODES_8;
        f.zero = -128;
    }
    f.floats = all_exact(s, DT_F16) ? DT_F16 : all_exact(s, DT_BF16) ? DT_BF16 : DT_F32;
    form_sizes(&f, s->cols);
    return f;
}

static bool same_form(const struct block_form *a, const struct block_form *b)
{
    return a->codes == b->codes && a->floats == b->floats && a->minimum == b->minimum && a->sub_scale == b->sub_scale &&
           a->sub_minimum == b->sub_minimum && a->zero == b->zero && a->group == b->group &&
           a->per_super == b->per_super && memcmp(a->table, b->table, sizeof a->table) == 0;
}

/* A form in which outputs of both can be written. */
static struct block_form form_for_both(const struct block_form *a, const struct block_form *b, int cols)
{
    struct block_form f = {.codes = CODES_8,
                           .floats = DT_F32,
                           .minimum = a->minimum || b->minimum,
                           .zero = -128,
                           .group = a->group < b->group ? a->group : b->group,
                           .per_super = 1};
    form_sizes(&f, cols);
    return f;
}

/* ---- runs ------------------------------------------------------------------------------------------------------ */

/* Appends pairs up to pair1, or makes the last run longer. */
static void add_run(struct weight *w, const struct block_form *f, int pair1)
{
    struct block_run *last = w->n_runs ? w->runs + w->n_runs - 1 : NULL;
    int pair0 = last ? last->pair1 : 0;
    size_t bytes = (size_t)(pair1 - pair0) * f->pair_bytes;
    if (last && same_form(&last->form, f))
        last->pair1 = pair1;
    else
        w->runs[w->n_runs++] = (struct block_run){*f, pair0, pair1, w->data_bytes};
    w->data_bytes += bytes;
}

/* The form of a pair of stacked parts, whose forms are given: of one part or for all that it has rows of. */
static struct block_form pair_form(const struct weight *w, int pair, const struct weight_src *parts, int n_parts,
                                   const struct block_form *forms)
{
    struct block_form f = {.group = 0};
    int64_t first = (int64_t)pair * PAIR, end = first + PAIR, row = 0;
    for (int i = 0; i < n_parts; row += parts[i++].rows)
        if (row < end && row + parts[i].rows > first && !f.group)
            f = forms[i];
        else if (row < end && row + parts[i].rows > first && !same_form(&f, &forms[i]))
            f = form_for_both(&f, &forms[i], w->cols);
    return f;
}

bool block_plan(struct weight *w, const struct weight_src *parts, int n_parts)
{
    int group_most = 1;
    for (int i = 0; i < n_parts; i++) {
        if (block_error(parts + i) || !block_codes_ok(parts + i)) return false;
        int group = parts[i].block->group;
        group_most = group > group_most ? group : group_most;
        if (!w->group || group < w->group) w->group = group;
    }
    if (!w->group || !block_order_ok(parts, n_parts)) return false;
    const uint32_t *order = parts->block->order;
    size_t bytes = (size_t)w->cols * sizeof *order;
    if (order && !(w->order = malloc(bytes))) return false;
    if (order) memcpy(w->order, order, bytes);
    if ((double)w->pairs * PAIR * ((double)w->cols + 128) > 1e15) return false;
    w->k_pad = (w->cols + group_most - 1) / group_most * group_most;
    w->n_groups = w->k_pad / w->group;
    struct block_form *forms = calloc((size_t)n_parts, sizeof *forms);
    w->runs = calloc(2 * (size_t)n_parts, sizeof *w->runs);
    for (int i = 0; forms && w->runs && i < n_parts; i++) forms[i] = form_of(parts + i);
    if (forms && w->runs && w->gate_up && n_parts == 2) {
        if (!same_form(&forms[0], &forms[1])) forms[0] = form_for_both(&forms[0], &forms[1], w->cols);
        add_run(w, &forms[0], w->pairs);
    }
    for (int pair = 0; forms && w->runs && !w->gate_up && pair < w->pairs; pair++) {
        struct block_form f = pair_form(w, pair, parts, n_parts, forms);
        add_run(w, &f, pair + 1);
    }
    free(forms);
    if (!w->runs || !w->n_runs) return false;
    for (int i = 0; i < w->n_runs; i++)
        if (w->runs[i].form.pair_bytes > w->pair_bytes) w->pair_bytes = w->runs[i].form.pair_bytes;
    return true;
}

/* ---- codes ----------------------------------------------------------------------------------------------------- */

/* Sets the code of column k of a group whose codes begin at `to`; bits there are zero. */
static void code_put(enum block_codes codes, uint8_t *to, int lane, int k, unsigned u)
{
    int step = codes_step(codes), in = k % step, byte = lane * 4 + k % 4;
    to += (size_t)(k / step) * codes_bytes(codes);
    if (codes == CODES_8) {
        to[in / 4 * (4 * PAIR) + byte] = (uint8_t)u;
        return;
    }
    if (codes == CODES_5) to[byte] |= (uint8_t)(u >> 4 << in / 4);
    if (codes == CODES_6) to[byte] |= (uint8_t)(u >> 4 << in / 4 * 2);
    if (codes == CODES_5 || codes == CODES_6) to += 4 * PAIR;
    to[in / 8 * (4 * PAIR) + byte] |= (uint8_t)((u & 15) << (k & 4));
}

static unsigned code_get(enum block_codes codes, const uint8_t *from, int lane, int k)
{
    int step = codes_step(codes), in = k % step, byte = lane * 4 + k % 4;
    unsigned high = 0;
    from += (size_t)(k / step) * codes_bytes(codes);
    if (codes == CODES_8) return from[in / 4 * (4 * PAIR) + byte];
    if (codes == CODES_5) high = (unsigned)from[byte] >> in / 4 & 1;
    if (codes == CODES_6) high = (unsigned)from[byte] >> in / 4 * 2 & 3;
    if (codes == CODES_5 || codes == CODES_6) from += 4 * PAIR;
    return high << 4 | (from[in / 8 * (4 * PAIR) + byte] >> (k & 4) & 15);
}

/* ---- rows ------------------------------------------------------------------------------------------------------ */

static void float_put(uint8_t *to, enum dtype t, int lane, float x)
{
    if (t == DT_F32)
        ((float *)to)[lane] = x;
    else
        ((uint16_t *)to)[lane] = t == DT_F16 ? f32_to_f16(x) : f32_to_bf16(x);
}

static float float_get(const uint8_t *from, enum dtype t, int lane)
{
    if (t == DT_F32) return ((const float *)from)[lane];
    uint16_t h = ((const uint16_t *)from)[lane];
    return t == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

/* The scales of group g, which is the first of its super group or has sub scales. */
static void scales_put(const struct block_form *f, uint8_t *super, int lane, const struct weight_src *s, int row, int g)
{
    const struct weight_block *b = s->block;
    int k = g * f->group, in = g % f->per_super;
    size_t its = (size_t)row * (size_t)block_groups(s) + (size_t)(k / b->group);
    size_t supers = (size_t)row * (size_t)block_supers(s) + (size_t)(k / b->super);
    if (in == 0) {
        float scale = f->sub_scale ? b->super_scale[supers] : block_scale(s, row, k / b->group);
        float minimum = f->sub_minimum ? b->super_min[supers] : block_minimum(s, row, k / b->group);
        float_put(super, f->floats, lane, scale);
        if (f->minimum) float_put(super + PAIR * float_bytes(f->floats), f->floats, lane, minimum);
    }
    if (f->sub_scale) super[block_subs_at(f) + (size_t)(in * PAIR + lane)] = (uint8_t)b->sub_scale[its];
    if (f->sub_minimum) super[block_sub_mins_at(f) + (size_t)(in * PAIR + lane)] = b->sub_min[its];
}

void block_pack_row(const struct weight *w, int pair, int lane, const struct weight_src *s, int row)
{
    const struct block_run *run = block_run_of(w, pair);
    const struct block_form *f = &run->form;
    const uint8_t *code = (const uint8_t *)s->data + (size_t)row * (size_t)s->cols;
    uint8_t *to = (uint8_t *)block_pair_of(w, run, pair);
    for (int g = 0; g < f->n_groups; g++) {
        uint8_t *super = to + block_super_at(f, g / f->per_super);
        uint8_t *codes = super + f->head + (size_t)(g % f->per_super) * f->group_bytes;
        int k0 = g * f->group, n = s->cols - k0 < f->group ? s->cols - k0 : f->group;
        scales_put(f, super, lane, s, row, g);
        for (int k = 0; k < n; k++) {
            unsigned u = code[k0 + k];
            if (f->codes != CODES_TABLE) u = (unsigned)(s->block->value[u] - f->zero);
            code_put(f->codes, codes, lane, k, u);
        }
    }
}

void block_unpack_row(const struct weight *w, int pair, int lane, float *out)
{
    const struct block_run *run = block_run_of(w, pair);
    const struct block_form *f = &run->form;
    const uint8_t *from = block_pair_of(w, run, pair);
    for (int g = 0, k = 0; g < f->n_groups; g++) {
        const uint8_t *super = from + block_super_at(f, g / f->per_super);
        const uint8_t *codes = super + f->head + (size_t)(g % f->per_super) * f->group_bytes;
        size_t sub = (size_t)(g % f->per_super) * PAIR + (size_t)lane;
        float scale = float_get(super, f->floats, lane), minimum = 0;
        if (f->minimum) minimum = float_get(super + PAIR * float_bytes(f->floats), f->floats, lane);
        if (f->sub_scale) scale *= (float)(int8_t)super[block_subs_at(f) + sub];
        if (f->sub_minimum) minimum *= (float)super[block_sub_mins_at(f) + sub];
        for (int i = 0; i < f->group && k < w->cols; i++, k++) {
            unsigned u = code_get(f->codes, codes, lane, i);
            if (f->codes == CODES_TABLE) u = f->table[u];
            float product = (float)((int)u + f->zero) * scale;
            out[w->order ? w->order[k] : (uint32_t)k] = f->minimum ? product - minimum : product;
        }
    }
}
