/* Frozen weights that are divided over ranks: each rank keeps its share, and gathers every layer with the bytes that it
 * has on one rank, in any order of layers. */
#include "engine/train/base_layers.h"

#include "engine/train/exchanger.h"
#include "kernels/comm.h"
#include "tests/unit/engine/train/train_rig.h"

#include <pthread.h>
#include <stdatomic.h>

enum { RANKS_MAX = 4, PATIENCE = 300, TURNS = 3 };

struct rank {
    struct comm *comm;
    const char *dir, *device;
    struct quantize_how how;
    bool beside; /* on the exchanger's thread */
    size_t kept, whole;
    int layers;
    bool alike;
    struct err e;
};

/* Whether the layer that is there has the bytes of the whole model's, and no other layer is there. */
static bool same_layer(const struct model *part, const struct model *whole, int layer)
{
    const struct model_config *c = &whole->c;
    bool same = true;
    for (int i = 0; i < tensors_stacks(c); i++) {
        struct weight **w = weights_stack_field((struct weights *)&part->w, c, i);
        struct weight **all = weights_stack_field((struct weights *)&whole->w, c, i);
        int of = i < c->layers * LAYER_GEMMS ? i / LAYER_GEMMS : tensors_expert_stack(c, i).layer;
        size_t n = 0, n_all = 0;
        if (of < 0 || !all || !*all) continue;
        same &= !*w == (of != layer);
        if (of != layer || !*w) continue;
        const void *bytes = part->d->ops->weight_packed(*w, &n), *of_all = whole->d->ops->weight_packed(*all, &n_all);
        same &= n == n_all && memcmp(bytes, of_all, n) == 0;
    }
    return same;
}

static size_t bytes_of_layers(struct model *m)
{
    size_t bytes = 0;
    for (int i = 0; i < tensors_stacks(&m->c); i++) {
        struct weight **w = weights_stack_field(&m->w, &m->c, i);
        bool of_layer = i < m->c.layers * LAYER_GEMMS || tensors_expert_stack(&m->c, i).layer >= 0;
        if (of_layer && w && *w) bytes += m->d->ops->weight_bytes(*w);
    }
    return bytes;
}

static void use_layers(struct rank *r, struct base_layers *b, struct model *part, struct model *whole)
{
    struct layer_gather *g = base_layers_gather(b);
    r->alike = true;
    for (int turn = 0; turn < TURNS; turn++) { /* forward, and back */
        for (int l = 0; l < r->layers; l++) {
            layer_gather_use(g, l, l + 1 < r->layers ? l + 1 : -1);
            r->alike &= same_layer(part, whole, l);
        }
        for (int l = r->layers - 1; l >= turn; l--) {
            layer_gather_use(g, l, l > turn ? l - 1 : -1);
            r->alike &= same_layer(part, whole, l);
        }
    }
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    struct dev_config dc = {.name = r->device, .threads = 1};
    struct model part, whole;
    struct base_layers *b = base_layers_open(r->comm);
    struct weights_taker taker = base_layers_taker(b);
    if (!model_open(&part, r->dir, &dc, &r->how, false, NULL, 1, &taker, &r->e)) {
        struct exchanger *x = r->beside ? exchanger_open(r->comm, NULL) : NULL;
        if (model_open(&whole, r->dir, &dc, &r->how, false, NULL, 1, NULL, &r->e)) abort();
        r->layers = whole.c.layers;
        r->kept = base_layers_bytes(b);
        r->whole = bytes_of_layers(&whole);
        if (!base_layers_use(b, &part, x, &r->e)) use_layers(r, b, &part, &whole);
        r->alike &= part.w.bytes + r->whole == whole.w.bytes;
        base_layers_end(b);
        exchanger_close(x);
        model_close(&part);
        model_close(&whole);
    }
    base_layers_close(b);
    comm_close(r->comm);
    return NULL;
}

static void run_on(int ranks, struct rank r[RANKS_MAX], const struct rank *like)
{
    struct comm *comm[RANKS_MAX];
    pthread_t thread[RANKS_MAX];
    assert_true(comm_open_local(ranks, PATIENCE, comm));
    for (int i = 0; i < ranks; i++) {
        r[i] = *like;
        r[i].comm = comm[i];
        assert_int_equal(pthread_create(&thread[i], NULL, run_rank, &r[i]), 0);
    }
    for (int i = 0; i < ranks; i++) pthread_join(thread[i], NULL);
}

static void test_types(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        enum dtype quantize;
    } of[] = {{"llama-gqa", DT_NONE},      {"qwen2-bf16", DT_NONE},     {"llama-f16", DT_NONE},
              {"tinystories-656k", DT_I8}, {"tinystories-656k", DT_I4}, {"llama-nf4", DT_NONE},
              {"qwen3-moe", DT_NONE},      {"qwen2-moe", DT_I8},        {"gemma3", DT_NONE}};
    for (size_t k = 0; k < sizeof of / sizeof *of; k++)
        for (int ranks = 2; ranks <= 4; ranks++) {
            char *dir = file_join(fixtures, of[k].model);
            struct rank r[RANKS_MAX], like = {.dir = dir, .device = "cpu", .how = {.type = of[k].quantize}};
            size_t kept = 0;
            like.beside = ranks != 3;
            run_on(ranks, r, &like);
            for (int i = 0; i < ranks; i++) {
                if (r[i].e.code) fail_msg("%s: %s", of[k].model, r[i].e.msg);
                if (!r[i].alike) fail_msg("%s on %d ranks", of[k].model, ranks);
                kept += r[i].kept;
                assert_true(r[i].kept < r[i].whole / (size_t)ranks + r[i].whole / 8);
            }
            assert_int_equal(kept, r->whole);
            free(dir);
        }
}

/* Of matrices whose packed bytes cannot be used so, and of devices, each rank says so. */
static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *model, *device, *says;
    } of[] = {{"gpt-oss-mxfp4", "cpu", "zero 3 does not divide a base that another program quantised"},
              {"llama-gqa", "ref", "only on the device cpu, not on ref"}};
    for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
        char *dir = file_join(fixtures, of[k].model);
        struct rank r[RANKS_MAX], like = {.dir = dir, .device = of[k].device};
        run_on(2, r, &like);
        for (int i = 0; i < 2; i++)
            if (!strstr(r[i].e.msg, of[k].says)) fail_msg("%s: \"%s\"", of[k].model, r[i].e.msg);
        free(dir);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_types), cmocka_unit_test(test_refused)};
    rig_begin(argc, argv);
    return cmocka_run_group_tests_name("base layers", tests, NULL, NULL);
}
