#include "engine/model/weights_packed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void weights_describe(const struct stack *m, enum dtype t, int group, char out[DESCRIPTION_MAX])
{
    snprintf(out, DESCRIPTION_MAX, "%s %dx%d group %d%s", dtype_name(t), m->rows, m->cols, group,
             m->gate_up ? " gate_up" : "");
}

int weights_packed_check(const struct tensor_source *f, const struct dev *d, const char *dir, bool *packed,
                         struct err *e)
{
    const char *format = tensor_source_metadata(f, "format"), *version = tensor_source_metadata(f, "version"),
               *layout = tensor_source_metadata(f, "layout");
    *packed = false;
    if (!format || strcmp(format, "tandem")) return 0; /* "pt" and the like */
    if (!version || (strcmp(version, "1") && strcmp(version, WEIGHTS_VERSION)))
        return err_set(e, ERR_UNSUPPORTED, "%s: weights of version \"%.20s\"; this tandem reads 1 and " WEIGHTS_VERSION,
                       dir, version ? version : "");
    if (!layout || strcmp(layout, WEIGHTS_CANONICAL) == 0) return 0;
    *packed = d->ops->layout && strcmp(layout, d->ops->layout) == 0;
    if (*packed) return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "%s is packed as %.40s; device %s takes %s: quantise the original model again, with --layout "
                   "canonical for every device",
                   dir, layout, d->ops->name, d->ops->layout ? d->ops->layout : "no packed weights");
}

/* Reads the type and group that the file states for a packed stack; everything else stated must match the stack. */
static int read_description(const struct tensor_source *f, const struct stack *m, struct weight_src *shape,
                            struct err *e)
{
    const char *says = tensor_source_metadata(f, m->name);
    const char *group = says ? strstr(says, " group ") : NULL;
    char want[DESCRIPTION_MAX];
    *shape = (struct weight_src){.rows = m->rows, .cols = m->cols, .gate_up = m->gate_up};
    size_t len = says ? strcspn(says, " ") : 0;
    for (enum dtype t = DT_NONE + 1; t < DT_COUNT; t++)
        if (len && strncmp(says, dtype_name(t), len) == 0 && !dtype_name(t)[len]) shape->t = t;
    long n = group ? strtol(group + strlen(" group "), NULL, 10) : 0;
    shape->group = n > 0 && n <= INT16_MAX ? (int)n : 0;
    weights_describe(m, shape->t, shape->group, want);
    if (!says || strcmp(says, want))
        return err_set(e, ERR_INVALID, "tensor %s: the file says it is \"%.60s\", config.json makes it \"%s\"", m->name,
                       says ? says : "", want);
    return 0;
}

int weights_packed_open(const struct tensor_source *f, struct dev *d, const struct stack *m, struct weight **out,
                        struct weight_src *shape, struct err *e)
{
    const struct tensor *t = tensor_source_find(f, m->name);
    if (!t) return err_set(e, ERR_NOT_FOUND, "tensor %s is missing", m->name);
    int rc = read_description(f, m, shape, e);
    if (rc) return rc;
    if (t->type != TENSOR_U8 || (uintptr_t)t->data % PACKED_ALIGN)
        return err_set(e, ERR_INVALID, "tensor %s: not U8, or not aligned to %d bytes", m->name, PACKED_ALIGN);
    rc = tensor_source_populate(f, t, e);
    if (rc) return rc;
    if (!(*out = d->ops->weight_open(d, shape, t->data, t->bytes)))
        return err_set(e, ERR_INVALID, "tensor %s: %zu bytes are not a packed %s matrix of %d x %d", m->name, t->bytes,
                       dtype_name(shape->t), m->rows, m->cols);
    return 0;
}
