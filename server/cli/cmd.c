/* Functions shared by the subcommands.  Main thread only. */
#include "server/cli/cmd.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "server/cli/find_model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <unistd.h>

/* Commands that find their model before they begin; tandem serve listens first. */
enum {
    FOREGROUND = CMD_GENERATE | CMD_CHAT | CMD_TOKENIZE | CMD_PERPLEXITY | CMD_EVAL | CMD_QUANTIZE | CMD_MERGE |
                 CMD_BENCH | CMD_TRAIN | CMD_BATCH | CMD_PLAN
};

static void warn(void *arg, const char *text)
{
    (void)arg;
    log_warn("%s", text);
}

/* For commands that run to their end on this thread. */
static bool find_model(struct settings *s, int *status)
{
    struct hub_session c;
    struct err e = {0};
    if (s->ops || s->compare.n) return true; /* bench --ops and train --compare have no model */
    hub_session_open(&c);
    int rc = cmd_find_model(s, &c.hub, &e);
    *status = hub_session_close(&c, rc, &e);
    return *status == 0;
}

bool cmd_settings(struct settings *s, enum command cmd, int argc, char **argv, const char *usage, const char *about,
                  int *status)
{
    struct err e = {0};
    int rc = settings_parse(s, cmd, argc, argv, &e);
    if (rc == SETTING_HELP) {
        settings_help(stdout, cmd, usage, about);
        *status = 0;
        return false;
    }
    if (rc) {
        fprintf(stderr, "tandem: %s\nusage: %s\n", e.msg, usage);
        *status = 2;
        return false;
    }
    bool wants_model =
        settings_find("model", 5)->commands & cmd && cmd != CMD_BENCH && !s->compare.n; /* optional for bench */
    if (wants_model && !settings_given(s, "model") && access(s->model, F_OK)) {
        fprintf(stderr,
                "tandem: no --model is given, and the default, %s, is not here: it is in tandem's source directory.\n"
                "Give --model DIR (config.json, tokenizer.json and safetensors), a GGUF file,\n"
                "or ORG/NAME, a model of the Hugging Face hub\n",
                s->model);
        *status = 2;
        return false;
    }
    log_set_level((enum log_level)log_parse_level(s->log_level));
    log_set_format(strcmp(s->log_format, "json") == 0 ? LOG_JSON : LOG_LOGFMT);
    settings_check_env(warn, NULL);
    return !(cmd & FOREGROUND) || find_model(s, status);
}

struct engine_config cmd_engine_config(const struct settings *s)
{
    return (struct engine_config){
        .model = settings_model_dir(s),
        .model_name = s->model_name,
        .device = s->device,
        .threads = s->threads,
        .gpu_memory_bytes = s->gpu_memory_bytes,
        .gpu_memory_fraction = s->gpu_memory_fraction,
        .quantize = s->quantize,
        .kv_type = s->kv_type,
        .activations = s->activations,
        .cpus = s->cpus,
        .kv_cache_bytes = s->kv_cache_bytes,
        .max_seqs = s->max_seqs,
        .max_batch_tokens = s->max_batch_tokens,
        .max_prefill_tokens = s->max_prefill_tokens,
        .max_queue = s->max_queue,
        .max_total_tokens = s->max_total_tokens,
        .no_prefix_cache = !s->prefix_cache,
        .kv_disk = s->kv_disk,
        .kv_disk_bytes = s->kv_disk_size,
        .kv_disk_ttl = s->kv_disk_ttl,
        .speculate = s->speculate,
        .history_bytes = s->speculate_history,
        .draft_model = s->draft_dir,
        .draft_model_name = s->draft_dir ? s->draft_model : NULL,
        .draft_kv_bytes = s->draft_kv_cache_bytes,
        .verify_weights = s->verify_weights,
        .train_itl_budget = s->train_itl_budget_ms / 1000,
        .train_slowdown = s->train_slowdown,
        .max_adapters = s->max_adapters,
        .max_lora_rank = s->max_lora_rank,
    };
}

struct model_options cmd_model_options(const struct settings *s)
{
    return (struct model_options){
        .dir = settings_model_dir(s),
        .device = s->device,
        .threads = s->threads,
        .quantize = s->quantize,
        .activations = s->activations,
        .gpu_memory_bytes = s->gpu_memory_bytes,
        .gpu_memory_fraction = s->gpu_memory_fraction,
        .verify_weights = s->verify_weights,
    };
}

struct sampling_params cmd_sampling(const struct settings *s)
{
    bool sample = s->temperature > 0 || s->top_k > 0 || s->top_p < 1 || s->typical_p < 1 || s->min_p > 0;
    struct sampling_params p = {
        .sample = sample,
        .temperature = s->temperature > 0 ? fmaxf((float)s->temperature, 2e-4f) : 1,
        .top_k = s->top_k,
        .top_p = (float)s->top_p,
        .typical_p = (float)s->typical_p,
        .min_p = (float)s->min_p,
        .seed = s->seed,
        .repetition = (float)s->repetition_penalty,
        .frequency = (float)s->frequency_penalty,
        .presence = (float)s->presence_penalty,
    };
    if (sample && !settings_given(s, "seed")) {
        uint64_t v = clock_now();
        if (getrandom(&v, sizeof v, GRND_NONBLOCK) < 0) v *= 0x9e3779b97f4a7c15u;
        p.seed = v >> 11; /* below 2^53, like the server's */
    }
    return p;
}

bool cmd_writes_gguf(const struct settings *s)
{
    static const char end[] = ".gguf";
    size_t n = s->out ? strlen(s->out) : 0;
    if (strcmp(s->file_format, "auto")) return strcmp(s->file_format, "gguf") == 0;
    return n > strlen(end) && strcasecmp(s->out + n - strlen(end), end) == 0;
}

int cmd_read_file(const char *path, struct buf *out, struct err *e)
{
    bool is_stdin = strcmp(path, "-") == 0;
    FILE *f = is_stdin ? stdin : fopen(path, "rb");
    if (!f) return err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: %s", path, strerror(errno));
    char block[65536];
    size_t n;
    int rc = 0;
    while (rc == 0 && (n = fread(block, 1, sizeof block, f)) > 0) {
        if (out->len + n > CMD_MAX_TEXT)
            rc = err_set(e, ERR_INVALID, "%s: more than 1 GiB of text", path);
        else
            buf_append(out, block, n);
    }
    if (rc == 0 && ferror(f)) rc = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    if (!is_stdin) fclose(f);
    return rc;
}

int cmd_fail(const struct err *e)
{
    fprintf(stderr, "tandem: %s\n", e->msg);
    return e->code == ERR_LOST ? EXIT_DEVICE_LOST : 1;
}
