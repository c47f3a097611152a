#include "engine/train/board.h"

#include "engine/base/buf.h"
#include "engine/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GROUP_POINTS = 1000 }; /* about so many of each group in a job */

bool train_board_wants_groups(const struct train_event *ev)
{
    int64_t every = ev->steps / GROUP_POINTS + 1;
    return ev->kind == TRAIN_STEP && ev->n_group_norms && (ev->step % every == 0 || ev->step == ev->steps);
}

enum { TAG = TRAIN_GROUP_NAME_MAX + 16 };

/* @return the number of scalars appended to v; tag: their names. */
static size_t put_rewards(struct tfevents_scalar *v, char (*tag)[TAG], const char *where, const struct train_event *ev)
{
    struct train_reward r[TRAIN_REWARDS];
    int n = train_rewards_list(&ev->rewards, r);
    for (int i = 0; i < n; i++) {
        snprintf(tag[i], TAG, "%s/%s", where, r[i].name);
        v[i] = (struct tfevents_scalar){tag[i], r[i].v};
    }
    return (size_t)n;
}

enum { OF_RANKS = 4 };

/* So far, of the first rank. */
static size_t put_ranks(struct tfevents_scalar v[OF_RANKS], const struct train_event *ev)
{
    double seconds = 0, calls = 0;
    for (int i = 0; i < TRAIN_COLLECTIVES; i++) {
        seconds += ev->usage.collective[i].seconds;
        calls += (double)ev->usage.collective[i].calls;
    }
    double bytes = (double)ev->usage.sent_bytes;
    v[0] = (struct tfevents_scalar){"ranks/sent_bytes", bytes};
    v[1] = (struct tfevents_scalar){"ranks/calls", calls};
    v[2] = (struct tfevents_scalar){"ranks/seconds", seconds};
    v[3] = (struct tfevents_scalar){"ranks/bytes_per_second", seconds > 0 ? bytes / seconds : 0};
    return OF_RANKS;
}

static int add_step(struct tfevents *f, const struct train_event *ev, struct err *e)
{
    const struct tfevents_scalar one[] = {
        {"train/loss", ev->loss},
        {"train/accuracy", ev->accuracy},
        {"train/grad_norm", ev->grad_norm},
        {"train/learning_rate", ev->learning_rate},
        {"train/tokens_per_second", ev->tokens_per_s},
        {"train/rows_per_second", ev->rows_per_s},
        {"train/macs_per_second", ev->macs_per_s},
        {"time/data", ev->part[TRAIN_DATA]},
        {"time/forward", ev->part[TRAIN_FORWARD]},
        {"time/backward", ev->part[TRAIN_BACKWARD]},
        {"time/optimizer", ev->part[TRAIN_OPTIMIZER]},
        {"time/wait", ev->part[TRAIN_WAIT]},
        {"time/ranks", ev->part[TRAIN_RANKS]},
        {"time/other", ev->part[TRAIN_OTHER]},
        {"utilization/host", ev->host_use},
        {"utilization/device", ev->device_use},
        {"memory/host_peak_bytes", (double)ev->usage.host_peak},
        {"memory/device_peak_bytes", (double)ev->usage.device_peak}, /* last: 0 without such a device */
    };
    size_t n = sizeof one / sizeof *one, groups = train_board_wants_groups(ev) ? ev->n_group_norms : 0;
    struct tfevents_scalar *v = mem_array(n + TRAIN_REWARDS + OF_RANKS + groups, sizeof *v);
    char(*tag)[TAG] = mem_array(groups + TRAIN_REWARDS, sizeof *tag);
    memcpy(v, one, sizeof one);
    if (!ev->usage.device_peak) n--;
    n += put_rewards(v + n, tag + groups, "train", ev);
    if (ev->usage.ranks > 1) n += put_ranks(v + n, ev);
    for (size_t i = 0; i < groups; i++) {
        snprintf(tag[i], sizeof tag[i], "grad_norm/%s", ev->group_norm[i].name);
        v[n++] = (struct tfevents_scalar){tag[i], ev->group_norm[i].norm};
    }
    int rc = tfevents_add(f, ev->step, v, n, e);
    free(tag);
    free(v);
    return rc;
}

int train_board_add(struct tfevents *f, const struct train_event *ev, struct err *e)
{
    struct tfevents_scalar eval[2 + TRAIN_REWARDS] = {{"eval/loss", ev->eval_loss},
                                                      {"eval/accuracy", ev->eval_accuracy}};
    char tag[TRAIN_REWARDS][TAG];
    if (ev->kind == TRAIN_STEP) return add_step(f, ev, e);
    if (ev->kind != TRAIN_EVAL) return 0;
    return tfevents_add(f, ev->step, eval, 2 + put_rewards(eval + 2, tag, "eval", ev), e);
}
