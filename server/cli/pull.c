/* tandem pull: downloads models and adapters from the Hugging Face hub into its cache.  Main thread.
 *
 * Prints the path of each on stdout, progress on stderr. */
#include "server/cli/cmd.h"
#include "server/cli/find_model.h"

#include <stdio.h>
#include <string.h>

static const char usage[] = "tandem pull ORG/NAME[@REVISION][:TYPE] ... [options]";
static const char about[] =
    "Downloads a model or an adapter from the Hugging Face hub into the cache that huggingface_hub also uses, or "
    "brings\n"
    "it up to date; prints where it is.  TYPE chooses a GGUF file: unsloth/Qwen3-0.6B-GGUF:Q4_K_M.  Broken off, the "
    "same\n"
    "command goes on where it ended.  Environment: HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_HUB_OFFLINE.";

static int pull_all(char **names, int n)
{
    struct hub_session c;
    struct err e = {0};
    int rc = 0;
    hub_session_open(&c);
    for (int i = 0; i < n && !rc; i++) {
        struct hub_found f = {0};
        rc = hub_pull(&c.hub, names[i], &f, &e);
        if (!rc) printf("%s\n", f.path);
        fflush(stdout);
        hub_found_free(&f);
    }
    return hub_session_close(&c, rc, &e);
}

int cmd_pull(int argc, char **argv)
{
    struct settings s = {0};
    int status = 0, names = 0;
    while (names < argc && argv[names][0] != '-') names++;
    if (cmd_settings(&s, CMD_PULL, argc - names, argv + names, usage, about, &status)) {
        if (names) {
            status = pull_all(argv, names);
        } else {
            fprintf(stderr, "tandem: which model? ORG/NAME\nusage: %s\n", usage);
            status = 2;
        }
    }
    settings_free(&s);
    return status;
}
