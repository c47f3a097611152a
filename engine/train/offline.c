#include "engine/train/offline.h"

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/model/adapter.h"
#include "engine/model/open.h"
#include "engine/template/chat_template.h"
#include "engine/train/base_layers.h"
#include "engine/train/ckpt.h"
#include "engine/train/ranks.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct train_offline {
    struct model model;
    struct tokenizer *tokenizer;
    struct chat_template *template;
    struct dataset *data, *eval;
    struct dataset_report report, eval_report;
    struct train *train;
    struct base_layers *base; /* NULL: the model has its layers */
};

static int open_data(struct train_offline *o, const struct train_offline_config *c, const struct dataset_sources *from,
                     struct dataset **out, struct dataset_report *report, struct err *e)
{
    char *cache = file_join(c->dir, "cache");
    struct dataset_options options = c->options;
    const struct model_config *mc = &o->model.c;
    options.max_length = c->p.max_length < mc->max_len ? c->p.max_length : mc->max_len;
    if (options.max_length < 2) options.max_length = 2; /* train_open reports the error */
    options.seed = c->p.seed;
    options.format = train_data_format(c->p.method, options.format);
    options.cache_dir = cache;
    options.threads = o->model.d->threads;
    int rc = dir_make(c->dir, e);
    if (!rc)
        rc = dataset_open_all(out, from->v, from->n, &options, o->tokenizer, o->template, mc->n_eos ? mc->eos[0] : -1,
                              report, e);
    free(cache);
    return rc;
}

static int drop_matrix(void *arg, struct dev *d, const struct weights_taken *t, struct weight **w, struct err *e)
{
    (void)arg, (void)t, (void)e;
    d->ops->weight_free(d, *w);
    *w = NULL;
    return 0;
}

/* Method full reads values from the files, and packs them itself.  Adapters at stage 3 want a part of each matrix. */
static int open_model(struct train_offline *o, const struct train_offline_config *c, const struct cpus *cpus,
                      struct err *e)
{
    struct model_options options = c->model;
    struct weights_taker taker = {.take = drop_matrix};
    bool full = c->p.method == TRAIN_FULL, part = !full && c->p.zero > 2 && train_ranks_count(c->comm) > 1;
    if (part) {
        o->base = base_layers_open(c->comm);
        taker = base_layers_taker(o->base);
    }
    if (full || part) options.taker = &taker;
    return model_open_as(&o->model, &options, cpus, e);
}

/* The model and the data. */
static int open_parts(struct train_offline *o, const struct train_offline_config *c, struct err *e)
{
    struct cpus cpus;
    int rc = cpus_parse(&cpus, c->cpus, e);
    if (!rc) rc = open_model(o, c, &cpus, e);
    if (!rc) rc = model_config_generates(&o->model.c, e);
    if (!rc && !(o->tokenizer = tokenizer_open_dir(c->model.dir, e))) rc = e->code;
    if (!rc) rc = model_pin(&o->model, &cpus, e);
    if (rc) return rc;
    const char *file = c->chat_template;
    e->code = 0;
    if (!file || !*file)
        o->template = chat_template_load(c->model.dir, e);
    else if (strcmp(file, "plain") != 0)
        o->template = chat_template_load_file(c->model.dir, file, e);
    if (!o->template && e->code) return e->code;
    rc = open_data(o, c, c->data, &o->data, &o->report, e);
    if (!rc && c->eval->n && (rc = open_data(o, c, c->eval, &o->eval, &o->eval_report, e)))
        err_prefix(e, "--eval-data");
    return rc;
}

static int open_all(struct train_offline *o, const struct train_offline_config *c, struct err *e)
{
    if (ranks_agree(c->comm, open_parts(o, c, e), e)) return e->code;
    struct train_params p = c->p;
    if (c->batch_rows) p.batch_tokens = train_batch_tokens(c->batch_rows, &o->report);
    char *base_name = adapter_base_name(c->model.dir);
    struct train_job job = {.p = p,
                            .data = o->data,
                            .eval = o->eval,
                            .from = c->from,
                            .teacher = c->teacher,
                            .base_name = base_name,
                            .model_dir = c->model.dir,
                            .dir = c->dir,
                            .comm = c->comm,
                            .base = o->base,
                            .out = c->out};
    o->train = train_open(&job, &o->model, NULL, e);
    free(base_name);
    return o->train ? 0 : e->code;
}

struct train_offline *train_offline_open(const struct train_offline_config *c, struct err *e)
{
    struct train_offline *o = mem_zalloc(sizeof *o);
    if (open_all(o, c, e)) {
        train_offline_close(o);
        return NULL;
    }
    return o;
}

struct train *train_offline_train(struct train_offline *o)
{
    return o->train;
}

const struct dataset_report *train_offline_report(const struct train_offline *o, bool eval)
{
    return !eval ? &o->report : o->eval ? &o->eval_report : NULL;
}

void train_offline_close(struct train_offline *o)
{
    if (!o) return;
    train_free(o->train);
    if (o->data) dataset_free(o->data);
    if (o->eval) dataset_free(o->eval);
    chat_template_free(o->template);
    base_layers_close(o->base);
    model_close(&o->model);
    tokenizer_close(o->tokenizer);
    free(o);
}

void train_offline_clear(const char *dir)
{
    char *checkpoints = file_join(dir, "checkpoints"), *cache = file_join(dir, "cache");
    char *reference = file_join(dir, "reference");
    ckpt_prune(checkpoints, 0, -1);
    ckpt_prune(reference, 0, -1);
    dir_remove(checkpoints);
    dir_remove(reference);
    dir_remove(cache);
    rmdir(dir);
    free(checkpoints);
    free(reference);
    free(cache);
}
