/* Writing an adapter directory that PEFT, vLLM and llama.cpp's converter read.  The same adapter gives the same bytes.
 */
#include "engine/model/adapter.h"

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/model/safetensors.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the configuration ---- */

static void put_text(struct buf *b, const char *s)
{
    cJSON *v = cJSON_CreateString(s);
    char *text = cJSON_PrintUnformatted(v);
    buf_str(b, text ? text : "\"\"");
    cJSON_free(text);
    cJSON_Delete(v);
}

/* the shortest decimal that reads back as the same number */
static void put_number(struct buf *b, double v)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    buf_str(b, text);
}

static void path_of(const struct model_config *c, const struct adapter *a, int i, char out[160])
{
    lora_module_name(c, i / a->n_modules, &a->module[i % a->n_modules], out);
}

static float scale_of(const struct adapter *a, double alpha, int r)
{
    return (float)(a->rslora ? alpha / sqrt(r) : alpha / r);
}

/* The adapter's default alpha, or the shortest number that gives the pair's scale again. */
static double alpha_of(const struct adapter *a, const struct lora_pair *p)
{
    double exact = (double)p->scale * (a->rslora ? sqrt(p->r) : p->r);
    if (scale_of(a, a->alpha, p->r) == p->scale) return a->alpha;
    for (int digits = 1; digits < 17; digits++) {
        char text[40];
        snprintf(text, sizeof text, "%.*g", digits, exact);
        double shorter = strtod(text, NULL);
        if (scale_of(a, shorter, p->r) == p->scale) return shorter;
    }
    return exact;
}

/* {"model.layers.0.self_attn.q_proj": 4, ...} where a pair differs from the default.  PEFT reads the keys as regular
 * expressions; a full name matches only itself. */
static void put_pattern(struct buf *b, const char *key, const struct model_config *c, const struct adapter *a,
                        bool rank)
{
    char name[160];
    int n = 0;
    buf_printf(b, "  \"%s\": {", key);
    for (int i = 0; i < a->layers * a->n_modules; i++) {
        const struct lora_pair *p = &a->pair[i];
        double v = rank ? p->r : p->r ? alpha_of(a, p) : 0;
        if (!p->r || v == (rank ? a->r : a->alpha)) continue;
        path_of(c, a, i, name);
        buf_printf(b, "%s\n    \"%s\": ", n++ ? "," : "", name);
        put_number(b, v);
    }
    buf_str(b, n ? "\n  },\n" : "},\n");
}

/* Whether the module has a pair in every layer that has it. */
static bool everywhere(const struct model_config *c, const struct adapter *a, int m)
{
    for (int l = 0; l < a->layers; l++)
        if (!a->pair[l * a->n_modules + m].r && lora_module_present(c, l, &a->module[m])) return false;
    return true;
}

/* The name of module m when all of its layers have a pair, else the full names of those that have. */
static void put_module(struct buf *b, const struct model_config *c, const struct adapter *a, int m,
                       const char *short_name, int *n)
{
    char name[160];
    if (everywhere(c, a, m)) {
        buf_printf(b, "%s\n    \"%s\"", (*n)++ ? "," : "", short_name);
        return;
    }
    for (int l = 0; l < a->layers; l++) {
        if (!a->pair[l * a->n_modules + m].r) continue;
        path_of(c, a, l * a->n_modules + m, name);
        buf_printf(b, "%s\n    \"%s\"", (*n)++ ? "," : "", name);
    }
}

/* The short name when every module of that name has a pair; the path within a layer when only one of two modules of
 * that name has (c_proj); full names when only some layers have. */
static void put_targets(struct buf *b, const struct model_config *c, const struct adapter *a)
{
    int n = 0;
    buf_str(b, "  \"target_modules\": [");
    for (int m = 0; m < a->n_modules; m++) {
        bool all = true, said = false;
        if (a->module[m].parameter) continue;
        for (int k = 0; k < a->n_modules; k++) {
            if (strcmp(a->module[k].name, a->module[m].name)) continue;
            all &= everywhere(c, a, k);
            said |= k < m;
        }
        if (!all || !said) put_module(b, c, a, m, all ? a->module[m].name : a->module[m].path, &n);
    }
    buf_str(b, n ? "\n  ],\n" : "],\n");
}

