/* Internals of the job runner: one running job (jobs.c, job_run.c, job_events.c). */
#ifndef TANDEM_SERVER_JOBS_JOB_RUN_H
#define TANDEM_SERVER_JOBS_JOB_RUN_H

#include "server/api/app.h"
#include "server/api/model_table.h"
#include "server/jobs/jobs.h"
#include "server/store/store.h"

#include <stdatomic.h>
#include <uv.h>

struct tfevents;

enum run_phase { RUN_WAITING, RUN_PREPARING, RUN_GENERATING, RUN_ASKING, RUN_TRAINING, RUN_PUBLISHING };

struct run {
    struct jobs *jobs;
    struct app *app;
    struct served_model *served; /* its base; NULL: not known yet */
    struct served_model *needs;  /* that it uses now, or waits for: its base, or its teacher */
    struct model_wait wait;      /* for that */
    bool rests;                  /* it could not be loaded: jobs.retry ends this */
    int loads;                   /* that came to nothing */
    bool uses;                   /* that is loaded, and held */
    int64_t seq;
    char id[48];
    struct train_spec spec;
    enum run_phase phase; /* loop thread */
    enum train_command wanted;
    struct job_texts *texts;      /* RUN_GENERATING */
    struct rollouts *rollouts;    /* method grpo, RUN_TRAINING */
    struct teacher_answers *asks; /* RUN_ASKING */
    bool asks_of_eval;            /* it is about the held-out rows */
    int vocab;                    /* of the base, when it was loaded last */
    bool resumed;                 /* it ran in an earlier process, or was paused */
    bool again;                   /* it was running when that process ended */
    bool progressed;              /* this process got further with its texts */

    /* pool thread, while preparing and publishing */
    uv_work_t work;
    struct err e;
    const char *error_code;
    bool published; /* was already published by an earlier process */
    bool has_texts; /* method draft: `data` is the texts, not their prompts */
    bool told;      /* what the teacher, another model, says of all rows is in `answers` */
    struct dataset *data, *eval;
    struct rewards *rewards; /* method grpo */
    struct dataset_report report, eval_report;
    struct train_job job;
    char *dir, *out, *from, *teacher, *answers, *target,
        *before;                   /* absolute; target: where the result is served from; before: published.h */
    char *start, *lines, *written; /* method draft: the model to train, the files of its texts (job_texts.h) */
    double acceptance;             /* of the best state: the trainer's thread, then the pool's; 0: not evaluated */
    int64_t best_step;             /* likewise; -1: none */
    bool withheld;                 /* the gate: what is served is not replaced */
    uint64_t last_progress;        /* clock_now() */
    atomic_bool stopping;          /* the daemon shuts down; read by the store and pool threads */
    atomic_bool interrupted;       /* a command arrived while preparing; read by the pool thread */
    int stride;                    /* store thread: one of `stride` step events is kept */
    int64_t stored_steps;          /* likewise */
    int64_t reached;               /* the last step that an earlier process stored */
    struct tfevents *board;        /* likewise; NULL before the first step, or when it cannot be written */
    bool board_failed;
};

struct jobs {
    struct app *app;
    struct run *current;
    bool ready, claiming, stopping, closed;
    struct job_watch watches; /* head of a ring */
    struct buf found;         /* by jobs_list_uploads: names in files/, each with its terminating 0 */
    uv_timer_t retry;
    struct store_work *retry_work; /* a final state that could not be stored; NULL: the running job rests, or none */
    void (*stopped)(void *);
    void *stopped_arg;
    struct jobs_view view;
};

/* Where the job says nothing of grad_slots: chooses as many as the ranks want, which it keeps when there are other ranks.
 * @return whether they are to be stored.  Loop thread: job_run.c */
bool run_choose_slots(struct run *);
/* jobs.c */
void run_prepare(uv_work_t *); /* pool thread: job_run.c */
void run_publish(uv_work_t *); /* pool thread: job_run.c */
/* Loop: generates the texts of a draft for the prompts in r->data. */
void run_generate(struct run *, void (*over)(void *run, const struct err *)); /* job_run.c */
/* Pool thread: whether the teacher that is another model has been asked about all rows. */
void run_open_answers(struct run *); /* job_teacher.c */
/* Loop: has that teacher loaded in the base's place; asks it, and has the base loaded again. */
void run_find_teacher(struct run *); /* job_teacher.c */
void run_ask(struct run *);          /* job_teacher.c */
/* Loop: lets the model go that it uses, and has another one loaded. */
void run_change_model(struct run *, struct served_model *); /* jobs.c */
/* Loop: ends as the command says that came. */
void run_stop_early(struct run *); /* jobs.c */
/* Pool thread: opens them in place of the prompts. */
void run_prepare_texts(uv_work_t *); /* job_run.c */
void run_free(struct run *);         /* job_run.c */
train_event_fn run_on_event;         /* trainer's thread: job_events.c */
/* Sends the job's final state to the store; the run ends once it is committed. */
void run_finish(struct run *, enum job_state, const char *code, const char *message); /* job_events.c */
void run_abandon(struct store_work *); /* of run_finish or a last event: frees it; job_events.c */
void run_log(struct run *, const char *level, const char *message); /* any thread: job_events.c */
void run_prepared(void *run, double fraction);                      /* pool thread: job_events.c */
/* Loop: texts were written, so this job did not cause the earlier daemons to end. */
void run_progressed(void *run); /* job_events.c */
/* Loop: an event of the trainer is stored. */
void jobs_on_event(struct run *, const struct train_event *); /* jobs.c */
/* Loop: its final state is stored.  text: "", or the error. */
void jobs_on_finished(struct run *, enum job_state, const char *code, const char *text); /* jobs.c */
void jobs_retry(struct jobs *, struct store_work *);                                     /* jobs.c */

#endif
