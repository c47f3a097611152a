/* The subcommands.  Each takes the arguments after its name and returns the process's exit status: 0 success, 1
 * failure, 2 wrong arguments, EXIT_DEVICE_LOST. */
#ifndef TANDEM_SERVER_CLI_CMD_H
#define TANDEM_SERVER_CLI_CMD_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/model/options.h"
#include "engine/serve/engine.h"
#include "server/config/settings.h"
#include "server/hub/hub.h"

enum { EXIT_DEVICE_LOST = 75 }; /* EX_TEMPFAIL of sysexits.h: a new process may succeed */

int cmd_serve(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_perplexity(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_quantize(int argc, char **argv);
int cmd_merge(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_train(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_doctor(int argc, char **argv); /* 0: nothing to change on this machine; 1: something */
int cmd_health(int argc, char **argv); /* 0: the daemon answers 200; 1: anything else */
int cmd_key(int argc, char **argv);
int cmd_pull(int argc, char **argv);
int cmd_models(int argc, char **argv);
int cmd_batch(int argc, char **argv);

/* Parses the settings of a command.  @return true when the command should run; otherwise *status is its exit status
 * (after --help, or after printing an error in the arguments).  Free *s with settings_free in both cases. */
bool cmd_settings(struct settings *s, enum command cmd, int argc, char **argv, const char *usage, const char *about,
                  int *status);
/* Finds what --model, --adapter and --from name: directories, or names of the hub.  Sets model_dir, model_name and
 * adapter_dirs.
 * find_model.c */
int cmd_find_model(struct settings *, const struct hub *, struct err *e);
/* Both point into the settings. */
struct engine_config cmd_engine_config(const struct settings *);
struct model_options cmd_model_options(const struct settings *);
/* @return the parameters from --temperature and similar options; a random seed unless one was given. */
struct sampling_params cmd_sampling(const struct settings *);

/* Whether a model is to be written as one GGUF file: as --format says, else by the name of --out. */
bool cmd_writes_gguf(const struct settings *);

enum { CMD_MAX_TEXT = 1 << 30 };
/* Appends a whole file, or stdin for "-". */
int cmd_read_file(const char *path, struct buf *out, struct err *e);
/* "tandem: message" on stderr; returns 1, of ERR_LOST EXIT_DEVICE_LOST. */
int cmd_fail(const struct err *e);

#endif
