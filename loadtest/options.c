#include "loadtest/options.h"

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum type { TEXT, NUMBER, COUNT, FLAG, RANGE, CHOICE, SLO_LIST, SWEEP_LIST, HEADER };

struct option {
    const char *name, *value; /* value: what --help calls it; NULL for a flag */
    enum type type;
    size_t at; /* in struct options */
    double low, high;
    const char *const *choices;
    int n_choices;
    const char *group, *help;
};

#define AT(f) offsetof(struct options, f)
#define COUNTS(name, f, low, high, group, help)                                                                        \
    {                                                                                                                  \
        name, "N", COUNT, AT(f), low, high, NULL, 0, group, help                                                       \
    }
#define NUMBERS(name, value, f, low, high, group, help)                                                                \
    {                                                                                                                  \
        name, value, NUMBER, AT(f), low, high, NULL, 0, group, help                                                    \
    }
#define FLAGS(name, f, group, help)                                                                                    \
    {                                                                                                                  \
        name, NULL, FLAG, AT(f), 0, 0, NULL, 0, group, help                                                            \
    }
#define TEXTS(name, value, f, group, help)                                                                             \
    {                                                                                                                  \
        name, value, TEXT, AT(f), 0, 0, NULL, 0, group, help                                                           \
    }

static const struct option table[] = {
    TEXTS("url", "URL", url, "Server", "where it listens; http://127.0.0.1:8080"),
    {"api", "NAME", CHOICE, AT(api), 0, 0, api_names, API_KINDS, "Server",
     "openai (/v1/completions), openai-chat, or tgi (/generate_stream)"},
    TEXTS("model", "NAME", model, "Server", "the model's name; without it, the first that /v1/models lists"),
    TEXTS("key", "TEXT", key, "Server", "API key, sent as a bearer token; else that of $LOADTEST_KEY"),
    {"header", "LINE", HEADER, AT(headers), 0, 0, NULL, 0, "Server",
     "a further header, as \"Name: value\"; may be repeated"},
    FLAGS("fresh-connections", fresh, "Server", "a new connection for every request"),

    {"arrivals", "KIND", CHOICE, AT(arrivals), 0, 0, arrival_names, ARRIVE_KINDS, "Load",
     "poisson, gamma, constant, trace: open loop, sent when due whatever the server does; closed: by --concurrency "
     "users"},
    NUMBERS("rate", "R", rate, 1e-6, 1e6, "Load", "requests a second; 1"),
    NUMBERS("burstiness", "K", burstiness, 1e-3, 1e6, "Load",
            "gamma's shape: below 1 bursty, 1 as poisson, above more even"),
    NUMBERS("ramp", "SECONDS", ramp, 0, 1e6, "Load",
            "the rate grows from 0 in this time; closed: users begin spread over it"),
    NUMBERS("duration", "SECONDS", duration, 0, 1e7, "Load", "arrivals end after this time"),
    COUNTS("requests", requests, 0, 1e9, "Load", "arrivals end after so many; 100 when no duration is given"),
    NUMBERS("warmup", "SECONDS", warmup, 0, 1e6, "Load", "what arrives before is not measured"),
    NUMBERS("drain", "SECONDS", drain, 0, 1e6, "Load", "how long to wait for answers after the last arrival; 60"),
    COUNTS("concurrency", concurrency, 1, 1e6, "Load", "closed: users; 1"),
    NUMBERS("think", "SECONDS", think, 0, 1e6, "Load", "closed: a user's pause between an answer and the next request"),
    {"sweep", "N,N,...", SWEEP_LIST, AT(sweep), 1, 1e6, NULL, 0, "Load",
     "closed, once for each of these concurrencies: the Pareto curve"},
    TEXTS("trace", "FILE", trace, "Load", "CSV of arrivals and lengths, such as Azure's LLM inference traces"),
    NUMBERS("trace-speed", "X", trace_speed, 1e-6, 1e9, "Load", "the trace's clock runs so many times as fast"),
    FLAGS("trace-lengths", trace_lengths, "Load", "only lengths from the trace, arrivals as --arrivals says"),
    COUNTS("max-open", max_open, 1, 1e6, "Load",
           "open requests at most; what is due beyond is an error of the generator; 8192"),
    NUMBERS("seed", "N", seed, 0, 9e15, "Load", "of everything random; 1"),

    {"prompt-tokens", "N|N-M", RANGE, AT(prompt), 1, 1e7, NULL, 0, "Requests",
     "length of prompts, in words of a token each; 64"},
    {"output-tokens", "N|N-M", RANGE, AT(output), 1, 1e7, NULL, 0, "Requests", "tokens to generate; 64"},
    COUNTS("max-prompt-tokens", prompt_max, 0, 1e7, "Requests", "cut longer ones, as a trace has them"),
    COUNTS("max-output-tokens", output_max, 0, 1e7, "Requests", "likewise"),
    FLAGS("exact-prompts", exact, "Requests",
          "the server cuts prompts to exactly that many tokens (tandem, vLLM, TGI)"),
    COUNTS("prefix-tokens", prefix, 0, 1e7, "Requests", "words at the beginning that requests of a group share"),
    COUNTS("prefix-groups", groups, 1, 1e9, "Requests", "groups; 1"),
    NUMBERS("long-share", "0..1", long_share, 0, 1, "Requests", "of requests with a long prompt"),
    COUNTS("long-prompt-tokens", long_prompt, 1, 1e7, "Requests", "its length; 1024"),
    NUMBERS("slow-share", "0..1", slow_share, 0, 1, "Requests", "of clients that read slowly"),
    NUMBERS("slow-ms", "MS", slow_ms, 1, 1e6, "Requests", "their pause after each read of at most 1 KB; 200"),
    NUMBERS("disconnect-share", "0..1", disconnect_share, 0, 1, "Requests", "of clients that leave"),
    COUNTS("disconnect-after", leave_after, 0, 1e6, "Requests", "after 0 to N events, evenly; 8"),
    NUMBERS("bad-share", "0..1", bad_share, 0, 1, "Requests", "of requests that must be refused"),
    NUMBERS("temperature", "T", temperature, 0, 100, "Requests", "0: greedy"),
    FLAGS("natural-end", natural_end, "Requests", "let the model end its text; without it ignore_eos is asked for"),
    NUMBERS("timeout", "SECONDS", timeout, 0.01, 1e6, "Requests", "for a request, from when it was to arrive; 600"),
    FLAGS("retry", retry, "Requests", "send rejected requests again after their Retry-After"),
    COUNTS("retries", retries, 1, 1000, "Requests", "at most so often; 5"),

    COUNTS("train-jobs", train_jobs, 0, 1000, "Training",
           "fine-tuning jobs kept going beside the load (tandem's POST /train)"),
    COUNTS("train-rows", train_rows, 1, 100000, "Training", "rows of data in each; 32"),
    COUNTS("train-steps", train_steps, 1, 1e9, "Training", "optimizer steps of each; 20"),

    {"goodput", "LIST", SLO_LIST, AT(slo), 0, 0, NULL, 0, "Measuring",
     "limits in ms: ttft:500,itl:50,tpot:50,e2e:5000"},
    NUMBERS("metrics-every", "SECONDS", metrics_every, 0, 1e6, "Measuring", "sample the server's /metrics; 0: do not"),

    TEXTS("json", "FILE", json, "Output", "everything measured; -: stdout, instead of the table"),
    TEXTS("html", "FILE", html, "Output", "a report with plots, one file"),
    TEXTS("samples", "FILE", samples, "Output", "a line of JSON for every request"),
    TEXTS("title", "TEXT", title, "Output", "of the reports"),
    FLAGS("dry-run", dry_run, "Output", "print the schedule, a line of JSON for every request, and send nothing"),
    FLAGS("quiet", quiet, "Output", "no line while it runs"),
};

