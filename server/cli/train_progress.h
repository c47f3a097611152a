/* Shows the events of a job of `tandem train`: a bar on a terminal, lines elsewhere.  Main thread. */
#ifndef TANDEM_SERVER_CLI_TRAIN_PROGRESS_H
#define TANDEM_SERVER_CLI_TRAIN_PROGRESS_H

#include "engine/base/buf.h"
#include "engine/train/train.h"

#include <stdio.h>

struct train_progress {
    FILE *out;
    bool bar;        /* one line, rewritten in place */
    bool line_open;  /* the bar's line is on the screen */
    int64_t printed; /* the step of the last line */
    uint64_t printed_at;
    double loss; /* smoothed over some steps; NAN before the first */
    enum train_event_kind last;
    char text[512];              /* of the last event that had one */
    double eval_loss, best_loss; /* NAN: none */
    double cost_per_hour;        /* for the summary; 0: not shown */
    double macs_per_token;       /* as planned; 0: unknown */
    bool divergence;             /* the loss is no -log p, and has no perplexity */
};

void train_progress_init(struct train_progress *, FILE *out, bool bar);
void train_progress_show(struct train_progress *, const struct train_event *);
/* Without printing: only `last` and `text`. */
void train_progress_note(struct train_progress *, const struct train_event *);

/* Appends what a job of this run took, by part, as lines; nothing without a step. */
void train_summary_text(struct buf *out, const struct train_progress *, const struct train_usage *);

/* The same of several ranks: what the first one sent, by operation, and the memory of each (NULL: unknown). */
void train_ranks_text(struct buf *out, const struct train_usage *, const struct train_rank_memory *);

/* "3 s", "12:05", "3:00:12" */
void train_time_text(double seconds, char out[32]);
/* The bar's line, at most `width` characters, without the carriage return. */
void train_bar_text(const struct train_event *, double loss, int width, char out[256]);

#endif
