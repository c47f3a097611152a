/* Measures a GPU's peak rates by CUDA events: see kernels/ceilings.h. @return 0, or -1 when there is no memory for
 * the buffer of `bytes`. */
#ifndef TANDEM_KERNELS_CUDA_RUNTIME_CEILINGS_H
#define TANDEM_KERNELS_CUDA_RUNTIME_CEILINGS_H

#include "kernels/ceilings.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef TANDEM_SIMT
int simt_ceilings(struct dev *, size_t bytes, struct ceilings *out);
#endif
#ifdef TANDEM_CUDA
int cuda_ceilings(struct dev *, size_t bytes, struct ceilings *out);
#endif

#ifdef __cplusplus
}
#endif

#endif