enum { OPTIONS = sizeof table / sizeof *table };

static int wrong(struct err *e, const struct option *o, const char *value)
{
    return err_set(e, ERR_INVALID, "--%s: \"%.100s\" is not %s", o->name, value, o->value);
}

/* A number in the option's range, up to `end`. */
static bool read_number(const struct option *o, const char *text, const char **end, double *out)
{
    char *stop;
    *out = strtod(text, &stop);
    *end = stop;
    return stop != text && *out >= o->low && *out <= o->high;
}

static int set_list(struct options *v, const struct option *o, const char *text, struct err *e)
{
    double n;
    v->n_sweep = 0;
    for (const char *p = text;; p++) {
        if (v->n_sweep == SWEEP_MAX || !read_number(o, p, &p, &n) || n != floor(n)) return wrong(e, o, text);
        v->sweep[v->n_sweep++] = (int)n;
        if (!*p) return 0;
        if (*p != ',') return wrong(e, o, text);
    }
}

static int set_range(const struct option *o, struct range *r, const char *text, struct err *e)
{
    const char *end;
    double low, high;
    if (!read_number(o, text, &end, &low)) return wrong(e, o, text);
    high = low;
    if (*end == '-' && !read_number(o, end + 1, &end, &high)) return wrong(e, o, text);
    if (*end || low != floor(low) || high != floor(high) || high < low) return wrong(e, o, text);
    *r = (struct range){(int)low, (int)high};
    return 0;
}

