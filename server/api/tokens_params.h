/* The body of POST /inference/v1/generate, vLLM's route of tokens in and tokens out, as the body of a completion
 * (openai_params.h), so that everything behind it is shared.  Pure: any thread. */
#ifndef TANDEM_SERVER_API_TOKENS_PARAMS_H
#define TANDEM_SERVER_API_TOKENS_PARAMS_H

#include "server/api/request_fields.h"

#include <cjson/cJSON.h>
#include <stdbool.h>

enum { TOKENS_REQUEST_ID_MAX = 128 }; /* bytes of `request_id` */

/* Moves the members of `sampling_params` up to the body and renames `token_ids` to `prompt`.  Every field is one that
 * is known: another, unless its value means "off", is refused by name.  f->at.obj is the tree.  @return false and an
 * error of f. */
bool tokens_to_completion(struct request_fields *f, cJSON *tree);

#endif
