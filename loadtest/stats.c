#include "loadtest/stats.h"

#include "engine/base/buf.h"
#include "engine/base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const outcome_names[OUTCOMES] = {"ok",      "rejected",   "left",    "refused",     "http_error",
                                             "connect", "closed",     "garbage", "error_event", "empty",
                                             "timeout", "unfinished", "limit",   "accepted"};
const char *const slo_names[SLO_KINDS] = {"ttft", "itl", "tpot", "e2e"};
const char *const metric_names[METRICS] = {"ttft", "itl", "tpot", "e2e", "reject", "reject_service", "late", "connect"};

static const uint64_t MS = 1000000;

struct stats *stats_new(const struct slo *slo, uint64_t warm, uint64_t until)
{
    struct stats *s = mem_zalloc(sizeof *s);
    for (int i = 0; i < METRICS; i++) s->h[i] = hist_new();
    s->slo = *slo;
    s->warm = warm;
    s->until = until;
    s->moment = 1000 * MS;
    s->stride = 1;
    return s;
}

void stats_free(struct stats *s)
{
    if (!s) return;
    for (int i = 0; i < METRICS; i++) free(s->h[i]);
    free(s->moments);
    free(s->gauges);
    free(s);
}

/* A day has 86400 seconds; what comes later is counted with the last. */
struct moment *stats_moment(struct stats *s, uint64_t at)
{
    size_t i = (size_t)(at / s->moment);
    if (i >= 7 * 86400) i = 7 * 86400 - 1;
    mem_grow(&s->moments, &s->moments_cap, i + 1, sizeof *s->moments);
    while (s->n_moments <= i) s->moments[s->n_moments++] = (struct moment){0};
    return &s->moments[i];
}

void stats_gauge(struct stats *s, const struct gauge *g)
{
    mem_grow(&s->gauges, &s->gauges_cap, s->n_gauges + 1, sizeof *s->gauges);
    s->gauges[s->n_gauges++] = *g;
}

static double ms(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) * 1e-6 : 0;
}

static uint64_t span(uint64_t from, uint64_t to)
{
    return to > from ? to - from : 0;
}

