/* Reads DT_BLOCK weights in a kernel: codes, eight columns at a time, and scales. */
#ifndef TANDEM_KERNELS_CUDA_GEMM_BLOCK_CUH
#define TANDEM_KERNELS_CUDA_GEMM_BLOCK_CUH

#include "kernels/cuda/gemm/block.h"
#include "kernels/cuda/ptx.cuh"

namespace GPU_NAMESPACE {

/* ---- codes ----------------------------------------------------------------------------------------------------- */

/* The bytes `table` of the 2-bit codes of eight columns, in the low half of `codes`. */
__device__ inline void unpack_twos(unsigned (&w)[2], unsigned table, unsigned codes)
{
    w[0] = byte_select(table, 0, codes & 0x3333u);
    w[1] = byte_select(table, 0, codes >> 2 & 0x3333u);
}

/* Eight columns as int8, four in a word: of `first`, a word of the first plane (BLOCK_2: in its low half), and of
 * `second`, in the low half. Of BLOCK_4 and BLOCK_6 what the zero is to be added to. */
template <enum block_codes C>
__device__ inline void block_unpack(unsigned (&w)[2], const block_form &f, unsigned first, unsigned second)
{
    if constexpr (C == BLOCK_2) {
        unpack_twos(w, f.table[0], first);
    } else if constexpr (C == BLOCK_4) {
        w[0] = first & 0x0f0f0f0fu;
        w[1] = first >> 4 & 0x0f0f0f0fu;
    } else if constexpr (C == BLOCK_6) {
        unpack_twos(w, 0x30201000u, second);
        w[0] |= first & 0x0f0f0f0fu;
        w[1] |= first >> 4 & 0x0f0f0f0fu;
    } else {
        static_assert(C == BLOCK_TABLE);
        unsigned within = first & 0x77777777u;                    /* index within half of the table */
        unsigned half = (first >> 1 & 0x44444444u) | 0x32103210u; /* selector: byte i, or i + 4 of the upper half */
        UNROLL for (int i = 0; i < 2; i++, within >>= 16, half >>= 16) w[i] =
            byte_select(byte_select(f.table[0], f.table[1], within), byte_select(f.table[2], f.table[3], within), half);
    }
}

/* Likewise columns 8 at .. 8 at + 7 of a row, for kernels that take every kind of codes. */
__device__ inline uint2 block_unpack(const block_form &f, const uint8_t *row, int at)
{
    const unsigned *words = reinterpret_cast<const unsigned *>(row);
    if (f.codes == BLOCK_8) return uint2{words[2 * at], words[2 * at + 1]};
    const uint16_t *twos = reinterpret_cast<const uint16_t *>(row + f.second);
    unsigned w[2], first = f.codes == BLOCK_2 ? twos[at] : words[at];
    switch (f.codes) {
    case BLOCK_2: block_unpack<BLOCK_2>(w, f, first, 0); break;
    case BLOCK_TABLE: block_unpack<BLOCK_TABLE>(w, f, first, 0); break;
    case BLOCK_6: block_unpack<BLOCK_6>(w, f, first, twos[at]); break;
    default: block_unpack<BLOCK_4>(w, f, first, 0);
    }
    return uint2{w[0], w[1]};
}

/* Byte i of eight. */
__device__ inline int block_byte(const uint2 &w, int i)
{
    return (int8_t)((i < 4 ? w.x : w.y) >> (i % 4 * 8));
}

/* ---- scales ---------------------------------------------------------------------------------------------------- */

/* What is read of a group's scales; a load in flight until block_scales_of looks at it. */
struct block_raw {
    unsigned scale, minimum; /* bits; of 16-bit pairs both are in `scale` */
    unsigned sub;            /* a byte, or the sub minimum in the second */
};

struct block_scales {
    float scale, minimum; /* 0: none */
};

__device__ inline block_raw block_load(const block_form &f, size_t row, int group)
{
    block_raw raw = {};
    size_t super = row * (size_t)f.n_supers + (size_t)(group >> f.super_shift);
    size_t sub = row * (size_t)f.n_groups + (size_t)group;
    if (f.floats == DT_F32 && f.minimum) {
        uint2 both = static_cast<const uint2 *>(f.scale)[super];
        raw.scale = both.x;
        raw.minimum = both.y;
    } else if (f.floats == DT_F32 || f.minimum) {
        raw.scale = static_cast<const unsigned *>(f.scale)[super];
    } else {
        raw.scale = static_cast<const uint16_t *>(f.scale)[super];
    }
    if (f.sub_scale && f.sub_minimum)
        raw.sub = reinterpret_cast<const uint16_t *>(f.sub)[sub];
    else if (f.sub_scale || f.sub_minimum)
        raw.sub = f.sub[sub];
    return raw;
}

/* Rounded to f32 as struct weight_block says. */
__device__ inline block_scales block_scales_of(const block_form &f, const block_raw &raw)
{
    block_scales s;
    if (f.floats == DT_F32)
        s = {__uint_as_float(raw.scale), __uint_as_float(raw.minimum)};
    else if (f.floats == DT_BF16)
        s = {__uint_as_float(raw.scale << 16), __uint_as_float(raw.scale & 0xffff0000u)};
    else
        s = {half_to_float((uint16_t)raw.scale), half_to_float((uint16_t)(raw.scale >> 16))};
    if (f.sub_scale) s.scale = __fmul_rn(s.scale, (float)(int8_t)raw.sub);
    if (f.sub_minimum) s.minimum = __fmul_rn(s.minimum, (float)(f.sub_scale ? raw.sub >> 8 : raw.sub));
    return s;
}

/* ---- any output of a weight ------------------------------------------------------------------------------------- */

/* A row of a weight, by its runs in device memory. */
struct block_output {
    const block_form *form;
    size_t row; /* within the run */

    __device__ block_output(const block_run *runs, int output)
    {
        while (output >= runs->end) runs++;
        form = &runs->form;
        row = (size_t)(output - runs->first);
    }
    __device__ const uint8_t *codes() const
    {
        return form->data + row * form->row_bytes;
    }
    /* Of the group of column c. */
    __device__ block_scales scales(int c) const
    {
        return block_scales_of(*form, block_load(*form, row, c >> form->group_shift));
    }
    /* The value of byte i of eight columns that have the scales s. */
    __device__ float value(const uint2 &w, int i, const block_scales &s) const
    {
        return __fadd_rn(__fmul_rn((float)(block_byte(w, i) + form->zero), s.scale), -s.minimum);
    }
    __device__ float value(int c) const
    {
        return value(block_unpack(*form, codes(), c / 8), c % 8, scales(c));
    }
};

} // namespace GPU_NAMESPACE

#endif
