/* Filters that take or make sequences; jinja_filter finds these too. */
#ifndef TANDEM_JINJA_SEQUENCE_H
#define TANDEM_JINJA_SEQUENCE_H

#include "engine/jinja_value.h"

const struct jbuiltin *jinja_sequence_filter(struct jstr name);

#endif
