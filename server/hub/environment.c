/* The hub's variables of the environment: hub_open and hub_close. */
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "server/hub/hub.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { TOKEN_MAX = 4096, TIMEOUT = 10 };

/* NULL when not set or empty */
static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static bool is_true(const char *name)
{
    static const char *const yes[] = {"1", "on", "yes", "true"};
    const char *value = variable(name);
    for (size_t i = 0; value && i < sizeof yes / sizeof *yes; i++)
        if (strcasecmp(value, yes[i]) == 0) return true;
    return false;
}

/* "~" and "~/..." with the user's directory */
static char *expand(const char *path)
{
    const char *home = variable("HOME");
    if (path[0] == '~' && (path[1] == '/' || !path[1]) && home) return file_join(home, path[1] ? path + 2 : "");
    return mem_strdup(path);
}

static char *hub_home(void)
{
    const char *home = variable("HF_HOME"), *xdg = variable("XDG_CACHE_HOME");
    if (home) return expand(home);
    char *base = expand(xdg ? xdg : "~/.cache"), *path = file_join(base, "huggingface");
    free(base);
    return path;
}

/* Drops line ends and blanks around it.  @return NULL when nothing is left, or what is left cannot be in a header */
static char *clean_token(const char *text)
{
    char *out = mem_strdup(text), *to = out;
    while (isspace((unsigned char)*text)) text++;
    for (; *text; text++)
        if (*text != '\r' && *text != '\n') *to++ = *text;
    while (to > out && isspace((unsigned char)to[-1])) to--;
    *to = 0;
    for (const char *p = out; *p; p++)
        if ((unsigned char)*p <= 32 || (unsigned char)*p >= 127) *out = 0;
    if (*out) return out;
    free(out);
    return NULL;
}

static void read_token(struct hub *h, const char *home)
{
    const char *name = variable("HF_TOKEN") ? "HF_TOKEN" : "HUGGING_FACE_HUB_TOKEN", *given = variable(name);
    if (given) h->token = clean_token(given);
    h->token_from = name;
    if (h->token) return;
    const char *where = variable("HF_TOKEN_PATH");
    char *path = where ? expand(where) : file_join(home, "token"), *text = NULL;
    size_t n;
    struct err none = {0};
    if (file_read(path, TOKEN_MAX, &text, &n, &none) == 0) h->token = clean_token(text);
    h->token_from = where ? "the file HF_TOKEN_PATH" : "the file token of HF_HOME";
    free(text);
    free(path);
}

void hub_open(struct hub *h)
{
    const char *cache = variable("HF_HUB_CACHE"), *endpoint = variable("HF_ENDPOINT");
    const char *seconds = variable("HF_HUB_DOWNLOAD_TIMEOUT");
    char *home = hub_home();
    *h = (struct hub){.offline = is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE")};
    if (!cache) cache = variable("HUGGINGFACE_HUB_CACHE");
    h->cache = cache ? expand(cache) : file_join(home, "hub");
    h->endpoint = mem_strdup(endpoint ? endpoint : "https://huggingface.co");
    for (size_t n = strlen(h->endpoint); n && h->endpoint[n - 1] == '/';) h->endpoint[--n] = 0;
    h->timeout = seconds ? atoi(seconds) : TIMEOUT;
    if (h->timeout < 1 || h->timeout > 86400) h->timeout = TIMEOUT;
    read_token(h, home);
    free(home);
}

void hub_close(struct hub *h)
{
    if (h->token) explicit_bzero(h->token, strlen(h->token));
    free(h->token);
    free(h->cache);
    free(h->endpoint);
    *h = (struct hub){0};
}
