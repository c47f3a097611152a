#include "engine/data/detect.h"

#include "engine/base/mem.h"
#include "engine/data/json.h"
#include "engine/data/map.h"
#include "engine/data/row.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 256 << 10, ROWS_TRIED = 100, ROW_TRIED_MAX = 16 << 20 };

#define KNOWN                                                                                                          \
    "known are rows with \"text\", \"prompt\" and \"completion\", \"instruction\" and \"output\", \"messages\", "      \
    "\"conversations\" or \"input_ids\", as JSONL or a JSON array, and plain text"

/* ---- the first pass ---------------------------------------------------------------------------------------------- */

struct pass {
    char *block; /* the last SCAN_MARK_MAX bytes of the previous block, then a block; owned */
    size_t head; /* bytes of the first block */
    char *first; /* the first block, owned */
};

/* Hashes all bytes and notes which marks occur. */
static int read_through(struct source *s, const struct dataset_options *o, struct pass *p,
                        const char *marks[SCAN_MARKS], struct detected *d, struct err *e)
{
    struct sha256 h;
    size_t carry = 0;
    ssize_t n;
    sha256_start(&h);
    p->block = mem_alloc(SCAN_MARK_MAX + BLOCK);
    while ((n = source_read(s, p->block + carry, BLOCK, e)) > 0) {
        sha256_add(&h, p->block + carry, (size_t)n);
        d->bytes += (uint64_t)n;
        if (!p->first) {
            p->head = (size_t)n;
            p->first = mem_alloc(p->head);
            memcpy(p->first, p->block, p->head);
        }
        size_t have = carry + (size_t)n;
        for (int i = 0; i < SCAN_MARKS; i++)
            if (marks[i] && !d->mark[i] && memmem(p->block, have, marks[i], strlen(marks[i]))) d->mark[i] = marks[i];
        carry = have < SCAN_MARK_MAX ? have : SCAN_MARK_MAX;
        memmove(p->block, p->block + have - carry, carry);
        if (o->cancelled && o->cancelled(o->arg)) {
            n = err_set(e, ERR_FULL, "cancelled");
            break;
        }
    }
    sha256_end(&h, d->content);
    free(p->block);
    p->block = NULL;
    return n < 0 ? (int)n : source_rewind(s, e);
}

/* ---- kinds of files ---------------------------------------------------------------------------------------------- */

/* What pandas makes of a file that it reads so. */
#define PANDAS(imports, read)                                                                                          \
    "convert it: python3 -c \"import sys, " imports "; " read                                                          \
    ".to_json(sys.argv[2], orient='records', lines=True, force_ascii=False)\" FILE OUT.jsonl (needs: pip install "     \
    "pandas "                                                                                                          \
    "pyarrow)"

static const struct {
    const char *bytes;
    size_t n;
    const char *what, *help;
} foreign[] = {
    {"PAR1", 4, "a Parquet file", PANDAS("pandas", "pandas.read_parquet(sys.argv[1])")},
    {"ARROW1", 6, "an Arrow file", PANDAS("pandas", "pandas.read_feather(sys.argv[1])")},
    {"\xff\xff\xff\xff", 4, "an Arrow stream", PANDAS("pyarrow", "pyarrow.ipc.open_stream(sys.argv[1]).read_pandas()")},
    {"\x1f\x8b", 2, "compressed twice", "decompress it once: gzip -d < FILE > OUT"},
    {"\x28\xb5\x2f\xfd", 4, "compressed twice", "decompress it once: zstd -d FILE"},
    {"BZh", 3, "compressed with bzip2", "decompress it: bzip2 -d FILE"},
    {"\xfd\x37zXZ", 5, "compressed with xz", "decompress it: xz -d FILE"},
    {"PK\x03\x04", 4, "a zip file", "unpack it: unzip FILE"},
    {"%PDF-", 5, "a PDF file", KNOWN},
    {"\xff\xfe", 2, "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8 FILE > OUT"},
    {"\xfe\xff", 2, "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8 FILE > OUT"},
};

static bool one_of(const struct source *s, const char *const *suffixes)
{
    while (*suffixes)
        if (source_is_named(s, *suffixes++)) return true;
    return false;
}

static const char *const json_names[] = {".json", ".jsonl", ".ndjson", NULL};
static const char *const text_names[] = {".txt", ".text", ".md", NULL};
static const char *const comma_names[] = {".csv", NULL}, *const tab_names[] = {".tsv", NULL};

static int foreign_check(const struct source *s, const char *p, size_t n, struct err *e)
{
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (n >= foreign[i].n && !memcmp(p, foreign[i].bytes, foreign[i].n))
            return err_set(e, ERR_UNSUPPORTED, "%.180s: is %s; %s", s->name, foreign[i].what, foreign[i].help);
    if (one_of(s, comma_names))
        return err_set(e, ERR_UNSUPPORTED, "%.180s: is a table; %s", s->name,
                       PANDAS("pandas", "pandas.read_csv(sys.argv[1])"));
    if (one_of(s, tab_names))
        return err_set(e, ERR_UNSUPPORTED, "%.180s: is a table; %s", s->name,
                       PANDAS("pandas", "pandas.read_csv(sys.argv[1], sep=chr(9))"));
    return 0;
}

