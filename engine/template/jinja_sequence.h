/* Filters that jinja_filters.c does not have itself; jinja_filter finds them all. */
#ifndef TANDEM_ENGINE_TEMPLATE_JINJA_SEQUENCE_H
#define TANDEM_ENGINE_TEMPLATE_JINJA_SEQUENCE_H

#include "engine/template/jinja_value.h"

const struct jbuiltin *jinja_sequence_filter(struct jstr name);
const struct jbuiltin *jinja_layout_filter(struct jstr name); /* wordwrap, filesizeformat... */
const struct jbuiltin *jinja_markup_filter(struct jstr name); /* striptags, xmlattr, urlize */
struct jv jinja_pprint(struct jinja *j, struct jv self, const struct jv *a, const struct jcall *c);

#endif
