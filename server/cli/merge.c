/* tandem merge: a model with an adapter's changes in its weights.  Main thread. */
#include "engine/model/merge.h"

#include "server/cli/cmd.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char usage[] = "tandem merge [--model DIR] --adapter DIR --out DIR [--type bf16|f16|f32]\n"
                            "       tandem merge [--model DIR] --adapter DIR --out FILE.gguf [--type q8_0|q4_0]";
static const char about[] =
    "Writes a copy of a model whose weights have a LoRA adapter (a PEFT directory) added to them, for whoever serves "
    "one\n"
    "model without adapters.  A quantised model is dequantised first: the copy has floats, or is one GGUF file.";

static void show_progress(void *arg, int done, int total)
{
    (void)arg;
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r%d of %d tensors%s", done, total, done == total ? "\n" : "");
}

static bool is_gguf_type(const char *type)
{
    return strcmp(type, "q8_0") == 0 || strcmp(type, "q4_0") == 0;
}

/* The type to write; NULL with *e: the format does not have it. */
static const char *choose_type(const struct settings *s, struct err *e)
{
    bool gguf = cmd_writes_gguf(s), any = strcmp(s->merge_type, "auto") == 0;
    if (gguf && any) return "q8_0";
    if (any || gguf == is_gguf_type(s->merge_type)) return s->merge_type;
    if (!gguf && strcmp(s->file_format, "auto") == 0) return s->merge_type;
    err_set(e, ERR_INVALID, "--type %s is not a type of --format %s: that has %s", s->merge_type,
            gguf ? "gguf" : s->file_format, gguf ? "q8_0 and q4_0" : "f32, bf16 and f16");
    return NULL;
}

/* Names of one model: directories are given by their paths, or by their last component. */
static bool same_model(const char *a, const char *b)
{
    const char *end_a = strrchr(a, '/'), *end_b = strrchr(b, '/');
    return strcmp(end_a ? end_a + 1 : a, end_b ? end_b + 1 : b) == 0;
}

static int run(const struct settings *s)
{
    struct err e = {0};
    struct merge_summary summary = {0};
    const char *type = choose_type(s, &e);
    struct merge_options o = {.type = type, .progress = show_progress, .summary = &summary};
    if (!type || merge_adapter(settings_model_dir(s), s->adapter, s->out, &o, &e)) return cmd_fail(&e);
    if (summary.of[0] && !same_model(summary.of, summary.base))
        fprintf(stderr, "note: the adapter says that it was made for %s; it was merged into %s, where its shapes fit\n",
                summary.of, summary.base);
    if (summary.untied)
        fprintf(stderr, "note: embedding table and head are one matrix in %s, and two in the copy\n", s->model);
    if (summary.dequantised) fprintf(stderr, "%s is quantised: it was dequantised first\n", s->model);
    fprintf(stderr, "%s: written, %d matrices with the adapter\n", s->out, summary.matrices);
    return 0;
}

int cmd_merge(int argc, char **argv)
{
    struct settings s;
    int status = 0;
    if (cmd_settings(&s, CMD_MERGE, argc, argv, usage, about, &status)) {
        if (!s.out || !s.adapter) {
            fprintf(stderr, "tandem: %s is missing\nusage: %s\n", s.out ? "--adapter" : "--out", usage);
            status = 2;
        } else {
            status = run(&s);
        }
    }
    settings_free(&s);
    return status;
}
