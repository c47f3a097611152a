/* Several devices of the simulator: each has its own memory, streams and errors, and a thread may use one while another
 * thread uses another. */
#include "kernels/cuda/device.h"
#include "tests/simt/check.h"

#include <cstdlib>
#include <cstring>
#include <thread>

using namespace simt_device;

namespace {

enum { DEVICES = 3, N = 64 };

__global__ void add_kernel(float *v, const float *more)
{
    v[threadIdx.x] += more[threadIdx.x];
}

struct one {
    cudaStream_t stream;
    float *a, *b;
};

one open_one(int device)
{
    one o = {};
    if (cudaSetDevice(device) != cudaSuccess) abort(); /* CHECK counts on one thread */
    cudaStreamCreateWithFlags(&o.stream, cudaStreamNonBlocking);
    cudaMalloc(reinterpret_cast<void **>(&o.a), N * sizeof *o.a);
    cudaMalloc(reinterpret_cast<void **>(&o.b), N * sizeof *o.b);
    cudaMemsetAsync(o.a, 0, N * sizeof *o.a, o.stream);
    cudaMemsetAsync(o.b, 0, N * sizeof *o.b, o.stream);
    return o;
}

cudaError_t add(cudaStream_t s, float *v, const float *more)
{
    simt_runtime::launch(s, 1, N, 0, add_kernel, v, more);
    cudaStreamSynchronize(s);
    return cudaGetLastError();
}

void close_one(const one &o)
{
    cudaFree(o.a);
    cudaFree(o.b);
    cudaStreamDestroy(o.stream);
}

void numbers()
{
    int n = 0;
    cudaDeviceProp p;
    CHECK(cudaGetDeviceCount(&n) == cudaSuccess && n == DEVICES, "%d devices", n);
    CHECK(cudaSetDevice(DEVICES) == cudaErrorInvalidDevice, "a device too many");
    CHECK(cudaGetDeviceProperties(&p, -1) == cudaErrorInvalidDevice, "a device before the first");
    cudaGetLastError();
}

/* A copy reaches another device's memory, a kernel does not; the device that tried it is lost, the other is not. */
void memory_of_another()
{
    float v[N], got[N];
    one x = open_one(0), y = open_one(1);
    for (int i = 0; i < N; i++) v[i] = (float)i;
    CHECK(cudaMemcpyAsync(x.a, v, sizeof v, cudaMemcpyHostToDevice, x.stream) == cudaSuccess, "a copy to device 0");
    CHECK(cudaMemcpyAsync(x.a, v, sizeof v, cudaMemcpyHostToDevice, y.stream) == cudaErrorInvalidValue,
          "to another device's memory");
    CHECK(cudaMemcpyAsync(v, v, sizeof v, cudaMemcpyDeviceToHost, x.stream) == cudaErrorInvalidValue,
          "from what is no device's");
    cudaGetLastError();
    cudaStreamSynchronize(x.stream);
    CHECK(cudaMemcpyAsync(y.b, x.a, sizeof v, cudaMemcpyDeviceToDevice, y.stream) == cudaSuccess, "between devices");
    CHECK(add(y.stream, y.a, y.b) == cudaSuccess, "a kernel on its own memory");
    cudaMemcpyAsync(got, y.a, sizeof got, cudaMemcpyDeviceToHost, y.stream);
    cudaStreamSynchronize(y.stream);
    CHECK(!memcmp(got, v, sizeof v), "the sum");

    CHECK(add(y.stream, y.a, x.a + 1) == cudaErrorIllegalAddress, "a kernel on another device's memory");
    cudaSetDevice(1);
    CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress, "device 1 stays lost");
    cudaSetDevice(0);
    cudaGetLastError();
    CHECK(add(x.stream, x.a, x.b) == cudaSuccess, "device 0 works");
    simt_new_process();
}

/* What is free of one device does not depend on what another has allocated. */
void memory_of_its_own()
{
    size_t before = 0, after = 0, total = 0;
    one y;
    cudaSetDevice(0);
    cudaMemGetInfo(&before, &total);
    y = open_one(2);
    cudaSetDevice(0);
    cudaMemGetInfo(&after, &total);
    CHECK(before == after, "%zu of device 0 were free, then %zu", before, after);
    cudaSetDevice(2);
    cudaMemGetInfo(&after, &total);
    CHECK(before - after == 2 * N * sizeof(float), "%zu of device 2 are taken", before - after);
    close_one(y);
}

void many_sums(int device)
{
    enum { TIMES = 50 };
    float ones[N], got[N];
    one o = open_one(device);
    for (float &v : ones) v = 1;
    cudaMemcpyAsync(o.b, ones, sizeof ones, cudaMemcpyHostToDevice, o.stream);
    for (int i = 0; i < TIMES; i++) {
        void *p = nullptr;
        cudaMalloc(&p, 1000);
        add(o.stream, o.a, o.b);
        cudaFree(p);
    }
    cudaMemcpyAsync(got, o.a, sizeof got, cudaMemcpyDeviceToHost, o.stream);
    cudaStreamSynchronize(o.stream);
    for (float v : got)
        if (v != (float)TIMES) abort();
    close_one(o);
}

void threads()
{
    std::thread t[DEVICES];
    for (int i = 0; i < DEVICES; i++) t[i] = std::thread(many_sums, i);
    for (std::thread &one : t) one.join();
    CHECK(true, "the threads' sums");
}

} // namespace

int main()
{
    setenv("SIMT_DEVICES", "3", 1);
    numbers();
    memory_of_another();
    memory_of_its_own();
    threads();
    return checked();
}
