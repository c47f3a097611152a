#include "server/api/scores.h"

#include "server/json/json.h"
#include "server/store/data_dir.h"

#include <math.h>
#include <string.h>

/* The best first; of equals the first. */
int scores_order(const void *a, const void *b)
{
    const struct score *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    return x->index - y->index;
}

double scores_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

void scores_put_text(struct buf *out, const char *s)
{
    json_put_string(out, s, strlen(s));
}

void scores_put_head(struct buf *out, const char *prefix, const char *model)
{
    char id[DATA_ID_MAX];
    data_id(id, prefix);
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"list\",\"created\":%lld,\"model\":", id,
               (long long)data_now_ms() / 1000);
    scores_put_text(out, model);
}

void scores_put_usage(struct buf *out, uint64_t tokens)
{
    buf_printf(out, ",\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu}}", (unsigned long long)tokens,
               (unsigned long long)tokens);
}
