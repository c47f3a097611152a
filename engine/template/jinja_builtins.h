/* Built-ins of the chat templates' language: filters, tests, methods of strings, lists and dicts, functions. Each is a
 * row of a table (struct jbuiltin). */
#ifndef TANDEM_ENGINE_TEMPLATE_JINJA_BUILTINS_H
#define TANDEM_ENGINE_TEMPLATE_JINJA_BUILTINS_H

#include "engine/template/jinja_value.h"

/* NULL: there is none of that name. */
const struct jbuiltin *jinja_filter(struct jstr name);
const struct jbuiltin *jinja_test(struct jstr name);
const struct jbuiltin *jinja_function(struct jstr name); /* global functions */
const struct jbuiltin *jinja_str_method(struct jstr name);
const struct jbuiltin *jinja_bytes_method(struct jstr name);
const struct jbuiltin *jinja_list_method(enum jlist_kind kind, struct jstr name);
const struct jbuiltin *jinja_dict_method(struct jstr name);
const struct jbuiltin *jinja_loop_method(struct jstr name); /* cycle, changed */
extern const struct jbuiltin jinja_cycler_next, jinja_cycler_reset;

/* Calls it with the arguments bound to its parameters; fails when they do not fit. */
struct jv jinja_call_builtin(struct jinja *j, const struct jbuiltin *b, struct jv self, const struct jcall *call);

/* The table's row; `n` rows, any order. */
const struct jbuiltin *jbuiltin_find(const struct jbuiltin *table, size_t n, struct jstr name);

/* Arguments as C values; fail with the parameter's name. */
int64_t jarg_int(struct jinja *j, struct jv v, const char *name, int64_t otherwise); /* J_MISSING, none: otherwise */
struct jstr jarg_str(struct jinja *j, struct jv v, const char *name);

/* obj.name and obj[key] as jinja2's sandbox looks them up: undefined when it is not there. */
struct jv jinja_attribute(struct jinja *j, struct jv obj, struct jstr name);
struct jv jinja_item(struct jinja *j, struct jv obj, struct jv key);
struct jv jinja_slice(struct jinja *j, struct jv obj, struct jv start, struct jv stop, struct jv step);
struct jv jinja_binary(struct jinja *j, int op, struct jv a, struct jv b); /* an enum jop, arithmetic ones */
struct jv jinja_call(struct jinja *j, struct jv f, const struct jcall *call);

/* "%s and %d" % values; "{} and {x}".format(...) */
struct jv jinja_percent(struct jinja *j, struct jstr format, struct jv values);
struct jv jinja_format(struct jinja *j, struct jstr format, const struct jcall *call);

/* json.dumps(v, ensure_ascii, indent, separators, sort_keys) */
struct jjson {
    bool ascii, sorted, pretty;
    struct jstr indent, item_separator, key_separator;
};
void jinja_json(struct jinja *j, struct jtext *t, struct jv v, const struct jjson *how);

/* Case as Python has it, with the few characters that become several. */
enum jcase { CASE_UPPER, CASE_LOWER, CASE_CAPITALIZE, CASE_TITLE, CASE_SWAP, CASE_FOLD };
struct jv jinja_case(struct jinja *j, struct jstr s, enum jcase how);
/* str.encode and what it gives (jinja_bytes.c); encoding, errors: perhaps J_MISSING */
struct jv jinja_encode(struct jinja *j, struct jstr s, struct jv encoding, struct jv errors);
struct jv jinja_strip(struct jinja *j, struct jstr s, struct jv chars, bool left, bool right);
struct jv jinja_replace(struct jinja *j, struct jstr s, struct jstr old, struct jstr new, int64_t count);
struct jv jinja_splitlines(struct jinja *j, struct jstr s, bool keep);
struct jv jinja_sort(struct jinja *j, struct jlist *l, const struct jv *keys, bool reverse); /* stable; keys (n) */

#endif
