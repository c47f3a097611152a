/* Settings: ONE table of options (settings.c) from which flags, TANDEM_* environment variables, the YAML file and
 * --help follow.  Later sources override earlier ones: default, file, environment, flag.  Main thread, before anything
 * else runs. */
#ifndef TANDEM_SERVER_CONFIG_SETTINGS_H
#define TANDEM_SERVER_CONFIG_SETTINGS_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* subcommands, as bits of setting_option.commands */
enum command {
    CMD_SERVE = 1,
    CMD_GENERATE = 2,
    CMD_TOKENIZE = 4,
    CMD_PERPLEXITY = 8,
    CMD_QUANTIZE = 16,
    CMD_BENCH = 32,
    CMD_TRAIN = 64,
    CMD_CHAT = 128,
    CMD_HEALTH = 256,
    CMD_KEY = 512,
    CMD_PULL = 1024,
    CMD_MODELS = 2048,
    CMD_DOCTOR = 4096,
    CMD_EVAL = 8192,
    CMD_BATCH = 16384,
    CMD_MERGE = 32768,
    CMD_PLAN = 65536,
};

struct string_list {
    char **v; /* owned */
    int n;
};

struct settings {
    char *config;
    /* ranks */
    int tensor_parallel, pipeline_parallel;
    char *ranks; /* "divide", "train" */
    char *comm;
    double comm_timeout; /* seconds */
    char *gpus, *bench_file;
    double link, tflops; /* GB/s, of a card */
    /* model */
    char *model, *device, *quantize, *kv_type, *activations, *cpus;
    int threads;
    bool verify_weights;
    size_t gpu_memory_bytes;
    double gpu_memory_fraction;
    /* several models */
    char *models, *models_dir;
    size_t models_memory;
    int models_max;
    double model_idle, model_wait; /* seconds */
    /* batching and memory */
    size_t kv_cache_bytes;
    int max_seqs, max_batch_tokens, max_prefill_tokens, max_queue, max_queue_tokens, max_total_tokens;
    double max_wait; /* seconds */
    bool prefix_cache, cache_per_key;
    char *kv_disk;
    size_t kv_disk_size;
    double kv_disk_ttl; /* seconds */
    char *kv_events, *kv_events_replay, *kv_events_topic, *kv_events_format;
    char *speculate, *draft_model;
    char *draft_dir; /* where it is; owned, NULL: none */
    size_t draft_kv_cache_bytes, speculate_history;
    /* adapters */
    char *adapters, *adapter_dir;
    int max_adapters, max_lora_rank;
    /* http */
    char *host, *cors_origin, *allowed_hosts;
    int port, max_connections;
    size_t max_header_size, max_body_size, request_memory;
    char *api_keys, *tls_cert, *tls_key;
    bool allow_open;
    double header_timeout, body_timeout, idle_timeout, write_timeout, sse_keepalive; /* seconds */
    /* requests */
    double request_timeout; /* seconds */
    int max_best_of, max_stop_sequences, max_top_n_tokens, max_choices;
    char *served_model_name, *chat_template, *tool_call_parser, *reasoning_parser, *pooling;
    bool accept_any_model;
    /* operation */
    double drain_timeout, step_timeout; /* seconds */
    double train_itl_budget_ms, train_slowdown;
    int tinker_client_runs, tinker_client_sessions, tinker_client_weights;
    double train_speed_floor; /* tokens/s; 0: none */
    char *log_level, *log_format, *metrics_aliases, *data_dir;
    bool access_log, feedback;
    size_t feedback_memory, feedback_size;
    /* one run of a command */
    char *adapter, *prompt, *system, *text, *file, *ids, *out, *type, *merge_type, *file_format, *layout, *calibrate,
        *batch, *ops;
    char *lengths, *baseline, *check;
    bool bench_train, switches;
    char *method, *data, *format, *map, *from, *teacher;
    char *tensorboard;
    double cost_per_hour;
    struct string_list train_data, eval_data, compare;
    char *rewards; /* NULL: none */
    bool json, kl, ignore_eos, special, train_on_prompt, keep_duplicates, ready;
    int max_new_tokens, top_n, top_k, window, prompt_tokens, generate_tokens, repeat;
    double temperature, top_p, typical_p, min_p, repetition_penalty, frequency_penalty, presence_penalty, within;
    uint64_t seed;
    struct string_list stop;
    /* tandem eval */
    struct string_list eval_adapters, eval_quantize;
    char *extract, *ignore, *delimiter, *output, *json_file;
    bool extract_last, stem;
    int limit, resamples;
    struct string_list adapter_dirs; /* where eval_adapters are, once it is known (server/hub); owned */
    /* where --model is, and its name on the hub, once it is known (server/hub); owned; NULL: as --model says */
    char *model_dir, *model_name;
    /* tandem key */
    char *name, *role, *expires;
    double requests_per_minute, tokens_per_minute;
    int max_concurrent, priority_max;

