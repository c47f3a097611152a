/* Saves and loads a trainer's state as checkpoints (format: ckpt.h). */
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/train/ckpt.h"
#include "engine/train/train_state.h"

#include <stdlib.h>

enum { PARTS_MAX = ARRAYS + 2 };

struct op_chunks train_chunks(const struct train *t)
{
    return (struct op_chunks){t->d, t->gate, NULL};
}

float *train_device_array(const struct train *t, int i)
{
    return i == 0 ? t->o.p : i == 1 ? t->o.m : i == 2 ? t->o.v : t->o.avg;
}

size_t train_array_floats(const struct train *t, int i)
{
    return i == 1 || i == 2 ? optim_moment_floats(&t->o) : t->o.n;
}

bool train_array_on_host(const struct train *t, int i)
{
    return (i == 1 || i == 2) && optim_moments_on_host(&t->o);
}

static int parts_of(struct train *t, struct ckpt_part part[PARTS_MAX])
{
    static const char *const names[ARRAYS] = {"parameters", "moment1", "moment2", "average"};
    int n = 0;
    part[n++] = (struct ckpt_part){"state", &t->st, sizeof t->st};
    for (int i = 0; i < ARRAYS; i++)
        if (t->host[i]) part[n++] = (struct ckpt_part){names[i], t->host[i], train_array_floats(t, i) * sizeof(float)};
    if (t->best) part[n++] = (struct ckpt_part){"best", t->best, t->o.n * sizeof(float)};
    return n;
}

int train_save(struct train *t, struct err *e)
{
    struct ckpt_part part[PARTS_MAX];
    int n = parts_of(t, part);
    for (int i = 0; i < ARRAYS; i++)
        if (t->host[i] != train_device_array(t, i))
            chunked_download(train_chunks(t), t->host[i], train_device_array(t, i), train_array_floats(t, i));
    if (train_device_failed(t, e)) return e->code;
    scheduler_gate_leave(t->gate);
    train_emit(t, TRAIN_SAVING, NULL);
    int rc = ckpt_write(t->ckpt_dir, t->hash, t->st.step, t->st.good, part, n, e);
    if (rc) return err_prefix(e, "the checkpoint could not be written");
    t->saved = t->st.step;
    t->saved_at = clock_now();
    char name[CKPT_NAME_MAX];
    ckpt_name(t->st.step, name);
    char *path = file_join(t->ckpt_dir, name);
    train_emit(t, TRAIN_CHECKPOINT, path);
    free(path);
    return 0;
}

int train_load(struct train *t, int64_t most, struct err *e)
{
    struct ckpt_part part[PARTS_MAX];
    if (optim_moments_on_host(&t->o)) { /* which are written here, not by the device */
        scheduler_gate_pass(t->gate);
        t->d->ops->finish(t->d);
        scheduler_gate_leave(t->gate); /* while the file is read */
    }
    int n = parts_of(t, part), rc = ckpt_read(t->ckpt_dir, t->hash, most, part, n, &t->saved, &t->warnings, e);
    if (rc || t->saved < 0) return rc;
    for (int i = 0; i < ARRAYS; i++)
        if (t->host[i] != train_device_array(t, i))
            chunked_upload(train_chunks(t), train_device_array(t, i), t->host[i], train_array_floats(t, i));
    if (!t->lora_method) train_full_use(&t->full, &t->o, t->o.p);
    return 0;
}
