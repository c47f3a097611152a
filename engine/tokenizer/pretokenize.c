/* The pre-tokenizer (pretokenize.h): reading its description, and splitting. */
#include "engine/tokenizer/pretokenize.h"

#include "engine/base/mem.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/scripts.h"
#include "engine/tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

/* GPT-2's words, which ByteLevel has built in; and the Whitespace step's, whose \w is that of Rust's regex: it counts
 * the joiners */
static const char gpt2_words[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
#define WORD "\\p{Alphabetic}\\p{L}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}"
static const char whitespace_words[] = "[" WORD "]+|[^" WORD "\\s]+";

static const struct {
    const char *name;
    enum pretokenizer_kind kind;
} kinds[] = {
    {"ByteLevel", PRETOKENIZE_BYTE_LEVEL},  {"Split", PRETOKENIZE_SPLIT},
    {"Digits", PRETOKENIZE_DIGITS},         {"Punctuation", PRETOKENIZE_PUNCTUATION},
    {"Whitespace", PRETOKENIZE_WHITESPACE}, {"WhitespaceSplit", PRETOKENIZE_WHITESPACE_SPLIT},
    {"Metaspace", PRETOKENIZE_METASPACE},   {"CharDelimiterSplit", PRETOKENIZE_CHARACTER},
    {"FixedLength", PRETOKENIZE_LENGTH},    {"UnicodeScripts", PRETOKENIZE_SCRIPTS},
};

static const char *const behaviors[] = {[SPLIT_REMOVED] = "Removed",
                                        [SPLIT_ISOLATED] = "Isolated",
                                        [SPLIT_WITH_PREVIOUS] = "MergedWithPrevious",
                                        [SPLIT_WITH_NEXT] = "MergedWithNext",
                                        [SPLIT_CONTIGUOUS] = "Contiguous"};

static const char *const schemes[] = {
    [PREPEND_ALWAYS] = "always", [PREPEND_FIRST] = "first", [PREPEND_NEVER] = "never"};

static int read_name(const struct json_at *at, const char *key, const char *const *names, int n, int otherwise,
                     int *out, struct err *e)
{
    const char *s;
    int rc = otherwise < 0 ? json_string(at, key, &s, e) : json_string_or(at, key, names[otherwise], &s, e);
    if (rc) return rc;
    for (*out = 0; *out < n; ++*out)
        if (!strcmp(names[*out], s)) return 0;
    struct json_at m = json_member(at, key);
    return json_fail(&m, e, ERR_UNSUPPORTED, "\"%.40s\" is not known", s);
}

static int mark_read(const struct json_at *at, const char *key, const char *s, char mark[5], struct err *e)
{
    uint32_t c;
    size_t n = *s ? utf8_get(s, &c) : 0;
    struct json_at m = json_member(at, key);
    if (!n || s[n]) return json_fail(&m, e, ERR_INVALID, "must be one character");
    memcpy(mark, s, n + 1);
    return 0;
}

int metaspace_read(const struct json_at *at, char mark[5], enum prepend_scheme *scheme, struct err *e)
{
    const char *s;
    bool prefix;
    int which;
    int rc = json_string_or(at, "replacement", "\xe2\x96\x81", &s, e);
    if (!rc) rc = json_bool_or(at, "add_prefix_space", true, &prefix, e);
    if (!rc) rc = read_name(at, "prepend_scheme", schemes, 3, prefix ? PREPEND_ALWAYS : PREPEND_NEVER, &which, e);
    if (rc) return rc;
    *scheme = (enum prepend_scheme)which;
    return mark_read(at, "replacement", s, mark, e);
}

static int byte_level_read(struct pretokenizer_step *step, const struct json_at *at, struct err *e)
{
    bool use_regex;
    int rc = json_bool_or(at, "add_prefix_space", true, &step->prefix_space, e);
    if (!rc) rc = json_bool_or(at, "use_regex", true, &use_regex, e);
    if (rc || !use_regex) return rc;
    step->behavior = SPLIT_ISOLATED;
    step->regex = regex_compile(gpt2_words, sizeof gpt2_words - 1, e);
    return step->regex ? 0 : e->code;
}

static int step_read(struct pretokenizer_step *step, const struct json_at *at, struct err *e)
{
    bool flag;
    const char *s;
    struct json_at length = json_member(at, "length");
    int rc = 0, behavior = SPLIT_ISOLATED;
    switch (step->kind) {
    case PRETOKENIZE_BYTE_LEVEL: return byte_level_read(step, at, e);
    case PRETOKENIZE_SPLIT:
        rc = regex_read(at, "pattern", &step->regex, e);
        if (!rc) rc = read_name(at, "behavior", behaviors, 5, -1, &behavior, e);
        if (!rc) rc = json_bool_or(at, "invert", false, &step->invert, e);
        break;
    case PRETOKENIZE_DIGITS:
        rc = json_bool_or(at, "individual_digits", false, &flag, e);
        if (!rc && !flag) behavior = SPLIT_CONTIGUOUS;
        break;
    case PRETOKENIZE_PUNCTUATION: rc = read_name(at, "behavior", behaviors, 5, SPLIT_ISOLATED, &behavior, e); break;
    case PRETOKENIZE_WHITESPACE:
        behavior = SPLIT_REMOVED;
        step->invert = true;
        step->regex = regex_compile(whitespace_words, sizeof whitespace_words - 1, e);
        if (!step->regex) return e->code;
        break;
    case PRETOKENIZE_WHITESPACE_SPLIT: behavior = SPLIT_REMOVED; break;
    case PRETOKENIZE_METASPACE:
        behavior = SPLIT_WITH_NEXT;
        rc = json_bool_or(at, "split", true, &step->split, e);
        if (!rc) rc = metaspace_read(at, step->mark, &step->scheme, e);
        break;
    case PRETOKENIZE_CHARACTER:
        behavior = SPLIT_REMOVED;
        rc = json_string(at, "delimiter", &s, e);
        if (!rc) rc = mark_read(at, "delimiter", s, step->mark, e);
        break;
    case PRETOKENIZE_LENGTH:
        step->length = 5; /* the reference's default */
        if (length.v) rc = json_integer(&length, INT32_MAX, &step->length, e);
        if (!rc && step->length < 1) rc = json_fail(&length, e, ERR_INVALID, "must be at least 1");
        break;
    case PRETOKENIZE_SCRIPTS: scripts_open(); break;
    }
    step->behavior = (enum split_behavior)behavior;
    return rc;
}

static int read_any(void *arg, const struct json_at *at, struct err *e)
{
    return pretokenizer_read(arg, at, e);
}

static void step_add(struct pretokenizer *z, struct pretokenizer_step step)
{
    mem_grow(&z->steps, &z->cap, z->n + 1, sizeof *z->steps);
    z->steps[z->n++] = step;
}

int pretokenizer_read(struct pretokenizer *z, const struct json_at *at, struct err *e)
{
    if (!at->v) return 0;
    const char *type;
    int rc = json_type(at, &type, e);
    if (rc) return rc;
    if (!strcmp(type, "Sequence")) return json_each(at, "pretokenizers", read_any, z, e);
    if (!strcmp(type, "BertPreTokenizer")) {
        step_add(z, (struct pretokenizer_step){.kind = PRETOKENIZE_WHITESPACE_SPLIT, .behavior = SPLIT_REMOVED});
        step_add(z, (struct pretokenizer_step){.kind = PRETOKENIZE_PUNCTUATION, .behavior = SPLIT_ISOLATED});
        return 0;
    }
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        if (strcmp(type, kinds[k].name)) continue;
        step_add(z, (struct pretokenizer_step){.kind = kinds[k].kind});
        return step_read(&z->steps[z->n - 1], at, e);
    }
    return json_fail(at, e, ERR_UNSUPPORTED, "pre-tokenizer type \"%.40s\" is not known", type);
}

