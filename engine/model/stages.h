/* A model divided over ranks by its layers (pipeline parallelism): each stage, a rank or a group of them, has some that
 * follow each other, with their keys and values.  Stage 0 has the first, and what belongs to no layer: embeddings, the
 * last norm and the head.  The residual stream goes from each stage to the next, and from the last back to stage 0.
 *
 * The rows of a step are computed in micro-batches, so that stages compute at the same time.  Each is a batch whose
 * results do not depend on the others, so they have the bits of one rank.
 *
 * On each rank, by the thread that uses the model. */
#ifndef TANDEM_ENGINE_MODEL_STAGES_H
#define TANDEM_ENGINE_MODEL_STAGES_H

#include "engine/model/shard.h"

/* Deals out the layers: stage s has layers from[s] .. from[s + 1] - 1, at least one; from (stages + 1).  The stage with
 * the most weights has as few as possible; stage 0's head counts.  @return 0, or *e (ERR_UNSUPPORTED): there are more
 * stages than layers */
int stages_divide(const struct model_config *, int stages, int *from, struct err *e);

/* Into how many micro-batches the rows of a step are divided; micro-batch i begins at row stages_part(rows, parts, i),
 * and the last one ends at stages_part(rows, parts, parts). */
int stages_parts(const struct shard *, int rows);
int stages_part(int rows, int parts, int i);

/* Rows (T, C), adjacent, which every rank of a stage has, to the stage above, or from the one below; after the last stage
 * comes stage 0.  Of a group each rank sends some of the rows.  The step fails where they do not arrive. */
void stages_send(struct shard *, struct dev *, struct mat x);
void stages_receive(struct shard *, struct dev *, struct mat x);

#endif
