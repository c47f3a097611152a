/* tandem generate: runs one prompt on the engine in this process and prints the text while it is generated.  Main
 * thread; the engine thread only posts a semaphore. */
#include "engine/base/mem.h"
#include "server/api/generate_answer.h"
#include "server/api/generation_result.h"
#include "server/cli/cmd.h"
#include "server/json/json.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] = "tandem generate --prompt TEXT [--model DIR] [options]";
static const char about[] = "Continues a prompt.  The text goes to stdout as it is generated, figures to stderr.";

static void on_notify(void *arg)
{
    sem_post(arg);
}

static void fill_request(struct gen_request *r, const struct settings *s, const struct engine_info *info, int n_prompt)
{
    *r = (struct gen_request){
        .n_prompt = n_prompt,
        .sampling = cmd_sampling(s),
        .max_new_tokens = s->max_new_tokens,
        .ignore_eos = s->ignore_eos,
        .stop = (const char *const *)s->stop.v,
        .n_stop = s->stop.n,
        .top_n = s->json ? s->top_n : 0,
    };
    int rest = info->max_total_tokens - n_prompt;
    if (r->max_new_tokens > rest) r->max_new_tokens = rest;
}

/* Runs the request to its end; prints the text while it is generated, unless the output is JSON. */
static int run(struct engine *engine, const struct gen_request *r, sem_t *wake, bool print,
               struct generation_result *out, struct err *e)
{
    if (!engine_submit(engine, r, e)) return e->code;
    while (out->done.kind != EV_DONE) {
        struct event_batch *list = engine_events(engine);
        if (!list) {
            sem_wait(wake);
            continue;
        }
        for (struct event_batch *b = list; b; b = b->next) {
            for (int i = 0; i < b->n; i++) {
                const struct event *ev = &b->v[i];
                result_add(out, ev, b);
                if (print && ev->kind == EV_TOKEN) fwrite(b->text + ev->text, 1, ev->gen_len, stdout);
            }
        }
        engine_events_done(engine, list);
        if (print && fflush(stdout)) return err_set(e, ERR_IO, "stdout is closed");
    }
    if (out->done.finish == FINISH_ERROR) return err_set(e, ERR_INVALID, "generation failed: %s", out->done.error);
    return 0;
}

static double seconds(uint64_t from, uint64_t to)
{
    return to > from && from ? (double)(to - from) * 1e-9 : 0;
}

static void print_json(const struct generation_result *r, const struct gen_request *req, const struct engine *engine)
{
    const struct tokenizer *tk = engine_tokenizer(engine);
    const struct event *d = &r->done;
    const struct request_times *t = &d->times;
    double first = seconds(t->submitted, t->first_token), rest = seconds(t->first_token, t->done);
    struct buf out = {0};
    buf_str(&out, "{\"text\":");
    json_put_string(&out, r->generated.data ? r->generated.data : "", r->generated.len);
    buf_str(&out, ",\"tokens\":[");
    for (size_t i = 0; i < r->n_tokens; i++) {
        const struct generation_token *v = &r->tokens[i];
        if (i) buf_char(&out, ',');
        answer_put_token(&out, v->id, r->text.data + v->text, v->text_len, v->logprob, v->special);
        if (!v->n_top) continue;
        out.data[--out.len] = 0; /* reopens the object to add its alternatives */
        buf_str(&out, ",\"top\":");
        answer_put_top(&out, tk, r->top + v->top, v->n_top);
        buf_char(&out, '}');
    }
    buf_printf(&out, "],\"finish_reason\":\"%s\"", finish_name(d->finish));
    if (req->sampling.sample)
        buf_printf(&out, ",\"seed\":%llu", (unsigned long long)req->sampling.seed);
    else
        buf_str(&out, ",\"seed\":null");
    buf_printf(&out, ",\"prompt_tokens\":%d,\"generated_tokens\":%d,\"mean_logprob\":", d->n_prompt, d->n_generated);
    json_put_number(&out, result_mean_logprob(r));
    buf_printf(&out,
               ",\"timings\":{\"load_seconds\":%.6f,\"first_token_seconds\":%.6f,\"generate_seconds\":%.6f,"
               "\"prompt_tokens_per_second\":%.3f,\"generated_tokens_per_second\":%.3f}}\n",
               engine_info(engine)->load_seconds, first, seconds(t->submitted, t->done),
               first > 0 ? d->n_prompt / first : 0, rest > 0 ? (d->n_generated - 1) / rest : 0);
    fwrite(out.data, 1, out.len, stdout);
    buf_free(&out);
}

