#include "engine/grammar/mask.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/tokenizer/text.h"

#include <stdlib.h>
#include <string.h>

/* The kinds of bytes in a subtree, for skipping it when the state does not change on any of them. */
enum {
    KIND_CONTROL = 1 << 0,
    KIND_NEWLINE = 1 << 1,
    KIND_TAB = 1 << 2, /* and carriage return */
    KIND_SPACE = 1 << 3,
    KIND_DIGIT = 1 << 4,
    KIND_UPPER = 1 << 5,
    KIND_LOWER = 1 << 6,
    KIND_QUOTE = 1 << 7,
    KIND_BACKSLASH = 1 << 8,
    KIND_OTHER = 1 << 9,   /* of ASCII */
    KIND_UTF8 = 1 << 10,   /* characters of several bytes, the last one perhaps unfinished */
    KIND_BROKEN = 1 << 11, /* invalid UTF-8 */
    KIND_INSIDE = 1 << 12, /* of the node itself: it begins inside a character, so it cannot be classified */
    NEAR = 16,             /* longest token in the first part of the trie, in bytes */
    SKIP_FROM = 32, /* nodes: smallest subtree worth it: classifying a state's bytes costs some hundred steps, once */
};

struct trie_node {
    uint32_t first;      /* of order: index in order of the tokens that end here, up to the next node's first */
    uint32_t skip;       /* the next node outside this subtree */
    uint8_t byte, depth; /* depth: length in bytes including this one */
    uint16_t kinds;
};

struct trie {
    struct trie_node *nodes; /* in preorder; one more behind the last */
    uint32_t n_nodes;
    uint8_t *chars; /* (n_order) how many characters each of these tokens begins */
    uint8_t *reach; /* (n_nodes) longest token of the subtree in bytes, counted from this node's byte */
    int32_t *order; /* tokens sorted by their bytes */
    uint32_t n_order;
};

struct token_trie {
    int vocab, n_ids;
    struct trie part[2];  /* tokens of up to NEAR bytes; longer ones */
    uint32_t *upto;       /* (NEAR + 1, mask_words) the bits of the tokens of at most 0, 1 .. NEAR bytes */
    unsigned char *bytes; /* of all tokens, by id */
    uint32_t *at;         /* (n_ids + 1) */
    int32_t *eos;
    int n_eos;
};

/* ---- the trie ---- */

static size_t mask_words(int vocab)
{
    return ((size_t)vocab + 31) / 32;
}

struct token_ref {
    const unsigned char *s;
    uint32_t n;
    int32_t id;
};

static int by_bytes(const void *a, const void *b)
{
    const struct token_ref *x = a, *y = b;
    int c = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    if (c) return c;
    return x->n != y->n ? (x->n > y->n) - (x->n < y->n) : (x->id > y->id) - (x->id < y->id);
}

static bool is_eos(const struct token_trie *t, int32_t id)
{
    for (int i = 0; i < t->n_eos; i++)
        if (t->eos[i] == id) return true;
    return false;
}

static void read_tokens(struct token_trie *t, const struct tokenizer *z)
{
    struct buf all = {0};
    for (int32_t id = 0; id < t->n_ids; id++) {
        t->at[id] = (uint32_t)all.len;
        if (is_eos(t, id)) continue;
        size_t before = all.len;
        bool special = tokenizer_is_special(z, id);
        if (special) buf_char(&all, (char)GRAM_SPECIAL);
        tokenizer_bytes(z, id, &all);
        size_t n = all.len - before;
        bool odd = n && memchr(all.data + before + special, GRAM_SPECIAL, n - special);
        if (special) buf_char(&all, (char)GRAM_SPECIAL);
        if (odd || n == special || all.len - before > GRAM_LOOK) all.len = before;
    }
    t->at[t->n_ids] = (uint32_t)all.len;
    t->bytes = all.data ? (unsigned char *)all.data : mem_zalloc(1);
}

