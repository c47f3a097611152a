#include "engine/data/mix.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/data/seen.h"
#include "kernels/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STREAM_MIX = 8 }; /* random stream of the seed */

/* The rows of one set among all rows. */
struct set {
    const char *name; /* of its first source */
    double weight;
    uint64_t first, n, drawn;
};

static int no_memory(uint64_t rows, struct err *e)
{
    return err_set(e, ERR_NOMEM, "no memory for the tables of %llu rows", (unsigned long long)rows);
}

void mix_free(struct mix *m)
{
    free(m->place);
    *m = (struct mix){0};
}

/* ---- all rows ---------------------------------------------------------------------------------------------------- */

/* Adds the rows of part k that no earlier one has. */
static int add_part(struct mix *m, const struct cache *part, int k, struct seen *seen, struct dataset_report *r,
                    struct err *e)
{
    for (uint64_t i = 0; i < part->header->rows; i++) {
        struct dataset_row row = cache_row(part, i);
        unsigned char digest[SHA256_BYTES];
        int is_new = seen ? seen_add(seen, seen_digest(&row, digest)) : 1;
        if (is_new < 0) return no_memory(m->rows, e);
        if (is_new) {
            m->place[m->rows++] = (uint64_t)k << MIX_ROW_BITS | i;
            continue;
        }
        r->kept--;
        r->duplicates++;
        r->tokens -= (uint64_t)row.n;
        for (int t = 0; t < row.n; t++) r->trained_tokens -= row.trained[t];
    }
    return 0;
}

static int add_all(struct mix *m, const struct cache *part, int n, bool unique, struct dataset_report *r, struct err *e)
{
    struct seen seen = {0};
    uint64_t rows = 0;
    int rc = 0;
    for (int k = 0; k < n; k++) rows += part[k].header->rows;
    m->place = mem_try_alloc(rows * sizeof *m->place);
    if (!m->place) return no_memory(rows, e);
    for (int k = 0; k < n && !rc; k++) rc = add_part(m, &part[k], k, unique ? &seen : NULL, r, e);
    seen_free(&seen);
    return rc;
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

static const char *name_of(const struct dataset_source *s)
{
    return s->name ? s->name : s->path ? s->path : "the rows";
}

/* @return the number of sets; 0: not mixed; or an err code.  *out (one for each) is the caller's. */
static int find_sets(const struct mix *m, const struct dataset_source *source, int n, struct set **out, struct err *e)
{
    int sets = 0;
    bool weighted = source[0].weight > 0;
    for (int k = 0; k < n; k++) {
        if ((source[k].weight > 0) != weighted)
            return err_set(e, ERR_INVALID, "%s has a weight and %s has none: either all have one, or none",
                           name_of(&source[weighted ? 0 : k]), name_of(&source[weighted ? k : 0]));
        CHECK(source[k].set == sets || (k && source[k].set == sets - 1));
        if (source[k].set == sets) sets++;
    }
    if (!weighted || sets < 2) return 0;
    struct set *v = *out = mem_array((size_t)sets, sizeof *v);
    for (int k = n - 1; k >= 0; k--) v[source[k].set] = (struct set){name_of(&source[k]), source[k].weight, 0, 0, 0};
    for (uint64_t i = m->rows; i-- > 0;) {
        struct set *s = &v[source[mix_part(m->place[i])].set];
        s->first = i;
        s->n++;
    }
    return sets;
}

/* How many rows each set gives: in all as many as there are, by shares, at least one. */
static int share_out(struct set *v, int sets, uint64_t rows, uint64_t *total, struct err *e)
{
    double sum = 0, before = 0;
    for (int s = 0; s < sets; s++) sum += v[s].weight;
    *total = 0;
    for (int s = 0; s < sets; s++) {
        if (!v[s].n) return err_set(e, ERR_INVALID, "%s: no row of it is left that an earlier set has not", v[s].name);
        if (!(v[s].weight > 0) || !isfinite(sum)) return err_set(e, ERR_INVALID, "%s: its weight", v[s].name);
        uint64_t from = (uint64_t)llround(before / sum * (double)rows);
        before += v[s].weight;
        uint64_t to = s == sets - 1 ? rows : (uint64_t)llround(before / sum * (double)rows);
        v[s].drawn = to > from ? to - from : 1;
        *total += v[s].drawn;
    }
    return 0;
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Writes the set's rows, row (n), to out (drawn): all of them as often as they fit, then those with the smallest random
 * numbers, each time in their order. */
static int draw(const struct set *s, const uint64_t *row, uint64_t seed, uint64_t *out, struct err *e)
{
    uint64_t rest = s->drawn % s->n, at = 0;
    for (uint64_t k = 0; k < s->drawn / s->n; k++, at += s->n) memcpy(out + at, row, s->n * sizeof *out);
    if (!rest) return 0;
    uint64_t *key = mem_try_alloc(s->n * sizeof *key);
    if (!key) return no_memory(s->n, e);
    for (uint64_t i = 0; i < s->n; i++) key[i] = rng_at(seed, i);
    qsort(key, s->n, sizeof *key, by_key);
    uint64_t limit = key[rest - 1];
    free(key);
    for (uint64_t i = 0; i < s->n && at < s->drawn; i++)
        if (rng_at(seed, i) <= limit) out[at++] = row[i];
    return 0;
}

static int draw_all(struct mix *m, struct set *v, int sets, uint64_t seed, struct err *e)
{
    uint64_t total, at = 0;
    int rc = share_out(v, sets, m->rows, &total, e);
    if (rc) return rc;
    uint64_t *place = mem_try_alloc(total * sizeof *place);
    if (!place) return no_memory(total, e);
    for (int s = 0; s < sets && !rc; s++) {
        rc = draw(&v[s], m->place + v[s].first, rng_at(rng_at(seed, STREAM_MIX), (uint64_t)s), place + at, e);
        at += v[s].drawn;
    }
    free(m->place);
    m->place = place;
    m->rows = total;
    return rc;
}

/* ---- together ---------------------------------------------------------------------------------------------------- */

static uint64_t hash_of(const struct mix *m, const struct cache *part, int n)
{
    struct sha256 h;
    unsigned char digest[SHA256_BYTES];
    uint64_t first;
    sha256_start(&h);
    for (int k = 0; k < n; k++) sha256_add(&h, &part[k].header->hash, sizeof part[k].header->hash);
    sha256_add(&h, m->place, m->rows * sizeof *m->place);
    sha256_end(&h, digest);
    memcpy(&first, digest, sizeof first);
    return first;
}

int mix_make(struct mix *m, const struct cache *part, const struct dataset_source *source, int n,
             const struct mix_options *o, struct dataset_report *r, struct err *e)
{
    struct set *v = NULL;
    int rc = add_all(m, part, n, !o->keep_duplicates, r, e);
    if (rc) return rc;
    int sets = find_sets(m, source, n, &v, e);
    if (v) rc = draw_all(m, v, sets, o->seed, e);
    free(v);
    if (rc || sets < 0) return rc ? rc : sets;
    for (uint64_t i = 0; sets && i < m->rows; i++)
        r->drawn_tokens += (uint64_t)cache_row(&part[mix_part(m->place[i])], mix_row(m->place[i])).n;
    if (sets) r->drawn = m->rows;
    m->hash = hash_of(m, part, n);
    return 0;
}
