/* tandem tokenize: text to ids, or ids to text.  Needs only the tokenizer, not the weights.  Main thread. */
#include "engine/base/mem.h"
#include "server/cli/cmd.h"
#include "server/json/json.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] = "tandem tokenize [--model DIR] (--text TEXT | --file FILE | --ids LIST) [--json]";
static const char about[] = "Turns a text (stdin, when none is given) into token ids, or ids into their text.";

static void put_spelling(struct buf *out, const struct tokenizer *tk, int32_t id)
{
    const char *s = tokenizer_spelling(tk, id);
    json_put_string(out, s ? s : "", s ? strlen(s) : 0);
}

/* A line per token: id, characters [start, end), the vocabulary's spelling. */
static void print_tokens(const struct tokenizer *tk, const struct tokens *t, bool json)
{
    struct buf out = {0};
    if (json) buf_printf(&out, "{\"count\":%zu,\"ids\":[", t->n);
    for (size_t i = 0; json && i < t->n; i++) buf_printf(&out, "%s%d", i ? "," : "", t->v[i].id);
    if (json) buf_str(&out, "],\"tokens\":[");
    for (size_t i = 0; i < t->n; i++) {
        const struct token *v = &t->v[i];
        if (json) {
            buf_printf(&out, "%s{\"id\":%d,\"start\":%u,\"end\":%u,\"token\":", i ? "," : "", v->id, v->start, v->end);
            put_spelling(&out, tk, v->id);
            buf_char(&out, '}');
        } else {
            buf_printf(&out, "%7d  %6u-%-6u  ", v->id, v->start, v->end);
            put_spelling(&out, tk, v->id);
            buf_char(&out, '\n');
        }
    }
    if (json) buf_str(&out, "]}\n");
    fwrite(out.data ? out.data : "", 1, out.len, stdout);
    buf_free(&out);
}

static int encode(const struct tokenizer *tk, const struct settings *s, struct err *e)
{
    struct buf text = {0};
    struct tokens tokens = {0};
    int rc = 0;
    if (s->text)
        buf_str(&text, s->text);
    else
        rc = cmd_read_file(s->file ? s->file : "-", &text, e);
    if (!rc)
        rc = tokenizer_encode(tk, text.data ? text.data : "", text.len, s->special ? TOKENIZE_SPECIAL : 0, &tokens, e);
    if (!rc) print_tokens(tk, &tokens, s->json);
    if (!rc && !s->json) fprintf(stderr, "%zu tokens, %zu bytes\n", tokens.n, text.len);
    tokens_free(&tokens);
    buf_free(&text);
    return rc;
}

/* "1, 2 3" or "[1,2,3]" */
static int parse_ids(const char *p, int size, int32_t **out, size_t *n, struct err *e)
{
    size_t cap = 0;
    for (;;) {
        while (isspace((unsigned char)*p) || *p == ',' || *p == '[' || *p == ']') p++;
        if (!*p) return 0;
        char *end;
        errno = 0;
        long id = strtol(p, &end, 10);
        if (end == p || errno || id < 0 || id >= size)
            return err_set(e, ERR_INVALID, "--ids: '%.20s' is not an id from 0 to %d", p, size - 1);
        mem_grow(out, &cap, *n + 1, sizeof **out);
        (*out)[(*n)++] = (int32_t)id;
        p = end;
    }
}

static int decode(const struct tokenizer *tk, const struct settings *s, struct err *e)
{
    struct buf list = {0}, text = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    int rc = 0;
    if (strcmp(s->ids, "-") == 0)
        rc = cmd_read_file("-", &list, e);
    else
        buf_str(&list, s->ids);
    if (!rc) rc = parse_ids(list.data ? list.data : "", tokenizer_size(tk), &ids, &n, e);
    if (!rc) {
        tokenizer_decode(tk, ids, n, false, &text);
        if (s->json) {
            struct buf out = {0};
            buf_str(&out, "{\"text\":");
            json_put_string(&out, text.data ? text.data : "", text.len);
            buf_str(&out, "}\n");
            fwrite(out.data, 1, out.len, stdout);
            buf_free(&out);
        } else {
            fwrite(text.data ? text.data : "", 1, text.len, stdout);
            putchar('\n');
        }
    }
    free(ids);
    buf_free(&list);
    buf_free(&text);
    return rc;
}

int cmd_tokenize(int argc, char **argv)
{
    struct settings s;
    struct err e = {0};
    int status = 0;
    if (cmd_settings(&s, CMD_TOKENIZE, argc, argv, usage, about, &status)) {
        if ((s.text != NULL) + (s.file != NULL) + (s.ids != NULL) > 1) {
            fprintf(stderr, "tandem: give one of --text, --file and --ids\nusage: %s\n", usage);
            status = 2;
        } else {
            struct tokenizer *tk = tokenizer_open_dir(settings_model_dir(&s), &e);
            if (!tk || (s.ids ? decode(tk, &s, &e) : encode(tk, &s, &e))) status = cmd_fail(&e);
            tokenizer_close(tk);
        }
    }
    settings_free(&s);
    return status;
}