static uint16_t ascii_kind(unsigned c)
{
    if (c == '\n') return KIND_NEWLINE;
    if (c == '\t' || c == '\r') return KIND_TAB;
    if (c < ' ') return KIND_CONTROL;
    if (c == ' ') return KIND_SPACE;
    if (c >= '0' && c <= '9') return KIND_DIGIT;
    if (c >= 'A' && c <= 'Z') return KIND_UPPER;
    if (c >= 'a' && c <= 'z') return KIND_LOWER;
    return c == '"' ? KIND_QUOTE : c == '\\' ? KIND_BACKSLASH : KIND_OTHER;
}

/* The number of bytes of an incomplete character at the end of a path. */
struct utf8_at {
    char s[4];
    uint8_t n; /* 0: between characters; 0xff: invalid */
};

/* Adds one byte; @return the kinds that it adds to the nodes above. */
static uint16_t utf8_byte(struct utf8_at *u, unsigned char byte)
{
    if (u->n == 0xff) return KIND_BROKEN;
    if (u->n == 0 && byte < 0x80) return ascii_kind(byte);
    u->s[u->n++] = (char)byte;
    int step = utf8_step(u->s, u->n);
    if (step < 0) {
        u->n = 0xff;
        return KIND_BROKEN;
    }
    if (step > 0) u->n = 0;
    return KIND_UTF8;
}

static void find_kinds(struct trie *t)
{
    struct utf8_at path[GRAM_LOOK + 1] = {0};
    uint16_t below[GRAM_LOOK + 2] = {0};
    uint8_t longest[GRAM_LOOK + 2] = {0};
    t->reach = mem_array((size_t)t->n_nodes + 1, sizeof *t->reach);
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        struct trie_node *n = t->nodes + i;
        path[n->depth] = path[n->depth - 1];
        uint16_t inside = path[n->depth].n ? KIND_INSIDE : 0;
        n->kinds = utf8_byte(&path[n->depth], n->byte) | inside;
    }
    for (uint32_t i = t->n_nodes; i-- > 0;) {
        struct trie_node *n = t->nodes + i;
        n->kinds |= below[n->depth + 1];
        below[n->depth + 1] = 0;
        t->reach[i] = (uint8_t)(longest[n->depth + 1] + 1);
        longest[n->depth + 1] = 0;
        if (t->reach[i] > longest[n->depth]) longest[n->depth] = t->reach[i];
        below[n->depth] |= n->kinds & (uint16_t)~KIND_INSIDE;
    }
}

static bool begins_char(unsigned char byte)
{
    return (byte & 0xc0) != 0x80;
}

static void make_nodes(struct trie *t, const struct token_ref *v, uint32_t n)
{
    uint32_t path[GRAM_LOOK + 1], depth = 0;
    size_t cap = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t same = 0;
        while (i && same < depth && same < v[i].n && v[i].s[same] == v[i - 1].s[same]) same++;
        for (; depth > same; depth--) t->nodes[path[depth]].skip = t->n_nodes;
        mem_grow(&t->nodes, &cap, (size_t)t->n_nodes + v[i].n + 1, sizeof *t->nodes);
        for (; depth < v[i].n; path[depth] = t->n_nodes++) {
            t->nodes[t->n_nodes] = (struct trie_node){.first = i, .byte = v[i].s[depth], .depth = (uint8_t)(depth + 1)};
            depth++;
        }
        t->order[i] = v[i].id;
        for (uint32_t k = 0; k < v[i].n; k++) t->chars[i] += begins_char(v[i].s[k]);
    }
    for (; depth > 0; depth--) t->nodes[path[depth]].skip = t->n_nodes;
    if (!t->nodes) t->nodes = mem_array(1, sizeof *t->nodes);
    t->nodes[t->n_nodes] = (struct trie_node){.first = n, .skip = t->n_nodes};
}