void pretokenizer_free(struct pretokenizer *z)
{
    for (size_t i = 0; i < z->n; i++) regex_free(z->steps[i].regex);
    free(z->steps);
    *z = (struct pretokenizer){0};
}

bool pretokenizer_is_byte_level(const struct pretokenizer *z)
{
    return z->n && z->steps[z->n - 1].kind == PRETOKENIZE_BYTE_LEVEL;
}

/* --- splitting ---------------------------------------------------------------------------------------------------- */

/* Collects the alternating stretches of one piece and turns them into pieces as the behavior says.  They come in order,
 * so one held-back stretch is all the state that merging needs. */
struct cutter {
    struct text *out; /* its pieces */
    enum split_behavior behavior;
    bool invert;
    size_t start, end; /* held back: not yet written */
    bool held;
    bool last_match; /* the stretch before this one was a delimiter */
};

static void cutter_flush(struct cutter *x)
{
    if (x->held) text_piece(x->out, x->start, x->end, PIECE_OPEN);
    x->held = false;
}

static void cutter_hold(struct cutter *x, size_t start, size_t end)
{
    cutter_flush(x);
    x->start = start;
    x->end = end;
    x->held = true;
}

static void cutter_add(struct cutter *x, size_t start, size_t end, bool match)
{
    match ^= x->invert;
    bool join = false;
    switch (x->behavior) {
    case SPLIT_REMOVED:
        if (!match) text_piece(x->out, start, end, PIECE_OPEN);
        return;
    case SPLIT_ISOLATED: text_piece(x->out, start, end, PIECE_OPEN); return;
    case SPLIT_CONTIGUOUS: join = match == x->last_match; break;
    case SPLIT_WITH_PREVIOUS: join = match && !x->last_match; break;
    case SPLIT_WITH_NEXT: join = !match && x->last_match; break; /* only the last of several delimiters joins */
    }
    x->last_match = match;
    if (join && x->held)
        x->end = end;
    else
        cutter_hold(x, start, end);
}