static int set_option(struct options *v, const struct option *o, const char *text, struct err *e)
{
    char *field = (char *)v + o->at;
    const char *end;
    double n = 0;
    switch (o->type) {
    case FLAG: *(bool *)(void *)field = true; return 0;
    case TEXT: *(const char **)(void *)field = text; return 0;
    case NUMBER:
        if (!read_number(o, text, &end, &n) || *end) return wrong(e, o, text);
        *(double *)(void *)field = n;
        return 0;
    case COUNT:
        if (!read_number(o, text, &end, &n) || *end || n != floor(n)) return wrong(e, o, text);
        *(int *)(void *)field = (int)n;
        return 0;
    case CHOICE:
        for (int i = 0; i < o->n_choices; i++)
            if (!strcmp(text, o->choices[i])) {
                *(int *)(void *)field = i;
                return 0;
            }
        return wrong(e, o, text);
    case RANGE: return set_range(o, (struct range *)(void *)field, text, e);
    case SLO_LIST: return slo_parse(&v->slo, text) ? 0 : wrong(e, o, text);
    case SWEEP_LIST: return set_list(v, o, text, e);
    case HEADER:
        if (strpbrk(text, "\r\n") || !strchr(text, ':')) return wrong(e, o, text);
        buf_printf(&v->headers, "%s\r\n", text);
        return 0;
    }
    return 0;
}

static const struct option *find(const char *name, size_t n)
{
    for (int i = 0; i < OPTIONS; i++)
        if (strlen(table[i].name) == n && !memcmp(table[i].name, name, n)) return &table[i];
    return NULL;
}

static int check(struct options *v, struct err *e)
{
    if (!v->requests && v->duration <= 0 && v->arrivals != ARRIVE_TRACE) v->requests = 100;
    if ((v->arrivals == ARRIVE_TRACE || v->trace_lengths) && !v->trace)
        return err_set(e, ERR_INVALID, "--trace FILE is missing");
    if (v->trace && v->arrivals != ARRIVE_TRACE && !v->trace_lengths)
        return err_set(e, ERR_INVALID, "--trace goes with --arrivals trace or --trace-lengths");
    if (v->n_sweep && v->arrivals != ARRIVE_CLOSED && v->arrivals != ARRIVE_POISSON)
        return err_set(e, ERR_INVALID, "--sweep is closed: no other --arrivals");
    if (v->long_share + v->slow_share + v->disconnect_share + v->bad_share > 1 + 1e-9)
        return err_set(e, ERR_INVALID, "the shares add up to more than 1");
    if (v->duration > 0 && v->warmup >= v->duration) return err_set(e, ERR_INVALID, "--warmup takes all of --duration");
    if (v->n_sweep) v->arrivals = ARRIVE_CLOSED;
    return 0;
}

