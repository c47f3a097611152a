#include "engine/base/model_dir.h"

#include "engine/base/file.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define WANTED                                                                                                         \
    "--model takes a directory with config.json, tokenizer.json and safetensors, a GGUF file, "                        \
    "or ORG/NAME on the Hugging Face hub"

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcasecmp(s + n - m, end) == 0;
}

static bool has_file(const char *dir, const char *name)
{
    struct stat st;
    char *path = file_join(dir, name);
    bool has = stat(path, &st) == 0;
    free(path);
    return has;
}

static bool has_any(const char *dir, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (has_file(dir, names[i])) return true;
    return false;
}

static bool has_gguf(const char *dir)
{
    DIR *d = opendir(dir);
    bool has = false;
    for (struct dirent *f; d && !has && (f = readdir(d));) has = ends_with(f->d_name, ".gguf");
    if (d) closedir(d);
    return has;
}

/* @return true, with *e set, when `dir` is not a directory.  What was said about a GGUF file stays. */
static bool no_directory(const char *dir, struct err *e)
{
    struct stat st;
    if (strstr(dir, "://")) {
        err_set(e, ERR_INVALID, "%.120s: a URL; " WANTED, dir);
    } else if (stat(dir, &st)) {
        bool missing = errno == ENOENT || errno == ENOTDIR;
        const char *why = strerror(errno);
        if (missing)
            err_set(e, ERR_NOT_FOUND, "%.200s: no such directory; " WANTED, dir);
        else
            err_set(e, ERR_IO, "%.200s: %s", dir, why);
    } else if (S_ISDIR(st.st_mode)) {
        return false;
    } else if (ends_with(dir, ".gguf")) {
        return true;
    } else {
        err_set(e, ERR_INVALID, "%.200s: a file, not a directory; " WANTED, dir);
    }
    return true;
}

int model_dir_no_config(const char *dir, struct err *e)
{
    if (no_directory(dir, e)) return e->code;
    if (has_file(dir, "config.json")) return e->code;
    if (has_file(dir, "adapter_config.json"))
        return err_set(e, ERR_INVALID,
                       "%.200s: a LoRA adapter, not a model: --model takes the model it was trained on, --adapters "
                       "NAME=%.100s the adapter",
                       dir, dir);
    if (has_file(dir, "snapshots"))
        return err_set(e, ERR_INVALID,
                       "%.200s: a cache of the Hugging Face hub; --model ORG/NAME finds the model in it", dir);
    if (has_gguf(dir)) return e->code;
    return err_set(e, ERR_NOT_FOUND, "%.200s: config.json is missing; " WANTED, dir);
}

int model_dir_no_weights(const char *dir, struct err *e)
{
    static const char *const torch[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
    if (has_any(dir, torch, 2))
        return err_set(
            e, ERR_UNSUPPORTED,
            "%.100s: the weights are there as pytorch_model.bin only, which is not read; transformers writes "
            "safetensors: python -c \"from transformers import AutoModelForCausalLM as M; "
            "M.from_pretrained('%.80s', dtype='auto').save_pretrained('%.80s')\"",
            dir, dir, dir);
    return err_set(e, ERR_NOT_FOUND,
                   "%.200s: neither model.safetensors nor model.safetensors.index.json is there; download them too",
                   dir);
}

int model_dir_no_tokenizer(const char *dir, struct err *e)
{
    static const char *const others[] = {"tokenizer.model", "vocab.json", "vocab.txt", "spiece.model"};
    static const char tekken[] = "tekken.json";
    if (no_directory(dir, e) || has_file(dir, "tokenizer.json") || has_gguf(dir)) return e->code;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (has_file(dir, others[i]))
            return err_set(e, ERR_UNSUPPORTED,
                           "%.100s: tokenizer.json is missing, and %s is not read; transformers makes the one of the "
                           "other: python -c \"from transformers import AutoTokenizer as T; "
                           "T.from_pretrained('%.80s').save_pretrained('%.80s')\"",
                           dir, others[i], dir, dir);
    if (has_file(dir, tekken))
        return err_set(e, ERR_UNSUPPORTED,
                       "%.200s: tokenizer.json is missing, and %s is not read; take the tokenizer.json of another "
                       "model of Mistral with the same %s, or a GGUF file of the model",
                       dir, tekken, tekken);
    return err_set(e, ERR_NOT_FOUND, "%.200s: tokenizer.json is missing; " WANTED, dir);
}

bool model_dir_lfs_pointer(const char *data, size_t n)
{
    static const char start[] = "version https://git-lfs.github.com/spec/";
    return n >= sizeof start - 1 && memcmp(data, start, sizeof start - 1) == 0;
}

int model_dir_lfs_error(struct err *e)
{
    return err_set(e, ERR_INVALID,
                   "a git-lfs pointer, not the file: `git lfs install && git lfs pull` in the directory fetches it");
}
