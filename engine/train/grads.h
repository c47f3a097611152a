/* The gradients of all weights, as the passes of the model see them. */
#ifndef TANDEM_ENGINE_TRAIN_GRADS_H
#define TANDEM_ENGINE_TRAIN_GRADS_H

/* In the shapes of struct weights; matrices (outputs, inputs) f32; NULL for weights the model does not have.  embed and
 * head are the same when tied.  Pointers into the optimizer's arrays. */
struct layer_grads {
    float *norm1_w, *norm1_b, *norm2_w, *norm2_b, *post1_w, *post1_b, *post2_w, *post2_b;
    float *qkv, *qkv_b, *o, *o_b, *q_norm, *q_norm_b, *k_norm, *k_norm_b, *up, *up_b, *down, *down_b;
    float *router, **expert_up, **expert_down; /* of each expert */
};
struct model_grads {
    struct layer_grads *layer;
    float *embed, *pos, *norm_w, *norm_b, *head, *head_b;
};

#endif
