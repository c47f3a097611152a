/* All kernels of an instruction-set level; included by isa_*.c after its vec_*.h. The order of the includes matters:
 * each uses the ones before it. */
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/math_impl.h"

#include "kernels/cpu/rows_impl.h"

#include "kernels/cpu/linear_impl.h"

#include "kernels/cpu/linear_nf4_impl.h"

#include "kernels/cpu/linear_block_impl.h"

#include "kernels/cpu/linear_f8_impl.h"

#include "kernels/cpu/train_gemm_impl.h"

#include "kernels/cpu/attn_impl.h"

#include "kernels/cpu/sample_impl.h"

#include "kernels/cpu/train_rows_impl.h"

#include "kernels/cpu/adamw_8bit_impl.h"

#include "kernels/cpu/attn_train_impl.h"

_Static_assert((int)ATTN_ROWS <= (int)ATTN_ROWS_MAX, "parts on the driver's stack");

const struct isa VEC_SUFFIX(isa) = {.name = VEC_NAME,
                                    .attn_rows = ATTN_ROWS,
                                    .kv_type = VEC_BF16 ? DT_BF16 : DT_F16,
                                    .block_rows = {[DT_F32] = BLOCK_ROWS_F,
                                                   [DT_BF16] = BLOCK_ROWS_F,
                                                   [DT_F16] = BLOCK_ROWS_F,
                                                   [DT_I8] = BLOCK_ROWS_I8,
                                                   [DT_I4] = BLOCK_ROWS_I4,
                                                   [DT_NF4] = BLOCK_ROWS_NF4,
                                                   [DT_BLOCK] = BLOCK_ROWS_CODES,
                                                   [DT_F8] = BLOCK_ROWS_F},
                                    .linear = {[DT_F32] = linear_f32,
                                               [DT_BF16] = linear_bf16,
                                               [DT_F16] = linear_f16,
                                               [DT_I8] = linear_i8,
                                               [DT_I4] = linear_i4,
                                               [DT_NF4] = linear_nf4},
                                    .linear_block = linear_block,
                                    .linear_f8 = linear_f8,
                                    .halve = row_halve,
                                    .halve_block = row_halve_block,
                                    .linear_bf16_x = linear_bf16_x,
                                    .bf16_units = VEC_BF16,
                                    .quantise = row_quantise,
                                    .quantise_block = row_quantise_block,
                                    .attn_split = attn_split,
                                    .attn_merge = attn_merge,
                                    .attn_finish = attn_finish,
                                    .norm = row_norm,
                                    .add = row_add,
                                    .act = row_act,
                                    .act_mul = row_act_mul,
                                    .embed = row_embed,
                                    .softcap = row_softcap,
                                    .rope = row_rope,
                                    .row_max = row_max,
                                    .exp_scaled = row_exp_scaled,
                                    .exp_sum = row_exp_sum,
                                    .find_ge = row_find_ge,
                                    .gemm = {.dot_rows = DOT_R,
                                             .transpose = tp_transpose,
                                             .dot = tp_dot,
                                             .panel_of = tp_panel_of,
                                             .panel_back = tp_panel_back,
                                             .gather = tp_gather,
                                             .halve_rows = tp_halve_rows,
                                             .halve_columns = tp_halve_columns,
                                             .col_sum = tp_col_sum,
                                             .pack = tp_pack},
                                    .rope_back = row_rope_back,
                                    .norm_back = row_norm_back,
                                    .act_back = row_act_back,
                                    .act_mul_back = row_act_mul_back,
                                    .exp_in_place = row_exp_in_place,
                                    .scale = row_scale,
                                    .loss_capped = row_loss_capped,
                                    .dot = row_dot,
                                    .dropout = row_dropout,
                                    .square_sum = row_square_sum,
                                    .adamw = row_adamw,
                                    .adamw_8bit = row_adamw_8bit,
                                    .axpby = row_axpby,
                                    .attn_tile = attn_tile,
                                    .attn_tile_back = attn_tile_back};
