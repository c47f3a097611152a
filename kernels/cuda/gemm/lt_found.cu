/* The table of classes and its file: $XDG_CACHE_HOME/tandem/cublaslt-DEVICE-VERSION. */
#include "kernels/cuda/gemm/lt_state.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace GPU_NAMESPACE {

/* FNV-1a over whole ints */
uint32_t lt_hash(const int *p, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint32_t)p[i]) * 16777619u;
    return h ^ h >> 15;
}

namespace {

/* The slot of a class, or for a new one a free slot, in a full table that of the least recently used class. Slots
 * are never freed, so that open addressing still finds classes behind one that was replaced. */
lt_found *slot_of(lt_state *s, const lt_class *c)
{
    uint32_t h = lt_hash(&c->t, sizeof *c / sizeof(int));
    lt_found *last = s->classes;
    for (uint32_t i = 0; i < LT_CLASSES; i++) {
        lt_found *f = s->classes + (h + i) % LT_CLASSES;
        if (!f->used || !memcmp(&f->c, c, sizeof *c)) return f;
        if (f->asked < last->asked) last = f;
    }
    return last;
}

bool is_of(const lt_found *f, const lt_class *c)
{
    return f->used && !memcmp(&f->c, c, sizeof *c);
}

} // namespace

lt_found *lt_class_find(lt_state *s, const lt_class *c)
{
    lt_found *f = slot_of(s, c);
    if (!is_of(f, c)) return nullptr;
    f->asked = ++s->asked;
    return f;
}

void lt_class_note(lt_state *s, const lt_class *c, bool refused, const cublasLtMatmulAlgo_t *algo)
{
    *slot_of(s, c) = {*c, true, refused, *algo, ++s->asked};
}

void lt_name_file(lt_state *s, const char *device_name)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char folder[256], device[64];
    size_t n = 0;
    if (!(cache && *cache) && !(home && *home)) return;
    int len = cache && *cache ? snprintf(folder, sizeof folder, "%s", cache)
                              : snprintf(folder, sizeof folder, "%s/.cache", home);
    if (len < 0 || (size_t)len + sizeof "/tandem" > sizeof folder) return;
    /* 0700: XDG Base Directory Specification, "Referencing this specification"; the file, by mkostemp, has 0600. A
     * failure shows when the file is written. */
    (void)mkdir(folder, 0700);
    memcpy(folder + len, "/tandem", sizeof "/tandem");
    (void)mkdir(folder, 0700);
    for (const char *p = device_name; *p && n + 1 < sizeof device; p++)
        device[n++] = (*p >= '0' && *p <= '9') || ((*p | 32) >= 'a' && (*p | 32) <= 'z') ? *p : '_';
    device[n] = 0;
    snprintf(s->file, sizeof s->file, "%s/cublaslt-%s-%zu", folder, device, s->f.GetVersion());
}

/* ---- the file -----------------------------------------------------------------------------------------------------
 *
 * The first line is the file's own name, so that a copy from another device or version is rejected. Then one line per
 * class: its numbers, the algorithm's words, and a checksum of both; at most as many lines as the table holds, most
 * recently used first. The content is not trusted: a malformed line ends the reading, no more is read than the table
 * holds, and an algorithm that the library does not know, or that does not fit the shape, is detected when it is to be
 * used. */

