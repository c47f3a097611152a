#include "server/hub/repo.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool name_char(char c)
{
    return isalnum((unsigned char)c) || strchr("._-", c);
}

bool repo_ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcasecmp(s + n - m, end) == 0;
}

/* ---- names ----------------------------------------------------------------------------------------------------- */

/* The form of ORG/NAME, which many relative paths also have. */
static bool has_form(const char *s, size_t n)
{
    const char *slash = memchr(s, '/', n);
    if (!slash || slash == s || slash == s + n - 1 || memchr(slash + 1, '/', n - (size_t)(slash + 1 - s))) return false;
    if (!isalnum((unsigned char)*s) || slash[1] == '.' || slash[1] == '-') return false;
    for (size_t i = 0; i < n; i++)
        if (s + i != slash && !name_char(s[i])) return false;
    return true;
}

static bool take_id(struct repo_name *r, const char *s, size_t n, struct err *e)
{
    int shown = n < 120 ? (int)n : 120;
    char last = s[n - 1], before = ((const char *)memchr(s, '/', n))[-1];
    const char *bad = n > REPO_NAME_MAX ? "is longer than 96 characters"
                      : last == '.' || last == '-' || before == '.' || before == '-'
                          ? "has a part that ends with . or -"
                      : n > 9 && !strncmp(s, "datasets/", 9)    ? "is of data sets"
                      : memmem(s, n, "--", 2)                   ? "has --"
                      : memmem(s, n, "..", 2)                   ? "has .."
                      : n > 4 && !strncmp(s + n - 4, ".git", 4) ? "ends with .git"
                                                                : NULL;
    if (bad) {
        err_set(e, ERR_INVALID, "%.*s: no such directory, and no name of the Hugging Face hub: it %s", shown, s, bad);
        return false;
    }
    memcpy(r->id, s, n);
    r->id[n] = 0;
    return true;
}

/* It becomes a path below refs/ and a part of URLs. */
static bool take_revision(struct repo_name *r, const char *s, size_t n, struct err *e)
{
    bool good = n > 0 && n <= REPO_REVISION_MAX && s[0] != '/' && s[n - 1] != '/' && !memmem(s, n, "..", 2) &&
                !memmem(s, n, "//", 2) && s[0] != '.' && !memmem(s, n, "/.", 2);
    for (size_t i = 0; good && i < n; i++) good = name_char(s[i]) || s[i] == '/' || s[i] == '+';
    if (!good) {
        err_set(e, ERR_INVALID, "%.96s@%.*s: the revision is not a branch, a tag or a commit", r->id,
                n < 100 ? (int)n : 100, s);
        return false;
    }
    memcpy(r->revision, s, n);
    r->revision[n] = 0;
    return true;
}

static bool take_quant(struct repo_name *r, const char *s, struct err *e)
{
    size_t n = strlen(s);
    if (n == 0 || n > REPO_QUANT_MAX || !repo_file_good(s)) {
        err_set(e, ERR_INVALID, "%.96s:%.100s: after the colon comes a type of a GGUF file, such as Q4_K_M", r->id, s);
        return false;
    }
    memcpy(r->quant, s, n + 1);
    return true;
}

static bool take_name(struct repo_name *r, const char *s, struct err *e)
{
    size_t n = strcspn(s, "@:");
    if (!has_form(s, n) || !take_id(r, s, n, e)) return false;
    strcpy(r->revision, "main");
    s += n;
    if (*s == '@') {
        n = strcspn(++s, ":");
        if (!take_revision(r, s, n, e)) return false;
        s += n;
    }
    return *s != ':' || take_quant(r, s + 1, e);
}

/* ---- data sets --------------------------------------------------------------------------------------------------- */

static const char data_url[] = "hf://datasets/";

bool repo_is_data(const char *text)
{
    return strncmp(text, "hf:", 3) == 0;
}

