/* Fuzzes server/tinker: the protobuf reader and ForwardBackwardRequest, and the JSON body of asample.  Whatever comes is
 * refused with a reason, or gives rows of which every value can be read, and an answer that the reader reads back. */
#include "engine/base/check.h"
#include "server/tinker/gradient_request.h"
#include "server/tinker/protobuf.h"
#include "server/tinker/sample_params.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The answer is a message: names and sizes of its fields are whole. */
static void check_output(const struct gradient_request *q)
{
    struct buf out = {0};
    struct protobuf_field f;
    int fields = 0;
    gradient_put_output(&out, q);
    struct protobuf_reader r = {.p = (unsigned char *)out.data, .end = (unsigned char *)out.data + out.len};
    while (protobuf_next(&r, &f)) fields++;
    CHECK(!r.bad && fields == 3);
    buf_free(&out);
}

static void check_rows(const struct gradient_request *q)
{
    struct err e = {0};
    CHECK(q->n_data > 0 && (size_t)q->n_rows == (size_t)q->n_data * q->candidates && q->loss < LOSSES);
    for (int i = 0; i < q->n_rows; i++) {
        const struct gradient_row *r = &q->row[i];
        CHECK(r->n > 0);
        for (int k = 0; k < r->n; k++) CHECK(r->target[k] >= 0 && isfinite(r->advantage[k]) && isfinite(r->old[k]));
        loss_of(q->loss, &q->config, r->n, r->logprob, r->old, r->advantage, r->weight);
    }
    gradient_request_fits(q, 1000, 1000, &e);
    check_output(q);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct err e = {0};
    struct gradient_request q = {0};
    void *copy = malloc(n ? n : 1); /* exactly as long as it is, so that reading past the end is seen */
    if (n) memcpy(copy, data, n);
    if (gradient_request_read(&q, copy, n, &e) == 0)
        check_rows(&q);
    else
        CHECK(e.code && *e.msg);
    gradient_request_free(&q);
    free(copy);
    struct err json = {0};
    cJSON *tree = json_parse((const char *)data, n, &json);
    struct sample_params p = {0};
    if (tree && cJSON_IsObject(tree) && sample_params_read(&p, tree, &json) == 0)
        CHECK(p.gen.n_prompt > 0 && p.n > 0 && p.gen.logprobs_from < p.gen.n_prompt);
    sample_params_free(&p);
    json_free(tree);
    return 0;
}
