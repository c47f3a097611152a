#include "server/cli/ranks.h"

#include "engine/base/log.h"
#include "engine/train/ranks.h"
#include "engine/train/train.h"
#include "server/cli/cmd.h"

#include <signal.h>
#include <string.h>

/* Whether the ranks train jobs together, each with the whole model. */
static bool trains(const struct settings *s)
{
    return strcmp(s->ranks, "train") == 0;
}

/* What is there for one rank alone. */
static int check(const struct settings *s, int ranks, struct err *e)
{
    const char *option = *s->models || *s->models_dir ? "--models and --models-dir"
                         : s->model_idle > 0          ? "--model-idle"
                                                      : NULL;
    if (ranks < 2 || !option) return 0;
    return err_set(e, ERR_UNSUPPORTED, "%s: not with %s", option,
                   trains(s) ? "--ranks train" : "a model that is divided over ranks");
}

static int wanted(const struct settings *s)
{
    return s->pipeline_parallel * s->tensor_parallel;
}

/* Of the ranks that mpirun started. */
static int check_number(const struct settings *s, int ranks, struct err *e)
{
    if (trains(s) && wanted(s) > 1)
        return err_set(e, ERR_INVALID,
                       "--ranks train: each rank has the whole model: leave --tensor-parallel and "
                       "--pipeline-parallel out");
    if (trains(s) && (ranks > GRAD_SLOTS_MAX || ranks & (ranks - 1)))
        return err_set(e, ERR_INVALID,
                       "--ranks train: %d ranks cannot share the slots of a step: a power of two up to "
                       "%d can",
                       ranks, GRAD_SLOTS_MAX);
    if (settings_given(s, "tensor-parallel") && wanted(s) != ranks)
        return err_set(e, ERR_INVALID,
                       "--tensor-parallel %d and --pipeline-parallel %d are %d ranks, and mpirun started %d processes: "
                       "leave --tensor-parallel out",
                       s->tensor_parallel, s->pipeline_parallel, wanted(s), ranks);
    if (ranks % s->pipeline_parallel == 0) return 0;
    return err_set(e, ERR_INVALID, "--pipeline-parallel is %d, which does not divide the %d processes of mpirun",
                   s->pipeline_parallel, ranks);
}

int ranks_open(struct ranks *r, const struct settings *s, struct err *e)
{
    *r = (struct ranks){.set = s};
    if (train_ranks_open(s->comm, s->comm_timeout, &r->comm, e)) return e->code;
    if (!r->comm && trains(s)) return err_set(e, ERR_INVALID, "--ranks train: no mpirun started this process");
    if (!r->comm) return check(s, wanted(s), e);
    int ranks = train_ranks_count(r->comm);
    e->code = 0;
    if (check_number(s, ranks, e) == 0 && check(s, ranks, e) == 0) return 0;
    train_ranks_fail(r->comm, e->msg);
    return e->code;
}

bool ranks_follows(const struct ranks *r)
{
    return !train_ranks_first(r->comm);
}

int ranks_follow(struct ranks *r)
{
    struct err e = {0};
    struct engine_config c = cmd_engine_config(r->set);
    char device[FOLLOWER_DEVICE];
    bool train = trains(r->set);
    *(train ? &c.trains : &c.comm) = r->comm;
    c.stages = r->set->pipeline_parallel;
    c.device = follower_device(c.device, device);
    signal(SIGTERM, SIG_IGN); /* rank 0 ends what it has begun, and says when */
    signal(SIGINT, SIG_IGN);
    if (train ? engine_follow_jobs(&c, &e) : engine_follow(&c, &e)) {
        log_error("a rank of the %s has ended: %s", train ? "trainer" : "model", e.msg);
        train_ranks_fail(r->comm, e.msg); /* so that no rank waits for this one to close */
    }
    train_ranks_close(r->comm); /* after a failure it ends all processes */
    return e.code ? 1 : 0;
}

int ranks_begin(struct ranks *r, struct engine_config *c, struct err *e)
{
    if (r->begun && (r->comm || r->followers))
        return err_set(e, ERR_UNSUPPORTED, "a model of several ranks is loaded once; start again");
    r->begun = true;
    if (train_ranks_count(r->comm) > 1) *(trains(r->set) ? &c->trains : &c->comm) = r->comm;
    c->stages = r->set->pipeline_parallel;
    if (r->comm || wanted(r->set) < 2) return 0;
    r->followers = followers_begin(c, wanted(r->set), r->set->comm_timeout, e);
    return r->followers ? 0 : e->code;
}

void ranks_close(struct ranks *r)
{
    followers_end(r->followers, r->opened);
    if (!r->opened) train_ranks_fail(r->comm, "its engine could not be opened");
    train_ranks_close(r->comm);
    *r = (struct ranks){0};
}