/* Only where there are any: older readers do not know the key. */
static void put_parameters(struct buf *b, const struct model_config *c, const struct adapter *a)
{
    int n = 0;
    if (!(a->targets & TARGET_PARAMETERS)) return;
    buf_str(b, "  \"target_parameters\": [");
    for (int m = 0; m < a->n_modules; m++)
        if (a->module[m].parameter) put_module(b, c, a, m, a->module[m].path, &n);
    buf_str(b, "\n  ],\n");
}

/* Every key that older readers require, sorted, as PEFT's save_pretrained writes them. */
static void put_config(struct buf *b, const struct adapter *a, const struct model_config *c, const char *base_name)
{
    buf_str(b, "{\n");
    put_pattern(b, "alpha_pattern", c, a, false);
    buf_str(b, "  \"auto_mapping\": null,\n  \"base_model_name_or_path\": ");
    put_text(b, base_name);
    buf_printf(b, ",\n  \"bias\": \"none\",\n  \"fan_in_fan_out\": %s,\n", a->module[0].transposed ? "true" : "false");
    buf_str(b, "  \"inference_mode\": true,\n  \"init_lora_weights\": true,\n  \"layer_replication\": null,\n"
               "  \"layers_pattern\": null,\n  \"layers_to_transform\": null,\n  \"lora_alpha\": ");
    put_number(b, a->alpha);
    buf_str(b, ",\n  \"lora_dropout\": ");
    put_number(b, a->dropout);
    /* the names that PEFT gives SEQ_CLS */
    buf_printf(b, ",\n  \"modules_to_save\": %s,\n", a->score ? "[\n    \"classifier\",\n    \"score\"\n  ]" : "null");
    buf_printf(b, "  \"peft_type\": \"LORA\",\n  \"r\": %d,\n", a->r);
    put_pattern(b, "rank_pattern", c, a, true);
    buf_str(b, "  \"revision\": null,\n");
    put_targets(b, c, a);
    put_parameters(b, c, a);
    buf_printf(b, "  \"task_type\": \"%s\",\n  \"use_dora\": false,\n  \"use_rslora\": %s\n}\n",
               a->score ? "SEQ_CLS" : "CAUSAL_LM", a->rslora ? "true" : "false");
}

/* ---- the base's name ---- */

/* "ORG/NAME" or "NAME" of a path into the Hub's cache, that of a snapshot or of a GGUF file in one (huggingface_hub's
 * file_download.py, repo_folder_name: the parts of a name are joined by "--", which no part may contain); NULL: the
 * path is not in the Hub's cache. */
static char *hub_name(const char *path)
{
    static const char lead[] = "models--", snapshots[] = "/snapshots/";
    const char *at = strstr(path, snapshots), *begin;
    for (const char *next; at && (next = strstr(at + 1, snapshots));) at = next;
    if (!at) return NULL;
    const char *revision = at + sizeof snapshots - 1;
    size_t n = strcspn(revision, "/");
    const char *rest = revision + n + strspn(revision + n, "/"), *dot = strrchr(rest, '.');
    if (!n || (*rest && (!dot || strcasecmp(dot, ".gguf") != 0))) return NULL;
    for (begin = at; begin > path && begin[-1] != '/';) begin--;
    if (strncmp(begin, lead, sizeof lead - 1) != 0) return NULL;
    begin += sizeof lead - 1;
    char *name = mem_strndup(begin, (size_t)(at - begin)), *dashes = strstr(name, "--");
    if (dashes) {
        *dashes = '/';
        memmove(dashes + 1, dashes + 2, strlen(dashes + 2) + 1);
    }
    bool whole = *name && (!dashes || (dashes > name && dashes[1] && !strstr(dashes + 1, "--")));
    if (whole) return name;
    free(name);
    return NULL;
}

char *adapter_base_name(const char *model_dir)
{
    char *real = realpath(model_dir, NULL), *name = hub_name(model_dir);
    if (!name && real) name = hub_name(real);
    if (!name) name = mem_strdup(real ? real : model_dir);
    free(real);
    return name;
}

/* ---- files ---- */

/* The module whose lora_A and lora_B the pair's tensors are: of a parameter the one that has it (adapter_experts.h). */
static void holder_of(const struct model_config *c, const struct adapter *a, int i, char out[176])
{
    const struct lora_module *m = &a->module[i % a->n_modules];
    bool both = false;
    path_of(c, a, i, out);
    if (!m->parameter) return;
    *strrchr(out, '.') = 0;
    for (int k = 0; k < a->n_modules; k++)
        both |= a->module[k].gemm == GEMM_EXPERT_DOWN && a->pair[i - i % a->n_modules + k].r > 0;
    if (m->gemm == GEMM_EXPERT_UP && both) strcat(out, ".base_layer");
}

