/* Tests: what follows `is`. */
#include "engine/template/jinja_builtins.h"

#include <math.h>
#include <string.h>

#define TEST(name) static struct jv name(struct jinja *j, struct jv self, const struct jv *a, const struct jcall *c)

/* self % n of a number, for odd, even, divisibleby */
static struct jv modulo(struct jinja *j, struct jv self, struct jv n)
{
    return jinja_binary(j, OP_MOD, self, n);
}

TEST(t_odd)
{
    return jv_bool(jv_equal(j, modulo(j, self, jv_int(2)), jv_int(1)));
}
TEST(t_even)
{
    return jv_bool(jv_equal(j, modulo(j, self, jv_int(2)), jv_int(0)));
}
TEST(t_divisibleby)
{
    return jv_bool(jv_equal(j, modulo(j, self, a[0]), jv_int(0)));
}
TEST(t_defined)
{
    return jv_bool(self.type != J_UNDEF);
}
TEST(t_undefined)
{
    return jv_bool(self.type == J_UNDEF);
}
TEST(t_none)
{
    return jv_bool(self.type == J_NONE);
}
TEST(t_boolean)
{
    return jv_bool(self.type == J_BOOL);
}
TEST(t_true)
{
    return jv_bool(self.type == J_BOOL && self.b);
}
TEST(t_false)
{
    return jv_bool(self.type == J_BOOL && !self.b);
}
TEST(t_integer)
{
    return jv_bool(self.type == J_INT || self.type == J_BIG);
}
TEST(t_float)
{
    return jv_bool(self.type == J_FLOAT);
}
TEST(t_number)
{
    double d;
    return jv_bool(jv_is_number(self, &d));
}
TEST(t_string)
{
    return jv_bool(self.type == J_STR);
}
TEST(t_mapping)
{
    return jv_bool(self.type == J_DICT);
}
TEST(t_iterable)
{
    return jv_bool(jv_iterable(self));
}

TEST(t_sequence)
{
    bool list = self.type == J_LIST && self.list->kind <= JL_RANGE;
    return jv_bool(list || self.type == J_STR || self.type == J_DICT || self.type == J_UNDEF);
}

TEST(t_callable)
{
    return jv_bool(self.type == J_FUNCTION || self.type == J_MACRO || self.type == J_LOOP || self.type == J_JOINER ||
                   self.type == J_UNDEF);
}

TEST(t_sameas)
{
    if (self.type != a[0].type) return jv_bool(false);
    switch (self.type) {
    case J_NONE: return jv_bool(true);
    case J_BOOL: return jv_bool(self.b == a[0].b);
    case J_INT: return jv_bool(self.i == a[0].i);
    case J_FLOAT: return jv_bool(self.d == a[0].d);
    case J_STR: return jv_bool(jstr_same(*self.str, *a[0].str));
    default: return jv_bool(self.dict == a[0].dict);
    }
}

TEST(t_escaped)
{
    return jv_bool(false);
}
TEST(t_in)
{
    return jv_bool(jv_contains(j, a[0], self));
}
TEST(t_eq)
{
    return jv_bool(jv_equal(j, self, a[0]));
}
TEST(t_ne)
{
    return jv_bool(!jv_equal(j, self, a[0]));
}

TEST(t_lt)
{
    int k = jv_compare(j, self, a[0], "<");
    return jv_bool(k != 2 && k < 0);
}
TEST(t_le)
{
    int k = jv_compare(j, self, a[0], "<=");
    return jv_bool(k != 2 && k <= 0);
}
TEST(t_gt)
{
    int k = jv_compare(j, self, a[0], ">");
    return jv_bool(k != 2 && k > 0);
}
TEST(t_ge)
{
    int k = jv_compare(j, self, a[0], ">=");
    return jv_bool(k != 2 && k >= 0);
}

static struct jv ask(struct jinja *j, struct jv self, const char *method)
{
    struct jv v = jv_str(j, jv_to_str(j, self));
    return jinja_call_builtin(j, jinja_str_method(jstr_of(method)), v, &(struct jcall){0});
}

TEST(t_lower)
{
    return ask(j, self, "islower");
}
TEST(t_upper)
{
    return ask(j, self, "isupper");
}
TEST(t_filter)
{
    return jv_bool(self.type == J_STR && jinja_filter(*self.str));
}
TEST(t_test)
{
    return jv_bool(self.type == J_STR && jinja_test(*self.str));
}

static const struct jbuiltin TESTS[] = {{"defined", "", t_defined},
                                        {"undefined", "", t_undefined},
                                        {"none", "", t_none},
                                        {"boolean", "", t_boolean},
                                        {"true", "", t_true},
                                        {"false", "", t_false},
                                        {"integer", "", t_integer},
                                        {"float", "", t_float},
                                        {"number", "", t_number},
                                        {"string", "", t_string},
                                        {"mapping", "", t_mapping},
                                        {"sequence", "", t_sequence},
                                        {"iterable", "", t_iterable},
                                        {"callable", "", t_callable},
                                        {"sameas", "other", t_sameas},
                                        {"escaped", "", t_escaped},
                                        {"in", "seq", t_in},
                                        {"odd", "", t_odd},
                                        {"even", "", t_even},
                                        {"divisibleby", "num", t_divisibleby},
                                        {"lower", "", t_lower},
                                        {"upper", "", t_upper},
                                        {"filter", "", t_filter},
                                        {"test", "", t_test},
                                        {"==", "b", t_eq},
                                        {"eq", "b", t_eq},
                                        {"equalto", "b", t_eq},
                                        {"!=", "b", t_ne},
                                        {"ne", "b", t_ne},
                                        {"<", "b", t_lt},
                                        {"lt", "b", t_lt},
                                        {"lessthan", "b", t_lt},
                                        {"<=", "b", t_le},
                                        {"le", "b", t_le},
                                        {">", "b", t_gt},
                                        {"gt", "b", t_gt},
                                        {"greaterthan", "b", t_gt},
                                        {">=", "b", t_ge},
                                        {"ge", "b", t_ge}};

const struct jbuiltin *jinja_test(struct jstr name)
{
    return jbuiltin_find(TESTS, sizeof TESTS / sizeof *TESTS, name);
}
