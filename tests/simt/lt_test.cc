/* Products by cuBLASLt as lt.cu has them, over the library of kernels/simt: every type and form against sums in double,
 * with the library as it is and with it refusing. */
#include "kernels/cuda/gemm/lt.h"
#include "tests/simt/check.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

using namespace simt_device;

namespace {

uint32_t random_state = 1;

int random_below(int n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (int)((uint64_t)(random_state >> 8) * (uint32_t)n >> 24);
}

gpu_dev *open_device()
{
    char why[160] = "";
    struct dev_config c = {};
    c.memory_bytes = 256 << 20;
    struct dev *d = simt_open(0, &c, why);
    if (!d) fprintf(stderr, "simt: %s\n", why), exit(1);
    return gpu_of(d);
}

/* rows of random values, ld apart, `shift` elements from the beginning of device memory */
struct matrix {
    enum dtype t;
    int ld, shift;
    std::vector<uint8_t> bytes;
    void *base;

    double at(int r, int c) const
    {
        size_t i = (size_t)shift + (size_t)r * (size_t)ld + (size_t)c;
        if (t == DT_I8) return (double)(int8_t)bytes[i];
        if (t == DT_F32) return (double)reinterpret_cast<const float *>(bytes.data())[i];
        uint16_t h = reinterpret_cast<const uint16_t *>(bytes.data())[i];
        return (double)(t == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h));
    }
    void *device() const
    {
        return static_cast<uint8_t *>(base) + dtype_bytes(t, (size_t)shift);
    }
};

matrix make(gpu_dev *d, enum dtype t, int rows, int ld, int shift)
{
    size_t n = (size_t)rows * (size_t)ld + (size_t)shift;
    matrix m = {t, ld, shift, std::vector<uint8_t>(dtype_bytes(t, n)), nullptr};
    for (size_t i = 0; i < n; i++) {
        float v = (float)(random_below(2001) - 1000) / 1000;
        if (t == DT_I8)
            m.bytes[i] = (uint8_t)(random_below(255) - 127);
        else if (t == DT_F32)
            reinterpret_cast<float *>(m.bytes.data())[i] = v;
        else
            reinterpret_cast<uint16_t *>(m.bytes.data())[i] = t == DT_BF16 ? f32_to_bf16(v) : f32_to_f16(v);
    }
    m.base = gpu_alloc(&d->head, m.bytes.size());
    gpu_upload(&d->head, m.base, m.bytes.data(), m.bytes.size());
    return m;
}

struct form {
    enum dtype t;
    int M, N, K;
    bool ta, tb;
    float alpha, beta;
    int gap, shift; /* of lines and pointers, in elements */
    int bias;       /* 0: none; 1: aligned; 2: not */
};

void one_product(gpu_dev *d, const char *what, const form &f)
{
    int a_rows = f.ta ? f.K : f.M, a_cols = f.ta ? f.M : f.K, b_rows = f.tb ? f.N : f.K, b_cols = f.tb ? f.K : f.N;
    matrix a = make(d, f.t, a_rows, a_cols + f.gap, f.shift), b = make(d, f.t, b_rows, b_cols + f.gap, f.shift);
    matrix c = make(d, DT_F32, f.M, f.N + f.gap, f.shift), bias = make(d, DT_F32, 1, f.N, f.bias == 2);
    lt_args args = {f.t,        f.M,    f.N,        f.K,
                    a.device(), a.ld,   f.ta,       b.device(),
                    b.ld,       f.tb,   c.device(), c.ld,
                    f.alpha,    f.beta, 0,          f.bias ? static_cast<const float *>(bias.device()) : nullptr};
    bool ok = lt_multiply(d, "product", &args);
    std::vector<uint8_t> got(c.bytes.size());
    gpu_download(&d->head, got.data(), c.base, got.size());
    CHECK(ok && !d->head.error.op, "%s: the device failed: %s", what, d->head.error.msg);
    int wrong = 0, gaps = 0;
    for (int m = 0; m < f.M; m++)
        for (int n = 0; n < c.ld; n++) {
            size_t i = (size_t)c.shift + (size_t)m * (size_t)c.ld + (size_t)n;
            if (n >= f.N) {
                gaps += memcmp(&got[i * 4], &c.bytes[i * 4], 4) != 0;
                continue;
            }
            double want = 0, size = 1e-6;
            for (int k = 0; k < f.K; k++) {
                double v = (f.ta ? a.at(k, m) : a.at(m, k)) * (f.tb ? b.at(n, k) : b.at(k, n));
                want += v, size += fabs(v);
            }
            if (f.t == DT_I8) {
                wrong += (double)reinterpret_cast<const int *>(got.data())[i] != want;
                continue;
            }
            want =
                (double)f.alpha * want + (f.beta != 0 ? (double)f.beta * c.at(m, n) : 0) + (f.bias ? bias.at(0, n) : 0);
            wrong +=
                !(fabs((double)reinterpret_cast<const float *>(got.data())[i] - want) <= 2e-6 * (size + fabs(want)));
        }
    CHECK(!wrong && !gaps,
          "%s: %s M=%d N=%d K=%d ta %d tb %d alpha %g beta %g gap %d shift %d bias %d: %d wrong, %d past the end", what,
          dtype_name(f.t), f.M, f.N, f.K, f.ta, f.tb, (double)f.alpha, (double)f.beta, f.gap, f.shift, f.bias, wrong,
          gaps);
    gpu_free(&d->head, a.base), gpu_free(&d->head, b.base), gpu_free(&d->head, c.base), gpu_free(&d->head, bias.base);
}

/* step: of the 16 kinds, which ones */
void products(const char *what, int step)
{
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16, DT_I8};
    static const int shapes[][3] = {{1, 1, 1}, {17, 36, 7}, {64, 64, 16}, {65, 67, 130}, {3, 128, 64}};
    gpu_dev *d = open_device();
    for (enum dtype t : types)
        for (const auto &s : shapes)
            for (int kind = 0; kind < 16; kind += step) {
                form f = {
                    t, s[0], s[1], s[2], (kind & 1) != 0, (kind & 2) != 0, 1, 0, kind & 4 ? 3 : 0, kind & 8 ? 1 : 0, 0};
                one_product(d, what, f);
                if (t == DT_I8) continue;
                f.bias = 1 + kind % 2;
                one_product(d, what, f);
                f.bias = kind % 3, f.alpha = 0.5f, f.beta = kind & 4 ? 1.0f : -2.0f;
                one_product(d, what, f);
            }
    d->head.ops->close(&d->head);
}

} // namespace

int main()
{
#ifdef SIMT_TSAN /* what it can see: the kernels of our own */
    setenv("SIMT_LT_REFUSES", "suggest", 1);
    products("suggest", 7);
    return checked();
#endif
    static const char *const refusals[] = {"", "suggest", "run", "first", "bias"};
    for (const char *tries : {"", "1"})
        for (const char *what : refusals) {
            if (*tries && *what && strcmp(what, "first")) continue;
            setenv("XDG_CACHE_HOME", "/nowhere", 1);
            setenv("SIMT_LT_REFUSES", what, 1);
            if (*tries) setenv("SIMT_LT_TRIES", tries, 1);
            products(*what ? what : "library", !*tries && (!*what || !strcmp(what, "suggest")) ? 1 : 3);
        }
    return checked();
}
