#include "server/cli/train_preset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTIONS_MAX = 12, PRESETS_MAX = 4, COLUMNS = 110 };

/* How thorough, then how large the model is: --preset advanced,8b. */
static const struct preset {
    const char *name, *what, *option[OPTIONS_MAX];
} presets[] = {
    {"basic",
     "a first look: one pass, a small adapter",
     {"--epochs=1", "--batch-tokens=2048", "--lora-r=8", "--lora-alpha=16"}},
    {"advanced",
     "for use: three passes that end early when the loss of held-out rows no longer falls",
     {"--epochs=3", "--batch-tokens=8192", "--lora-r=16", "--lora-alpha=32", "--lora-dropout=0.05",
      "--warmup-ratio=0.05", "--eval-fraction=0.05", "--early-stopping-patience=2"}},
    {"ultra",
     "many rows: large steps, a large adapter",
     {"--epochs=3", "--batch-tokens=32768", "--learning-rate=1e-4", "--lora-r=64", "--lora-alpha=64",
      "--use-rslora=true", "--lora-dropout=0.05", "--warmup-ratio=0.05", "--eval-fraction=0.05",
      "--early-stopping-patience=3"}},
    {"1b", "models up to a billion parameters: their weights as they are", {"--method=lora"}},
    {"8b", "up to eight billion: weights of 8 bits", {"--method=qlora", "--quantize=int8"}},
    {"70b",
     "larger: weights of 4 bits, activations computed twice",
     {"--method=qlora", "--quantize=nf4", "--recompute=on"}},
};
enum { PRESETS = sizeof presets / sizeof *presets };

static const struct preset *preset_of(const char *name, size_t n)
{
    for (int i = 0; i < PRESETS; i++)
        if (strlen(presets[i].name) == n && memcmp(presets[i].name, name, n) == 0) return &presets[i];
    return NULL;
}

/* Whether two words name the same option, before any '=': "--lora_r" is "--lora-r". */
static bool same_option(const char *a, const char *b)
{
    for (;; a++, b++) {
        char x = *a == '_' ? '-' : *a, y = *b == '_' ? '-' : *b;
        bool end_x = !x || x == '=', end_y = !y || y == '=';
        if (end_x || end_y) return end_x && end_y;
        if (x != y) return false;
    }
}

static bool is_named(int argc, char **argv, const char *option)
{
    for (int i = 0; i < argc; i++)
        if (same_option(argv[i], option)) return true;
    return false;
}

/* Appends the preset's options to `out`, and says so. */
static int add_preset(const struct preset *p, int argc, char **argv, char **out, int n, struct buf *said)
{
    buf_printf(said, "preset %s:", p->name);
    for (int i = 0; i < OPTIONS_MAX && p->option[i]; i++) {
        if (is_named(argc, argv, p->option[i])) {
            buf_printf(said, " (%s: yours)", p->option[i]);
            continue;
        }
        out[n++] = (char *)p->option[i]; /* only read */
        buf_printf(said, " %s", p->option[i]);
    }
    buf_printf(said, "\n");
    return n;
}

static int unknown(const char *name, size_t n, struct err *e)
{
    struct buf names = {0};
    for (int i = 0; i < PRESETS; i++) buf_printf(&names, "%s%s", i ? " " : "", presets[i].name);
    err_set(e, ERR_INVALID, "--preset: \"%.*s\" is none of %s", n < 40 ? (int)n : 40, name, names.data);
    buf_free(&names);
    return -1;
}

/* The texts of --preset, taken out of argv.  -> how many, or -1 and *e. */
static int take_names(int *argc, char **argv, const char *names[PRESETS_MAX], struct err *e)
{
    int kept = 0, n = 0;
    for (int i = 0; i < *argc; i++) {
        if (!same_option(argv[i], "--preset")) {
            argv[kept++] = argv[i];
            continue;
        }
        const char *equals = strchr(argv[i], '='), *text = equals ? equals + 1 : i + 1 < *argc ? argv[++i] : NULL;
        if (!text) return err_set(e, ERR_INVALID, "--preset wants a value");
        if (n == PRESETS_MAX) return err_set(e, ERR_INVALID, "--preset is given more than %d times", PRESETS_MAX);
        names[n++] = text;
    }
    *argc = kept;
    return n;
}

int train_preset_expand(int argc, char **argv, char ***out, struct buf *said, struct err *e)
{
    const char *names[PRESETS_MAX];
    const struct preset *chosen[PRESETS];
    int n = take_names(&argc, argv, names, e), n_chosen = 0;
    if (n < 0) return -1;
    for (int i = 0; i < n; i++)
        for (const char *p = names[i]; p;) {
            size_t length = strcspn(p, ",");
            const struct preset *one = preset_of(p, length);
            if (!one) return unknown(p, length, e);
            if (n_chosen == PRESETS) return err_set(e, ERR_INVALID, "--preset: too many names");
            chosen[n_chosen++] = one;
            p = p[length] ? p + length + 1 : NULL;
        }
    char **all = calloc((size_t)argc + (size_t)n_chosen * OPTIONS_MAX + 1, sizeof *all);
    if (!all) return err_set(e, ERR_NOMEM, "out of memory");
    int total = argc;
    memcpy(all, argv, (size_t)argc * sizeof *all);
    for (int i = 0; i < n_chosen; i++) total = add_preset(chosen[i], argc, argv, all, total, said);
    *out = all;
    return total;
}

void train_preset_help(void)
{
    printf("\nPresets: --preset NAME, or several (advanced,8b), stands for options; those given beside it win\n");
    for (int i = 0; i < PRESETS; i++) {
        int column = COLUMNS;
        printf("  %-10s %s:", presets[i].name, presets[i].what);
        for (int k = 0; k < OPTIONS_MAX && presets[i].option[k]; k++) {
            int n = (int)strlen(presets[i].option[k]) + 1;
            if (column + n > COLUMNS) column = printf("\n%12s", "") - 1;
            column += printf(" %s", presets[i].option[k]);
        }
        putchar('\n');
    }
}
