/* tandem train: fine-tunes a model, or trains it whole, without serving.  Main thread.
 *
 * Hyperparameters are those of POST /train by the same names (--learning-rate is learning_rate) and go through the same
 * reader.  The job's working directory is OUT.train: an unfinished job there is continued, and the directory is deleted
 * when the job has ended.
 *
 * Under mpirun every rank runs this; rank 0 alone prints and writes. */
#include "engine/train/offline.h"

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/train/ranks.h"
#include "server/cli/cmd.h"
#include "server/cli/find_data.h"
#include "server/cli/find_model.h"
#include "server/cli/hyperparameters.h"
#include "server/cli/train_compare.h"
#include "server/cli/train_grpo.h"
#include "server/cli/train_preset.h"
#include "server/cli/train_progress.h"
#include "server/cli/train_record.h"
#include "server/jobs/train_aliases.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char usage[] =
    "tandem train --data FILE... --out DIR [--model DIR] [--method lora|qlora|full|dpo|...] [options]\n"
    "       tandem train --compare A B [--cost-per-hour PRICE] [--json]";
static const char about[] =
    "Fine-tunes a model on rows of text, instructions or conversations, and writes a PEFT adapter (full: a model).\n"
    "Interrupted, it writes a checkpoint; the same command goes on from there to the same bytes.";

/* "--data A B C" -> "--data A --data B --data C", so that a shell's pattern can be given; the same for --eval-data and
 * --compare.
 * @return the new arguments, whose array is the caller's. */
