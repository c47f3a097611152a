/* The table of classes and its file: $XDG_CACHE_HOME/tandem/cublaslt-DEVICE-VERSION. */
#include "kernels/cuda/lt_state.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

lt_found *lt_class_find(lt_state *s, const lt_class *c)
{
    uint32_t h = lt_hash(&c->t, sizeof *c / sizeof(int));
    for (uint32_t i = 0; i < LT_CLASSES; i++) {
        lt_found *f = s->classes + (h + i) % LT_CLASSES;
        if (!f->used || !memcmp(&f->c, c, sizeof *c)) return f;
    }
    return nullptr;
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
    (void)mkdir(folder, 0777); /* what cannot be made shows when the file is written */
    memcpy(folder + len, "/tandem", sizeof "/tandem");
    (void)mkdir(folder, 0777);
    for (const char *p = device_name; *p && n + 1 < sizeof device; p++)
        device[n++] = (*p >= '0' && *p <= '9') || ((*p | 32) >= 'a' && (*p | 32) <= 'z') ? *p : '_';
    device[n] = 0;
    snprintf(s->file, sizeof s->file, "%s/cublaslt-%s-%zu", folder, device, s->f.GetVersion());
}

/* Lines of eleven numbers and eight words; what follows a broken line is not looked at.  An algorithm that does not fit
 * is found out when it is to be used. */
void lt_load_found(lt_state *s)
{
    FILE *in = s->file[0] ? fopen(s->file, "re") : nullptr;
    char line[512];
    if (!in) return;
    while (fgets(line, sizeof line, in)) {
        lt_class c;
        cublasLtMatmulAlgo_t algo = {};
        uint64_t *w = algo.data;
        int n = sscanf(line,
                       "%d %d %d %d %d %d %d %d %d %d %d %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64
                       " %" SCNx64 " %" SCNx64 " %" SCNx64,
                       &c.t, &c.ta, &c.tb, &c.align_a, &c.align_b, &c.align_c, &c.adds, &c.bias, &c.M, &c.N, &c.K, w,
                       w + 1, w + 2, w + 3, w + 4, w + 5, w + 6, w + 7);
        if (n != 19) break;
        if (lt_found *f = lt_class_find(s, &c)) *f = {c, true, false, algo};
    }
    fclose(in);
}

void lt_save_found(lt_state *s)
{
    char name[sizeof s->file + 16];
    if (!s->file[0]) return;
    snprintf(name, sizeof name, "%s.%d", s->file, (int)getpid());
    FILE *out = fopen(name, "we");
    if (!out) return;
    for (const lt_found &f : s->classes) {
        if (!f.used || f.refused) continue;
        const lt_class &c = f.c;
        fprintf(out, "%d %d %d %d %d %d %d %d %d %d %d", c.t, c.ta, c.tb, c.align_a, c.align_b, c.align_c, c.adds,
                c.bias, c.M, c.N, c.K);
        for (uint64_t w : f.algo.data) fprintf(out, " %" PRIx64, w);
        fputc('\n', out);
    }
    bool good = !ferror(out);
    if (fclose(out) || !good || rename(name, s->file)) (void)unlink(name);
}

} // namespace GPU_NAMESPACE