int repo_parse_data(struct repo_name *r, const char *text, struct err *e)
{
    static const char lead[] = "datasets/";
    bool url = strncmp(text, data_url, sizeof data_url - 1) == 0;
    const char *s = text + (url ? sizeof data_url - 1 : 3), *file = NULL;
    char name[REPO_ID_MAX + REPO_REVISION_MAX + 2] = "";
    *r = (struct repo_name){0};
    e->code = 0;
    if (!url && strncmp(s, lead, sizeof lead - 1) == 0) s += sizeof lead - 1;
    size_t n = strlen(s);
    if (url && strchr(s, '/')) file = strchr(strchr(s, '/') + 1, '/');
    if (!url) file = strchr(s, ':');
    if (file) n = (size_t)(file++ - s);
    if (n < sizeof name) memcpy(name, s, n);
    if (n >= sizeof name || strchr(name, ':') || !take_name(r, name, e)) {
        if (e->code) return e->code;
        return err_set(e, ERR_INVALID, "%.200s: a data set of the Hugging Face hub is named hf:ORG/NAME", text);
    }
    if (file && (strlen(file) > REPO_QUANT_MAX || !repo_file_good(file)))
        return err_set(e, ERR_INVALID, "%.96s: %.200s is no file of a repository", r->id, file);
    if (file) strcpy(r->quant, file);
    memmove(r->id + sizeof lead - 1, r->id, strlen(r->id) + 1);
    memcpy(r->id, lead, sizeof lead - 1);
    return 0;
}

/* ---- URLs ------------------------------------------------------------------------------------------------------ */

/* @return what follows "BASE/" in the URL; NULL: another host */
static const char *after(const char *url, const char *base)
{
    size_t n = strlen(base);
    while (n && base[n - 1] == '/') n--;
    return n && strncasecmp(url, base, n) == 0 && url[n] == '/' ? url + n + 1 : NULL;
}

static const char *on_hub(const char *url, const char *endpoint)
{
    static const char *const bases[] = {"https://huggingface.co", "http://huggingface.co", "https://www.huggingface.co",
                                        "https://hf.co", "http://hf.co"};
    const char *rest = endpoint ? after(url, endpoint) : NULL;
    for (size_t i = 0; !rest && i < sizeof bases / sizeof *bases; i++) rest = after(url, bases[i]);
    return rest;
}

/* ORG/NAME, then nothing, /tree/REVISION, or /blob/REVISION/FILE (also resolve and raw). */
static bool take_url_path(struct repo_name *r, const char *rest, struct err *e)
{
    static const char *const words[] = {"tree/", "blob/", "resolve/", "raw/"};
    char text[REPO_NAME_MAX + REPO_REVISION_MAX + REPO_FILE_MAX] = "";
    size_t n = strcspn(rest, "?#");
    while (n && rest[n - 1] == '/') n--;
    if (n >= sizeof text) return false;
    memcpy(text, rest, n);
    text[n] = 0;
    char *slash = strchr(text, '/'), *more = slash ? strchr(slash + 1, '/') : NULL;
    if (strncmp(text, "datasets/", 9) == 0 || strncmp(text, "spaces/", 7) == 0) return false;
    if (more) *more++ = 0;
    if (strchr(text, '@') || strchr(text, ':') || !take_name(r, text, e)) return false;
    for (size_t i = 0; more && i < sizeof words / sizeof *words; i++) {
        if (strncmp(more, words[i], strlen(words[i])) != 0) continue;
        char *revision = more + strlen(words[i]), *file = i ? strchr(revision, '/') : NULL;
        if (file) *file++ = 0;
        if (!take_revision(r, revision, strlen(revision), e)) return false;
        return !file || !repo_ends_with(file, ".gguf") || take_quant(r, file, e);
    }
    return true; /* a page of the model, such as /discussions */
}