static void print_figures(const struct generation_result *r)
{
    const struct request_times *t = &r->done.times;
    double first = seconds(t->submitted, t->first_token), rest = seconds(t->first_token, t->done);
    fprintf(stderr, "[%d prompt tokens, first token after %.1f ms (%.0f/s); %d generated, %.1f tokens/s; %s]\n",
            r->done.n_prompt, first * 1e3, first > 0 ? r->done.n_prompt / first : 0, r->done.n_generated,
            rest > 0 ? (r->done.n_generated - 1) / rest : 0, finish_name(r->done.finish));
}

static int generate(struct engine *engine, const struct settings *s, sem_t *wake, struct err *e)
{
    struct buf text = {0};
    struct tokens tokens = {0};
    struct generation_result result = {0};
    int rc = 0;
    if (strcmp(s->prompt, "-") == 0)
        rc = cmd_read_file("-", &text, e);
    else
        buf_str(&text, s->prompt);
    if (!rc)
        rc = tokenizer_encode(engine_tokenizer(engine), text.data ? text.data : "", text.len, TOKENIZE_SPECIAL, &tokens,
                              e);
    int most = engine_info(engine)->max_total_tokens - 1;
    if (!rc && (tokens.n < 1 || tokens.n > (size_t)most))
        rc = err_set(e, ERR_INVALID, "the prompt has %zu tokens; 1 to %d are possible", tokens.n, most);
    if (!rc) {
        struct gen_request r;
        int32_t *ids = mem_array(tokens.n, sizeof *ids);
        for (size_t i = 0; i < tokens.n; i++) ids[i] = tokens.v[i].id;
        fill_request(&r, s, engine_info(engine), (int)tokens.n);
        r.prompt = ids;
        if (s->adapter) {
            r.adapter = "adapter";
            rc = engine_adapter_load(engine, r.adapter, s->adapter, NULL, e);
        }
        if (!rc) rc = engine_start(engine, on_notify, wake, e);
        if (!rc) rc = run(engine, &r, wake, !s->json, &result, e);
        free(ids);
        if (!rc && s->json) print_json(&result, &r, engine);
        if (!rc && !s->json) {
            putchar('\n');
            fflush(stdout);
            if (isatty(STDERR_FILENO)) print_figures(&result);
        }
    }
    result_free(&result);
    tokens_free(&tokens);
    buf_free(&text);
    return rc;
}

int cmd_generate(int argc, char **argv)
{
    struct settings s;
    struct err e = {0};
    int status = 0;
    if (cmd_settings(&s, CMD_GENERATE, argc, argv, usage, about, &status)) {
        if (!s.prompt) {
            fprintf(stderr, "tandem: --prompt is missing\nusage: %s\n", usage);
            status = 2;
        } else {
            struct engine_config c = cmd_engine_config(&s);
            sem_t wake;
            sem_init(&wake, 0, 0);
            if (!settings_given(&s, "max-seqs")) c.max_seqs = 1; /* one request: no pages for more */
            c.no_prefix_cache = true;
            struct engine *engine = engine_open(&c, &e);
            if (!engine || generate(engine, &s, &wake, &e)) status = cmd_fail(&e);
            engine_close(engine);
            sem_destroy(&wake);
        }
    }
    settings_free(&s);
    return status;
}
