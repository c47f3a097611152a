/* tandem quantize: a model directory with int8, int4 or nf4 weights from one with floats, or a GGUF file.  Main thread.
 */
#include "engine/model/quantize.h"

#include "server/cli/cmd.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char usage[] = "tandem quantize [--model DIR] --out DIR [--type int8|int4|nf4] [--calibrate FILE]\n"
                            "       tandem quantize [--model DIR] --out FILE.gguf [--type q8_0|q4_0]\n"
                            "       tandem quantize --model DIR --verify-weights";
static const char about[] =
    "Writes a copy of a model whose matrices are int8 or int4, packed as the processor takes them: it starts at once.\n"
    "nf4 is written as bitsandbytes does, with double quantisation, for transformers to load too.\n"
    "q8_0 and q4_0 are written as one GGUF file, for llama.cpp to load too.\n"
    "Or compares a copy with its checksums.";

static void show_progress(void *arg, int done, int total)
{
    (void)arg;
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r%d of %d matrices%s", done, total, done == total ? "\n" : "");
}

static bool is_gguf_type(const char *type)
{
    return strcmp(type, "q8_0") == 0 || strcmp(type, "q4_0") == 0;
}

/* The type to write; NULL with *e: the file's format does not have it. */
static const char *choose_type(const struct settings *s, struct err *e)
{
    bool gguf = cmd_writes_gguf(s);
    if (gguf && !settings_given(s, "type")) return "q8_0";
    if (gguf == is_gguf_type(s->type) || (!gguf && strcmp(s->file_format, "auto") == 0)) return s->type;
    err_set(e, ERR_INVALID, "--type %s is not a type of --format %s: that has %s", s->type,
            gguf ? "gguf" : s->file_format, gguf ? "q8_0 and q4_0" : "int8, int4 and nf4");
    return NULL;
}

static int run(const struct settings *s)
{
    struct err e = {0};
    const char *type = choose_type(s, &e);
    if (!type) return cmd_fail(&e);
    struct quantize_summary summary = {0};
    struct quantize_options o = {.type = type, .layout = s->layout, .progress = show_progress, .summary = &summary};
    if (s->verify_weights) {
        if (quantize_verify(settings_model_dir(s), &e)) return cmd_fail(&e);
        fprintf(stderr, "%s: every checksum is right\n", s->model);
    }
    if (!s->out) return 0;
    struct buf text = {0};
    struct quantize_text with = {0};
    int rc = 0;
    if (s->calibrate && strcmp(s->calibrate, "self")) {
        rc = cmd_read_file(s->calibrate, &text, &e);
        with = (struct quantize_text){text.data ? text.data : "", text.len};
    }
    if (s->calibrate) o.calibrate = &with;
    if (!rc && s->calibrate && isatty(STDERR_FILENO)) fprintf(stderr, "calibrating...");
    if (!rc) rc = (is_gguf_type(type) ? quantize_gguf : quantize_model)(settings_model_dir(s), s->out, &o, &e);
    buf_free(&text);
    if (rc) return cmd_fail(&e);
    fprintf(stderr, "%s: written, %s\n", s->out, type);
    if (summary.unseen)
        fprintf(stderr, "%d of %d experts saw no token of the text and are rounded without calibration\n",
                summary.unseen, summary.experts);
    return 0;
}

int cmd_quantize(int argc, char **argv)
{
    struct settings s;
    int status = 0;
    if (cmd_settings(&s, CMD_QUANTIZE, argc, argv, usage, about, &status)) {
        if (!s.out && !s.verify_weights) {
            fprintf(stderr, "tandem: --out is missing\nusage: %s\n", usage);
            status = 2;
        } else {
            status = run(&s);
        }
    }
    settings_free(&s);
    return status;
}
