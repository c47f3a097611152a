#include "loadtest/scenario.h"

#include "kernels/rng.h"

#include <string.h>

const char *const ask_names[ASK_KINDS] = {"plain", "long", "slow", "disconnect", "bad"};

/* Common words: one token each, with the blank before, in the vocabularies of the usual models. */
static const char words[][8] = {
    "time",    "year",  "people", "way",     "day",     "man",    "thing",  "woman",  "life", "child", "world",
    "school",  "state", "family", "group",   "country", "hand",   "part",   "place",  "case", "week",  "system",
    "program", "work",  "night",  "point",   "home",    "water",  "room",   "mother", "area", "money", "story",
    "fact",    "month", "lot",    "right",   "study",   "book",   "eye",    "job",    "word", "issue", "side",
    "kind",    "head",  "house",  "service", "friend",  "father", "power",  "hour",   "game", "line",  "end",
    "member",  "law",   "car",    "city",    "name",    "team",   "minute", "idea",   "body"};

enum { WORDS = sizeof words / sizeof *words };

enum { DRAW_KIND, DRAW_PROMPT, DRAW_OUTPUT, DRAW_GROUP, DRAW_TEXT, DRAW_LEAVE, DRAW_BAD };

static int draw_range(uint64_t stream, uint64_t which, struct range r)
{
    uint64_t span = (uint64_t)(r.high - r.low) + 1;
    return r.low + (int)(rng_in(stream, which) % span);
}

static int at_most(int v, int max)
{
    return max && v > max ? max : v;
}

struct ask scenario_ask(const struct scenario *s, uint64_t index)
{
    uint64_t stream = rng_at(s->seed, index);
    double u = (double)(rng_in(stream, DRAW_KIND) >> 11) * 0x1p-53;
    struct ask a = {
        .index = index, .text = rng_in(stream, DRAW_TEXT), .bad = (unsigned)(rng_in(stream, DRAW_BAD) >> 33)};
    const double shares[ASK_KINDS] = {[ASK_LONG] = s->long_share,
                                      [ASK_SLOW] = s->slow_share,
                                      [ASK_DISCONNECT] = s->disconnect_share,
                                      [ASK_BAD] = s->bad_share};
    for (int k = ASK_LONG; k < ASK_KINDS && a.kind == ASK_PLAIN; k++) {
        if (u < shares[k]) a.kind = (enum ask_kind)k;
        u -= shares[k];
    }
    if (s->lengths) {
        const struct trace_row *row = &s->lengths->rows[index % s->lengths->n];
        a.prompt = row->prompt, a.output = row->output;
    } else {
        a.prompt = draw_range(stream, DRAW_PROMPT, s->prompt), a.output = draw_range(stream, DRAW_OUTPUT, s->output);
    }
    if (a.kind == ASK_LONG) a.prompt = s->long_prompt;
    a.prompt = at_most(a.prompt, s->prompt_max), a.output = at_most(a.output, s->output_max);
    if (s->prefix && s->groups) {
        a.prefix = s->prefix < a.prompt ? s->prefix : a.prompt - 1;
        a.group = rng_at(s->seed ^ 0x9e37u, rng_in(stream, DRAW_GROUP) % (uint64_t)s->groups);
    }
    if (a.kind == ASK_DISCONNECT) a.leave_after = (int)(rng_in(stream, DRAW_LEAVE) % ((uint64_t)s->leave_after + 1));
    return a;
}

void ask_put_prompt(struct buf *out, const struct ask *a, int n)
{
    for (int i = 0; i < n; i++) {
        uint64_t seed = i < a->prefix ? a->group : a->text;
        if (i) buf_char(out, ' ');
        buf_str(out, words[rng_in(seed, (uint64_t)i) % WORDS]);
    }
}
