/* JSON Schema to expressions over JSON text: docs/constrained.md says what of it, and how the documents are written. */
#ifndef TANDEM_SERVER_SCHEMA_SCHEMA_H
#define TANDEM_SERVER_SCHEMA_SCHEMA_H

#include "server/schema/jexpr.h"

#include <cjson/cJSON.h>

/* The documents that the schema (read by json_parse) allows.  What cannot be done fails the pool with a text that
 * begins with the JSON pointer of the place.  Every document is valid; not every valid document is among them. */
jx json_schema(struct jpool *, const cJSON *schema);
/* Any JSON object. */
jx json_any_object(struct jpool *);

#endif