static int cut_by_regex(const struct regex *r, struct regex_run *run, const struct text *t, struct piece p,
                        struct cutter *x, struct err *e)
{
    struct regex_scan scan = {.s = t->s + p.start, .n = p.end - p.start};
    size_t done = 0;
    int rc;
    while ((rc = regex_next(r, run, &scan, e)) > 0) {
        if (done != scan.start) cutter_add(x, p.start + done, p.start + scan.start, false);
        cutter_add(x, p.start + scan.start, p.start + scan.end, true);
        done = scan.end;
    }
    if (done != scan.n) cutter_add(x, p.start + done, p.end, false);
    return rc;
}

static bool char_is_delimiter(const struct pretokenizer_step *step, const char *s, uint32_t c)
{
    switch (step->kind) {
    case PRETOKENIZE_DIGITS: return unicode_is_numeric(c);
    case PRETOKENIZE_PUNCTUATION: return unicode_is_punct(c);
    case PRETOKENIZE_WHITESPACE_SPLIT: return unicode_is_space(c);
    default: return !strncmp(s, step->mark, strlen(step->mark));
    }
}

static void cut_by_char(const struct pretokenizer_step *step, const struct text *t, struct piece p, struct cutter *x)
{
    size_t done = p.start;
    for (size_t i = p.start, n; i < p.end; i += n) {
        uint32_t c;
        n = utf8_get(t->s + i, &c);
        if (!char_is_delimiter(step, t->s + i, c)) continue;
        if (done != i) cutter_add(x, done, i, false);
        cutter_add(x, i, i + n, true);
        done = i + n;
    }
    if (done != p.end) cutter_add(x, done, p.end, false);
}

static void cut_by_length(const struct pretokenizer_step *step, const struct text *t, struct piece p, struct text *out)
{
    size_t start = p.start;
    int32_t characters = 0;
    uint32_t c;
    for (size_t i = p.start; i < p.end;) {
        i += utf8_get(t->s + i, &c);
        if (++characters < step->length && i < p.end) continue;
        text_piece(out, start, i, PIECE_OPEN);
        start = i;
        characters = 0;
    }
}

/* A piece begins where the script changes.  Spaces and characters without a script belong to the piece before them; where
 * there is none they are dropped. */
static void cut_by_script(const struct text *t, struct piece p, struct text *out)
{
    size_t start = p.end;
    int last = 0;
    uint32_t c;
    for (size_t i = p.start, n; i < p.end; i += n) {
        n = utf8_get(t->s + i, &c);
        int script = script_of(c);
        if (!script || script == last) continue;
        if (last) text_piece(out, start, i, PIECE_OPEN);
        start = i;
        last = script;
    }
    if (last) text_piece(out, start, p.end, PIECE_OPEN);
}

