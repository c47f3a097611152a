#include "engine/model/open.h"

#include "engine/model/calibrate.h"
#include "engine/model/ranks_agree.h"
#include "engine/tokenizer/tokenizer.h"

#include <string.h>

static int parse_type(const char *name, const char *const *allowed, const enum dtype *types, int n, const char *what,
                      enum dtype *out, struct err *e)
{
    for (int i = 0; i < n; i++)
        if (strcmp(name, allowed[i]) == 0) {
            *out = types[i];
            return 0;
        }
    return err_set(e, ERR_INVALID, "%s \"%.40s\" is not one of those tandem knows", what, name);
}

static int parse_quantize(const char *name, enum dtype *out, struct err *e)
{
    static const char *const names[] = {"none", "int8", "int4", "int8-nearest", "int4-nearest", "nf4"};
    static const enum dtype types[] = {DT_NONE, DT_I8, DT_I4, DT_I8, DT_I4, DT_NF4};
    return parse_type(name ? name : "none", names, types, 6, "quantize", out, e);
}

int kv_type_parse(const char *name, enum dtype *out, struct err *e)
{
    static const char *const names[] = {"auto", "f16", "bf16", "f32", "int8"};
    static const enum dtype types[] = {DT_NONE, DT_F16, DT_BF16, DT_F32, DT_I8};
    return parse_type(name ? name : "auto", names, types, 5, "kv-cache", out, e);
}

static int choose_activations(const struct model_options *o, struct dev *d, struct err *e)
{
    const char *name = o->activations ? o->activations : "auto";
    bool is_auto = strcmp(name, "auto") == 0, bf16 = strcmp(name, "bf16") == 0;
    if (!is_auto && !bf16 && strcmp(name, "f32"))
        return err_set(e, ERR_INVALID, "activations \"%.40s\" is not auto, f32 or bf16", name);
    d->bf16_x = is_auto ? d->ops->bf16_units : bf16;
    return 0;
}

static int open_model(struct model *m, const struct model_options *o, const struct cpus *cpus, struct err *e)
{
    struct model_config mc;
    enum dtype quantize = DT_NONE;
    struct calibration calibration = {0};
    struct quantize_how how = {.nearest = o->quantize && strstr(o->quantize, "-nearest")};
    int threads = o->threads ? o->threads : cpus->n ? cpus->n : cpus_available();
    struct dev_config dc = {.name = o->device,
                            .threads = threads,
                            .memory_bytes = o->gpu_memory_bytes,
                            .memory_fraction = o->gpu_memory_fraction};
    int rc = parse_quantize(o->quantize, &quantize, e);
    how.type = quantize;
    if (!rc) rc = model_config_read(o->dir, &mc, e);
    if (!rc && !how.nearest && !o->no_calibration)
        rc = calibration_default(&calibration, o->dir, &mc, quantize, threads, e);
    how.calibration = &calibration;
    if (!rc) rc = model_open(m, o->dir, &dc, &how, o->verify_weights, o->comm, o->stages, o->taker, e);
    calibration_close(&calibration);
    return rc;
}

int model_open_as(struct model *m, const struct model_options *o, const struct cpus *cpus, struct err *e)
{
    *m = (struct model){0};
    int rc = open_model(m, o, cpus, e);
    if (!rc) rc = choose_activations(o, m->d, e);
    if (o->comm && !(rc = ranks_agree(o->comm, rc, e))) rc = shard_check_alike(m->shard, m->d, &m->w, e);
    if (!rc && o->comm) shard_open_device(m->shard, m->d);
    if (rc) model_drop(m);
    return rc;
}

int model_open_beside(struct model *m, const char *dir, const char *quantize, struct dev *d, struct err *e)
{
    enum dtype type = DT_NONE;
    struct calibration none = {0};
    *m = (struct model){0};
    if (parse_quantize(quantize, &type, e)) return e->code;
    struct quantize_how how = {.type = type, .nearest = quantize && strstr(quantize, "-nearest"), .calibration = &none};
    return model_open_on(m, dir, d, &how, false, e);
}

int model_pin(const struct model *m, const struct cpus *cpus, struct err *e)
{
    const struct dev_ops *ops = m->d->ops;
    if (!cpus->n || !ops->pin || ops->pin(m->d, cpus->v, cpus->n) == 0) return 0;
    return err_set(e, ERR_UNSUPPORTED, "the system does not let tandem bind its threads to all of the cores in --cpus");
}

int model_worth_loading(const char *dir, struct err *e)
{
    struct model_config c;
    int rc = model_config_read(dir, &c, e);
    struct tokenizer *t = rc ? NULL : tokenizer_open_dir(dir, e);
    if (!rc && !t) rc = e->code;
    tokenizer_close(t);
    return rc;
}
