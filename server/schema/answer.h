/* Grammars of answers in which the model may call tools of itself: any text, but where a call begins it must be one of
 * the calls.  Pure; any thread. */
#ifndef TANDEM_SERVER_SCHEMA_ANSWER_H
#define TANDEM_SERVER_SCHEMA_ANSWER_H

#include "server/schema/jexpr.h"

#include <cjson/cJSON.h>

/* calls: calls_expression's.  free_text describes what is around them, each text with special tokens as in a call_shape
 * (calls.h):
 *   marks     texts with which calls begin, or which stand before them: the free text has none of them
 *   starts    characters that an answer only begins with where it is a call
 *   thoughts  [begin, end], or nothing: texts around thoughts, which the answer may begin with
 *   channels  true: the answer is of gpt-oss' channels
 * @return the answers; fails the pool where a mark is not supported. */
jx answer_expression(struct jpool *, const cJSON *free_text, jx calls);

#endif
