/* Tensor-core attention for training, operands rounded to bf16. */
#include "kernels/cuda/train/attn_train_mma.cuh"

namespace GPU_NAMESPACE {

void attn_seq_bf16(gpu_dev *d, train_call *c)
{
    int dim = c->a.head_dim;
    dim <= 32   ? mma_seq<32, 1>(d, c)
    : dim <= 64 ? mma_seq<64, 1>(d, c)
    : dim <= 96 ? mma_seq<96, 1>(d, c)
                : mma_seq<128, 1>(d, c);
}

void attn_back_bf16(gpu_dev *d, train_call *c)
{
    int dim = c->a.head_dim;
    dim <= 32   ? mma_back<32, 1>(d, c)
    : dim <= 64 ? mma_back<64, 1>(d, c)
    : dim <= 96 ? mma_back<96, 1>(d, c)
                : mma_back<128, 1>(d, c);
}

} // namespace GPU_NAMESPACE
