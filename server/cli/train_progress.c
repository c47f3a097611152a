#include "server/cli/train_progress.h"

#include "engine/base/clock.h"
#include "engine/train/bottleneck.h"

#include <math.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* without a bar: approximate number of lines per job, and longest time between them */
enum { BAR_CELLS = 24, LINES = 100, LINE_SECONDS = 30 };

void train_progress_init(struct train_progress *p, FILE *out, bool bar)
{
    *p =
        (struct train_progress){.out = out, .bar = bar, .printed = -1, .loss = NAN, .eval_loss = NAN, .best_loss = NAN};
}

void train_time_text(double seconds, char out[32])
{
    long long s = isfinite(seconds) && seconds >= 0 && seconds < 1e12 ? (long long)(seconds + 0.5) : -1;
    if (s < 0)
        snprintf(out, 32, "?");
    else if (s < 60)
        snprintf(out, 32, "%lld s", s);
    else if (s < 3600)
        snprintf(out, 32, "%lld:%02lld", s / 60, s % 60);
    else
        snprintf(out, 32, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
}

void train_bar_text(const struct train_event *e, double loss, int width, char out[256])
{
    char eta[32], bar[BAR_CELLS + 1];
    double done = e->steps > 0 ? (double)e->step / (double)e->steps : 0;
    int full = (int)(done * BAR_CELLS);
    for (int i = 0; i < BAR_CELLS; i++) bar[i] = i < full ? '#' : '.';
    bar[BAR_CELLS] = 0;
    train_time_text(e->eta_s, eta);
    snprintf(out, 256, "%3.0f%% [%s] step %lld of %lld  loss %.4f  %.0f tokens/s  %s left", 100 * done, bar,
             (long long)e->step, (long long)e->steps, loss, e->tokens_per_s, eta);
    if (width > 0 && width < 256) out[width] = 0;
}

static int terminal_width(void)
{
    struct winsize w;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 20 ? w.ws_col - 1 : 79;
}

static void end_line(struct train_progress *p)
{
    if (p->line_open) fputc('\n', p->out);
    p->line_open = false;
}

static void show_rewards(struct train_progress *p, const struct train_event *e)
{
    struct train_reward r[TRAIN_REWARDS];
    for (int i = 0, n = train_rewards_list(&e->rewards, r); i < n; i++) fprintf(p->out, "  %s %.4g", r[i].name, r[i].v);
}

static void show_step(struct train_progress *p, const struct train_event *e)
{
    if (isfinite(e->loss)) p->loss = isnan(p->loss) ? e->loss : 0.9 * p->loss + 0.1 * e->loss;
    if (p->bar) {
        char text[256];
        train_bar_text(e, p->loss, terminal_width(), text);
        fprintf(p->out, "\r%s\033[K", text);
        p->line_open = true;
        return;
    }
    int64_t every = e->steps > LINES ? e->steps / LINES : 1;
    uint64_t now = clock_now();
    bool due = e->step / every != p->printed / every || now - p->printed_at > LINE_SECONDS * UINT64_C(1000000000);
    if (p->printed >= 0 && e->step < e->steps && !due) return;
    p->printed = e->step;
    p->printed_at = now;
    char eta[32], accuracy[32] = "";
    train_time_text(e->eta_s, eta);
    if (!isnan(e->accuracy)) snprintf(accuracy, sizeof accuracy, "  accuracy %.3f", e->accuracy);
    fprintf(p->out, "step %lld of %lld  epoch %.2f  loss %.4f%s  gradient %.3g  rate %.3g  %.0f tokens/s  %s left",
            (long long)e->step, (long long)e->steps, e->epoch, e->loss, accuracy, e->grad_norm, e->learning_rate,
            e->tokens_per_s, eta);
    show_rewards(p, e);
    fputc('\n', p->out);
}

static void show_plan(FILE *out, const struct train_plan *p)
{
    const double MIB = 1024 * 1024;
    fprintf(out, "%lld rows", (long long)p->rows);
    if (p->eval_rows) fprintf(out, ", %lld held out", (long long)p->eval_rows);
    fprintf(out, "; %lld tokens an epoch, %lld of them trained; %lld steps\n", (long long)p->tokens_per_epoch,
            (long long)p->trained_tokens_per_epoch, (long long)p->steps);
    fprintf(out,
            "%.3f M parameters are trained; memory: %.0f MiB weights, %.0f parameters and moments (%.1f of moments%s), "
            "%.0f activations of %d tokens%s\n",
            (double)p->trainable * 1e-6, (double)p->weight_bytes / MIB, (double)p->state_bytes / MIB,
            (double)p->moment_bytes / MIB, p->offload ? " more on the host" : "", (double)p->activation_bytes / MIB,
            p->micro_tokens, p->recompute ? " (computed again on the way back)" : "");
}

void train_summary_text(struct buf *out, const struct train_progress *p, const struct train_usage *u)
{
    const double GIB = 1024.0 * 1024 * 1024;
    double all = u->seconds + u->eval_seconds + u->checkpoint_seconds;
    char time[32], part[32];
    if (u->steps < 1 || u->seconds <= 0) return;
    train_time_text(all, time);
    buf_printf(out, "summary: %lld steps in %s: %.0f tokens/s, %.1f rows/s, %.0f tokens a step", (long long)u->steps,
               time, (double)u->tokens / u->seconds, (double)u->rows / u->seconds,
               (double)u->tokens / (double)u->steps);
    if (u->eval_seconds > 0) train_time_text(u->eval_seconds, part), buf_printf(out, "; evaluations %s", part);
    if (u->checkpoint_seconds >= 0.5)
        train_time_text(u->checkpoint_seconds, part), buf_printf(out, "; checkpoints %s", part);
    buf_str(out, "\ntime of a step:");
    for (int i = 0; i < TRAIN_PARTS; i++) {
        if (i == TRAIN_RANKS && u->ranks < 2) continue;
        buf_printf(out, "%s %s %.1f %%", i ? "," : "", train_part_name((enum train_part)i),
                   100 * u->part[i] / u->seconds);
    }
    buf_printf(out, "\nmemory at most: %.2f GiB of the host", (double)u->host_peak / GIB);
    if (u->device_peak) buf_printf(out, ", %.2f GiB of the device", (double)u->device_peak / GIB);
    buf_char(out, '\n');
    if (u->cpu_seconds > 0) buf_printf(out, "processor: %.2f cores on average", u->cpu_seconds / u->seconds);
    if (u->cpu_seconds > 0 && p->macs_per_token > 0)
        buf_printf(out, ", %.3g G multiply-adds/s", (double)u->tokens / u->seconds * p->macs_per_token * 1e-9);
    if (u->cpu_seconds > 0) buf_char(out, '\n');
    if (isfinite(p->best_loss)) buf_printf(out, "best evaluation: loss %.4f\n", p->best_loss);
    if (p->cost_per_hour > 0)
        buf_printf(out, "cost: %.4g at %g an hour\n", all / 3600 * p->cost_per_hour, p->cost_per_hour);
}

/* What the rules say about the run, a line each. */
static void put_advice(struct buf *out, const struct train_event *e)
{
    struct train_advice advice[TRAIN_ADVICE_MAX];
    struct train_facts facts = train_facts_of(e);
    for (int i = 0, n = train_advise(&facts, advice); i < n; i++) {
        char line[512];
        train_advice_text(&advice[i], line, sizeof line);
        buf_printf(out, "advice: %s\n", line);
    }
}

void train_ranks_text(struct buf *out, const struct train_usage *u, const struct train_rank_memory *memory)
{
    const double MIB = 1024 * 1024;
    if (u->ranks < 2) return;
    buf_str(out, "sent by the first rank:");
    const char *comma = "";
    for (int i = 0; i < TRAIN_COLLECTIVES; i++) {
        const struct train_collective *c = &u->collective[i];
        if (!c->calls) continue;
        buf_printf(out, "%s %s %.1f MiB in %lld calls and %.2f s (%.0f MiB/s)", comma, train_collective_name(i),
                   (double)c->sent_bytes / MIB, (long long)c->calls, c->seconds,
                   c->seconds > 0 ? (double)c->sent_bytes / MIB / c->seconds : 0);
        comma = ",";
    }
    buf_char(out, '\n');
    for (int i = 0; memory && i < u->ranks; i++)
        buf_printf(out, "rank %d: %.1f MiB were planned beside the model, %.1f MiB taken\n", i,
                   (double)memory[i].planned / MIB, (double)memory[i].taken / MIB);
}

static void show_summary(struct train_progress *p, const struct train_event *e)
{
    struct buf text = {0};
    train_summary_text(&text, p, &e->usage);
    train_ranks_text(&text, &e->usage, e->rank_memory);
    if (e->plan) put_advice(&text, e);
    if (text.len) fputs(text.data, p->out);
    buf_free(&text);
}

void train_progress_note(struct train_progress *p, const struct train_event *e)
{
    p->last = e->kind;
    if (e->text) snprintf(p->text, sizeof p->text, "%s", e->text);
}

void train_progress_show(struct train_progress *p, const struct train_event *e)
{
    train_progress_note(p, e);
    if (e->kind == TRAIN_STEP) {
        show_step(p, e);
        return;
    }
    if (e->kind == TRAIN_CHECKPOINT) return;
    end_line(p);
    switch (e->kind) {
    case TRAIN_PLAN:
        p->macs_per_token = e->plan->macs_per_token;
        show_plan(p->out, e->plan);
        break;
    case TRAIN_RESUMED: fprintf(p->out, "going on after step %lld\n", (long long)e->step); break;
    case TRAIN_WARNING: fprintf(p->out, "warning: %s\n", e->text); break;
    case TRAIN_EVAL:
        p->eval_loss = e->eval_loss;
        if (e->best) p->best_loss = e->eval_loss;
        fprintf(p->out, "step %lld: evaluation: loss %.4f", (long long)e->step, e->eval_loss);
        if (isnan(e->rewards.margins) && isnan(e->rewards.kl) && !p->divergence)
            fprintf(p->out, ", perplexity %.3f", exp(e->eval_loss));
        fprintf(p->out, ", accuracy %.3f%s", e->eval_accuracy, e->best ? ", the best so far" : "");
        show_rewards(p, e);
        fputc('\n', p->out);
        break;
    case TRAIN_SUCCEEDED:
    case TRAIN_PAUSED: show_summary(p, e); break;
    default: break;
    }
}
