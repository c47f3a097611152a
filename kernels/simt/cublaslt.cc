/* See cublaslt.h. */
#include "kernels/simt/cublaslt.h"

#include "kernels/num.h"

#include <cstdlib>
#include <vector>

namespace simt_runtime {

struct lt_handle {};

namespace {

/* Algorithms with equal results, which require more and more alignment: of A and B, and of C. */
const int ALGOS = 4;

void wants(int i, size_t element, uint64_t *ab, uint64_t *c)
{
    *ab = i < 2 ? element : 16;
    *c = i < 3 ? 4 : 16;
}

bool is_float(cudaDataType_t t)
{
    return t == CUDA_R_32F || t == CUDA_R_16F || t == CUDA_R_16BF;
}

size_t type_bytes(cudaDataType_t t)
{
    return t == CUDA_R_8I ? 1 : t == CUDA_R_32F || t == CUDA_R_32I ? 4 : 2;
}

/* Whether cuBLASLt supports this combination at all. */
cublasStatus_t check(const lt_desc *m, const lt_layout *a, const lt_layout *b, const lt_layout *c, const lt_layout *d)
{
    bool ta = m->ta == CUBLAS_OP_T, tb = m->tb == CUBLAS_OP_T;
    uint64_t rows = ta ? a->cols : a->rows, depth = ta ? a->rows : a->cols;
    const lt_layout *all[] = {a, b, c, d};
    for (const lt_layout *l : all)
        if (l->rows < 1 || l->cols < 1 || l->ld < (int64_t)l->rows) return CUBLAS_STATUS_INVALID_VALUE;
    if ((tb ? b->cols : b->rows) != depth || c->rows != rows || c->cols != (tb ? b->rows : b->cols) ||
        d->rows != c->rows || d->cols != c->cols || d->ld != c->ld || d->t != c->t || a->t != b->t)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (m->epilogue == CUBLASLT_EPILOGUE_BIAS &&
        (!m->bias || (m->bias_type != -1 && m->bias_type != d->t) || d->t != CUDA_R_32F || (uintptr_t)m->bias % 16))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (m->compute == CUBLAS_COMPUTE_32F)
        return m->scale == CUDA_R_32F && is_float(a->t) && c->t == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS
                                                                              : CUBLAS_STATUS_NOT_SUPPORTED;
    bool fits = m->scale == CUDA_R_32I && a->t == CUDA_R_8I && c->t == CUDA_R_32I && ta && !tb && rows % 4 == 0 &&
                depth % 4 == 0 && a->ld % 4 == 0 && b->ld % 4 == 0 && c->ld % 4 == 0;
    return fits ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

float load(const void *p, cudaDataType_t t, size_t i)
{
    if (t == CUDA_R_32F) return static_cast<const float *>(p)[i];
    if (t == CUDA_R_8I) return (float)static_cast<const int8_t *>(p)[i];
    uint16_t h = static_cast<const uint16_t *>(p)[i];
    return t == CUDA_R_16BF ? bf16_to_f32(h) : f16_to_f32(h);
}

/* op(matrix) as `lines` lines of `depth` values, whatever its layout. */
std::vector<float> lines_of(const void *p, const lt_layout &l, bool depth_is_rows)
{
    uint64_t depth = depth_is_rows ? l.rows : l.cols, lines = depth_is_rows ? l.cols : l.rows;
    std::vector<float> v(depth * lines);
    for (uint64_t i = 0; i < lines; i++)
        for (uint64_t k = 0; k < depth; k++)
            v[i * depth + k] = load(p, l.t, depth_is_rows ? i * (uint64_t)l.ld + k : k * (uint64_t)l.ld + i);
    return v;
}

/* In double, which represents int8 sums exactly too. */
double dot(const float *x, const float *y, uint64_t n)
{
    double s[8] = {};
    uint64_t k = 0;
    for (; k + 8 <= n; k += 8)
        for (int i = 0; i < 8; i++) s[i] += (double)x[k + (uint64_t)i] * (double)y[k + (uint64_t)i];
    for (; k < n; k++) s[0] += (double)x[k] * (double)y[k];
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

struct matmul {
    lt_desc m;
    lt_layout al, bl, dl;
    const void *a, *b, *c;
    void *d;
    double alpha, beta;
};

void multiply(const matmul &p)
{
    bool ta = p.m.ta == CUBLAS_OP_T, tb = p.m.tb == CUBLAS_OP_T;
    uint64_t depth = ta ? p.al.rows : p.al.cols;
    std::vector<float> a = lines_of(p.a, p.al, ta), b = lines_of(p.b, p.bl, !tb);
    for (uint64_t j = 0; j < p.dl.cols; j++)
        for (uint64_t i = 0; i < p.dl.rows; i++) {
            uint64_t at = j * (uint64_t)p.dl.ld + i;
            double v = p.alpha * dot(a.data() + i * depth, b.data() + j * depth, depth);
            if (p.dl.t == CUDA_R_32I) {
                if (p.beta != 0) v += p.beta * static_cast<const int32_t *>(p.c)[at];
                static_cast<int32_t *>(p.d)[at] = (int32_t)v;
            } else {
                if (p.beta != 0) v += p.beta * (double)static_cast<const float *>(p.c)[at];
                static_cast<float *>(p.d)[at] =
                    p.m.epilogue == CUBLASLT_EPILOGUE_BIAS ? (float)v + p.m.bias[i] : (float)v;
            }
        }
}

/* Whether a matrix and its lines are aligned. */
bool aligned(const void *p, const lt_layout *l, uint64_t bytes)
{
    return ((uintptr_t)p | (uint64_t)l->ld * type_bytes(l->t)) % bytes == 0;
}

bool refuses(const char *what)
{
    const char *set = getenv("SIMT_LT_REFUSES");
    return set && !strcmp(set, what);
}

} // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    *h = new lt_handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    delete h;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion()
{
    return 130000;
}

const char *cublasLtGetStatusString(cublasStatus_t s)
{
    return s == CUBLAS_STATUS_SUCCESS         ? "success"
           : s == CUBLAS_STATUS_INVALID_VALUE ? "an unsupported value or parameter was passed to the function"
                                              : "the functionality requested is not supported";
}

/* ---- descriptors ---------------------------------------------------------------------------------------------------
 */

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *m, cublasComputeType_t compute, cudaDataType_t scale)
{
    *m = new lt_desc{compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr, -1};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t m)
{
    delete m;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t m, cublasLtMatmulDescAttributes_t a, const void *p,
                                              size_t bytes)
{
    bool pointer = a == CUBLASLT_MATMUL_DESC_BIAS_POINTER;
    int32_t v = 0;
    if (bytes != (pointer ? sizeof m->bias : sizeof v)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!pointer) memcpy(&v, p, sizeof v);
    switch (a) {
    case CUBLASLT_MATMUL_DESC_TRANSA: m->ta = (cublasOperation_t)v; break;
    case CUBLASLT_MATMUL_DESC_TRANSB: m->tb = (cublasOperation_t)v; break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: m->epilogue = (cublasLtEpilogue_t)v; break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: memcpy(&m->bias, p, sizeof m->bias); break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: m->bias_type = v; break;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType_t t, uint64_t rows, uint64_t cols,
                                          int64_t ld)
{
    *l = new lt_layout{t, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    *p = new lt_preference{0, {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t a, const void *v, size_t bytes)
{
    bool workspace = a == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    if (bytes != (workspace ? sizeof(uint64_t) : sizeof(uint32_t))) return CUBLAS_STATUS_INVALID_VALUE;
    if (workspace)
        memcpy(&p->workspace, v, bytes);
    else
        memcpy(&p->align[a - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], v, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- GEMMs ------------------------------------------------------------------------------------------------------ */

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t m, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t p, int wanted,
                                              cublasLtMatmulHeuristicResult_t *r, int *got)
{
    *got = 0;
    cublasStatus_t s = check(m, a, b, c, d);
    if (!s && (refuses("suggest") || (refuses("bias") && m->bias))) s = CUBLAS_STATUS_NOT_SUPPORTED;
    if (s) return s;
    size_t one = type_bytes(a->t) == 1 ? 4 : type_bytes(a->t);
    for (int i = 0; i < ALGOS && *got < wanted; i++) {
        uint64_t ab, cd;
        wants(i, one, &ab, &cd);
        if (p->align[0] < ab || p->align[1] < ab || p->align[2] < cd || p->align[3] < cd) continue;
        r[(*got)++] = {{{(uint64_t)i + 1, ab, cd}}, 0, CUBLAS_STATUS_SUCCESS, 1, {}};
    }
    return *got ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t m, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *r)
{
    cublasStatus_t s = check(m, a, b, c, d);
    if (!s && (algo->data[0] < 1 || algo->data[0] > ALGOS || algo->data[1] < 1 || algo->data[1] > 16 ||
               algo->data[2] < 1 || algo->data[2] > 16))
        s = CUBLAS_STATUS_INVALID_VALUE;
    *r = {*algo, 0, s, 1, {}};
    return s;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t m, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t al, const void *b, cublasLtMatrixLayout_t bl, const void *beta,
                              const void *c, cublasLtMatrixLayout_t cl, void *d, cublasLtMatrixLayout_t dl,
                              const cublasLtMatmulAlgo_t *algo, void *, size_t, cudaStream_t stream)
{
    cublasLtMatmulHeuristicResult_t r;
    cublasStatus_t s = cublasLtMatmulAlgoCheck(nullptr, m, al, bl, cl, dl, algo, &r);
    if (s) return s;
    uint64_t align = algo->data[1], align_c = algo->data[2];
    if (!aligned(a, al, align) || !aligned(b, bl, align) || !aligned(c, cl, align_c) || !aligned(d, dl, align_c) ||
        refuses("run") || (refuses("first") && algo->data[0] == 1))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    bool whole = m->scale == CUDA_R_32I;
    double by = whole ? *static_cast<const int32_t *>(alpha) : (double)*static_cast<const float *>(alpha);
    double keep = whole ? *static_cast<const int32_t *>(beta) : (double)*static_cast<const float *>(beta);
    enqueue(stream, [p = matmul{*m, *al, *bl, *dl, a, b, c, d, by, keep}] { multiply(p); });
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace simt_runtime
