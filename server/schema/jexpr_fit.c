/* Restricts an expression to texts of a minimum and maximum length.  The grammar builder has no intersection, and a
 * product with a counter would be large.  Narrowing the repetitions instead is small and sound, but incomplete where
 * several parts vary: each part gets a share of the allowance. */
#include "server/schema/jexpr_pool.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

static jx *copy_kids(const struct jpool *p, jx x, size_t *n)
{
    const jx *kids;
    *n = jx_children(p, x, &kids);
    jx *copy = mem_array(*n + 1, sizeof *copy);
    memcpy(copy, kids, *n * sizeof *copy);
    return copy;
}

/* ---- at most --------------------------------------------------------------------------------------------------- */

static jx shrink(struct jpool *p, jx x, uint32_t most);

/* room[i]: characters that part i may have beyond its shortest text; slack: the total, shared evenly. */
static void share_room(const uint32_t *need, uint32_t *room, size_t n, uint32_t slack)
{
    size_t open = 0;
    for (size_t i = 0; i < n; i++) {
        room[i] = 0;
        open += need[i] > 0;
    }
    for (bool changed = true; changed && open;) {
        uint32_t share = slack / (uint32_t)open;
        changed = false;
        for (size_t i = 0; i < n; i++) {
            if (room[i] || need[i] == 0 || need[i] > share) continue;
            room[i] = need[i];
            slack -= need[i];
            open--;
            changed = true;
        }
    }
    for (size_t i = 0; i < n && open; i++) {
        if (room[i] || need[i] == 0) continue;
        room[i] = slack / (uint32_t)open;
        slack -= room[i];
        open--;
    }
}

static jx shrink_seq(struct jpool *p, jx x, uint32_t most)
{
    size_t n;
    jx *kids = copy_kids(p, x, &n);
    uint32_t *need = mem_array(n, sizeof *need), *room = mem_array(n, sizeof *room);
    for (size_t i = 0; i < n; i++) {
        uint32_t low = jx_min_length(p, kids[i]), high = jx_max_length(p, kids[i]);
        need[i] = high == JX_MANY ? JX_MANY : high - low;
    }
    share_room(need, room, n, most - jx_min_length(p, x));
    for (size_t i = 0; i < n; i++) kids[i] = shrink(p, kids[i], jx_min_length(p, kids[i]) + room[i]);
    jx out = jx_seq(p, kids, n);
    free(kids);
    free(need);
    free(room);
    return out;
}

static jx shrink_repeat(struct jpool *p, jx x, uint32_t most)
{
    const jx *kids;
    jx_children(p, x, &kids);
    jx body = kids[0];
    uint32_t min = jx_repeat_min(p, x), max = jx_repeat_max(p, x), cap = most / (min ? min : 1);
    if (jx_max_length(p, body) > cap) body = shrink(p, body, cap);
    if (body == JX_NONE) return min == 0 ? JX_EMPTY : JX_NONE;
    uint32_t longest = jx_max_length(p, body), times = longest ? most / longest : max;
    if (times > max) times = max;
    return jx_repeat(p, body, min, times < min ? min : times);
}

static jx shrink(struct jpool *p, jx x, uint32_t most)
{
    if (jx_max_length(p, x) <= most) return x;
    if (jx_min_length(p, x) > most) return JX_NONE;
    switch (jx_kind(p, x)) {
    case JX_IS_SEQ: return shrink_seq(p, x, most);
    case JX_IS_REPEAT: return shrink_repeat(p, x, most);
    case JX_IS_ALT: {
        size_t n;
        jx *kids = copy_kids(p, x, &n);
        for (size_t i = 0; i < n; i++) kids[i] = shrink(p, kids[i], most);
        jx out = jx_alt(p, kids, n);
        free(kids);
        return out;
    }
    default: return JX_NONE;
    }
}

/* ---- at least -------------------------------------------------------------------------------------------------- */

static jx grow(struct jpool *p, jx x, uint32_t least);

/* Lengthens the part with most room first, then the next. */
static jx grow_seq(struct jpool *p, jx x, uint32_t least)
{
    size_t n;
    jx *kids = copy_kids(p, x, &n);
    uint32_t missing = least - jx_min_length(p, x);
    bool good = true;
    while (missing && good) {
        size_t best = n;
        uint32_t most = 0;
        for (size_t i = 0; i < n; i++) {
            uint32_t low = jx_min_length(p, kids[i]), high = jx_max_length(p, kids[i]);
            uint32_t room = high == JX_MANY ? JX_MANY : high - low;
            if (room > most) {
                most = room;
                best = i;
            }
        }
        if (best == n) break;
        uint32_t part = most < missing ? most : missing, before = jx_min_length(p, kids[best]);
        jx grown = grow(p, kids[best], before + part);
        uint32_t gained = grown == JX_NONE ? 0 : jx_min_length(p, grown) - before;
        good = gained > 0;
        if (good) kids[best] = grown;
        missing = gained < missing ? missing - gained : 0;
    }
    jx out = good && !missing ? jx_seq(p, kids, n) : JX_NONE;
    free(kids);
    return out;
}

static jx grow_repeat(struct jpool *p, jx x, uint32_t least)
{
    const jx *kids;
    jx_children(p, x, &kids);
    jx body = kids[0];
    uint32_t min = jx_repeat_min(p, x), max = jx_repeat_max(p, x), shortest = jx_min_length(p, body);
    if (shortest) {
        uint32_t times = least / shortest + (least % shortest != 0);
        if (times <= max) return jx_repeat(p, body, times > min ? times : min, max);
    }
    /* not enough repetitions: the repeated part must be longer, in each of max repetitions, or of min (at least 1) when
     * max is unbounded */
    uint32_t times = max == JX_MANY ? (min ? min : 1) : max;
    body = grow(p, body, least / times + (least % times != 0));
    return jx_repeat(p, body, times, max);
}

static jx grow(struct jpool *p, jx x, uint32_t least)
{
    if (jx_min_length(p, x) >= least) return x;
    if (jx_max_length(p, x) < least) return JX_NONE;
    switch (jx_kind(p, x)) {
    case JX_IS_SEQ: return grow_seq(p, x, least);
    case JX_IS_REPEAT: return grow_repeat(p, x, least);
    case JX_IS_ALT: {
        size_t n;
        jx *kids = copy_kids(p, x, &n);
        for (size_t i = 0; i < n; i++) kids[i] = grow(p, kids[i], least);
        jx out = jx_alt(p, kids, n);
        free(kids);
        return out;
    }
    default: return JX_NONE;
    }
}

jx jx_fit(struct jpool *p, jx x, uint32_t min, uint32_t max)
{
    if (x == JX_NONE || min > max) return JX_NONE;
    jx longer = grow(p, x, min);
    return longer == JX_NONE ? JX_NONE : shrink(p, longer, max);
}