/* b of experts, (E, n, r), as PEFT stores it: (n, r E), the experts of a rank beside each other. */
static void by_rank(const float *b, int n, int r, int experts, float *out)
{
    for (int x = 0; x < experts; x++)
        for (int o = 0; o < n; o++)
            for (int i = 0; i < r; i++) {
                size_t to = ((size_t)o * (size_t)r + (size_t)i) * (size_t)experts + (size_t)x;
                out[to] = b[((size_t)x * (size_t)n + (size_t)o) * (size_t)r + (size_t)i];
            }
}

#define SCORE_NAME "base_model.model." SCORE_WEIGHT

static int put_matrix(struct st_writer *w, char *name, int rows, int cols, float *data, struct err *e)
{
    struct tensor t = {.name = name,
                       .type = TENSOR_F32,
                       .n_dims = 2,
                       .dims = {rows, cols},
                       .data = data,
                       .bytes = (size_t)rows * (size_t)cols * sizeof(float)};
    return st_writer_add(w, &t, 1, e);
}

static int put_pair(struct st_writer *w, const char *holder, const struct lora_module *m, const struct lora_pair *p,
                    struct err *e)
{
    char name[240];
    int r = p->r * lora_copies(m);
    bool embedding = m->gemm == GEMM_EMBEDDING;
    const char *which = embedding ? "lora_embedding_" : "lora_", *end = embedding ? "" : ".weight";
    snprintf(name, sizeof name, "base_model.model.%s.%sA%s", holder, which, end);
    int rc = put_matrix(w, name, r, m->k, p->a, e);
    snprintf(name, sizeof name, "base_model.model.%s.%sB%s", holder, which, end);
    if (rc || !m->experts) return rc ? rc : put_matrix(w, name, m->n, r, p->b, e);
    float *b = mem_array((size_t)m->n * (size_t)r, sizeof *b);
    by_rank(p->b, m->n, p->r, m->experts, b);
    rc = put_matrix(w, name, m->n, r, b, e);
    free(b);
    return rc;
}

static int put_tensors(const struct adapter *a, const struct model_config *c, const char *path, struct err *e)
{
    int n = a->layers * a->n_modules, rc = 0;
    size_t tensors = 0, names = 0;
    char holder[176];
    for (int i = 0; i < n; i++) {
        if (!a->pair[i].r) continue;
        holder_of(c, a, i, holder);
        tensors += 2, names += 2 * (strlen(holder) + sizeof "base_model.model..lora_A.weight");
    }
    if (a->score) tensors++, names += sizeof SCORE_NAME;
    /* The writer would reserve twice what such entries need, and six times a name's length for escapes.  The header of
     * a small adapter should not be larger than its data. */
    struct st_writer *w = st_writer_open(path, tensors / 2, names / 6 + 1, 64, e);
    if (!w) return e->code;
    st_writer_note(w, "format", "pt"); /* transformers and PEFT require it */
    for (int i = 0; i < n && !rc; i++) {
        if (!a->pair[i].r) continue;
        holder_of(c, a, i, holder);
        rc = put_pair(w, holder, &a->module[i % a->n_modules], &a->pair[i], e);
    }
    char score[] = SCORE_NAME;
    if (!rc && a->score) rc = put_matrix(w, score, 1, c->hidden, a->score, e);
    if (!rc) return st_writer_finish(w, e);
    st_writer_abort(w);
    return rc;
}

int adapter_write(const struct adapter *a, const struct model_config *c, const char *base_name, const char *dir,
                  struct err *e)
{
    struct buf config = {0};
    put_config(&config, a, c, base_name);
    char *weights = file_join(dir, ADAPTER_WEIGHTS), *text = file_join(dir, ADAPTER_CONFIG);
    int rc = dir_make(dir, e);
    if (!rc) rc = put_tensors(a, c, weights, e);
    if (!rc) rc = file_replace(text, config.data, config.len, e);
    if (!rc) dir_sync_parent(text);
    free(weights);
    free(text);
    buf_free(&config);
    return rc;
}
