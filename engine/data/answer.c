/* The answers of a pair of preferences (dataset.h). */
#include "engine/data/dataset.h"

struct dataset_row dataset_row_answer(const struct dataset_row *r, bool rejected)
{
    struct dataset_row out = *r;
    int from = rejected ? r->second : 0, to = r->second && !rejected ? r->second : r->n;
    if (rejected && !r->second) to = 0;
    out.id += from;
    out.trained += from;
    if (out.logprob) out.logprob += from;
    out.n = to - from;
    out.second = out.n_trained = 0;
    for (int i = 0; i < out.n; i++) out.n_trained += out.trained[i];
    return out;
}
