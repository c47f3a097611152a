#include "engine/train/teacher_file.h"

#include "engine/base/crc32c.h"
#include "engine/data/dataset.h"
#include "kernels/rng.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct head {
    char magic[8];
    uint64_t data, rows, teacher;
    uint32_t k, crc; /* of what is before it */
};

struct record {
    uint32_t row, n, crc; /* of row, n and what follows the record's head: (n, k) ids, (n, k) log-probabilities */
};

static const char magic[8] = "TEACHER1";

static struct head head_of(const struct teacher_file_of *of)
{
    struct head h = {
        .data = dataset_hash(of->set), .rows = dataset_rows(of->set), .teacher = of->teacher, .k = (uint32_t)of->k};
    memcpy(h.magic, magic, sizeof magic);
    h.crc = crc32c(0, &h, offsetof(struct head, crc));
    return h;
}

static bool is_of(struct head found, const struct teacher_file_of *of)
{
    struct head h = head_of(of);
    bool whole = found.crc == crc32c(0, &found, offsetof(struct head, crc));
    if (!of->teacher) h.teacher = found.teacher;
    return whole && memcmp(&found, &h, offsetof(struct head, crc)) == 0;
}

static size_t body_bytes(uint32_t n, int k)
{
    return (size_t)n * (size_t)k * (sizeof(int32_t) + sizeof(float));
}

static uint32_t crc_of(const struct record *r, const void *body, size_t n)
{
    return crc32c(crc32c(0, r, offsetof(struct record, crc)), body, n);
}

/* The record at f->whole.  @return its bytes; 0: there is none, or it is not whole. */
static size_t look(struct teacher_file *f, const struct dataset *set)
{
    struct record r;
    size_t left = f->map.size - f->whole;
    if (left < sizeof r) return 0;
    memcpy(&r, f->map.data + f->whole, sizeof r);
    if (r.row >= f->rows || r.n != (uint32_t)dataset_row(set, r.row).n_trained) return 0;
    size_t n = body_bytes(r.n, f->k);
    if (left - sizeof r < n || r.crc != crc_of(&r, f->map.data + f->whole + sizeof r, n)) return 0;
    if (!f->at[r.row]) {
        f->at[r.row] = f->whole;
        f->known++;
        f->hash ^= rng_mix((uint64_t)r.row << 32 | r.crc);
    }
    return sizeof r + n;
}

int teacher_file_open(struct teacher_file *f, const char *path, const struct teacher_file_of *of, struct err *e)
{
    struct head h;
    *f = (struct teacher_file){.rows = dataset_rows(of->set), .k = of->k};
    if (access(path, F_OK) == 0 && file_map(&f->map, path, e)) return e->code;
    f->at = calloc(f->rows ? f->rows : 1, sizeof *f->at);
    if (!f->at) {
        teacher_file_close(f);
        return err_set(e, ERR_NOMEM, "no memory for the places of the rows in %s", path);
    }
    if (f->map.size < sizeof h) return 0;
    memcpy(&h, f->map.data, sizeof h);
    if (!is_of(h, of)) return 0;
    f->whole = sizeof h;
    for (size_t n; (n = look(f, of->set)) > 0; f->whole += n) continue;
    return 0;
}

void teacher_file_close(struct teacher_file *f)
{
    if (f->map.data) file_unmap(&f->map);
    free(f->at);
    *f = (struct teacher_file){0};
}

void teacher_file_row(const struct teacher_file *f, uint64_t row, const int32_t **id, const float **logprob)
{
    struct record r;
    const char *p = f->map.data + f->at[row];
    memcpy(&r, p, sizeof r);
    *id = (const int32_t *)(const void *)(p + sizeof r);
    *logprob = (const float *)(const void *)(*id + (size_t)r.n * (size_t)f->k);
}

void teacher_file_put_head(struct buf *b, const struct teacher_file_of *of)
{
    struct head h = head_of(of);
    buf_append(b, &h, sizeof h);
}

void teacher_file_put(struct buf *b, int k, uint32_t row, uint32_t n, const int32_t *id, const float *logprob)
{
    struct record r = {.row = row, .n = n};
    size_t each = body_bytes(n, k) / 2;
    r.crc = crc32c(crc32c(crc32c(0, &r, offsetof(struct record, crc)), id, each), logprob, each);
    buf_append(b, &r, sizeof r);
    buf_append(b, id, each);
    buf_append(b, logprob, each);
}
