/* Reads what servers say of their queue out of Prometheus text: tandem, vLLM, SGLang, TGI, llama.cpp's server.  Pure.
 */
#ifndef TANDEM_LOADTEST_GAUGES_H
#define TANDEM_LOADTEST_GAUGES_H

#include "loadtest/stats.h"

/* Fills running, waiting and kv; NAN for what the text does not have.  Samples of one name with different labels are
 * added up (kv: the greatest is taken).  The text ends in a NUL. */
void gauges_read(struct gauge *, const char *text);

#endif
