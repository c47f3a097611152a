#include "engine/model/truncate.h"

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/model/files.h"
#include "engine/model/safetensors.h"
#include "engine/model/tensors.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

/* The configuration with another number of layers: of lists with an entry for each layer the first ones. */
static char *shorter_config(const char *dir, int were, int layers, struct err *e)
{
    static const char *const counts[] = {"num_hidden_layers", "n_layer", "num_layers", "n_layers"};
    char *path = file_join(dir, "config.json"), *text = NULL, *out = NULL;
    size_t n;
    bool found = false;
    if (file_read(path, 16 << 20, &text, &n, e) == 0) {
        cJSON *j = cJSON_Parse(text);
        for (cJSON *c = j ? j->child : NULL; c; c = c->next) {
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
                if (cJSON_IsNumber(c) && !strcmp(c->string, counts[i]) && c->valueint == were)
                    cJSON_SetNumberValue(c, layers), found = true;
            while (cJSON_IsArray(c) && strstr(c->string, "layer") && cJSON_GetArraySize(c) > layers &&
                   cJSON_GetArraySize(c) <= were)
                cJSON_DeleteItemFromArray(c, cJSON_GetArraySize(c) - 1);
        }
        if (found) out = cJSON_Print(j);
        if (!out) err_set(e, ERR_UNSUPPORTED, "config.json: no number of layers that can be made smaller");
        cJSON_Delete(j);
    }
    free(text);
    free(path);
    return out;
}

/* Adds a tensor; one that the file lacks (a head tied to the embeddings) is none of its own. */
static int add(struct st_writer *w, const struct tensor_source *in, const char *name, struct err *e)
{
    const struct tensor *t = tensor_source_find(in, name);
    if (!t) return 0;
    if (tensor_float_type(t->type) == DT_NONE || t->form)
        return err_set(e, ERR_UNSUPPORTED, "tensor %s: only a model of floats can be truncated", name);
    return st_writer_add(w, t, 1, e);
}

static int write_weights(const struct tensor_source *in, const struct model_config *c, const char *path, struct err *e)
{
    struct tensors t = tensors_of(c, in);
    int n = tensors_stacks(c), vectors = tensors_vectors(&t, NULL), rc = 0;
    struct vector_slot *v = mem_array((size_t)vectors + 1, sizeof *v);
    size_t most = (size_t)n * STACK_MAX + (size_t)vectors;
    struct st_writer *w = st_writer_open(path, most, most * TENSOR_NAME_MAX, 64, e);
    if (!w) rc = e->code;
    if (!rc) st_writer_note(w, "format", "pt");
    tensors_vectors(&t, v);
    for (int i = 0; i < n && !rc; i++) {
        struct stack s;
        tensors_stack(&t, i, &s);
        for (int k = 0; k < s.n && !rc; k++) rc = add(w, in, s.part[k].name, e);
    }
    for (int i = 0; i < vectors && !rc; i++) rc = add(w, in, v[i].name, e);
    free(v);
    if (!rc) return st_writer_finish(w, e);
    st_writer_abort(w);
    return rc;
}

int model_truncate(const char *dir, const char *out, int layers, struct err *e)
{
    struct model_config c;
    int rc = model_config_read(dir, &c, e);
    if (!rc) rc = model_config_generates(&c, e);
    if (rc) return rc;
    if (layers < 1 || layers > c.layers)
        return err_set(e, ERR_INVALID, "layers: %d; the model has %d", layers, c.layers);
    struct tensor_source *in = safetensors_open_dir(dir, e);
    if (!in) return e->code;
    char *config = shorter_config(dir, c.layers, layers, e);
    char *to = file_join(out, "config.json"), *weights = file_join(out, "model.safetensors");
    c.layers = layers;
    rc = config ? dir_make(out, e) : e->code;
    if (!rc) rc = model_files_copy(dir, out, false, e);
    if (!rc && config) rc = file_write_sync(to, config, strlen(config), e);
    if (!rc) rc = write_weights(in, &c, weights, e);
    cJSON_free(config);
    free(to);
    free(weights);
    tensor_source_close(in);
    return rc;
}
