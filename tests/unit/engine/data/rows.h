/* What the tests of data sets share: a tokenizer, rows from a string, and a data set shown as text. */
#ifndef TANDEM_TESTS_UNIT_ENGINE_DATA_ROWS_H
#define TANDEM_TESTS_UNIT_ENGINE_DATA_ROWS_H

#include "engine/base/buf.h"
#include "engine/data/dataset.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

static const char *fixtures; /* tests/fixtures/models */

/* A directory of the tests' own, made before them; that it cannot be removed after them says that something was left.
 */
static char scratch[] = "/tmp/tandem-dataset-XXXXXX";

static inline int scratch_make(void **state)
{
    (void)state;
    return mkdtemp(scratch) ? 0 : -1;
}

static inline int scratch_remove(void **state)
{
    (void)state;
    return rmdir(scratch);
}

/* A file there; unlink and free it. */
static inline char *file_of(const char *name, const char *bytes, size_t n)
{
    struct buf path = {0};
    buf_printf(&path, "%s/%s", scratch, name);
    FILE *f = fopen(path.data, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    return path.data;
}

static inline struct tokenizer *load(const char *name)
{
    struct err e = {0};
    struct buf path = {0};
    buf_printf(&path, "%s/%s", fixtures, name);
    struct tokenizer *t = tokenizer_open(path.data, &e);
    if (!t) fail_msg("%s", e.msg);
    buf_free(&path);
    return t;
}

static inline struct tokenizer *byte_level(void)
{
    return load("qwen2/tokenizer.json");
}

static inline struct dataset_source inline_rows(const char *json)
{
    return (struct dataset_source){.inline_json = json, .inline_bytes = strlen(json), .name = "rows"};
}

static inline void escaped(struct buf *b, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\n')
            buf_str(b, "\\n");
        else
            buf_char(b, text[i]);
    }
}

/* A line a row, of a pair both answers, of a label "yes" or "no", what is trained in [brackets]. */
static inline void show(const struct dataset *d, const struct tokenizer *t, struct buf *out)
{
    buf_str(out, "");
    for (uint64_t i = 0; i < dataset_rows(d); i++) {
        struct dataset_row row = dataset_row(d, i);
        for (int side = 0; side < 1 + (row.second > 0); side++) {
            struct dataset_row answer = dataset_row_answer(&row, side);
            struct dataset_preview p;
            dataset_preview(&answer, t, &p);
            if (side) buf_str(out, " / ");
            for (int k = 0; k < p.n; k++) {
                if (p.v[k].trained) buf_char(out, '[');
                escaped(out, p.v[k].text, p.v[k].bytes);
                if (p.v[k].trained) buf_char(out, ']');
            }
            dataset_preview_free(&p);
        }
        if (row.label) buf_str(out, row.label == DATASET_DESIRABLE ? " yes" : " no");
        buf_char(out, '\n');
    }
}

/* A line a row, every token's own text between bars, [trained]: |a||b|[c]. */
static inline void show_tokens(const struct dataset *d, const struct tokenizer *t, struct buf *out)
{
    buf_str(out, "");
    for (uint64_t i = 0; i < dataset_rows(d); i++) {
        struct dataset_row row = dataset_row(d, i);
        for (int k = 0; k < row.n; k++)
            buf_printf(out, row.trained[k] ? "[%s]" : "|%s|", tokenizer_spelling(t, row.id[k]));
        buf_char(out, '\n');
    }
}

#endif
