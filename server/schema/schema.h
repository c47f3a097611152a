/* JSON Schema to expressions over JSON text: docs/constrained.md has the supported part, and the format of the
 * documents. */
#ifndef TANDEM_SERVER_SCHEMA_SCHEMA_H
#define TANDEM_SERVER_SCHEMA_SCHEMA_H

#include "server/schema/jexpr.h"

#include <cjson/cJSON.h>

/* @return the documents that the schema (read by json_parse) allows.  Unsupported schemas fail the pool with a text
 * that begins with a JSON pointer.  Every document is valid, but some valid documents are left out. */
jx json_schema(struct jpool *, const cJSON *schema);
/* Any JSON object. */
jx json_any_object(struct jpool *);

#endif
