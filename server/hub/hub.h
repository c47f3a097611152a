/* Models and adapters by their names on the Hugging Face hub: found in the cache that huggingface_hub also uses, or
 * downloaded into it.
 *
 * Any thread but the loop's: reads the disk and, to download, the network. */
#ifndef TANDEM_SERVER_HUB_HUB_H
#define TANDEM_SERVER_HUB_HUB_H

#include "engine/base/err.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* How far a download is; numbers are of the whole download. */
struct hub_progress {
    const char *name;     /* ORG/NAME */
    uint64_t done, total; /* bytes, with those that were there before */
    uint64_t loaded;      /* bytes that came over the network */
    int files_done, files;
    double rate, seconds_left, seconds; /* bytes a second lately; < 0: not known; since the beginning */
    bool waiting;                       /* for another process that downloads the same files */
    bool finished;                      /* the last report */
};
typedef void hub_report_fn(void *arg, const struct hub_progress *);
/* Whether a model's weights shall be downloaded: `dir` has all its other files.  @return 0, or an error code and *e. */
typedef int hub_check_fn(const char *dir, struct err *e);

/* What is meant where a repository has a model and an adapter, and what in the cache makes it complete. */
enum hub_kind {
    HUB_ANY,
    HUB_MODEL,
    HUB_ADAPTER, /* nothing else of the repository is downloaded */
    HUB_DATA,    /* for hub_find_data */
};

/* What the environment says, read as huggingface_hub does (its constants.py and utils/_auth.py, 2.4.0). */
struct hub {
    char *cache;    /* HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub, ~/.cache/... */
    char *endpoint; /* HF_ENDPOINT; no slash at its end */
    char *token;    /* HF_TOKEN, HUGGING_FACE_HUB_TOKEN, or the file HF_TOKEN_PATH or HF_HOME/token; NULL: none */
    const char *token_from; /* for messages */
    bool offline;           /* HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE */
    int timeout;            /* HF_HUB_DOWNLOAD_TIMEOUT: seconds without a byte; 10 */
    /* set by the caller */
    hub_report_fn *report; /* NULL: none */
    void *report_arg;
    hub_check_fn *check; /* NULL: always */
    enum hub_kind wants;
    const atomic_bool *stop; /* becomes true: downloads end, and can be continued; NULL: never */
};

void hub_open(struct hub *);
void hub_close(struct hub *);

/* What a --model or an adapter's DIR means. */
struct hub_found {
    char *path; /* owned: what the engine opens: a directory, or a GGUF file */
    char *name; /* owned: ORG/NAME; NULL: a path was given */
};

/* @return 0; or an error code with *e: a name of the hub that is neither in the cache nor can be downloaded, a URL of
 * something else.  A path is returned as it is, whether or not it exists. */
int hub_resolve(const struct hub *, const char *text, struct hub_found *, struct err *e);
/* The same for what a client names: never a path; ERR_INVALID where it has not the form of a name. */
int hub_resolve_name(const struct hub *, const char *text, struct hub_found *, struct err *e);
void hub_found_free(struct hub_found *);
/* Finds the files of a data set, hf:ORG/NAME[@REVISION][:FILE] (repo_data says which), downloads what is missing, and
 * asks the hub unless it is offline or the one FILE is in the cache.  @return 0, and *paths (*n), sorted by their
 * bytes: they and the array are the caller's; or an error code with *e. */
int hub_find_data(const struct hub *, const char *text, char ***paths, int *n, struct err *e);
bool hub_is_data(const char *text); /* begins with "hf:" */
/* Asks the hub what the name's revision is now, and downloads what of it is missing.  With a path: ERR_INVALID. */
int hub_pull(const struct hub *, const char *text, struct hub_found *, struct err *e);

/* Prints progress on stderr: one line rewritten on a terminal, else a line every ten seconds; zero-initialised. */
struct hub_printer {
    int lines;
    bool printed;
};
void hub_print_progress(void *printer, const struct hub_progress *);
void hub_print_end(struct hub_printer *); /* after a download that failed */

#endif
