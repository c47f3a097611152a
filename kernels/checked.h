/* Helpers of the checking device.
 *
 * Each check is `need(condition, "what")`; a check function returns false at the first that fails. */
#ifndef TANDEM_KERNELS_CHECKED_H
#define TANDEM_KERNELS_CHECKED_H

#include "kernels/dev.h"

/* a weight or a KV cache made through the checking device */
struct made {
    struct made *next;
    const void *object;
    int rows, cols; /* of a weight */
    enum dtype t;
    bool gate_up, borrowed, ordered; /* ordered: with an order of columns */
    struct kv_shape kv;
};

#define need(ok, ...)                                                                                                  \
    do {                                                                                                               \
        if (!(ok)) return dev_fail(d, op, __VA_ARGS__), false;                                                         \
    } while (0)

const struct made *find_made(struct dev *, const void *object); /* NULL: not made through it */

/* f32, rows x cols, not NULL unless empty, aligned */
bool check_mat(struct dev *, const char *op, const char *name, const struct mat *, int rows, int cols);
/* @return n numbers of device memory that the host may read: the array itself, or a copy that is valid until the end
 * of the op. NULL when out of memory or the device has failed. */
const int32_t *check_look(struct dev *, const char *op, const int32_t *, size_t n);
/* n indices in 0 .. limit - 1 */
bool check_index(struct dev *, const char *op, const char *name, const int32_t *index, int n, int64_t limit);
bool check_floats(struct dev *, const char *op, const char *name, const float *); /* not NULL, aligned */
/* Checks that y's columns are all outputs of w, or a slice from `first` on whose ends are multiples of `unit` or the
 * last output. */
bool check_slice(struct dev *, const char *op, const struct made *w, int first, const struct mat *y, const char *name,
                 int unit);
bool check_act(struct dev *, const char *op, enum act_kind, bool gated);
bool check_cap(struct dev *, const char *op, float scale, float cap); /* both finite and not negative */
bool mats_overlap(const struct mat *, const struct mat *);            /* whether two f32 matrices share an element */
bool check_apart(struct dev *, const char *op, const struct mat *, const struct mat *);

bool check_route(struct dev *, const struct route_args *);
bool check_experts_linear(struct dev *, const struct experts_linear_args *);
bool check_experts_gate_up(struct dev *, const struct experts_gate_up_args *);
bool check_combine(struct dev *, const struct combine_args *);
#define X(op) bool check_##op(struct dev *, const struct op##_args *);
TRAIN_OPS(X)
#undef X

#endif
