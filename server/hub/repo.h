/* Names of the Hugging Face hub: what a user types, and which files of a repository are wanted.  Pure; any thread.
 *
 * The rules of names are those of huggingface_hub 2.4.0: validate_repo_id (utils/_validators.py) and repo_folder_name
 * (file_download.py). */
#ifndef TANDEM_SERVER_HUB_REPO_H
#define TANDEM_SERVER_HUB_REPO_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    REPO_NAME_MAX = 96,
    REPO_ID_MAX = REPO_NAME_MAX + 9,
    REPO_REVISION_MAX = 200,
    REPO_FILE_MAX = 1024,
    REPO_QUANT_MAX = 200
};

/* ORG/NAME[@REVISION][:QUANT] */
struct repo_name {
    char id[REPO_ID_MAX + 1]; /* ORG/NAME; of a data set datasets/ORG/NAME, as in its URL */
    char revision[REPO_REVISION_MAX + 1];
    char quant[REPO_QUANT_MAX + 1]; /* GGUF: a type (Q4_K_M) or a file's name; of a data set a file or a pattern; "":
                                       not given */
};

/* Reads ORG/NAME[@REVISION][:QUANT], hf.co/ORG/NAME..., hf://ORG/NAME... or a URL of the hub or of `endpoint`
 * (https://huggingface.co/ORG/NAME, also with /tree/REVISION or /blob/REVISION/FILE.gguf).  @return whether `text` is
 * one of these; if not, *e says why for a URL and for what has the form of a name but breaks a rule, and e->code is 0
 * for what may be a path. */
bool repo_parse(struct repo_name *, const char *text, const char *endpoint, struct err *e);

/* Whether `text` means a data set of the hub: "hf:...". */
bool repo_is_data(const char *text);
/* Reads hf:ORG/NAME[@REVISION][:FILE], or hf://datasets/ORG/NAME[@REVISION][/FILE] as Python's libraries write it. */
int repo_parse_data(struct repo_name *, const char *text, struct err *e);

/* "models--ORG--NAME" or "datasets--ORG--NAME", the repository's directory in the cache. */
void repo_folder(struct buf *out, const char *id);
/* The opposite.  @return false: not the directory of a model */
bool repo_of_folder(const char *folder, char id[REPO_NAME_MAX + 1]);

bool repo_commit_good(const char *s); /* 40 lower-case hexadecimal digits */
/* Whether a file's name is relative, has no empty part, no "." or "..", and no control characters. */
bool repo_file_good(const char *name);

/* Appends `s` with all bytes percent-encoded but unreserved ones and those in `keep`. */
void repo_url_encode(struct buf *out, const char *s, const char *keep);

/* ---- which files are wanted ---- */

/* Small files that a model or an adapter may need: configuration, tokenizer, chat templates, the index of the weights,
 * and the modules of sentence-transformers. */
bool repo_small_file(const char *name);
/* Weights that are read if there is no index: model.safetensors, those of an adapter, and of sentence-transformers'
 * modules. */
bool repo_weights_file(const char *name);
bool repo_ends_with(const char *s, const char *end); /* in any case */

/* Chooses among names the rows of a data set: those that `file` means, a name or a pattern (* ? [abc], * also across
 * folders); "": all files of JSON, compressed or not; where some are named after the split train these, else those that
 * are not named after another split.  @return their number; < 0 with *e: none. */
int repo_data(const char *const *names, int n, const char *file, bool *chosen, struct err *e);

/* Chooses among names those of the GGUF model that `quant` means ("": the only one): a type (q4_k_m, in any case) or
 * the name of a file.  All files of a split model are chosen.  @return their number, sets chosen[i] and *first, the
 * file that is opened; < 0 with *e: none, or several models match. */
int repo_gguf(const char *const *names, int n, const char *quant, bool *chosen, int *first, struct err *e);
/* How many files a split model has that this one is of ("-00001-of-00003.gguf": 3); 1: it is not split. */
int repo_gguf_parts(const char *name);

#endif
