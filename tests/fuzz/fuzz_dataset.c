/* Fuzzes dataset_open: the first byte says which format is asked for (low three bits, 0: found out), what the file is
 * called (next two: .jsonl, .txt, nothing, inline) and whether rows are short (next one); the rest is the file.
 *
 * Whatever the bytes: an error with a sentence, or rows that keep what dataset.h promises, the same on one thread and
 * on three. */
#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/data/dataset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* SentencePiece-style with a token for each byte. */
static struct tokenizer *tokenizer_make(void)
{
    struct buf b = {0};
    struct err e = {0};
    buf_str(&b, "{\"model\":{\"vocab\":{\"<unk>\":0,\"</s>\":1");
    for (int i = 0; i < 256; i++) buf_printf(&b, ",\"<0x%02X>\":%d", i, i + 2);
    buf_str(
        &b,
        ",\"\xe2\x96\x81\":258,\"a\":259,\"b\":260,\"ab\":261,\"\xe2\x96\x81"
        "a\":262},"
        "\"merges\":[\"a b\",\"\xe2\x96\x81 a\"],\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true},"
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"},"
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}]},"
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
        "\"\xe2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
        "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
        "\"added_tokens\":[{\"id\":1,\"content\":\"</s>\",\"special\":true,\"normalized\":false}]}");
    struct tokenizer *t = tokenizer_parse(b.data, b.len, &e);
    CHECK(t);
    buf_free(&b);
    return t;
}

static void check_rows(const struct dataset *d, const struct dataset_options *o, const struct dataset_report *r,
                       const struct tokenizer *t)
{
    uint64_t tokens = 0, trained = 0, longest = 0;
    CHECK(r->seen == r->kept + r->skipped + r->duplicates);
    CHECK(r->kept == dataset_rows(d) && r->kept > 0);
    CHECK(r->n_problems == (int)(r->skipped < DATASET_PROBLEMS_MAX ? r->skipped : DATASET_PROBLEMS_MAX));
    for (uint64_t i = 0; i < dataset_rows(d); i++) {
        struct dataset_row row = dataset_row(d, i);
        int targets = 0;
        CHECK(row.n >= 2 && row.n <= o->max_length && !row.trained[0]);
        for (int k = 0; k < row.n; k++) {
            CHECK(row.id[k] >= 0 && row.id[k] < tokenizer_size(t) && row.trained[k] <= 1);
            targets += row.trained[k];
        }
        CHECK(targets == row.n_trained && targets > 0 && row.trained[row.n - 1]);
        tokens += (uint64_t)row.n;
        trained += (uint64_t)targets;
        if ((uint64_t)row.n > longest) longest = (uint64_t)row.n;
        if (i > 20) continue;
        struct dataset_preview p;
        dataset_preview(&row, t, &p);
        CHECK(p.n >= 2);
        dataset_preview_free(&p);
    }
    CHECK(tokens == r->tokens && trained == r->trained_tokens && longest == r->longest);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"a.jsonl", "a.txt", "a", "rows"};
    static struct tokenizer *t;
    if (!t) t = tokenizer_make();
    if (!size) return 0;
    int fd = memfd_create("rows", MFD_CLOEXEC);
    CHECK(fd >= 0 && write(fd, data + 1, size - 1) == (ssize_t)size - 1);
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int how = data[0] >> 3 & 3;
    struct dataset_source s = {.path = how < 3 ? path : NULL, .name = names[how]};
    char *text = malloc(size); /* exactly as long as it is */
    memcpy(text, data + 1, size - 1);
    if (how == 3) s.inline_json = text, s.inline_bytes = size - 1;
    struct dataset_options o = {.format = (data[0] & 7) % 7, .max_length = 20,
                                .max_row_bytes = data[0] & 32 ? 0 : 200,
                                .max_bytes = 4 << 20}; /* also of what a compressed file holds */
    struct dataset *d[2] = {0};
    struct dataset_report r[2];
    struct err e[2] = {0};
    int rc[2];
    for (int i = 0; i < 2; i++) {
        o.threads = i ? 3 : 1;
        rc[i] = dataset_open(&d[i], &s, &o, t, NULL, 1, &r[i], &e[i]);
        CHECK((rc[i] == 0) == (d[i] != NULL) && (rc[i] == 0) == (e[i].msg[0] == 0));
        if (d[i]) check_rows(d[i], &o, &r[i], t);
        if (size < 4096 && size % 8 && i == 0) { /* threads are slow to start: most inputs go without */
            rc[1] = rc[0];
            break;
        }
    }
    CHECK(rc[0] == rc[1]);
    if (d[1]) CHECK(dataset_hash(d[0]) == dataset_hash(d[1]) && !memcmp(&r[0], &r[1], sizeof r[0]));
    dataset_free(d[0]);
    dataset_free(d[1]);
    free(text);
    close(fd);
    return 0;
}