static void make_part(struct token_trie *t, int part)
{
    struct token_ref *v = mem_array((size_t)t->n_ids + 1, sizeof *v);
    struct trie *p = &t->part[part];
    for (int32_t id = 0; id < t->n_ids; id++) {
        uint32_t n = t->at[id + 1] - t->at[id];
        if (n == 0 || (n > NEAR) != part) continue;
        for (uint32_t k = n; k <= NEAR; k++)
            t->upto[k * mask_words(t->vocab) + (size_t)id / 32] |= (uint32_t)1 << id % 32;
        v[p->n_order++] = (struct token_ref){t->bytes + t->at[id], n, id};
    }
    if (p->n_order) qsort(v, p->n_order, sizeof *v, by_bytes);
    p->order = mem_array((size_t)p->n_order + 1, sizeof *p->order);
    p->chars = mem_array((size_t)p->n_order + 1, sizeof *p->chars);
    make_nodes(p, v, p->n_order);
    find_kinds(p);
    free(v);
}

struct token_trie *token_trie_new(const struct tokenizer *z, int vocab, const int32_t *eos, int n_eos)
{
    struct token_trie *t = mem_zalloc(sizeof *t);
    t->vocab = vocab;
    t->n_ids = tokenizer_size(z) < vocab ? tokenizer_size(z) : vocab;
    t->eos = mem_array((size_t)n_eos + 1, sizeof *t->eos);
    for (int i = 0; i < n_eos; i++)
        if (eos[i] >= 0 && eos[i] < vocab) t->eos[t->n_eos++] = eos[i];
    t->at = mem_array((size_t)t->n_ids + 1, sizeof *t->at);
    read_tokens(t, z);
    t->upto = mem_array((NEAR + 1) * mask_words(vocab), sizeof *t->upto);
    make_part(t, 0);
    make_part(t, 1);
    return t;
}

void token_trie_free(struct token_trie *t)
{
    if (!t) return;
    for (int k = 0; k < 2; k++) {
        free(t->part[k].nodes);
        free(t->part[k].order);
        free(t->part[k].reach);
        free(t->part[k].chars);
    }
    free(t->upto);
    free(t->bytes);
    free(t->at);
    free(t->eos);
    free(t);
}

const unsigned char *token_trie_bytes(const struct token_trie *t, int32_t id, size_t *n)
{
    *n = 0;
    if (id < 0 || id >= t->n_ids) return t->bytes;
    *n = t->at[id + 1] - t->at[id];
    return t->bytes + t->at[id];
}

bool token_trie_longer(const struct token_trie *t, const unsigned char *bytes, size_t n)
{
    for (int part = 0; part < 2; part++) {
        const struct trie *p = &t->part[part];
        struct token_ref key = {bytes, (uint32_t)n, INT32_MAX}, next = {0};
        uint32_t lo = 0, hi = p->n_order; /* the first token after the key */
        while (lo < hi) {
            uint32_t mid = lo + (hi - lo) / 2;
            size_t len;
            next.id = p->order[mid];
            next.s = token_trie_bytes(t, next.id, &len);
            next.n = (uint32_t)len;
            if (by_bytes(&next, &key) <= 0)
                lo = mid + 1;
            else
                hi = mid;
        }
        size_t len;
        if (lo == p->n_order) continue;
        const unsigned char *s = token_trie_bytes(t, p->order[lo], &len);
        if (len > n && memcmp(s, bytes, n) == 0) return true;
    }
    return false;
}

int token_trie_eos(const struct token_trie *t)
{
    return t->n_eos;
}

size_t token_trie_memory(const struct token_trie *t)
{
    size_t bytes =
        t->at[t->n_ids] + ((size_t)t->n_ids + 1) * sizeof *t->at + (NEAR + 1) * mask_words(t->vocab) * sizeof *t->upto;
    for (int k = 0; k < 2; k++)
        bytes += ((size_t)t->part[k].n_nodes + 1) * (sizeof(struct trie_node) + 1) +
                 (size_t)t->part[k].n_order * (sizeof(int32_t) + 1);
    return bytes;
}

/* ---- masks ---- */

struct gram_mask *gram_mask_ref(struct gram_mask *m)
{
    atomic_fetch_add(&m->refs, 1);
    return m;
}

void gram_mask_unref(struct gram_mask *m)
{
    if (m && atomic_fetch_sub(&m->refs, 1) == 1) free(m);
}

size_t gram_mask_bytes(const struct gram_mask *m)
{
    return sizeof *m + mask_words(m->vocab) * sizeof *m->bits;
}