namespace {

enum { CLASS_INTS = sizeof(lt_class) / sizeof(int), LINE_BYTES = 512 };

const char *base_name(const lt_state *s)
{
    return strrchr(s->file, '/') + 1;
}

uint32_t line_sum(const lt_class *c, const cublasLtMatmulAlgo_t *algo)
{
    int all[CLASS_INTS + sizeof *algo / sizeof(int)];
    memcpy(all, c, sizeof *c);
    memcpy(all + CLASS_INTS, algo, sizeof *algo);
    return lt_hash(all, sizeof all / sizeof *all);
}

bool is_class(const lt_class *c, const cublasLtMatmulAlgo_t *algo)
{
    if (c->t == LT_RACE) return algo->data[0] <= 1;
    for (int align : {c->align_a, c->align_b, c->align_c})
        if (align != 1 && align != 2 && align != 4 && align != 8 && align != 16) return false;
    for (int flag : {c->ta, c->tb, c->adds, c->bias})
        if (flag != 0 && flag != 1) return false;
    return (c->t == DT_F32 || c->t == DT_BF16 || c->t == DT_F16 || c->t == DT_I8) && c->M > 0 && c->N > 0 && c->K > 0;
}

bool read_line(const char *line, lt_class *c, cublasLtMatmulAlgo_t *algo)
{
    int ints[CLASS_INTS], at = 0, n = 0;
    uint32_t sum = 0;
    for (int &v : ints) {
        if (sscanf(line + at, "%d%n", &v, &n) != 1) return false;
        at += n;
    }
    for (uint64_t &w : algo->data) {
        if (sscanf(line + at, "%" SCNx64 "%n", &w, &n) != 1) return false;
        at += n;
    }
    memcpy(c, ints, sizeof *c);
    return sscanf(line + at, "%" SCNx32 "%n", &sum, &n) == 1 && line[at + n] == '\n' && sum == line_sum(c, algo) &&
           is_class(c, algo);
}

/* NULL: there is none, or it is no ordinary file.  A pipe in its place is not waited for. */
FILE *open_file(const char *name)
{
    struct stat st;
    int fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return nullptr;
    FILE *in = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? fdopen(fd, "r") : nullptr;
    if (!in) close(fd);
    return in;
}

void write_lines(const lt_state *s, FILE *out)
{
    const lt_found *found[LT_CLASSES];
    int n = 0;
    for (const lt_found &f : s->classes)
        if (f.used && !f.refused) found[n++] = &f;
    std::sort(found, found + n, [](const lt_found *a, const lt_found *b) { return a->asked > b->asked; });
    for (int i = 0; i < n; i++) {
        const lt_found *f = found[i];
        int ints[CLASS_INTS];
        memcpy(ints, &f->c, sizeof ints);
        for (int v : ints) fprintf(out, "%d ", v);
        for (uint64_t w : f->algo.data) fprintf(out, "%" PRIx64 " ", w);
        fprintf(out, "%" PRIx32 "\n", line_sum(&f->c, &f->algo));
    }
}

} // namespace

void lt_load_found(lt_state *s)
{
    FILE *in = s->file[0] ? open_file(s->file) : nullptr;
    char line[LINE_BYTES];
    if (!in) return;
    bool ours = fgets(line, sizeof line, in) && strcspn(line, "\n") == strlen(base_name(s)) &&
                !strncmp(line, base_name(s), strlen(base_name(s)));
    for (int i = 1; ours && i <= LT_CLASSES && fgets(line, sizeof line, in); i++) {
        lt_class c;
        cublasLtMatmulAlgo_t algo;
        if (!read_line(line, &c, &algo)) break;
        lt_found *f = slot_of(s, &c);
        if (!f->used || (!is_of(f, &c) && f->asked < -i)) *f = {c, true, false, algo, -i};
    }
    fclose(in);
}

void lt_save_found(lt_state *s)
{
    char name[sizeof s->file + 16];
    if (!s->file[0]) return;
    lt_load_found(s);
    snprintf(name, sizeof name, "%s.XXXXXX", s->file);
    int fd = mkostemp(name, O_CLOEXEC);
    FILE *out = fd >= 0 ? fdopen(fd, "w") : nullptr;
    if (!out) {
        if (fd >= 0) close(fd), (void)unlink(name);
        return;
    }
    fprintf(out, "%s\n", base_name(s));
    write_lines(s, out);
    bool good = !ferror(out);
    if (fclose(out) || !good || rename(name, s->file)) (void)unlink(name);
}

} // namespace GPU_NAMESPACE
