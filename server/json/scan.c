/* The strict JSON reader as a state machine (scan.h). */
#include "server/json/scan.h"

#include "server/json/check.h"

#include <string.h>

static bool is_space(unsigned char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(unsigned char c)
{
    return c >= '0' && c <= '9';
}

static enum scan_result go(struct json_scan *s, enum scan_state state)
{
    s->state = state;
    return SCAN_MORE;
}

static enum scan_result value_end(struct json_scan *s)
{
    s->state = SCAN_AFTER;
    return s->depth ? SCAN_MORE : SCAN_DONE;
}

static enum scan_result open_container(struct json_scan *s, bool object)
{
    if (s->depth == JSON_MAX_DEPTH) return SCAN_BAD;
    uint64_t bit = UINT64_C(1) << s->depth++;
    s->objects = object ? s->objects | bit : s->objects & ~bit;
    return go(s, object ? SCAN_OPEN : SCAN_FIRST);
}

static bool in_object(const struct json_scan *s)
{
    return s->depth && s->objects >> (s->depth - 1) & 1;
}

static enum scan_result close_container(struct json_scan *s, unsigned char c)
{
    if (!s->depth || c != (in_object(s) ? '}' : ']')) return SCAN_BAD;
    s->depth--;
    return value_end(s);
}

static enum scan_result begin_string(struct json_scan *s, bool name)
{
    s->name = name;
    return go(s, SCAN_STRING);
}

static enum scan_result begin_value(struct json_scan *s, unsigned char c)
{
    _Static_assert(JSON_MAX_DEPTH <= 64, "objects has a bit for each");
    s->digits = 1;
    switch (c) {
    case '{': return open_container(s, true);
    case '[': return open_container(s, false);
    case '"': return begin_string(s, false);
    case 't': s->word = "rue"; return go(s, SCAN_WORD);
    case 'f': s->word = "alse"; return go(s, SCAN_WORD);
    case 'n': s->word = "ull"; return go(s, SCAN_WORD);
    default: break;
    }
    if (!s->depth) return SCAN_BAD;
    if (c == '-') return go(s, SCAN_MINUS);
    if (is_digit(c)) return go(s, c == '0' ? SCAN_ZERO : SCAN_DIGITS);
    return SCAN_BAD;
}

/* Table 3-7 of the Unicode standard, as in utf8_length. */
static enum scan_result begin_utf8(struct json_scan *s, unsigned char c)
{
    if (c < 0xc2 || c > 0xf4) return SCAN_BAD;
    s->left = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : 1;
    s->min = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    s->max = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    return go(s, SCAN_UTF8);
}

static enum scan_result hex(struct json_scan *s, unsigned char c)
{
    unsigned char lower = c | 32;
    if (!is_digit(c) && (lower < 'a' || lower > 'f')) return SCAN_BAD;
    s->unit = s->unit * 16 + (unsigned)(is_digit(c) ? c - '0' : lower - 'a' + 10);
    if (--s->left) return SCAN_MORE;
    bool low = s->unit >= 0xdc00 && s->unit <= 0xdfff, high = s->unit >= 0xd800 && s->unit <= 0xdbff;
    if (!s->unit || low != s->low) return SCAN_BAD;
    s->low = high;
    return go(s, high ? SCAN_PAIR : SCAN_STRING);
}

static enum scan_result string_byte(struct json_scan *s, unsigned char c)
{
    switch (s->state) {
    case SCAN_UTF8:
        if (c < s->min || c > s->max) return SCAN_BAD;
        s->min = 0x80;
        s->max = 0xbf;
        return --s->left ? SCAN_MORE : go(s, SCAN_STRING);
    case SCAN_HEX: return hex(s, c);
    case SCAN_PAIR: return c == '\\' ? go(s, SCAN_PAIR_U) : SCAN_BAD;
    case SCAN_PAIR_U:
    case SCAN_ESCAPE:
        if (c == 'u') {
            s->left = 4;
            s->unit = 0;
            return go(s, SCAN_HEX);
        }
        return s->state == SCAN_ESCAPE && c && strchr("\"\\/bfnrt", c) ? go(s, SCAN_STRING) : SCAN_BAD;
    default: break;
    }
    if (c == '"') return s->name ? go(s, SCAN_COLON) : value_end(s);
    if (c == '\\') return go(s, SCAN_ESCAPE);
    if (c >= 0x80) return begin_utf8(s, c);
    return c < 0x20 ? SCAN_BAD : SCAN_MORE;
}

static enum scan_result after(struct json_scan *s, unsigned char c)
{
    if (is_space(c)) return SCAN_MORE;
    if (c == ',') return go(s, in_object(s) ? SCAN_NAME : SCAN_VALUE);
    return close_container(s, c);
}

/* @return the state after c within a number; SCAN_AFTER: c does not continue the number, which is complete. */
static enum scan_state number_next(enum scan_state state, unsigned char c, bool *good)
{
    bool digit = is_digit(c), e = c == 'e' || c == 'E';
    *good = digit;
    switch (state) {
    case SCAN_MINUS: return c == '0' ? SCAN_ZERO : SCAN_DIGITS;
    case SCAN_POINT: return SCAN_FRACTION;
    case SCAN_E: *good |= c == '+' || c == '-'; return digit ? SCAN_EXPONENT : SCAN_SIGN;
    case SCAN_SIGN: return SCAN_EXPONENT;
    default: break;
    }
    *good = state != SCAN_ZERO || !digit; /* no leading zero */
    if (digit) return state;
    if (c == '.' && state <= SCAN_DIGITS) return SCAN_POINT;
    return e && state != SCAN_EXPONENT ? SCAN_E : SCAN_AFTER;
}

static enum scan_result number_byte(struct json_scan *s, unsigned char c)
{
    bool good;
    enum scan_state next = number_next(s->state, c, &good);
    if (!good || ++s->digits > JSON_MAX_NUMBER + 1) return SCAN_BAD;
    s->state = next;
    if (next == SCAN_AFTER) return after(s, c);
    return s->digits > JSON_MAX_NUMBER ? SCAN_BAD : SCAN_MORE;
}

enum scan_result json_scan_byte(struct json_scan *s, unsigned char c)
{
    if (s->state >= SCAN_MINUS) return number_byte(s, c);
    if (s->state == SCAN_WORD) {
        if (c != (unsigned char)*s->word) return SCAN_BAD;
        return *++s->word ? SCAN_MORE : value_end(s);
    }
    if (s->state >= SCAN_STRING) return string_byte(s, c);
    if (s->state == SCAN_AFTER) return after(s, c);
    if (is_space(c)) return SCAN_MORE;
    switch (s->state) {
    case SCAN_FIRST: return c == ']' ? close_container(s, c) : begin_value(s, c);
    case SCAN_OPEN:
        if (c == '}') return close_container(s, c);
        return c == '"' ? begin_string(s, true) : SCAN_BAD;
    case SCAN_NAME: return c == '"' ? begin_string(s, true) : SCAN_BAD;
    case SCAN_COLON: return c == ':' ? go(s, SCAN_VALUE) : SCAN_BAD;
    default: return begin_value(s, c);
    }
}