static void allow(struct gram_mask *m, int32_t id)
{
    m->bits[id >> 5] |= (uint32_t)1 << (id & 31);
}

/* ---- transitions on all bytes of a kind ---- */

/* A query with its time limit.  Transitions computed for it are counted; they stay cached, so the same query repeated
 * makes progress. */
struct timed_query {
    struct gram_automaton *a;
    uint64_t until, work; /* work: the automaton's work at the last look at the clock */
};

/* gram_next, or GRAM_LATER. */
static int32_t query_next(struct timed_query *k, int32_t state, uint8_t byte)
{
    int32_t to = gram_known(k->a, state, byte);
    if (to != GRAM_FULL) return to;
    if (gram_work(k->a) - k->work > 500) {
        if (clock_now() >= k->until) return GRAM_LATER;
        k->work = gram_work(k->a);
    }
    return gram_next(k->a, state, byte);
}

/* @return 1: the byte leads to `home`; 0: not; GRAM_FULL, GRAM_LATER. */
static int stays(struct timed_query *k, int32_t at, int32_t home, uint8_t byte)
{
    int32_t to = query_next(k, at, byte);
    return to < GRAM_DEAD ? to : to == home;
}

/* Like `stays` for every completion of a character of which `more` bytes are missing, the next of them in [lo, hi]. */
static int stays_tail(struct timed_query *k, int32_t at, int32_t home, int more, uint8_t lo, uint8_t hi)
{
    int last = -1;
    int32_t same = GRAM_DEAD; /* target of the previous byte, for which the result was 1 */
    for (unsigned byte = lo; byte <= hi; byte++) {
        if (gram_kind(k->a, (uint8_t)byte) == last) continue;
        last = gram_kind(k->a, (uint8_t)byte);
        int rc;
        if (more == 1) {
            rc = stays(k, at, home, (uint8_t)byte);
        } else {
            int32_t to = query_next(k, at, (uint8_t)byte);
            if (to < 0) return to == GRAM_DEAD ? 0 : to;
            if (to == same) continue;
            rc = stays_tail(k, to, home, more - 1, 0x80, 0xbf);
            same = to;
        }
        if (rc != 1) return rc;
    }
    return 1;
}

/* Every character of several bytes: RFC 3629's table of well-formed sequences. */
static int stays_utf8(struct timed_query *k, int32_t state, int32_t home)
{
    int last = -1;
    for (unsigned lead = 0xc2; lead <= 0xf4; lead++) {
        bool plain = lead != 0xe0 && lead != 0xed && lead != 0xf0 && lead != 0xf4;
        int kind = gram_kind(k->a, (uint8_t)lead);
        if (plain && kind == last) continue;
        last = plain ? kind : -1;
        int32_t to = query_next(k, state, (uint8_t)lead);
        if (to < GRAM_DEAD) return to;
        if (to == GRAM_DEAD && home == GRAM_DEAD) continue;
        if (to == GRAM_DEAD || home == GRAM_DEAD) return 0;
        uint8_t lo = lead == 0xe0   ? 0xa0
                     : lead == 0xf0 ? 0x90
                                    : 0x80,
                hi = lead == 0xed   ? 0x9f
                     : lead == 0xf4 ? 0x8f
                                    : 0xbf;
        int rc = stays_tail(k, to, home, lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3, lo, hi);
        if (rc != 1) return rc;
    }
    return 1;
}

/* For kinds not examined before, finds whether all their bytes lead from the state to `home`.  @return 0, GRAM_FULL or
 * GRAM_LATER. */
static int query_kinds(struct timed_query *k, int32_t state, int32_t home, uint16_t kinds, struct gram_kinds *known)
{
    uint16_t left = kinds & (uint16_t)~known->asked, broken = 0;
    for (unsigned byte = 0; byte < 0x80 && left & ~KIND_UTF8; byte++) {
        uint16_t kind = ascii_kind(byte);
        if (!(left & kind) || broken & kind) continue;
        int rc = stays(k, state, home, (uint8_t)byte);
        if (rc < 0) return rc;
        if (!rc) broken |= kind;
    }
    int rc = left & KIND_UTF8 ? stays_utf8(k, state, home) : 1;
    if (rc < 0) return rc;
    if (!rc) broken |= KIND_UTF8;
    known->asked |= left;
    known->yes |= left & (uint16_t)~broken;
    return 0;
}