static bool take_url(struct repo_name *r, const char *url, const char *endpoint, struct err *e)
{
    bool hf = strncmp(url, "hf://", 5) == 0;
    const char *rest = hf ? url + 5 : on_hub(url, endpoint);
    if (rest && strncmp(rest, "models/", 7) == 0) rest += 7; /* hf://models/ORG/NAME */
    if (rest && (hf ? take_name(r, rest, e) : take_url_path(r, rest, e))) return true;
    if (e->code == 0)
        err_set(e, ERR_INVALID,
                rest ? "%.200s: this URL names no model; it should be https://huggingface.co/ORG/NAME, or just ORG/NAME"
                     : "%.200s: a URL that is not one of the Hugging Face hub; a model is a directory, or ORG/NAME on "
                       "the hub",
                url);
    return false;
}

bool repo_parse(struct repo_name *r, const char *text, const char *endpoint, struct err *e)
{
    static const char *const hosts[] = {"hf.co/", "huggingface.co/"};
    *r = (struct repo_name){0};
    e->code = 0;
    if (strstr(text, "://")) return take_url(r, text, endpoint, e);
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) /* as typed for other programs */
        if (strncmp(text, hosts[i], strlen(hosts[i])) == 0) return take_name(r, text + strlen(hosts[i]), e);
    return take_name(r, text, e);
}

/* ---- folders, commits, files ----------------------------------------------------------------------------------- */

static const char lead[] = "models--", data_lead[] = "datasets/";

void repo_folder(struct buf *out, const char *id)
{
    bool data = strncmp(id, data_lead, sizeof data_lead - 1) == 0;
    if (data) id += sizeof data_lead - 1;
    const char *slash = strchr(id, '/');
    buf_printf(out, "%s%.*s%s%s", data ? "datasets--" : lead, slash ? (int)(slash - id) : (int)strlen(id), id,
               slash ? "--" : "", slash ? slash + 1 : "");
}

bool repo_of_folder(const char *folder, char id[REPO_NAME_MAX + 1])
{
    size_t skip = sizeof lead - 1, n = strlen(folder);
    if (strncmp(folder, lead, skip) != 0 || n == skip || n - skip > REPO_NAME_MAX + 1) return false;
    const char *name = folder + skip, *dashes = strstr(name, "--");
    if (!dashes) return n - skip <= REPO_NAME_MAX && strcpy(id, name);
    if (dashes == name || !dashes[2] || strstr(dashes + 2, "--")) return false;
    snprintf(id, REPO_NAME_MAX + 1, "%.*s/%s", (int)(dashes - name), name, dashes + 2);
    return true;
}

bool repo_commit_good(const char *s)
{
    return strspn(s, "0123456789abcdef") == 40 && !s[40];
}

bool repo_file_good(const char *name)
{
    if (!*name || strlen(name) > REPO_FILE_MAX) return false;
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p < 32 || *p == 127 || *p == '\\') return false;
    for (const char *part = name; part;) {
        size_t n = strcspn(part, "/");
        if (n == 0 || n > 255 || (n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.'))
            return false;
        part = part[n] ? part + n + 1 : NULL;
    }
    return true;
}

void repo_url_encode(struct buf *out, const char *s, const char *keep)
{
    for (; *s; s++) {
        if (isalnum((unsigned char)*s) || strchr("-._~", *s) || strchr(keep, *s))
            buf_char(out, *s);
        else
            buf_printf(out, "%%%02X", (unsigned)(unsigned char)*s);
    }
}

/* ---- which files ----------------------------------------------------------------------------------------------- */

/* "1_Pooling/": a module's directory, as sentence-transformers' modules.json names them; @return the name after it */
static const char *in_module(const char *name)
{
    size_t digits = strspn(name, "0123456789");
    const char *slash = digits && name[digits] == '_' ? strchr(name, '/') : NULL;
    return slash && !strchr(slash + 1, '/') ? slash + 1 : NULL;
}

bool repo_small_file(const char *name)
{
    static const char *const ends[] = {".json", ".jinja", ".model"}, *const texts[] = {"merges.txt", "vocab.txt"};
    static const char templates[] = "additional_chat_templates/";
    const char *file = in_module(name);
    if (file) return repo_ends_with(file, ".json");
    if (strncmp(name, templates, sizeof templates - 1) == 0) return repo_ends_with(name, ".jinja");
    if (strchr(name, '/') || strcmp(name, "trainer_state.json") == 0) return false;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(name, texts[i]) == 0) return true;
    /* indices of other formats: pytorch_model.bin.index.json, tf_model.h5.index.json */
    if (repo_ends_with(name, ".index.json")) return strcmp(name, "model.safetensors.index.json") == 0;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (repo_ends_with(name, ends[i])) return true;
    return false;
}

