/* Ops that this device does not have yet: each fails the device with its name. */
#include "kernels/cuda/device.h"

namespace GPU_NAMESPACE
{

#define MISSING(op)                                                                                                    \
    void gpu_##op(struct dev *d, const struct op##_args *)                                                             \
    {                                                                                                                  \
        dev_fail(d, #op, "not built yet");                                                                             \
    }

MISSING(sample)

} // namespace GPU_NAMESPACE