/* Whether the state does not change on these kinds.  @return 1, 0, GRAM_FULL or GRAM_LATER. */
static int loops_on(struct timed_query *k, int32_t state, uint16_t kinds)
{
    struct gram_kinds known = gram_run(k->a, state)->loops;
    int rc = query_kinds(k, state, state, kinds, &known);
    if (rc) return rc;
    gram_run(k->a, state)->loops = known;
    return !(kinds & ~known.yes);
}

/* Whether these kinds all lead to the same state (that of the first byte examined), so that only the number of
 * characters matters.  @return 1, 0, GRAM_FULL or GRAM_LATER. */
static int runs_on(struct timed_query *k, int32_t state, uint16_t kinds, int32_t *to)
{
    struct gram_run known = *gram_run(k->a, state);
    if (!known.kinds.asked) {
        unsigned byte = 0;
        while (byte < 0x80 && !(ascii_kind(byte) & kinds)) byte++;
        if (byte == 0x80) return 0; /* characters of several bytes only */
        known.to = query_next(k, state, (uint8_t)byte);
    }
    int rc = known.to < GRAM_DEAD ? known.to : query_kinds(k, state, known.to, kinds, &known.kinds);
    if (rc < 0) return rc;
    gram_run(k->a, state)->kinds = known.kinds;
    gram_run(k->a, state)->to = *to = known.to;
    return !(kinds & ~known.kinds.yes);
}

/* The number of characters of these kinds that the state accepts, whichever they are, up to `most`; -1: it depends on
 * the characters; GRAM_FULL, GRAM_LATER. */
static int run_length(struct timed_query *k, int32_t state, uint16_t kinds, int most)
{
    for (int n = 0; n < most; n++) {
        int32_t to;
        uint16_t asked = gram_run(k->a, state)->kinds.asked;
        int rc = runs_on(k, state, kinds, &to);
        if (rc != 1) return rc ? rc : -1;
        if (gram_run(k->a, state)->kinds.asked != asked && clock_now() >= k->until) return GRAM_LATER;
        if (to == GRAM_DEAD) return n;
        if (to == state) break;
        state = to;
    }
    return GRAM_LOOK;
}

/* ---- the walk ---- */

/* `loose`: the mask of the state without its counts, which is correct for tokens of up to `known` bytes. */
static void walk_begin(struct mask_walk *w, const struct token_trie *t, int32_t state, const struct gram_mask *loose,
                       int known)
{
    size_t words = mask_words(t->vocab);
    w->m = mem_zalloc(sizeof *w->m + words * sizeof *w->m->bits);
    atomic_init(&w->m->refs, 1);
    w->m->vocab = t->vocab;
    w->known = loose ? known : 0;
    w->part = w->known == NEAR;
    w->at = 0;
    w->path[0] = state;
    w->chars[0] = 0;
    const uint32_t *upto = t->upto + (size_t)w->known * words;
    for (size_t i = 0; loose && i < words; i++) w->m->bits[i] = loose->bits[i] & upto[i];
}

void mask_walk_drop(struct mask_walk *w)
{
    gram_mask_unref(w->m);
    w->m = NULL;
}

static void finish(struct mask_walk *w, const struct token_trie *t, const struct gram_automaton *a)
{
    struct gram_mask *m = w->m;
    if (gram_accepts(a, w->path[0]))
        for (int i = 0; i < t->n_eos; i++) allow(m, t->eos[i]);
    for (size_t i = 0; i < mask_words(m->vocab); i++) m->n_allowed += __builtin_popcount(m->bits[i]);
}