bool repo_weights_file(const char *name)
{
    const char *file = in_module(name);
    if (file) return strcmp(file, "model.safetensors") == 0;
    return strcmp(name, "model.safetensors") == 0 || strcmp(name, "adapter_model.safetensors") == 0;
}

static bool is_rows_file(const char *name)
{
    static const char *const ends[] = {".jsonl", ".ndjson", ".json"}, *const packed[] = {"", ".gz", ".zst"};
    /* what datasets and others write beside the rows */
    static const char *const about[] = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"};
    const char *slash = strrchr(name, '/'), *file = slash ? slash + 1 : name;
    for (size_t i = 0; i < sizeof about / sizeof *about; i++)
        if (strcmp(file, about[i]) == 0) return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends && *file != '.'; i++) {
        for (size_t k = 0; k < sizeof packed / sizeof *packed; k++) {
            char end[16];
            snprintf(end, sizeof end, "%s%s", ends[i], packed[k]);
            if (repo_ends_with(file, end)) return true;
        }
    }
    return false;
}

/* Whether the path has one of the words, between characters that are no letters. */
static bool has_word(const char *name, const char *const *words)
{
    for (; *words; words++) {
        size_t n = strlen(*words);
        for (const char *p = name; (p = strcasestr(p, *words)); p++)
            if ((p == name || !isalpha((unsigned char)p[-1])) && !isalpha((unsigned char)p[n])) return true;
    }
    return false;
}

static int say_no_rows(const char *const *names, int n, const char *file, struct err *e)
{
    for (int i = 0; i < n && !*file; i++)
        if (repo_ends_with(names[i], ".parquet") || repo_ends_with(names[i], ".arrow") ||
            repo_ends_with(names[i], ".csv"))
            return err_set(
                e, ERR_UNSUPPORTED,
                "it has no JSON, but %.100s; convert it: python3 -c \"import datasets, sys; "
                "datasets.load_dataset(sys.argv[1], split='train').to_json(sys.argv[2])\" ORG/NAME OUT.jsonl",
                names[i]);
    return err_set(e, ERR_NOT_FOUND, *file ? "no file is called %.200s" : "it has no files of JSON%.0s", file);
}

int repo_data(const char *const *names, int n, const char *file, bool *chosen, struct err *e)
{
    static const char *const train[] = {"train", "training", NULL};
    static const char *const others[] = {"test",  "testing", "eval",       "evaluation", "dev",
                                         "valid", "val",     "validation", NULL};
    int count = 0;
    bool trains = false;
    for (int i = 0; i < n; i++) {
        chosen[i] = *file ? strcmp(names[i], file) == 0 || fnmatch(file, names[i], 0) == 0 : is_rows_file(names[i]);
        trains = trains || (chosen[i] && has_word(names[i], train));
    }
    for (int i = 0; i < n; i++) {
        if (!*file) chosen[i] = chosen[i] && (trains ? has_word(names[i], train) : !has_word(names[i], others));
        count += chosen[i];
    }
    return count ? count : say_no_rows(names, n, file, e);
}

/* ---- GGUF ------------------------------------------------------------------------------------------------------ */

/* The name's length without "-00001-of-00003.gguf" (or ".gguf"), as llama.cpp's gguf-split names parts; *part: 1 for
 * the first or only file; *of: how many there are. */
static size_t gguf_split(const char *name, int *part, int *of)
{
    size_t n = strlen(name) - 5, split = sizeof "-00001-of-00003" - 1;
    int used = 0;
    if (n > split && sscanf(name + n - split, "-%5d-of-%5d%n", part, of, &used) == 2 && used == (int)split)
        return n - split;
    *part = *of = 1;
    return n;
}

