#include "server/jobs/feedback_rows.h"

#include "engine/base/mem.h"
#include "engine/data/dataset.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/json/names.h"
#include "server/store/data_dir.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- the body ---------------------------------------------------------------------------------------------------- */

static int rating_read(struct feedback *f, const cJSON *v, struct err *e)
{
    f->has_rating = true;
    if (cJSON_IsString(v) && strcmp(v->valuestring, "up") == 0)
        f->rating = 1;
    else if (cJSON_IsString(v) && strcmp(v->valuestring, "down") == 0)
        f->rating = -1;
    else if (cJSON_IsNumber(v) && v->valuedouble >= -1 && v->valuedouble <= 1)
        f->rating = v->valuedouble;
    else
        return err_set(e, ERR_INVALID, "rating: expected \"up\", \"down\" or a number from -1 to 1");
    return 0;
}

static bool is_blank(const char *s)
{
    return !s[strspn(s, " \t\r\n")];
}

int feedback_read(struct feedback *f, const cJSON *tree, struct err *e)
{
    static const char *const names[] = {"id", "rating", "better", "dataset", "choice"};
    struct json_at top = {.obj = tree, .path = "", .e = e};
    const cJSON *rating = cJSON_GetObjectItemCaseSensitive(tree, "rating");
    int64_t choice = 0;
    *f = (struct feedback){.set = FEEDBACK_SET};
    json_only(&top, names, sizeof names / sizeof *names);
    json_get_string(&top, "id", &f->id);
    json_get_string(&top, "better", &f->better);
    json_get_string(&top, "dataset", &f->set);
    json_get_int(&top, "choice", 0, INT_MAX, &choice);
    f->choice = (int)choice;
    if (e->code) return e->code;
    if (rating && !cJSON_IsNull(rating) && rating_read(f, rating, e)) return e->code;
    if (!f->id) return err_set(e, ERR_INVALID, "id: the field is missing");
    if (!f->has_rating && !f->better) return err_set(e, ERR_INVALID, "expected `rating`, `better` or both");
    if (f->has_rating && f->rating == 0 && !f->better)
        return err_set(e, ERR_INVALID, "rating: 0 says nothing of the answer");
    if (f->better && is_blank(f->better)) return err_set(e, ERR_INVALID, "better: is empty");
    if (f->better && strlen(f->better) > FEEDBACK_BETTER_MAX)
        return err_set(e, ERR_INVALID, "better: longer than %d bytes", FEEDBACK_BETTER_MAX);
    if (!data_name_ok(f->set))
        return err_set(e, ERR_INVALID,
                       "dataset: a letter or digit, then up to %d of letters, digits, . _ - :", DATA_NAME_MAX - 1);
    return 0;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void put_ids(struct buf *out, const char *name, const int32_t *ids, size_t n)
{
    buf_printf(out, "\"%s\":[", name);
    for (size_t i = 0; i < n; i++) buf_printf(out, i ? ",%d" : "%d", ids[i]);
    buf_str(out, "],");
}

static void put_text(struct buf *out, const char *name, const char *text, size_t n)
{
    buf_printf(out, "\"%s\":", name);
    json_put_string(out, text, n);
    buf_char(out, ',');
}

/* The text of ids; of an answer's without the space in front that some tokenizers take from a text's first word. */
static void put_decoded(struct buf *out, const char *name, const struct tokenizer *t, const int32_t *ids, size_t n,
                        bool answer)
{
    struct detok d = {.started = answer, .mid_context = answer};
    struct buf text = {0};
    buf_str(&text, "");
    for (size_t i = 0; i < n; i++) detok_push(&d, t, ids[i], &text);
    detok_flush(&d, t, &text);
    put_text(out, name, text.data, text.len);
    buf_free(&text);
}

static void put_prompt(struct buf *out, const struct answered_choice *c)
{
    buf_char(out, '{');
    put_ids(out, "prompt_ids", c->prompt, (size_t)c->n_prompt);
}

/* The text of the answer ends before the token that ended it. */
static void put_answer_text(struct buf *out, const char *name, const struct answered_choice *c,
                            const struct feedback_source *s)
{
    put_decoded(out, name, s->tokenizer, c->ids, (size_t)(c->n - c->ended), true);
}

static void put_end(struct buf *out, const struct feedback *f, const struct feedback_source *s)
{
    put_text(out, "id", f->id, strlen(f->id));
    if (s->adapter) put_text(out, "adapter", s->adapter, strlen(s->adapter));
    buf_printf(out, "\"time\":%lld}\n", (long long)s->time);
}

static struct buf *add(struct feedback_rows *r, const char *kind)
{
    r->line[r->n].kind = kind;
    return &r->text[r->n++];
}

static void put_rated(struct feedback_rows *r, const struct feedback *f, const struct answered_choice *c,
                      const struct feedback_source *s)
{
    struct buf *out = add(r, "kto");
    put_prompt(out, c);
    put_ids(out, "completion_ids", c->ids, (size_t)c->n);
    buf_str(out, "\"logprobs\":[");
    for (int i = 0; i < c->n; i++) {
        if (i) buf_char(out, ',');
        json_put_number(out, c->logprob[i] > 0 ? 0 : c->logprob[i]);
    }
    buf_printf(out, "],\"label\":%s,\"rating\":", f->rating > 0 ? "true" : "false");
    json_put_number(out, f->rating);
    buf_char(out, ',');
    put_decoded(out, "prompt", s->tokenizer, c->prompt, (size_t)c->n_prompt, false);
    put_answer_text(out, "completion", c, s);
    put_end(out, f, s);
}

static void put_corrected(struct feedback_rows *r, const struct feedback *f, const struct answered_choice *c,
                          const struct feedback_source *s, const int32_t *better, size_t n)
{
    struct buf *pair = add(r, "preference"), *row = add(r, "sft");
    put_prompt(pair, c);
    put_ids(pair, "chosen_ids", better, n);
    put_ids(pair, "rejected_ids", c->ids, (size_t)c->n);
    put_decoded(pair, "prompt", s->tokenizer, c->prompt, (size_t)c->n_prompt, false);
    put_text(pair, "chosen", f->better, strlen(f->better));
    put_answer_text(pair, "rejected", c, s);
    put_end(pair, f, s);
    put_prompt(row, c);
    put_ids(row, "completion_ids", better, n);
    put_decoded(row, "prompt", s->tokenizer, c->prompt, (size_t)c->n_prompt, false);
    put_text(row, "completion", f->better, strlen(f->better));
    put_end(row, f, s);
}

/* The better answer's ids, with the end that the answer had. */
static int correct(struct feedback_rows *r, const struct feedback *f, const struct answered_choice *c,
                   const struct feedback_source *s, struct err *e)
{
    struct tokens t = {0};
    int32_t end = c->ended ? c->ids[c->n - 1] : s->end;
    if (dataset_encode_answer(s->tokenizer, f->better, strlen(f->better), &t, e)) {
        tokens_free(&t);
        return err_prefix(e, "better");
    }
    size_t n = 0;
    int32_t *ids = mem_array(t.n + 1, sizeof *ids);
    for (; n < t.n; n++) ids[n] = t.v[n].id;
    if (end >= 0 && (!n || ids[n - 1] != end)) ids[n++] = end;
    if (n == (size_t)c->n && memcmp(ids, c->ids, n * sizeof *ids) == 0)
        err_set(e, ERR_INVALID, "better: is the answer that was given");
    else
        put_corrected(r, f, c, s, ids, n);
    free(ids);
    tokens_free(&t);
    return e->code;
}

int feedback_rows_make(struct feedback_rows *r, const struct feedback *f, const struct answered_choice *c,
                       const struct feedback_source *s, bool rating, bool better, struct err *e)
{
    if (!c->n) return err_set(e, ERR_INVALID, "id: the answer is empty");
    if (rating && f->has_rating && f->rating != 0) put_rated(r, f, c, s);
    if (better && f->better && correct(r, f, c, s, e)) return e->code;
    for (int i = 0; i < r->n; i++) {
        if (r->text[i].len > FEEDBACK_ROW_MAX)
            return err_set(e, ERR_INVALID, "id: a row of its prompt and answer is longer than %d bytes",
                           FEEDBACK_ROW_MAX);
        r->line[i].text = r->text[i].data;
        r->line[i].len = r->text[i].len;
    }
    return 0;
}

void feedback_rows_free(struct feedback_rows *r)
{
    for (int i = 0; i < FEEDBACK_ROWS; i++) buf_free(&r->text[i]);
    *r = (struct feedback_rows){0};
}