/* Decides a subtree by the kinds of its bytes.  @return 1 when that was possible; 0, GRAM_FULL or GRAM_LATER. */
static int take_subtree(struct mask_walk *w, const struct trie *t, struct timed_query *a, uint32_t i, int32_t from)
{
    const struct trie_node *n = t->nodes + i;
    uint32_t end = t->nodes[n->skip].first;
    if (n->kinds & (KIND_INSIDE | KIND_BROKEN)) return 0;
    int loops = loops_on(a, from, n->kinds);
    if (loops < 0) return loops;
    int most = loops ? GRAM_LOOK : run_length(a, from, n->kinds, t->reach[i]);
    if (most < 0) return most == -1 ? 0 : most;
    most += w->chars[n->depth - 1];
    for (uint32_t k = n->first; k < end; k++)
        if (t->chars[k] <= most) allow(w->m, t->order[k]);
    return 1;
}

/* The walk stops before node i: permanently (GRAM_FULL), or to resume there (0). */
static int not_yet(struct mask_walk *w, uint32_t i, int why)
{
    w->at = i;
    return why == GRAM_LATER ? 0 : GRAM_FULL;
}

/* Walks the rest of one part.  @return 1: done; 0: the time is up; GRAM_FULL. */
static int walk_part(struct mask_walk *w, const struct trie *t, struct gram_automaton *a, uint64_t until)
{
    uint64_t work = gram_work(a), cost = 0;
    struct timed_query query = {a, until, work};
    uint32_t i = w->at;
    while (i < t->n_nodes) {
        const struct trie_node *n = t->nodes + i;
        int32_t from = w->path[n->depth - 1];
        if (++cost + 8 * (gram_work(a) - work) > 4000) {
            cost = 0;
            work = gram_work(a);
            w->at = i;
            if (clock_now() >= until) return 0;
        }
        if (n->depth + t->reach[i] - 1 <= w->known) {
            i = n->skip;
            continue;
        }
        if (n->skip - i >= SKIP_FROM) {
            if (t->reach[i] <= gram_slack(a, from)) from = gram_loose(a, from);
            int taken = from < 0 ? from : take_subtree(w, t, &query, i, from);
            if (taken < 0) return not_yet(w, i, taken);
            if (taken) {
                cost += t->nodes[n->skip].first - n->first;
                i = n->skip;
                continue;
            }
        }
        int32_t to = gram_next(a, from, n->byte);
        if (to < GRAM_DEAD) return not_yet(w, i, to);
        if (to == GRAM_DEAD) {
            i = n->skip;
            continue;
        }
        w->path[n->depth] = to;
        w->chars[n->depth] = (uint8_t)(w->chars[n->depth - 1] + begins_char(n->byte));
        for (uint32_t k = n->first; k < n[1].first; k++) allow(w->m, t->order[k]);
        i++;
    }
    return 1;
}

static int walk_on(struct mask_walk *w, const struct token_trie *t, struct gram_automaton *a, uint64_t until)
{
    if (clock_now() >= until) return 0;
    for (; w->part < 2; w->part++, w->at = 0) {
        int rc = walk_part(w, &t->part[w->part], a, until);
        if (rc != 1) return rc;
    }
    finish(w, t, a);
    return 1;
}

int mask_at(struct mask_walk *w, const struct token_trie *t, struct gram_automaton *a, int32_t state, uint64_t until,
            struct gram_mask **out)
{
    uint32_t slack = gram_slack(a, state);
    for (;;) {
        int32_t loose = slack ? gram_loose(a, state) : state;
        if (loose < 0) return loose == GRAM_LATER ? 0 : GRAM_FULL;
        struct gram_mask *known = gram_mask_of(a, state), *base = loose != state ? gram_mask_of(a, loose) : NULL;
        if (known) {
            mask_walk_drop(w);
            *out = gram_mask_ref(known);
            return 1;
        }
        int32_t next = loose == state || base ? state : loose; /* state whose mask is computed next */
        if (w->m && w->path[0] != next) mask_walk_drop(w);     /* another request has computed the loose state's mask */
        if (!w->m) walk_begin(w, t, next, base, slack < NEAR ? (int)slack : NEAR);
        int rc = walk_on(w, t, a, until);
        if (rc != 1) return rc;
        gram_mask_store(a, next, w->m);
        mask_walk_drop(w);
    }
}