static size_t gguf_stem(const char *name, int *part)
{
    int of;
    return gguf_split(name, part, &of);
}

int repo_gguf_parts(const char *name)
{
    int part, of;
    gguf_split(name, &part, &of);
    return of;
}

/* Whether the stem has the type as a word of its own: "Q4_K" is not in "model-Q4_K_M". */
static bool has_quant(const char *name, size_t stem, const char *quant)
{
    size_t n = strlen(quant);
    for (size_t at = 0; at + n <= stem; at++) {
        if (strncasecmp(name + at, quant, n) != 0) continue;
        bool begins = at == 0 || !isalnum((unsigned char)name[at - 1]);
        bool ends = at + n == stem || (!isalnum((unsigned char)name[at + n]) && name[at + n] != '_');
        if (begins && ends) return true;
    }
    return false;
}

/* A GGUF file that is a language model: not a projector of images, not an importance matrix. */
static bool gguf_model(const char *name)
{
    const char *slash = strrchr(name, '/'), *file = slash ? slash + 1 : name;
    return repo_ends_with(name, ".gguf") && strlen(file) > 5 && strncasecmp(file, "mmproj", 6) != 0 &&
           strncasecmp(file, "imatrix", 7) != 0;
}

static bool gguf_wanted(const char *name, const char *quant)
{
    int part;
    const char *slash = strrchr(name, '/');
    if (repo_ends_with(quant, ".gguf")) return strcmp(name, quant) == 0 || (slash && strcmp(slash + 1, quant) == 0);
    return !*quant || has_quant(name, gguf_stem(name, &part), quant);
}

/* "a.gguf, b-Q4_0.gguf, ..." of the first files of models for which want is true */
static void gguf_list(struct buf *out, const char *const *names, int n, const char *quant)
{
    for (int i = 0, part; i < n && out->len < 260; i++) {
        if (!gguf_model(names[i]) || (quant && !gguf_wanted(names[i], quant))) continue;
        gguf_stem(names[i], &part);
        if (part == 1) buf_printf(out, "%s%.100s", out->len ? ", " : "", names[i]);
    }
}

static int gguf_unclear(const char *const *names, int n, const char *quant, bool none, struct err *e)
{
    struct buf list = {0};
    gguf_list(&list, names, n, none ? NULL : quant);
    int rc = !list.len ? err_set(e, ERR_NOT_FOUND, "there is no GGUF file")
             : none    ? err_set(e, ERR_NOT_FOUND, "no GGUF file is of type %.40s; there are %s", quant, list.data)
                    : err_set(e, ERR_INVALID, "which GGUF file? %s%.40s%s %s: give ORG/NAME:TYPE or ORG/NAME:FILE.gguf",
                              *quant ? "\"" : "", *quant ? quant : "there are", *quant ? "\" matches" : "", list.data);
    buf_free(&list);
    return rc;
}

int repo_gguf(const char *const *names, int n, const char *quant, bool *chosen, int *first, struct err *e)
{
    int count = 0, part, model = -1;
    size_t stem = 0;
    *first = -1;
    for (int i = 0; i < n; i++) {
        chosen[i] = gguf_model(names[i]) && gguf_wanted(names[i], quant);
        if (!chosen[i] || (model >= 0 && gguf_stem(names[i], &part) == stem && !strncmp(names[i], names[model], stem)))
            continue;
        if (model >= 0) return gguf_unclear(names, n, quant, false, e);
        model = i;
        stem = gguf_stem(names[i], &part);
    }
    if (model < 0) return gguf_unclear(names, n, quant, true, e);
    for (int i = 0; i < n; i++) { /* also when one part of a split model was named */
        chosen[i] =
            gguf_model(names[i]) && gguf_stem(names[i], &part) == stem && !strncmp(names[i], names[model], stem);
        count += chosen[i];
        if (chosen[i] && part == 1) *first = i;
    }
    if (*first < 0) return err_set(e, ERR_NOT_FOUND, "%.200s: its first part is missing", names[model]);
    return count;
}
