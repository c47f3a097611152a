/* tandem quantize: a model directory with int8, int4 or nf4 weights from one with floats.  Main thread. */
#include "engine/quantize.h"

#include "server/cmd.h"

#include <stdio.h>
#include <unistd.h>

static const char usage[] = "tandem quantize [--model DIR] --out DIR [--type int8|int4|nf4]";
static const char about[] = "Writes a copy of a model whose matrices are int8, int4 or nf4; it loads without "
                            "quantising again.  nf4 is written as\n"
                            "bitsandbytes does, with double quantisation, for transformers to load too.";

static void show_progress(void *arg, int done, int total)
{
    (void)arg;
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r%d of %d tensors%s", done, total, done == total ? "\n" : "");
}

int cmd_quantize(int argc, char **argv)
{
    struct settings s;
    struct err e = {0};
    int status = 0;
    if (cmd_settings(&s, CMD_QUANTIZE, argc, argv, usage, about, &status)) {
        if (!s.out) {
            fprintf(stderr, "tandem: --out is missing\nusage: %s\n", usage);
            status = 2;
        } else if (quantize_model(s.model, s.out, s.type, show_progress, NULL, &e)) {
            status = cmd_fail(&e);
        } else {
            fprintf(stderr, "%s: written, %s\n", s.out, s.type);
        }
    }
    settings_free(&s);
    return status;
}
