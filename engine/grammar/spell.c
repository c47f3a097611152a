/* Whether a vocabulary can spell a grammar's texts (grammar.h).  Checks bytes only: whether some text consists of bytes
 * that occur in tokens.  This detects vocabularies that lack a character.  When tokens contain a byte, but never where
 * the grammar requires it, the mask detects that. */
#include "engine/base/mem.h"
#include "engine/grammar/program.h"
#include "engine/grammar/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CANDIDATES = 16 };

struct speller {
    const struct gram_program *p;
    const unsigned char *bytes;  /* (256) not 0: the byte occurs in some token */
    uint8_t *ends;               /* (n_code) the rule's end is reachable from here */
    uint8_t *seen;               /* (n_code) by find_missing */
    char missing[CANDIDATES][5]; /* (n_missing) characters of the program that cannot be spelled */
    int n_missing;
};

/* Whether some character of the class can be spelled; recursion is at most four bytes deep. */
static bool class_spelled(const struct speller *s, uint32_t node)
{
    if (node == CLASS_END) return true;
    if (node == CLASS_NOTHING) return false;
    const struct class_node *n = &s->p->classes.nodes[node];
    for (uint32_t i = n->first; i < n->first + n->n; i++) {
        const struct class_edge *edge = &s->p->classes.edges[i];
        bool any = false;
        for (int c = edge->lo; c <= edge->hi && !any; c++) any = s->bytes[c];
        if (any && class_spelled(s, edge->to)) return true;
    }
    return false;
}

static bool ends(const struct speller *s, uint32_t pc)
{
    const struct gram_program *p = s->p;
    const struct gram_ins *i = &p->code[pc];
    switch ((enum gram_op)i->op) {
    case GRAM_LITERAL:
        for (uint32_t k = 0; k < i->b; k++)
            if (!s->bytes[p->bytes[i->a + k]]) return false;
        return s->ends[pc + 1];
    case GRAM_CLASS: return s->ends[pc + 1] && class_spelled(s, i->a);
    case GRAM_SPLIT:
        for (uint32_t k = 0; k < i->b; k++)
            if (s->ends[p->targets[i->a + k]]) return true;
        return false;
    case GRAM_JUMP:
    case GRAM_TAIL: return s->ends[i->a];
    case GRAM_CALL: return s->ends[i->a] && s->ends[pc + 1];
    case GRAM_RETURN:
    case GRAM_MATCH: return true;
    case GRAM_COUNT: return s->ends[p->loops[i->a].body] || (!p->loops[i->a].min && s->ends[p->loops[i->a].after]);
    case GRAM_AGAIN: return s->ends[p->loops[i->a].after];
    }
    return true;
}

/* The least solution; @return false: it took too long, and the result is unknown. */
static bool solve(const struct speller *s)
{
    enum { ROUNDS = 100 }; /* each goes backwards through the code, so few are needed */
    for (int round = 0; round < ROUNDS; round++) {
        bool changed = false;
        for (size_t pc = s->p->n_code; pc-- > 0;) {
            if (s->ends[pc] || !ends(s, (uint32_t)pc)) continue;
            s->ends[pc] = 1;
            changed = true;
        }
        if (!changed) return true;
    }
    return false;
}

/* The UTF-8 character that text[at] is a byte of. */
static void take_character(struct speller *s, const unsigned char *text, uint32_t n, uint32_t at)
{
    uint32_t from = at, len = 1;
    while (from && at - from < 3 && (text[from] & 0xc0) == 0x80) from--;
    while (from + len < n && len < 4 && (text[from + len] & 0xc0) == 0x80) len++;
    memcpy(s->missing[s->n_missing++], text + from, len);
}

/* The class's first character. */
static void take_class(struct speller *s, uint32_t node)
{
    char *out = s->missing[s->n_missing++];
    for (size_t n = 0; node != CLASS_END && node != CLASS_NOTHING && n < 4; n++) {
        const struct class_edge *edge = &s->p->classes.edges[s->p->classes.nodes[node].first];
        out[n] = (char)edge->lo;
        node = edge->to;
    }
}

/* Collects what cannot be spelled on the paths from the start, when no path reaches the end. */
static void find_missing(struct speller *s)
{
    const struct gram_program *p = s->p;
    /* what is pushed: one a pc and target, two a call */
    uint32_t *stack = mem_array(2 * p->n_code + p->n_targets + 2, sizeof *stack);
    size_t n = 0;
    stack[n++] = 0;
    while (n && s->n_missing < CANDIDATES) {
        uint32_t pc = stack[--n];
        const struct gram_ins *i = &p->code[pc];
        if (s->seen[pc]) continue;
        s->seen[pc] = 1;
        switch ((enum gram_op)i->op) {
        case GRAM_LITERAL:
            for (uint32_t k = 0, had = (uint32_t)s->n_missing; k < i->b && had == (uint32_t)s->n_missing; k++)
                if (!s->bytes[p->bytes[i->a + k]]) take_character(s, p->bytes + i->a, i->b, k);
            stack[n++] = pc + 1;
            break;
        case GRAM_CLASS:
            if (!class_spelled(s, i->a)) take_class(s, i->a);
            stack[n++] = pc + 1;
            break;
        case GRAM_SPLIT:
            for (uint32_t k = i->b; k-- > 0;) stack[n++] = p->targets[i->a + k];
            break;
        case GRAM_CALL:
            stack[n++] = pc + 1;
            stack[n++] = i->a;
            break;
        case GRAM_COUNT:
            stack[n++] = p->loops[i->a].after;
            stack[n++] = p->loops[i->a].body;
            break;
        case GRAM_JUMP:
        case GRAM_TAIL: stack[n++] = i->a; break;
        case GRAM_AGAIN: stack[n++] = p->loops[i->a].after; break;
        case GRAM_RETURN:
        case GRAM_MATCH: break;
        }
    }
    free(stack);
}

/* Whether every text contains the character, or others that lack the same bytes. */
static bool is_needed(struct speller *s, const char *character)
{
    unsigned char others[256];
    const unsigned char *bytes = s->bytes;
    memset(others, 1, sizeof others);
    for (const char *c = character; *c; c++) others[(unsigned char)*c] = bytes[(unsigned char)*c];
    memset(s->ends, 0, s->p->n_code);
    s->bytes = others;
    bool needed = solve(s) && !s->ends[0];
    s->bytes = bytes;
    return needed;
}

int grammar_check_bytes(const struct grammar *g, const unsigned char bytes[256], struct err *e)
{
    bool all = true;
    for (int c = 0; c < 256; c++) all = all && bytes[c];
    if (all) return 0;
    struct speller s = {.p = &g->p, .bytes = bytes};
    s.ends = mem_array(2 * g->p.n_code, 1);
    s.seen = s.ends + g->p.n_code;
    bool never = solve(&s) && !s.ends[0];
    int named = 0;
    if (never) {
        find_missing(&s);
        while (named < s.n_missing && !is_needed(&s, s.missing[named])) named++;
        if (named == s.n_missing) named = 0; /* one of several is needed: names the first */
    }
    free(s.ends);
    if (!never) return 0;
    unsigned char first = (unsigned char)s.missing[named][0];
    if (first < 0x20 || first == 0x7f)
        return err_set(e, ERR_UNSUPPORTED, "the model cannot write it: no token of its vocabulary has the byte 0x%02x",
                       first);
    return err_set(e, ERR_UNSUPPORTED, "the model cannot write it: no token of its vocabulary has the character '%s'",
                   s.missing[named]);
}
