#include "server/rewards/rewards.h"

#include "engine/base/json_literal.h"
#include "engine/base/mem.h"
#include "server/rewards/check.h"
#include "server/rewards/url.h"

#include <stdio.h>
#include <stdlib.h>

struct rewards {
    struct check check[REWARDS_MAX];
    int n;
};

struct rewards *rewards_open(const cJSON *list, const char *path, struct err *e)
{
    char name[40];
    e->code = 0;
    if (!cJSON_IsArray(list)) return err_set(e, ERR_INVALID, "%s: expected a list of checks", path), NULL;
    if (!list->child) return err_set(e, ERR_INVALID, "%s: the list is empty", path), NULL;
    if (cJSON_GetArraySize(list) > REWARDS_MAX)
        return err_set(e, ERR_INVALID, "%s: more than %d checks", path, REWARDS_MAX), NULL;
    struct rewards *r = mem_zalloc(sizeof *r);
    for (const cJSON *c = list->child; c && !e->code; c = c->next) {
        snprintf(name, sizeof name, "%.24s[%d]", path, r->n);
        struct json_at at = {.obj = c, .path = name, .e = e};
        if (!cJSON_IsObject(c))
            err_set(e, ERR_INVALID, "%s: expected an object", name);
        else
            check_read(&at, &r->check[r->n++]);
    }
    if (!e->code) return r;
    rewards_free(r);
    return NULL;
}

void rewards_free(struct rewards *r)
{
    if (!r) return;
    for (int i = 0; i < r->n; i++) check_free(&r->check[i]);
    free(r);
}

bool rewards_ask_others(const struct rewards *r)
{
    for (int i = 0; i < r->n; i++)
        if (r->check[i].kind == CHECK_URL) return true;
    return false;
}

const char *rewards_model(const struct rewards *r, int i)
{
    return i < r->n && r->check[i].kind == CHECK_MODEL ? r->check[i].model : NULL;
}

/* What the text alone says. */
static double score_one(const struct rewards *r, const struct reward_text *t, const cJSON *row, struct err *e)
{
    double sum = 0;
    for (int i = 0; i < r->n && !e->code; i++)
        if (r->check[i].kind < CHECK_URL) sum += r->check[i].weight * check_score(&r->check[i], t, row, e);
    return sum;
}

/* The texts of a group follow each other, and have one row. */
static int score_all(const struct rewards *r, const struct reward_text *text, int n, const struct rewards_calls *calls,
                     double *sum, struct err *e)
{
    cJSON *row = NULL;
    for (int i = 0; i < n && !e->code; i++) {
        if (calls->stop && calls->stop(calls->arg)) {
            err_set(e, ERR_FULL, "stopped");
            break;
        }
        if (!row || text[i].row != text[i - 1].row) {
            cJSON_Delete(row);
            row = json_literal_parse(text[i].row, text[i].n_row, NULL);
        }
        if (row)
            sum[i] = score_one(r, &text[i], row, e);
        else
            err_set(e, ERR_INVALID, "a row of the data could not be read again");
    }
    cJSON_Delete(row);
    return e->code;
}

/* Others' numbers. */
static int ask(struct check *c, const struct reward_text *text, int n, const struct rewards_calls *calls, double *v,
               struct err *e)
{
    if (c->kind == CHECK_URL) return reward_url_score(c->url, text, n, calls->stop, calls->arg, v, e);
    if (!calls->model)
        return err_set(e, ERR_UNSUPPORTED, "%s: there is no engine that has adapter %s", c->path, c->model);
    return calls->model(calls->arg, c->model, v, e) ? err_prefix(e, "%s", c->path) : 0;
}

int rewards_score(struct rewards *r, const struct reward_text *text, int n, const struct rewards_calls *calls,
                  double *sum, struct err *e)
{
    e->code = 0;
    if (score_all(r, text, n, calls, sum, e)) return e->code;
    double *v = mem_array((size_t)n + 1, sizeof *v);
    for (int i = 0; i < r->n && !e->code; i++) {
        struct check *c = &r->check[i];
        if (c->kind < CHECK_URL) continue;
        if (ask(c, text, n, calls, v, e)) break;
        for (int k = 0; k < n; k++) sum[k] += c->weight * v[k];
    }
    free(v);
    return e->code;
}