static char **spread_files(int *argc, char **argv)
{
    char **out = mem_array(2 * (size_t)*argc + 1, sizeof *out), *flag = NULL;
    int n = 0;
    bool has_value = false;
    for (int i = 0; i < *argc; i++) {
        if (strncmp(argv[i], "--", 2) == 0) {
            bool files = strcmp(argv[i], "--data") == 0 || strcmp(argv[i], "--eval-data") == 0 ||
                         strcmp(argv[i], "--compare") == 0;
            flag = files ? argv[i] : NULL;
            has_value = false;
        } else if (flag) {
            if (has_value) out[n++] = flag;
            has_value = true;
        }
        out[n++] = argv[i];
    }
    *argc = n;
    return out;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static struct train *volatile running;

/* The first signal requests a checkpoint; the next one ends the process. */
static void on_signal(int number)
{
    struct train *t = running;
    if (t) train_command(t, TRAIN_PAUSE); /* an atomic store: NOLINT(bugprone-signal-handler,cert-sig30-c) */
    signal(number, SIG_DFL);
}

/* Checks that the output directory does not exist or is empty. */
static int check_out(const char *dir, struct err *e)
{
    DIR *d = opendir(dir);
    if (!d && errno == ENOENT) return 0;
    if (!d) return err_set(e, ERR_IO, "--out: %s: %s", dir, strerror(errno));
    bool empty = true;
    for (struct dirent *f; empty && (f = readdir(d));)
        empty = strcmp(f->d_name, ".") == 0 || strcmp(f->d_name, "..") == 0;
    closedir(d);
    return empty ? 0 : err_set(e, ERR_INVALID, "--out: %s is not empty", dir);
}

static void show_report(const struct dataset_sources *from, const struct dataset_report *r)
{
    int files = from->n;
    if (!r) return;
    fprintf(stderr, "%s", from->v[0].name);
    if (files > 1) fprintf(stderr, " and %d more", files - 1);
    fprintf(stderr, ": %s, %llu rows", dataset_format_name(r->format), (unsigned long long)r->seen);
    if (r->skipped) fprintf(stderr, ", %llu skipped", (unsigned long long)r->skipped);
    if (r->duplicates) fprintf(stderr, ", %llu duplicates left out", (unsigned long long)r->duplicates);
    if (r->truncated) fprintf(stderr, ", %llu cut to max_length", (unsigned long long)r->truncated);
    if (r->drawn) fprintf(stderr, ", %llu drawn by weight", (unsigned long long)r->drawn);
    fprintf(stderr, "\n");
    for (int i = 0; i < r->n_problems; i++) {
        const struct dataset_problem *p = &r->problem[i];
        const char *file = files > 1 ? from->v[p->source].name : "";
        fprintf(stderr, "  %s%srow %llu: %s\n", file, files > 1 ? ": " : "", (unsigned long long)p->line, p->what);
    }
}

static void show_preparing(void *arg, double fraction)
{
    (void)arg;
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\rpreparing the data: %3.0f%%%s", 100 * fraction, fraction < 1 ? "" : "\n");
}

struct watch {
    bool first; /* of the ranks */
    struct train_progress progress;
    struct train_record record;
    const struct dataset_sources *data;
};

static void on_opened(void *arg, const struct dataset_report *r)
{
    const struct watch *w = arg;
    show_report(w->data, r);
}

static void on_event(void *arg, const struct train_event *ev)
{
    struct watch *w = arg;
    struct err e = {0};
    if (!w->first) {
        train_progress_note(&w->progress, ev);
        return;
    }
    train_progress_show(&w->progress, ev);
    if (!train_record_event(&w->record, ev, &e)) fprintf(stderr, "warning: --tensorboard: %s\n", e.msg);
}

/* The exit status of a rank that says nothing. */
static int silent_status(enum train_event_kind last)
{
    return last == TRAIN_SUCCEEDED ? 0 : last == TRAIN_PAUSED ? 130 : last == TRAIN_LOST ? EXIT_DEVICE_LOST : 1;
}

static int finish(const struct watch *w, const char *out, const char *dir)
{
    const struct train_progress *p = &w->progress;
    struct err e = {0};
    if (!w->first) return silent_status(p->last);
    switch (p->last) {
    case TRAIN_SUCCEEDED:
        if (train_record_write(&w->record, out, &e)) fprintf(stderr, "warning: no record: %s\n", e.msg);
        train_offline_clear(dir);
        fprintf(stderr, "%s: written\n", out);
        return 0;
    case TRAIN_PAUSED: fprintf(stderr, "paused; the same command goes on from the checkpoint in %s\n", dir); return 130;
    case TRAIN_LOST:
        fprintf(stderr, "tandem: the device was lost: %s; the same command goes on from the checkpoint in %s\n",
                p->text, dir);
        return EXIT_DEVICE_LOST;
    default: fprintf(stderr, "tandem: training failed: %s\n", p->text); return 1;
    }
}

/* Splits "to=from,to=from" in place; false and *e. */
static bool read_map(char *text, struct dataset_field map[DATASET_MAP_MAX], int *n, struct err *e)
{
    *n = 0;
    for (char *save, *one = text ? strtok_r(text, ",", &save) : NULL; one; one = strtok_r(NULL, ",", &save)) {
        char *is = strchr(one, '=');
        if (*n == DATASET_MAP_MAX) return err_set(e, ERR_INVALID, "--map: more than %d fields", DATASET_MAP_MAX), false;
        if (!is) return err_set(e, ERR_INVALID, "--map: %.60s is not TO=FROM", one), false;
        *is = 0;
        map[(*n)++] = (struct dataset_field){one, is + 1};
    }
    return !dataset_map_check(map, *n, e) || (err_prefix(e, "--map"), false);
}

/* Fills both; a data set of the hub is downloaded.  @return 0, or the exit status after an error. */
static int find_data(const struct settings *s, struct dataset_sources *data, struct dataset_sources *eval)
{
    struct hub_session c;
    struct err e = {0};
    hub_session_open(&c);
    int rc = cmd_find_data(data, &s->train_data, &c.hub, &e);
    if (!rc && (rc = cmd_find_data(eval, &s->eval_data, &c.hub, &e))) err_prefix(&e, "--eval-data");
    return hub_session_close(&c, rc, &e);
}

static void begin_watch(struct watch *w, const struct settings *s, const struct train_params *p)
{
    train_progress_init(&w->progress, stderr, isatty(STDERR_FILENO));
    w->progress.cost_per_hour = s->cost_per_hour;
    w->progress.divergence = p->method == TRAIN_DISTILL;
    train_record_init(&w->record, s, p);
}

static int sample_and_train(const struct settings *s, const struct train_offline_config *job, struct watch *w)
{
    struct err e = {0};
    struct train_grpo_config c = {.job = job, .rewards = s->rewards, .opened = on_opened, .event = on_event, .arg = w};
    if (job->eval->n) err_set(&e, ERR_INVALID, "--eval-data: method grpo has no use for it");
    int status = e.code || train_grpo(&c, &e) ? cmd_fail(&e) : finish(w, s->out, job->dir);
    train_record_close(&w->record);
    return status;
}

/* The ranks agree on a failure, which the first of them prints; one that cannot reach the others prints its own. */
static int fail_together(const struct comm *comm, const struct err *e)
{
    return train_ranks_first(comm) || train_ranks_error(comm) ? cmd_fail(e) : 1;
}

static bool has_file(const char *dir, const char *name)
{
    char *path = file_join(dir, name);
    bool there = access(path, F_OK) == 0;
    free(path);
    return there;
}

static int check_teacher(const char *dir, struct err *e)
{
    if (!has_file(dir, "config.json") || has_file(dir, "adapter_config.json")) return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "--teacher: %.200s is a model, and adapters teach here: serve both models (tandem serve --models), "
                   "and name it as `teacher` of POST /train",
                   dir);
}

