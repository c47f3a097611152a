/* Finds the module that has ZeroMQ in it, and loads it. */
#ifndef TANDEM_SERVER_KVEVENTS_MODULE_H
#define TANDEM_SERVER_KVEVENTS_MODULE_H

#include "engine/base/err.h"
#include "server/kvevents/wire.h"

/* @return 0, or *e. */
int kv_wire_load(const struct kv_wire_config *, struct kv_wire *out, struct err *e);

#endif
