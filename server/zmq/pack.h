/* KV events as msgpack, in the two forms in which vLLM has published them.
 *
 * Source: vllm/distributed/kv_events.py.  A batch is [time, [event, ...], rank].  Until June 2026 an event is an array,
 * its name and then its fields; later it is a map of its fields, with its name under "type".  Hashes are integers. */
#ifndef TANDEM_SERVER_ZMQ_PACK_H
#define TANDEM_SERVER_ZMQ_PACK_H

#include "server/kvevents/wire.h"

/* As kv_wire.pack. */
char *kv_pack(const struct kv_event_batch *, double unix_time, bool maps, size_t *n);

#endif
