/* tandem quantize: a model directory with int8 or int4 weights from one with floats.  Main thread. */
#include "engine/quantize.h"

#include "server/cmd.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char usage[] = "tandem quantize [--model DIR] --out DIR [--type int8|int4] [--calibrate FILE]";
static const char about[] =
    "Writes a copy of a model whose matrices are int8 or int4; it loads without quantising again.";

static void show_progress(void *arg, int done, int total)
{
    (void)arg;
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r%d of %d tensors%s", done, total, done == total ? "\n" : "");
}

static int quantize(const struct settings *s, struct err *e)
{
    struct buf text = {0};
    struct quantize_text how = {0};
    int rc = 0;
    if (s->calibrate && strcmp(s->calibrate, "self")) {
        rc = cmd_read_file(s->calibrate, &text, e);
        how = (struct quantize_text){text.data ? text.data : "", text.len};
    }
    if (!rc && s->calibrate && isatty(STDERR_FILENO)) fprintf(stderr, "calibrating...");
    if (!rc) rc = quantize_model(s->model, s->out, s->type, s->calibrate ? &how : NULL, show_progress, NULL, e);
    buf_free(&text);
    return rc;
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
        } else if (quantize(&s, &e)) {
            status = cmd_fail(&e);
        } else {
            fprintf(stderr, "%s: written, %s\n", s.out, s.type);
        }
    }
    settings_free(&s);
    return status;
}