/* Splits the open pieces of t in place; the list of spare is used as scratch. */
static int cut(const struct pretokenizer_step *step, struct regex_run *run, struct text *t, struct text *spare,
               struct err *e)
{
    int rc = 0;
    text_clear(spare);
    for (size_t k = 0; k < t->n_pieces && rc >= 0; k++) {
        struct piece p = t->pieces[k];
        if (p.id != PIECE_OPEN) {
            text_piece(spare, p.start, p.end, p.id);
            continue;
        }
        struct cutter x = {.out = spare, .behavior = step->behavior, .invert = step->invert};
        if (step->kind == PRETOKENIZE_LENGTH)
            cut_by_length(step, t, p, spare);
        else if (step->kind == PRETOKENIZE_SCRIPTS)
            cut_by_script(t, p, spare);
        else if (step->regex)
            rc = cut_by_regex(step->regex, run, t, p, &x, e);
        else
            cut_by_char(step, t, p, &x);
        cutter_flush(&x);
    }
    text_take_pieces(t, spare);
    return rc < 0 ? rc : 0;
}

/* --- rewriting ---------------------------------------------------------------------------------------------------- */

static void write_metaspace(const struct pretokenizer_step *step, const struct text *from, struct piece p,
                            struct text *to)
{
    size_t n = strlen(step->mark);
    const char *s = from->s + p.start;
    bool marked = *s == ' ' || (p.end - p.start >= n && !memcmp(s, step->mark, n));
    bool wanted = step->scheme == PREPEND_ALWAYS || (step->scheme == PREPEND_FIRST && !from->at[p.start].start);
    if (wanted && !marked) text_add(to, step->mark, n, from->at[p.start]);
    for (size_t i = p.start, k; i < p.end; i = k) {
        for (k = i; k < p.end && from->s[k] != ' '; k++) continue;
        text_copy(to, from, i, k);
        if (k < p.end) text_add(to, step->mark, n, from->at[k]), k++;
    }
}

static void write_prefix_space(const struct text *from, struct piece p, struct text *to)
{
    if (from->s[p.start] != ' ') text_add(to, " ", 1, from->at[p.start]);
    text_copy(to, from, p.start, p.end);
}

static void write_byte_level(const struct text *from, struct piece p, struct text *to)
{
    for (size_t i = p.start; i < p.end; i++) text_add_char(to, byte_level_char((unsigned char)from->s[i]), from->at[i]);
}

enum rewriting { REWRITE_METASPACE, REWRITE_PREFIX_SPACE, REWRITE_BYTE_LEVEL };

static int rewrite(enum rewriting how, const struct pretokenizer_step *step, struct text *t, struct text *spare,
                   struct err *e)
{
    text_clear(spare);
    for (size_t k = 0; k < t->n_pieces; k++) {
        struct piece p = t->pieces[k];
        size_t start = spare->n;
        if (p.id != PIECE_OPEN)
            text_copy(spare, t, p.start, p.end);
        else if (how == REWRITE_METASPACE)
            write_metaspace(step, t, p, spare);
        else if (how == REWRITE_PREFIX_SPACE)
            write_prefix_space(t, p, spare);
        else
            write_byte_level(t, p, spare);
        text_piece(spare, start, spare->n, p.id);
    }
    struct text swap = *t;
    *t = *spare;
    *spare = swap;
    return t->full ? err_set(e, ERR_NOMEM, "the pre-tokenizer makes this text too large") : 0;
}

static int step_apply(const struct pretokenizer_step *step, bool last, struct regex_run *run, struct text *t,
                      struct text *spare, struct err *e)
{
    int rc = 0;
    if (step->kind == PRETOKENIZE_METASPACE) {
        rc = rewrite(REWRITE_METASPACE, step, t, spare, e);
        return rc || !step->split ? rc : cut(step, run, t, spare, e);
    }
    if (step->kind != PRETOKENIZE_BYTE_LEVEL) return cut(step, run, t, spare, e);
    if (step->prefix_space) rc = rewrite(REWRITE_PREFIX_SPACE, step, t, spare, e);
    if (!rc && step->regex) rc = cut(step, run, t, spare, e);
    if (!rc && !last) rc = rewrite(REWRITE_BYTE_LEVEL, step, t, spare, e);
    return rc;
}

int pretokenizer_apply(const struct pretokenizer *z, struct regex_run *run, struct text *t, struct text *spare,
                       struct err *e)
{
    for (size_t i = 0; i < z->n; i++) {
        int rc = step_apply(&z->steps[i], i + 1 == z->n, run, t, spare, e);
        if (rc) return rc;
    }
    return 0;
}
