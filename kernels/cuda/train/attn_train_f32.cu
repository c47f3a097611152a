/* Tensor-core attention for training, operands split into three bf16 parts: the precision of f32. */
#include "kernels/cuda/train/attn_train_mma.cuh"

namespace GPU_NAMESPACE {

void attn_seq_f32(gpu_dev *d, train_call *c)
{
    int dim = c->a.head_dim;
    dim <= 32 ? mma_seq<32, 3>(d, c) : dim <= 64 ? mma_seq<64, 3>(d, c) : mma_seq<128, 3>(d, c);
}

void attn_back_f32(gpu_dev *d, train_call *c)
{
    int dim = c->a.head_dim;
    dim <= 32 ? mma_back<32, 3>(d, c) : dim <= 64 ? mma_back<64, 3>(d, c) : mma_back<128, 3>(d, c);
}

} // namespace GPU_NAMESPACE