    unsigned char source[192]; /* enum setting_source per row of the table */
};

enum setting_source { SETTING_DEFAULT, SETTING_FILE, SETTING_ENV, SETTING_FLAG };

enum setting_type {
    SETTING_BOOL,   /* bool */
    SETTING_INT,    /* int */
    SETTING_U64,    /* uint64_t */
    SETTING_BYTES,  /* size_t; K, M, G are powers of 1024 */
    SETTING_NUMBER, /* double */
    SETTING_STRING, /* char *, NULL when not set */
    SETTING_MAYBE,  /* a string whose flag may be given without a value: then "" */
    SETTING_CHOICE, /* char *, one of `choices` ("a|b|c") */
    SETTING_LIST,   /* struct string_list; a flag given again adds */
};

struct setting_option {
    const char *name; /* "max-seqs": --max-seqs, TANDEM_MAX_SEQS, max-seqs: */
    const char *group;
    enum setting_type type;
    size_t offset;     /* into struct settings */
    const char *value; /* the default as it would be typed; NULL: not set */
    double min, max;   /* both 0: any */
    const char *choices;
    unsigned commands; /* enum command */
    bool flag_only;    /* belongs to one run: neither in the environment nor in a file */
    const char *arg;   /* name of the value in --help */
    const char *help;
    bool reloadable; /* SIGHUP applies a change (reload.h); else a restart is needed */
    bool secret;     /* its value is not written into reports */
};

const struct setting_option *settings_options(int *n);

enum { SETTING_HELP = 1 };

/* argv: without program and subcommand.  @return 0; SETTING_HELP for --help; or an error code with *e.  The caller
 * frees *s with settings_free in every case. */
int settings_parse(struct settings *s, enum command cmd, int argc, char *const *argv, struct err *e);

void settings_defaults(struct settings *s);
void settings_free(struct settings *s);
const char *settings_model_dir(const struct settings *s); /* what the engine opens */
const char *settings_data_dir(const struct settings *s);  /* --data-dir, or its default when empty */
/* @return whether the option was set by anything other than its default */
bool settings_given(const struct settings *s, const char *name);

/* Sets one option from text.  `where` names the source in messages ("--port", "tandem.yaml:3: port"). */
int settings_set(struct settings *s, const struct setting_option *o, const char *text, const char *where,
                 enum setting_source source, struct err *e);
const struct setting_option *settings_find(const char *name, size_t len); /* '_' counts as '-'; NULL */
/* the option of `cmd` (0: any) whose name is nearest to a mistyped one; NULL when none is near */
const char *settings_nearest(const char *name, size_t len, unsigned cmd);

/* ---- reload.c ---- */

/* Appends the option's value as text that can be parsed again; nothing when unset. */
void settings_format(const struct settings *s, const struct setting_option *o, struct buf *out);
/* Appends "name = value" for every option of `cmd`, a line each, and where it was set; secrets as "(set)". */
void settings_describe(const struct settings *s, enum command cmd, struct buf *out);
/* Called for an option that differs between `live` and `fresh`; the texts are valid during the call. */
typedef void settings_change_fn(void *arg, const struct setting_option *o, const char *was, const char *now,
                                bool taken);
/* Applies the differing reloadable options of `fresh` to `live`, and calls fn for every difference among the options of
 * `cmd`, reloadable or not.  @return how many were applied.  The caller still frees `fresh`. */
int settings_reload(struct settings *live, struct settings *fresh, enum command cmd, settings_change_fn *fn, void *arg);

/* ---- env.c ---- */

/* Sets the options of `cmd` that have a TANDEM_ variable.  @return 0, or an error code with *e. */
int settings_read_env(struct settings *s, enum command cmd, struct err *e);
/* Called with one warning about an environment variable; the text is valid during the call. */
typedef void settings_warning_fn(void *arg, const char *text);
/* Calls fn for every TANDEM_ variable that has no effect and was not set by Kubernetes: a mistyped name, a flag-only
 * option, an option's variable that contains a service link. */
void settings_check_env(settings_warning_fn *fn, void *arg);

int settings_load_file(struct settings *s, const char *path, struct err *e);           /* yaml.c */
void settings_help(FILE *out, enum command cmd, const char *usage, const char *about); /* help.c */

#endif
