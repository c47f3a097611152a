/* --help from the option table: groups in the table's order, help text wrapped in a second column. */
#include "server/config/settings.h"

#include <string.h>

enum { NAME_WIDTH = 30, LINE_WIDTH = 110 };

static void put_wrapped(FILE *out, const char *text)
{
    int column = NAME_WIDTH;
    while (*text) {
        size_t n = strcspn(text, " ");
        if (column > NAME_WIDTH && column + 1 + (int)n > LINE_WIDTH) {
            fprintf(out, "\n%*s", NAME_WIDTH, "");
            column = NAME_WIDTH;
        }
        if (column > NAME_WIDTH) fputc(' ', out), column++;
        fwrite(text, 1, n, out);
        column += (int)n;
        text += n;
        while (*text == ' ') text++;
    }
    fputc('\n', out);
}

static void put_range(const struct setting_option *o, char *out, size_t size)
{
    if (o->min > 0 && o->min < 1e-4) /* no lower bound except 0 */
        snprintf(out, size, "%sabove 0, up to %.12g", o->value ? "; " : "", o->max);
    else
        snprintf(out, size, "%s%.12g to %.12g", o->value ? "; " : "", o->min, o->max);
}

/* "default 64; 1 to 4096" */
static void describe(const struct setting_option *o, char *out, size_t size)
{
    int n = 0;
    if (o->type == SETTING_CHOICE) {
        char list[400];
        snprintf(list, sizeof list, "%s", o->choices);
        for (char *p = list; *p; p++)
            if (*p == '|') *p = ' ';
        n += snprintf(out + n, size - (size_t)n, "one of %s; ", list);
    }
    if (o->value) n += snprintf(out + n, size - (size_t)n, "default %s", *o->value ? o->value : "empty");
    if ((o->min != 0 || o->max != 0) && o->max < 1e9) put_range(o, out + n, size - (size_t)n);
    n = (int)strlen(out);
    if (o->reloadable) snprintf(out + n, size - (size_t)n, "%sreloadable", n ? "; " : "");
}

static void put_option(FILE *out, const struct setting_option *o)
{
    char name[80], range[600] = "", text[1200];
    bool on = o->type == SETTING_BOOL && o->value && strcmp(o->value, "true") == 0;
    snprintf(name, sizeof name, "  --%s%s%s%s", on ? "[no-]" : "", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
    describe(o, range, sizeof range);
    snprintf(text, sizeof text, "%s%s%s%s", o->help, *range ? " (" : "", range, *range ? ")" : "");
    int n = fprintf(out, "%-*s", NAME_WIDTH, name);
    if (n >= NAME_WIDTH) fprintf(out, "\n%*s", NAME_WIDTH, "");
    put_wrapped(out, text);
}

void settings_help(FILE *out, enum command cmd, const char *usage, const char *about)
{
    int n;
    const struct setting_option *o = settings_options(&n);
    fprintf(out, "usage: %s\n\n%s\n", usage, about);
    /* Options of this command alone come first: the reader looks for them. */
    for (int own = 1; own >= 0; own--) {
        const char *group = NULL;
        for (int i = 0; i < n; i++) {
            if (!(o[i].commands & (unsigned)cmd) || (int)o[i].flag_only != own) continue;
            if (!group || strcmp(group, o[i].group) != 0) fprintf(out, "\n%s\n", group = o[i].group);
            put_option(out, &o[i]);
        }
    }
    fprintf(out, "\n  -h, --help                  print this\n");
    fprintf(
        out, "\nAn option NAME may be set as --name VALUE or --name=VALUE%s.\n",
        ", in the environment as TANDEM_NAME, or in the\nfile of --config as  name: VALUE  (flags win over the "
        "environment, that over the file; options of a single run\nsuch as --prompt, --file or --json are flags only)");
    if (cmd == CMD_SERVE)
        fprintf(out, "What is reloadable is read again on SIGHUP, from the environment and the file.\n");
}
