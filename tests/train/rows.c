#include "tests/train/rows.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "kernels/rng.h"

#include <string.h>

uint64_t dataset_rows(const struct dataset *s)
{
    return s->n;
}

struct dataset_row dataset_row(const struct dataset *s, uint64_t i)
{
    return s->row[i % ROWS_MAX];
}

const char *dataset_row_source(const struct dataset *s, uint64_t i)
{
    (void)i;
    return s->source;
}

uint64_t dataset_row_origin(const struct dataset *s, uint64_t i)
{
    (void)s;
    return i;
}

uint64_t dataset_hash(const struct dataset *s)
{
    return s->hash;
}

/* What a job on ranks needs beside; no test of these rows has one. */
void dataset_send(const struct dataset *s, void (*put)(void *arg, const void *, size_t), void *arg)
{
    (void)s, (void)put, (void)arg;
    CHECK(false);
}

int dataset_receive(struct dataset **out, void (*get)(void *arg, void *, size_t), void *arg, struct err *e)
{
    (void)out, (void)get, (void)arg, (void)e;
    CHECK(false);
}

void dataset_free(struct dataset *s)
{
    (void)s;
    CHECK(false);
}

void rows_add(struct dataset *s, const int32_t *id, const uint8_t *trained, int n)
{
    CHECK(s->n < ROWS_MAX && n <= ROW_TOKENS_MAX);
    uint64_t i = s->n++;
    memcpy(s->id[i], id, (size_t)n * sizeof *id);
    memcpy(s->trained[i], trained, (size_t)n);
    s->row[i] = (struct dataset_row){.id = s->id[i], .trained = s->trained[i], .n = n, .line = (uint32_t)i + 1};
    for (int k = 0; k < n; k++) s->row[i].n_trained += trained[k];
}

void rows_add_preference(struct dataset *s, const int32_t *id, const uint8_t *trained, int n, int second,
                         enum dataset_label label)
{
    rows_add(s, id, trained, n);
    s->row[s->n - 1].second = second;
    s->row[s->n - 1].label = label;
}

void rows_add_prompt(struct dataset *s, const int32_t *id, int n)
{
    static const uint8_t none[ROW_TOKENS_MAX];
    rows_add(s, id, none, n);
    s->row[s->n - 1].fields = "{}";
    s->row[s->n - 1].n_fields = 2;
}

struct dataset *rows_make(uint64_t n, int vocab, uint64_t seed)
{
    struct dataset *s = mem_zalloc(sizeof *s);
    s->hash = seed;
    for (uint64_t i = 0; i < n; i++) {
        int32_t id[ROW_TOKENS_MAX];
        uint8_t trained[ROW_TOKENS_MAX];
        int len = 4 + (int)(rng_at(seed, i) % 37), step = 1 + (int)(rng_at(seed, i + 1000) % 3),
            from = (int)(rng_at(seed, i + 2000) % 50);
        for (int k = 0; k < len; k++) {
            id[k] = (from + k * step) % 60 % vocab;
            trained[k] = k > len / 3;
        }
        rows_add(s, id, trained, len);
    }
    return s;
}
