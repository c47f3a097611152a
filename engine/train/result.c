/* Writes the result of a job: an adapter or a model directory. */
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/train/train_state.h"

#include <stdlib.h>

int train_result_array(const struct train *t)
{
    return t->o.avg ? 3 : 0;
}

/* The values of an adapter that are divided over the ranks; the caller frees.  NULL and *e. */
static float *gather(struct train *t, struct scattered *from, struct err *e)
{
    float *all = mem_try_alloc(t->o.n * sizeof *all);
    if (!all)
        err_set(e, ERR_NOMEM, "no memory for a copy of %zu parameters", t->o.trained);
    else if (!train_scatter_values(from, 0, t->o.n, all, e))
        return all;
    free(all);
    return NULL;
}

/* p: this rank's values, on the host; of divided ones `from` has those of all. */
static int write_values(struct train *t, float *p, struct scattered *from, const char *dir, struct err *e)
{
    bool divided = t->o.s.divided;
    if (!t->lora_method && divided)
        return train_full_write(&t->full, train_scatter_values, from, t->job.model_dir, dir, e);
    if (!t->lora_method) return train_full_write(&t->full, train_full_host_values, p, t->job.model_dir, dir, e);
    float *all = divided ? gather(t, from, e) : p;
    int rc = all ? train_lora_write(&t->lora, all, t->job.base_name, dir, e) : e->code;
    if (divided) free(all);
    return rc;
}

/* Rank 0 alone. */
static int write_directory(struct train *t, float *p, struct scattered *from, struct err *e)
{
    struct buf tmp = {0};
    buf_printf(&tmp, "%s.tmp", t->job.out);
    dir_remove(tmp.data);
    int rc = dir_make(tmp.data, e);
    if (!rc) rc = write_values(t, p, from, tmp.data, e);
    if (!rc) rc = dir_sync(tmp.data, e);
    if (!rc) rc = dir_replace(tmp.data, t->job.out, e);
    if (rc) dir_remove(tmp.data);
    buf_free(&tmp);
    return rc ? err_prefix(e, "the result could not be written") : 0;
}

int train_write_result(struct train *t, struct err *e)
{
    int last = train_result_array(t), rc = 0;
    bool best = t->st.best_step >= 0, divided = t->o.s.divided, first = train_ranks_first(t->job.comm);
    float *p = best ? t->best : t->host[last], *on_device = train_device_array(t, last);
    struct scattered from = {t, best ? SCATTER_BEST : last};
    if (!t->job.out || (!first && !divided)) return 0;
    if (!best && p != on_device) {
        chunked_download(train_chunks(t), p, on_device, train_array_floats(t, last));
        scheduler_gate_leave(t->gate);
    }
    if (train_device_failed(t, e)) rc = err_prefix(e, "the result could not be read");
    if (divided) rc = ranks_agree(t->job.comm, rc, e);
    if (rc) return rc;
    if (first) rc = write_directory(t, p, &from, e);
    train_scatter_end(t);
    return rc;
}
