/* Writes the result of a job: an adapter or a model directory. */
#include "engine/base/file.h"
#include "engine/train/train_state.h"

int train_result_array(const struct train *t)
{
    return t->o.avg ? 3 : 0;
}

int train_write_result(struct train *t, struct err *e)
{
    int last = train_result_array(t);
    const float *p = t->st.best_step >= 0 ? t->best : t->host[last], *on_device = train_device_array(t, last);
    if (!t->job.out) return 0;
    if (p == t->host[last] && p != on_device) {
        chunked_download(train_chunks(t), t->host[last], on_device, t->o.n);
        scheduler_gate_leave(t->gate);
    }
    if (train_device_failed(t, e)) return err_prefix(e, "the result could not be read");
    struct buf tmp = {0};
    buf_printf(&tmp, "%s.tmp", t->job.out);
    dir_remove(tmp.data);
    int rc = dir_make(tmp.data, e);
    if (!rc)
        rc = t->lora_method ? train_lora_write(&t->lora, p, t->job.base_name, tmp.data, e)
                            : train_full_write(&t->full, p, t->job.model_dir, tmp.data, e);
    if (!rc) rc = dir_sync(tmp.data, e);
    if (!rc) rc = dir_replace(tmp.data, t->job.out, e);
    if (rc) dir_remove(tmp.data);
    buf_free(&tmp);
    return rc ? err_prefix(e, "the result could not be written") : 0;
}
