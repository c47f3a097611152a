/* Scratch memory of several users, beside what serving has: one whose reservation fails takes nothing from another. */
#include "kernels/cuda/device.h"
#include "tests/simt/check.h"

#include <cstdlib>
#include <cstring>

using namespace simt_device;

namespace {

struct user {
    gpu_dev *d;
    size_t bytes;
};

void enqueue(void *arg)
{
    user *u = static_cast<user *>(arg);
    gpu_scratch(u->d, "user", AREA_X, u->bytes);
}

bool reserve(gpu_dev *d, size_t bytes)
{
    user u = {d, bytes};
    return d->ops.reserve(&d->head, enqueue, &u) == 0;
}

size_t scratch_of(gpu_dev *d)
{
    struct dev_memory m;
    d->ops.memory(&d->head, &m);
    return m.scratch;
}

} // namespace

int main()
{
    char why[160] = "";
    struct dev_config c = {};
    c.memory_bytes = 1024 << 20;
    struct dev *head = simt_open(0, &c, why);
    if (!head) return fprintf(stderr, "simt: %s\n", why), 1;
    gpu_dev *d = gpu_of(head);
    CHECK(reserve(d, 1 << 20), "what serving needs");
    void *serving = gpu_scratch(d, "user", AREA_X, 1 << 20);
    d->ops.hold(head);
    size_t before = scratch_of(d);
    CHECK(reserve(d, 8 << 20), "the first user's");
    CHECK(scratch_of(d) == before + (8 << 20), "%zu bytes are taken for it", scratch_of(d) - before);
    CHECK(!reserve(d, (size_t)2 << 30), "the second user's does not fit");
    CHECK(head->error.op && strstr(head->error.msg, "no memory for 2147483648 bytes of scratch"), "%s",
          head->error.msg);
    dev_clear_error(head);
    CHECK(gpu_scratch(d, "user", AREA_X, 8 << 20) != nullptr, "the first user has it still: %s", head->error.msg);
    CHECK(gpu_scratch(d, "user", AREA_X, 1 << 20) == serving, "serving has its own");
    CHECK(scratch_of(d) == before + (8 << 20), "%zu bytes are taken after that", scratch_of(d) - before);
    CHECK(reserve(d, 9 << 20), "more than before");
    CHECK(scratch_of(d) == before + (9 << 20), "it replaces what was there");
    d->ops.trim(head);
    CHECK(scratch_of(d) == before, "all is freed");
    CHECK(gpu_scratch(d, "user", AREA_X, 8 << 20) == nullptr, "and is there no longer");
    d->ops.close(head);
    return checked();
}