static uint64_t tpot_of(const struct record *r)
{
    return r->tokens > 1 ? span(r->first, r->last) / (uint64_t)(r->tokens - 1) : 0;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* the 99th percentile, nearest rank, of a request's own gaps */
static uint64_t own_itl(const struct record *r)
{
    if (r->n_gaps < 1) return 0;
    uint64_t *v = mem_array((size_t)r->n_gaps, sizeof *v);
    memcpy(v, r->gaps, (size_t)r->n_gaps * sizeof *v);
    qsort(v, (size_t)r->n_gaps, sizeof *v, ascending);
    uint64_t p99 = v[(99 * (size_t)r->n_gaps + 99) / 100 - 1];
    free(v);
    return p99;
}

bool slo_met(const struct slo *slo, const struct record *r, bool missed[SLO_KINDS])
{
    const double got[SLO_KINDS] = {[SLO_TTFT] = ms(r->intended, r->first),
                                   [SLO_ITL] = slo->ms[SLO_ITL] > 0 ? (double)own_itl(r) * 1e-6 : 0,
                                   [SLO_TPOT] = (double)tpot_of(r) * 1e-6,
                                   [SLO_E2E] = ms(r->intended, r->end)};
    bool met = true;
    for (int i = 0; i < SLO_KINDS; i++) {
        bool miss = slo->ms[i] > 0 && got[i] > slo->ms[i];
        if (missed) missed[i] = miss;
        met &= !miss;
    }
    return met;
}

bool slo_parse(struct slo *slo, const char *text)
{
    *slo = (struct slo){0};
    for (const char *p = text; *p;) {
        int kind = 0;
        size_t n = strcspn(p, ":");
        while (kind < SLO_KINDS && (strlen(slo_names[kind]) != n || strncmp(p, slo_names[kind], n))) kind++;
        if (kind == SLO_KINDS && n == 4 && !strncmp(p, "e2el", 4)) kind = SLO_E2E; /* as vllm bench serve calls it */
        if (kind == SLO_KINDS || p[n] != ':') return false;
        char *end;
        slo->ms[kind] = strtod(p + n + 1, &end);
        if (end == p + n + 1 || !(slo->ms[kind] > 0) || !isfinite(slo->ms[kind]) || (*end && *end != ',')) return false;
        slo->any = true;
        p = end + (*end == ',');
    }
    return slo->any;
}

/* Every stride-th request is a point; when there are too many, every second one is dropped. */
static void add_point(struct stats *s, const struct record *r)
{
    bool served = r->outcome == OUT_OK, rejected = r->outcome == OUT_REJECTED;
    if (s->seen++ % s->stride || (!served && !rejected)) return;
    if (s->n_points == POINTS_MAX) {
        for (size_t i = 0; i < POINTS_MAX / 2; i++) s->points[i] = s->points[2 * i];
        s->n_points = POINTS_MAX / 2;
        s->stride *= 2;
    }
    s->points[s->n_points++] = (struct point){
        (float)((double)r->intended * 1e-9), served ? (float)ms(r->intended, r->first) : NAN,
        served ? (float)ms(r->intended, r->end) : NAN, rejected ? (float)ms(r->intended, r->answered) : NAN};
}

static void put_sample(struct stats *s, const struct record *r)
{
    struct buf b = {0};
    buf_printf(&b,
               "{\"index\":%llu,\"kind\":\"%s\",\"outcome\":\"%s\",\"status\":%d,\"attempts\":%d,\"measured\":%s,"
               "\"intended_s\":%.9f,\"late_ms\":%.6f,\"prompt_tokens\":%d,\"tokens\":%d,\"pieces\":%d",
               (unsigned long long)r->ask.index, ask_names[r->ask.kind], outcome_names[r->outcome], r->status,
               r->attempts, r->intended >= s->warm ? "true" : "false", (double)r->intended * 1e-9,
               ms(r->intended, r->issued), r->prompt_tokens, r->tokens, r->pieces);
    if (r->sent) buf_printf(&b, ",\"sent_ms\":%.6f", ms(r->intended, r->sent));
    if (r->answered) buf_printf(&b, ",\"answered_ms\":%.6f", ms(r->intended, r->answered));
    if (r->first)
        buf_printf(&b, ",\"ttft_ms\":%.6f,\"tpot_ms\":%.6f", ms(r->intended, r->first), (double)tpot_of(r) * 1e-6);
    if (r->outcome == OUT_OK) buf_printf(&b, ",\"e2e_ms\":%.6f", ms(r->intended, r->end));
    buf_str(&b, ",\"itl_ms\":[");
    for (int i = 0; i < r->n_gaps; i++) buf_printf(&b, "%s%.6f", i ? "," : "", (double)r->gaps[i] * 1e-6);
    buf_str(&b, "]}\n");
    fwrite(b.data, 1, b.len, s->samples);
    buf_free(&b);
}

static void add_served(struct stats *s, const struct record *r)
{
    bool missed[SLO_KINDS], good = slo_met(&s->slo, r, missed);
    bool in_window = r->end >= s->warm && r->end <= s->until;
    s->ok_in_window += in_window;
    s->good_in_window += in_window && good;
    if (r->intended < s->warm) return;
    hist_add(s->h[M_TTFT], span(r->intended, r->first));
    hist_add(s->h[M_E2E], span(r->intended, r->end));
    if (r->tokens > 1) hist_add(s->h[M_TPOT], tpot_of(r));
    for (int i = 0; i < r->n_gaps; i++) hist_add(s->h[M_ITL], r->gaps[i]);
    s->good += good;
    for (int i = 0; i < SLO_KINDS; i++) s->failed_slo[i] += missed[i];
}

void stats_add(struct stats *s, const struct record *r)
{
    s->requests++;
    s->attempts += (uint64_t)r->attempts;
    s->outcomes[r->outcome]++;
    s->kinds[r->ask.kind]++;
    if (r->outcome != OUT_OK && r->outcome != OUT_LEFT && r->status > 0 && r->status < STATUS_MAX)
        s->by_status[r->status]++;
    s->tokens += r->tokens;
    s->prompt_tokens += r->prompt_tokens;
    if (r->pieces) s->tokens_in_window += (double)r->window_pieces * r->tokens / r->pieces;
    bool measured = r->intended >= s->warm;
    if (measured && r->outcome != OUT_LIMIT) hist_add(s->h[M_LATE], span(r->intended, r->issued));
    struct moment *m = stats_moment(s, r->end);
    m->ok += r->outcome == OUT_OK;
    m->rejected += r->outcome == OUT_REJECTED;
    m->errors += outcome_is_error(r->outcome);
    if (measured && r->outcome == OUT_REJECTED && r->answered && r->attempts == 1) {
        hist_add(s->h[M_REJECT], span(r->intended, r->answered));
        hist_add(s->h[M_SERVICE], span(r->sent, r->answered));
        s->reject_over_5ms += span(r->intended, r->answered) > 5 * MS;
    }
    if (measured && r->sent && r->attempts == 1) hist_add(s->h[M_CONNECT], span(r->issued, r->sent));
    bool own_pace = r->ask.kind == ASK_PLAIN || r->ask.kind == ASK_LONG;
    if (r->outcome == OUT_OK && own_pace) add_served(s, r);
    if (own_pace) add_point(s, r);
    if (s->samples) put_sample(s, r);
}
