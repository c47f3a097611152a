/* The trainer's side of the gate (train_gate.h), where no gate means an open one. */
#ifndef TANDEM_TRAIN_TURN_H
#define TANDEM_TRAIN_TURN_H

#include "engine/train_gate.h"

#include <limits.h>
#include <stddef.h>

/* TODO(lead): until train_gate.c exists every gate is open. */
#ifdef TANDEM_HAS_TRAIN_GATE
static inline void turn_pass(struct train_gate *g)
{
    if (g) train_gate_pass(g);
}
static inline void turn_leave(struct train_gate *g)
{
    if (g) train_gate_leave(g);
}
/* Passes, and returns how many of `rows` rows the next op may take. */
static inline int turn_rows(struct train_gate *g, int rows)
{
    if (!g) return rows;
    train_gate_pass(g);
    int most = train_gate_rows(g);
    return most < rows ? most : rows;
}
#else
static inline void turn_pass(struct train_gate *g)
{
    (void)g;
}
static inline void turn_leave(struct train_gate *g)
{
    (void)g;
}
static inline int turn_rows(struct train_gate *g, int rows)
{
    (void)g;
    return rows;
}
#endif

#endif