/* The file starts with an object: decides between one row per line and one object around all rows. */
static enum scan_kind object_kind(const struct dataset_options *o, const char *p, size_t n)
{
    const char *end = memchr(p, '\n', n);
    cJSON *first = row_parse(p, end ? (size_t)(end - p) : n, NULL);
    map_row(first, o);
    bool asks = o->format == DATASET_PROMPTS && cJSON_HasObjectItem(first, "prompt");
    bool known = asks || row_format(first) != DATASET_AUTO || cJSON_HasObjectItem(first, "chosen") ||
                 cJSON_HasObjectItem(first, "chosen_ids");
    cJSON_Delete(first);
    return !known && scan_has_member(p, n) ? SCAN_MEMBER : SCAN_LINES;
}

static enum scan_kind file_kind(const struct source *s, const struct dataset_options *o, const char *p, size_t n,
                                bool marked)
{
    size_t i = n >= 3 && !memcmp(p, "\xef\xbb\xbf", 3) ? 3 : 0;
    while (i < n && strchr(" \t\r\n", p[i]) && p[i]) i++;
    char c = i < n ? p[i] : 0;
    bool json_name = one_of(s, json_names), text_name = one_of(s, text_names);
    bool json = json_name || (o->format != DATASET_AUTO && o->format != DATASET_TEXT);
    if (s->text) return SCAN_ARRAY;
    if (!json && !text_name) { /* no known extension: text that begins like JSON is JSON */
        const char *end = memchr(p + i, '\n', n - i);
        size_t line = (end ? (size_t)(end - p) : n) - i;
        cJSON *first = c == '{' || c == '"' ? row_parse(p + i, line, NULL) : NULL;
        size_t next = i + 1;
        while (next < n && strchr(" \t\r\n", p[next]) && p[next]) next++;
        json = first || (c == '{' && scan_has_member(p + i, n - i)) ||
               (c == '[' && next < n && (p[next] == '{' || p[next] == '"'));
        cJSON_Delete(first);
    }
    if (!json) return marked ? SCAN_MARKED : SCAN_PARAGRAPHS;
    return c == '[' ? SCAN_ARRAY : c == '{' ? object_kind(o, p + i, n - i) : SCAN_LINES;
}

/* ---- formats of rows --------------------------------------------------------------------------------------------- */

static int unknown(const struct source *s, const char *seen, struct err *e)
{
    return err_set(e, ERR_INVALID, "%s: not in a known format: %s; " KNOWN, s->name, seen);
}

/* The format of the first row whose format is recognised. */
static int format_of_rows(struct source *s, const struct dataset_options *o, struct detected *d, struct err *e)
{
    struct scan scan;
    struct scan_row at;
    struct buf bytes = {0}, seen = {0};
    const char *unit = d->kind == SCAN_LINES ? "line" : "row";
    int rc = 1;
    scan_open(&scan, s, d->kind, o->max_row_bytes < ROW_TRIED_MAX ? o->max_row_bytes : ROW_TRIED_MAX);
    for (int i = 0; i < ROWS_TRIED && d->format == DATASET_AUTO && (rc = scan_next(&scan, &bytes, &at, e)) == 1; i++) {
        struct err why = {0};
        cJSON *row = at.too_large ? NULL : row_parse(bytes.data, bytes.len, &why);
        map_row(row, o);
        d->format = row ? row_format(row) : DATASET_AUTO;
        if (i == 0) {
            buf_printf(&seen, "%s %llu is ", unit, (unsigned long long)at.line);
            if (row && (cJSON_HasObjectItem(row, "chosen") || cJSON_HasObjectItem(row, "chosen_ids") ||
                        cJSON_HasObjectItem(row, "preferred_output")))
                buf_str(&seen,
                        "a pair of preferences (chosen, rejected), which methods dpo, orpo, simpo and reward train on");
            else if (row)
                row_describe(&seen, row);
            else
                buf_printf(&seen, "%s%s", at.too_large ? "too large" : why.msg,
                           d->kind == SCAN_LINES ? " (each row has a line of its own)" : "");
        }
        cJSON_Delete(row);
        buf_clear(&bytes);
    }
    scan_close(&scan);
    buf_free(&bytes);
    if (rc == 0 && !seen.len) buf_str(&seen, "there are no rows");
    if (d->format != DATASET_AUTO)
        rc = source_rewind(s, e);
    else if (rc >= 0)
        rc = unknown(s, seen.data, e);
    buf_free(&seen);
    return rc;
}

static const char *usable_mark(const char *mark)
{
    size_t n = mark ? strlen(mark) : 0;
    return n >= 3 && n <= SCAN_MARK_MAX ? mark : NULL;
}

int detect(struct source *s, const struct dataset_options *o, const char *eot, struct detected *d, struct err *e)
{
    const char *marks[SCAN_MARKS] = {usable_mark(eot), "<|endoftext|>"};
    struct pass p = {0};
    *d = (struct detected){.format = o->format};
    if (marks[0] && !strcmp(marks[0], marks[1])) marks[0] = NULL;
    int rc = read_through(s, o, &p, marks, d, e);
    if (!rc && !p.head)
        rc = s->packing == PACKED_NOT ? err_set(e, ERR_IO, "%s: changed while it was read", s->name)
                                      : err_set(e, ERR_INVALID, "%s: is empty", s->name);
    if (!rc && !s->text) rc = foreign_check(s, p.first, p.head, e);
    if (!rc) {
        d->kind = file_kind(s, o, p.first, p.head, d->mark[0] || d->mark[1]);
        bool text = d->kind == SCAN_MARKED || d->kind == SCAN_PARAGRAPHS;
        if (text && memchr(p.first, 0, p.head))
            rc = unknown(s, "it has NUL bytes", e);
        else if (text)
            d->format = DATASET_TEXT;
        else if (d->format == DATASET_AUTO)
            rc = format_of_rows(s, o, d, e);
    }
    free(p.block);
    free(p.first);
    return rc;
}
