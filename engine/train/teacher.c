#include "engine/train/teacher.h"

#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/train/train_state.h"
#include "kernels/rng.h"

#include <stdlib.h>
#include <string.h>

static uint64_t hash_of(const struct adapter *a)
{
    uint64_t h = 1;
    for (int i = 0; i < a->layers * a->n_modules; i++) {
        const struct lora_pair *p = &a->pair[i];
        const struct lora_module *m = &a->module[i % a->n_modules];
        size_t each = (size_t)p->r * (size_t)lora_copies(m) * sizeof(float);
        if (!p->r) continue;
        h = rng_mix(h ^ crc32c(0, p->a, each * (size_t)m->k));
        h = rng_mix(h ^ crc32c(0, p->b, each * (size_t)m->n));
        h = rng_mix(h ^ crc32c(0, &p->scale, sizeof p->scale) ^ (uint64_t)i << 32);
    }
    return h;
}

static int read_adapter(struct train *t, struct teacher *x, struct err *e)
{
    struct train_params p = t->p;
    p.lora_dropout = 0;
    optim_init(&x->o, t->d, t->gate);
    if (train_lora_open(&x->lora, &t->model->c, &p, t->job.teacher, &x->o, e)) return err_prefix(e, "teacher");
    x->hash = hash_of(x->lora.adapter);
    return 0;
}

int train_teacher_plan(struct train *t, struct err *e)
{
    struct teacher *x = &t->teacher;
    int vocab = t->model->c.vocab;
    x->distill.k = t->p.teacher_top_k < vocab ? t->p.teacher_top_k : vocab;
    if (t->job.answers && x->distill.k > TEACHER_FILE_K_MAX)
        return err_set(e, ERR_INVALID, "teacher_top_k: %d, and another model tells its %d likeliest tokens at most",
                       x->distill.k, TEACHER_FILE_K_MAX);
    if (t->job.answers) return 0;
    if (!t->job.teacher && !t->job.from)
        return err_set(e, ERR_INVALID,
                       "the model itself teaches a new adapter nothing: name an adapter as `teacher`, or continue one "
                       "with `from`");
    if (t->job.teacher && read_adapter(t, x, e)) return e->code;
    x->tm = (struct train_model){.c = t->tm.c,
                                 .w = t->tm.w,
                                 .d = t->d,
                                 .gate = t->gate,
                                 .site = t->job.teacher ? x->lora.site : NULL,
                                 .half = t->tm.half,
                                 .recompute = true,
                                 .max_tokens = t->tm.max_tokens};
    return 0;
}

size_t train_teacher_bytes(const struct train *t, int tokens, size_t *largest)
{
    struct train_model m = t->teacher.tm;
    m.max_tokens = tokens;
    *largest = 0;
    size_t bytes = t->job.answers ? 0 : train_model_bytes(&m, largest) + t->teacher.o.n * sizeof(float);
    return bytes + (size_t)distill_bytes(t->teacher.distill.k, tokens, tokens);
}

/* What the model says of all rows. */
static int open_answers(struct train *t, const char *name, const struct dataset *set, struct teacher_file *f,
                        struct err *e)
{
    char *path = file_join(t->job.answers, name);
    int rc = teacher_file_open(f, path, &(struct teacher_file_of){.set = set, .k = t->teacher.distill.k}, e);
    if (!rc && f->known < f->rows)
        rc = err_set(e, ERR_IO, "%s has what the teacher says of %llu of %llu rows: start the job anew", path,
                     (unsigned long long)f->known, (unsigned long long)f->rows);
    t->teacher.hash = rng_mix(t->teacher.hash ^ f->hash);
    free(path);
    return rc;
}

static int open_other(struct train *t, struct err *e)
{
    struct teacher *x = &t->teacher;
    int rc = open_answers(t, "rows", t->job.data, &x->answers, e);
    if (!rc && t->job.eval) rc = open_answers(t, "held-out", t->job.eval, &x->eval_answers, e);
    if (!rc)
        rc = distill_open(&x->distill, t->d, x->distill.k, t->model->c.vocab, t->p.beta, t->tm.max_tokens,
                          t->tm.head_rows, e);
    t->tm.distill = &x->distill;
    return rc;
}

int train_teacher_open(struct train *t, struct err *e)
{
    struct teacher *x = &t->teacher;
    if (t->job.answers) return open_other(t, e);
    if (x->o.n) {
        x->o.p = x->o.g = t->d->ops->alloc(t->d, x->o.n * sizeof(float));
        if (!x->o.p) return err_set(e, ERR_NOMEM, "no memory for the teacher's adapter");
        train_lora_bind(&x->lora, &x->o);
    }
    x->tm.max_tokens = t->tm.max_tokens;
    int rc = train_model_open(&x->tm, t->p.max_length, e), k = x->distill.k;
    if (!rc)
        rc = distill_open(&x->distill, t->d, k, t->model->c.vocab, t->p.beta, x->tm.max_tokens, x->tm.head_rows, e);
    t->tm.distill = x->tm.distill = &x->distill;
    return rc;
}

static void look_up(struct train *t, const struct micro *b, bool eval)
{
    struct distill *s = &t->teacher.distill;
    const struct train_rows *rows = eval ? &t->eval : &t->rows;
    const struct teacher_file *f = eval && t->job.eval ? &t->teacher.eval_answers : &t->teacher.answers;
    for (int i = 0; i < b->n_seqs; i++) {
        const int32_t *id;
        const float *logprob;
        size_t from = (size_t)b->seq[i].target * (size_t)s->k,
               n = (size_t)(b->seq[i + 1].target - b->seq[i].target) * (size_t)s->k;
        teacher_file_row(f, rows->index[b->seq[i].row], &id, &logprob);
        memcpy(s->id + from, id, n * sizeof *id);
        memcpy(s->logprob + from, logprob, n * sizeof *logprob);
    }
}

void train_teacher_run(struct train *t, const struct micro *b, bool eval)
{
    if (t->job.answers) {
        look_up(t, b, eval);
        return;
    }
    t->teacher.distill.records = true;
    train_model_run(&t->teacher.tm, b, false, 1);
    t->teacher.distill.records = false;
}

void train_teacher_close(struct train *t)
{
    struct teacher *x = &t->teacher;
    if (x->tm.d) train_model_close(&x->tm);
    distill_close(&x->distill);
    teacher_file_close(&x->answers);
    teacher_file_close(&x->eval_answers);
    train_lora_close(&x->lora);
    if (x->o.p) t->d->ops->free(t->d, x->o.p);
    x->o.p = x->o.g = NULL;
    optim_free(&x->o);
}