int options_parse(struct options *v, int argc, char **argv, struct err *e)
{
    *v = (struct options){.url = "http://127.0.0.1:8080",
                          .rate = 1,
                          .burstiness = 1,
                          .drain = 60,
                          .concurrency = 1,
                          .trace_speed = 1,
                          .max_open = 8192,
                          .seed = 1,
                          .prompt = {64, 64},
                          .output = {64, 64},
                          .groups = 1,
                          .long_prompt = 1024,
                          .slow_ms = 200,
                          .leave_after = 8,
                          .timeout = 600,
                          .retries = 5,
                          .train_rows = 32,
                          .train_steps = 20,
                          .key = getenv("LOADTEST_KEY")};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            options_help(stdout);
            return 1;
        }
        const char *name = argv[i] + 2, *equals = strchr(argv[i], '=');
        size_t n = equals ? (size_t)(equals - name) : strlen(argv[i]) - 2;
        const struct option *o = strncmp(argv[i], "--", 2) ? NULL : find(name, n);
        if (!o) return err_set(e, ERR_INVALID, "unknown option %.100s; --help lists them", argv[i]);
        if (o->type == FLAG && equals) return err_set(e, ERR_INVALID, "--%s takes no value", o->name);
        const char *value = equals ? equals + 1 : o->type == FLAG ? NULL : i + 1 < argc ? argv[++i] : NULL;
        if (!value && o->type != FLAG) return err_set(e, ERR_INVALID, "--%s needs %s", o->name, o->value);
        if (set_option(v, o, value, e)) return e->code;
    }
    return check(v, e);
}

void options_help(FILE *out)
{
    fprintf(out,
            "tandem-loadtest [OPTION]...\n\nLoads a server that speaks OpenAI's or TGI's streams and measures it.\n");
    const char *group = "";
    for (int i = 0; i < OPTIONS; i++) {
        const struct option *o = &table[i];
        if (strcmp(group, o->group)) fprintf(out, "\n%s\n", group = o->group);
        int n = fprintf(out, "  --%s%s%s", o->name, o->value ? " " : "", o->value ? o->value : "");
        fprintf(out, "%*s%s\n", n < 30 ? 30 - n : 1, "", o->help);
    }
}

void options_free(struct options *v)
{
    buf_free(&v->headers);
}

int place_parse(struct place *p, const char *url, struct err *e)
{
    *p = (struct place){.port = "80"};
    const char *s = strstr(url, "://"), *end;
    if (s && strncasecmp(url, "http://", 7))
        return err_set(e, ERR_UNSUPPORTED, "--url: only http:// is spoken, not %.40s", url);
    s = s ? s + 3 : url;
    size_t n = strcspn(s, "/?#");
    if (!n || n >= sizeof p->authority || s[n] == '?' || s[n] == '#' || strpbrk(url, " \r\n@"))
        return err_set(e, ERR_INVALID, "--url: \"%.100s\" is not http://host:port", url);
    memcpy(p->authority, s, n);
    end = p->authority + n;
    const char *host = p->authority, *colon = strrchr(p->authority, ':');
    if (*host == '[') { /* IPv6 */
        const char *close = strchr(host, ']');
        if (!close) return err_set(e, ERR_INVALID, "--url: no ] in \"%.100s\"", url);
        colon = close[1] == ':' ? close + 1 : NULL;
        host++, end = close;
    } else if (colon) {
        end = colon;
    }
    if (end == host || (size_t)(end - host) >= sizeof p->host || (colon && (strlen(colon + 1) > 5 || !colon[1])))
        return err_set(e, ERR_INVALID, "--url: \"%.100s\" is not http://host:port", url);
    memcpy(p->host, host, (size_t)(end - host));
    if (colon) snprintf(p->port, sizeof p->port, "%.5s", colon + 1);
    size_t base = strlen(s + n);
    while (base && s[n + base - 1] == '/') base--;
    if (base >= sizeof p->base) return err_set(e, ERR_INVALID, "--url: the path is too long");
    memcpy(p->base, s + n, base);
    return 0;
}
