/* Packs fp8 weights from the canonical form (f8.h). */
#include "kernels/cpu/f8.h"

#include <string.h>

void f8_pack_row(const struct weight *w, uint8_t *pair, int lane, const struct weight_src *src, int row)
{
    const uint8_t *code = (const uint8_t *)src->data + (size_t)row * (size_t)src->cols;
    const float *scale = (const float *)src->scale + (size_t)row * (size_t)w->n_groups;
    for (int g = 0; g < w->n_groups; g++) {
        uint8_t *group = pair + f8_group_at(w, g);
        int n = f8_columns(w, g);
        memcpy(group + lane * 4, scale + g, sizeof *scale);
        for (int k = 0; k < n; k++) group[f8_code_at(lane, k)] = code[k];
        code += n;
    }
}

void f8_unpack_row(const struct weight *w, const uint8_t *pair, int lane, float *out)
{
    for (int g = 0; g < w->n_groups; g++) {
        const uint8_t *group = pair + f8_group_at(w, g);
        int n = f8_columns(w, g);
        float scale;
        memcpy(&scale, group + lane * 4, sizeof scale);
        for (int k = 0; k < n; k++) *out++ = e4m3_to_f32(group[f8_code_at(lane, k)]) * scale;
    }
}