static int train(const struct settings *s, const struct train_params *params, int batch_rows, struct comm *comm)
{
    struct err e = {0};
    bool first = train_ranks_first(comm);
    struct dataset_field map[DATASET_MAP_MAX];
    struct dataset_sources data = {0}, eval = {0};
    int n_map;
    if (!read_map(s->map, map, &n_map, &e)) return cmd_fail(&e);
    struct buf dir = {0};
    size_t n = strlen(s->out);
    while (n > 1 && s->out[n - 1] == '/') s->out[--n] = 0;
    buf_printf(&dir, "%s.train", s->out);
    struct train_offline_config c = {
        .model = cmd_model_options(s),
        .cpus = s->cpus,
        .data = &data,
        .eval = &eval,
        .options = {.format = (enum dataset_format)dataset_format_parse(s->format),
                    .map = map,
                    .n_map = n_map,
                    .train_on_prompt = s->train_on_prompt,
                    .keep_duplicates = s->keep_duplicates,
                    .progress = first ? show_preparing : NULL},
        .p = *params,
        .batch_rows = batch_rows,
        .from = s->from,
        .teacher = s->teacher,
        .chat_template = s->chat_template,
        .dir = dir.data,
        .out = s->out,
        .comm = comm,
    };
    struct train_offline *o = NULL;
    struct watch watch = {.first = first, .data = &data};
    bool samples = params->method == TRAIN_GRPO;
    int status = find_data(s, &data, &eval), rc = status ? err_set(&e, ERR_NOT_FOUND, "its data") : 0;
    if (!rc) rc = check_out(s->out, &e);
    if (!rc && s->teacher && params->method != TRAIN_DISTILL)
        rc = err_set(&e, ERR_INVALID, "--teacher is for method distill");
    if (!rc && s->teacher) rc = check_teacher(s->teacher, &e);
    if (!rc && samples && comm) rc = err_set(&e, ERR_UNSUPPORTED, "method grpo does not train on several ranks");
    if (!ranks_agree(comm, rc, &e) && !samples) o = train_offline_open(&c, &e);
    if (status) {
        /* it is said */
    } else if (samples && !e.code) {
        begin_watch(&watch, s, &c.p);
        status = sample_and_train(s, &c, &watch);
    } else if (o) {
        begin_watch(&watch, s, &c.p);
        if (batch_rows) watch.record.p.batch_tokens = train_batch_tokens(batch_rows, train_offline_report(o, false));
        if (first && comm) fprintf(stderr, "ranks: %d\n", train_ranks_count(comm));
        if (first) show_report(&data, train_offline_report(o, false));
        if (first) show_report(&eval, train_offline_report(o, true));
        running = train_offline_train(o);
        signal(SIGINT, on_signal);
        signal(SIGTERM, on_signal);
        train_run(running, on_event, &watch);
        running = NULL;
        train_offline_close(o);
        status = finish(&watch, s->out, dir.data);
        if (!first && train_ranks_error(comm)) fprintf(stderr, "tandem: training failed: %s\n", watch.progress.text);
        train_record_close(&watch.record);
    } else {
        status = fail_together(comm, &e);
    }
    dataset_sources_free(&data);
    dataset_sources_free(&eval);
    buf_free(&dir);
    return status;
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

/* The record at the path: of a directory the file in it.  NULL and *e. */
static cJSON *read_record(const char *path, struct err *e)
{
    struct stat st;
    char *text = NULL, *file = stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? file_join(path, TRAIN_RECORD_FILE) : NULL;
    size_t n = 0;
    cJSON *out = NULL;
    if (!file_read(file ? file : path, TRAIN_RECORD_BYTES, &text, &n, e)) {
        out = json_parse(text, n, e);
        if (!out) err_prefix(e, "%s", file ? file : path);
    }
    free(text);
    free(file);
    return out;
}

static int compare(const struct settings *s)
{
    struct err e = {0};
    struct train_compared two[2] = {0};
    struct buf out = {0};
    if (s->compare.n != 2) {
        fprintf(stderr, "tandem: --compare: wants two jobs, not %d\nusage: %s\n", s->compare.n, usage);
        return 2;
    }
    for (int i = 0; i < 2 && !e.code; i++) {
        two[i].name = s->compare.v[i];
        two[i].record = read_record(two[i].name, &e);
        if (two[i].record) train_compare_check(&two[i], &e);
    }
    if (!e.code) {
        if (s->json)
            train_compare_json(&out, two, s->cost_per_hour);
        else
            train_compare_text(&out, two, s->cost_per_hour);
        fwrite(out.data, 1, out.len, stdout);
    }
    for (int i = 0; i < 2; i++) json_free(two[i].record);
    buf_free(&out);
    return e.code ? cmd_fail(&e) : 0;
}

static int run(const struct settings *s, const cJSON *hyperparameters)
{
    if (s->compare.n) return compare(s);
    struct err e = {0};
    struct train_params p;
    int batch_rows = 0;
    enum train_method method;
    struct json_at at = {hyperparameters, "", &e};
    const char *missing = !s->train_data.n ? "--data" : !s->out ? "--out" : NULL;
    if (missing) {
        fprintf(stderr, "tandem: %s is missing\nusage: %s\n", missing, usage);
        return 2;
    }
    train_method_parse(s->method, &method);
    train_params_default(&p, method);
    if (!train_hyperparameters_read(&at, &p, &batch_rows)) {
        fprintf(stderr, "tandem: %s\nusage: %s\n", e.msg, usage);
        return 2;
    }
    struct comm *comm;
    if (train_ranks_open(s->comm, s->comm_timeout, &comm, &e)) return cmd_fail(&e);
    int status = train(s, &p, batch_rows, comm);
    train_ranks_close(comm);
    return status;
}

int cmd_train(int argc, char **argv)
{
    struct settings s = {0};
    struct err e = {0};
    struct buf said = {0};
    char **expanded = NULL;
    int status = 2;
    cJSON *hyperparameters = NULL;
    argc = train_preset_expand(argc, argv, &expanded, &said, &e);
    if (argc >= 0) hyperparameters = hyperparameters_take(&argc, expanded, &e);
    if (said.len) fputs(said.data, stderr);
    buf_free(&said);
    if (!hyperparameters) {
        fprintf(stderr, "tandem: %s\nusage: %s\n", e.msg, usage);
        free(expanded);
        return status;
    }
    char **words = spread_files(&argc, expanded);
    if (cmd_settings(&s, CMD_TRAIN, argc, words, usage, about, &status))
        status = run(&s, hyperparameters);
    else if (status == 0) {
        hyperparameters_help();
        train_preset_help();
    }
    settings_free(&s);
    free(words);
    free(expanded);
    cJSON_Delete(hyperparameters);
    return status;
}
