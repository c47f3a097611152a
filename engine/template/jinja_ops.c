/* Arithmetic, with Python's types and signs. */
#include "engine/template/jinja_ast.h"
#include "engine/template/jinja_builtins.h"
#include "engine/template/jinja_int.h"

#include <math.h>
#include <string.h>

static const char *const SIGNS[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};

static struct jv mismatch(struct jinja *j, int op, struct jv a, struct jv b)
{
    jinja_fail(j, "unsupported operand type(s) for %s: '%s' and '%s'", SIGNS[op], jv_type_name(a), jv_type_name(b));
}

/* What 64 bits hold, at once; the rest is jinja_int.c's. */
static struct jv int_binary(struct jinja *j, int op, struct jv a, struct jv b)
{
    int64_t x, y, r = 0;
    if (!jv_is_int(a, &x) || !jv_is_int(b, &y)) return jint_binary(j, op, a, b);
    bool wrong = true;
    if (op == OP_ADD) wrong = __builtin_add_overflow(x, y, &r);
    if (op == OP_SUB) wrong = __builtin_sub_overflow(x, y, &r);
    if (op == OP_MUL) wrong = __builtin_mul_overflow(x, y, &r);
    return wrong ? jint_binary(j, op, a, b) : jv_int(r);
}

static struct jv float_binary(struct jinja *j, int op, double a, double b)
{
    double m;
    switch (op) {
    case OP_ADD: return jv_float(a + b);
    case OP_SUB: return jv_float(a - b);
    case OP_MUL: return jv_float(a * b);
    case OP_POW:
        if (a == 0 && b < 0) jinja_fail(j, "0.0 cannot be raised to a negative power");
        if (a < 0 && b != floor(b)) jinja_fail(j, "complex numbers are not supported");
        m = pow(a, b);
        if (isinf(m) && isfinite(a) && isfinite(b)) jinja_fail(j, "(34, 'Numerical result out of range')");
        return jv_float(m);
    default: break;
    }
    if (b == 0)
        jinja_fail(j, op == OP_DIV   ? "float division by zero"
                      : op == OP_MOD ? "float modulo"
                                     : "float floor division by zero");
    if (op == OP_DIV) return jv_float(a / b);
    m = fmod(a, b);
    double q = (a - m) / b, floored;
    if (m && (m < 0) != (b < 0)) m += b, q -= 1;
    if (op == OP_MOD) return jv_float(m ? m : copysign(0, b));
    floored = floor(q);
    if (!q) return jv_float(copysign(0, a / b));
    return jv_float(q - floored > 0.5 ? floored + 1 : floored);
}

static struct jv repeat(struct jinja *j, struct jv v, struct jv count)
{
    int64_t times = 0;
    if (!jv_is_int(count, &times)) jinja_fail(j, "cannot fit 'int' into an index-sized integer");
    if (times < 0) times = 0;
    if (v.type == J_STR) {
        struct jtext t = {0};
        if (v.str->n && (uint64_t)times > JINJA_TEXT_MAX / v.str->n)
            jinja_fail(j, "makes a text of more than %d bytes", JINJA_TEXT_MAX);
        for (int64_t i = 0; v.str->n && i < times; i++) {
            jinja_work(j, 1);
            jtext_add(j, &t, *v.str);
        }
        return jtext_value(j, &t);
    }
    size_t n = v.list->n;
    if (n && (uint64_t)times > JINJA_STEPS / n) jinja_fail(j, "takes too many steps");
    struct jv list = jv_list(j, v.list->kind, n * (size_t)times);
    jinja_work(j, n * (size_t)times);
    for (int64_t i = 0; n && i < times; i++)
        for (size_t k = 0; k < n; k++) jlist_add(j, list.list, v.list->v[k]);
    return list;
}

static bool is_sequence(struct jv v)
{
    return v.type == J_STR || (v.type == J_LIST && v.list->kind <= JL_BYTES);
}

static struct jv join(struct jinja *j, struct jv a, struct jv b)
{
    if (a.type == J_STR) {
        struct jtext t = {0};
        jtext_add(j, &t, *a.str);
        jtext_add(j, &t, *b.str);
        return jtext_value(j, &t);
    }
    struct jv list = jv_list(j, a.list->kind, a.list->n + b.list->n);
    jinja_work(j, a.list->n + b.list->n);
    for (size_t i = 0; i < a.list->n; i++) jlist_add(j, list.list, a.list->v[i]);
    for (size_t i = 0; i < b.list->n; i++) jlist_add(j, list.list, b.list->v[i]);
    return list;
}

static struct jv add_sequences(struct jinja *j, struct jv a, struct jv b)
{
    if (a.type == b.type && (a.type == J_STR || a.list->kind == b.list->kind) && is_sequence(b)) return join(j, a, b);
    if (a.type == J_STR) jinja_fail(j, "can only concatenate str (not \"%s\") to str", jv_type_name(b));
    jinja_fail(j, "can only concatenate %s (not \"%s\") to %s", jv_type_name(a), jv_type_name(b), jv_type_name(a));
}

struct jv jinja_binary(struct jinja *j, int op, struct jv a, struct jv b)
{
    double p, q;
    if (op == OP_MOD && a.type == J_STR) return jinja_percent(j, *a.str, b);
    if (a.type == J_UNDEF) jinja_fail_undefined(j, a);
    if (b.type == J_UNDEF) jinja_fail_undefined(j, b);
    if (jint_is(a) && jint_is(b)) return int_binary(j, op, a, b);
    if (jv_is_number(a, &p) && jv_is_number(b, &q)) {
        if ((a.type == J_BIG && isinf(p)) || (b.type == J_BIG && isinf(q)))
            jinja_fail(j, "int too large to convert to float");
        return float_binary(j, op, p, q);
    }
    if (op == OP_ADD && is_sequence(a)) return add_sequences(j, a, b);
    if (op == OP_MUL && is_sequence(a) && jint_is(b)) return repeat(j, a, b);
    if (op == OP_MUL && is_sequence(b) && jint_is(a)) return repeat(j, b, a);
    return mismatch(j, op, a, b);
}
