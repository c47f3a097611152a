/* The rotary embeddings of config.json.  Source: transformers 5.23, modeling_rope_utils.py and configuration_*.py. */
#include "engine/model/config_fields.h"

#include <stdio.h>
#include <string.h>

static const double THETA_MAX = 1e12, SMALL = 1e-6, LARGE = 1e6;

/* Rules for each layer type are refused where the family has one rule. */
static void refuse_types(struct fields *f, const char *name, const cJSON *rope)
{
    for (const cJSON *k = rope ? rope->child : NULL; k; k = k->next)
        if (cJSON_IsObject(k)) {
            f->rc = err_set(f->e, ERR_UNSUPPORTED, "config.json: %s: one for each layer type (%.40s) is not supported",
                            name, k->string);
            return;
        }
}

/* rope_parameters of a family with a rule for each layer type: one object per layer type, nothing else. */
static void need_types(struct fields *f)
{
    for (const cJSON *k = f->j ? f->j->child : NULL; k && !f->rc; k = k->next)
        if (strcmp(k->string, "full_attention") && strcmp(k->string, "sliding_attention"))
            f->rc = err_set(f->e, ERR_UNSUPPORTED, "%s: \"%.40s\" is not full_attention or sliding_attention", f->file,
                            k->string);
}

/* What is read into: one rule, and what all rules of the model share. */
struct rule {
    struct model_config *c;
    struct rope *r;
    double *partial;
};

static void read_scaling(struct fields *s, const struct family_rope *m, enum rope_scaling *out)
{
    static const struct {
        const char *name;
        enum rope_scaling scaling;
    } names[] = {
        {"default", ROPE_PLAIN}, {"linear", ROPE_LINEAR},     {"llama3", ROPE_LLAMA3},
        {"yarn", ROPE_YARN},     {"longrope", ROPE_LONGROPE}, {"dynamic", ROPE_DYNAMIC},
    };
    const char *type = get_text(s, "rope_type");
    if (!type) type = get_text(s, "type");
    *out = ROPE_PLAIN;
    if (!type || s->rc) return;
    bool other_name = m->longrope_only && (strcmp(type, "su") == 0 || strcmp(type, "yarn") == 0), known = other_name;
    if (other_name) *out = ROPE_LONGROPE;
    for (size_t i = 0; i < sizeof names / sizeof *names && !known; i++)
        if (strcmp(type, names[i].name) == 0) *out = names[i].scaling, known = true;
    bool taken = !m->longrope_only || *out == ROPE_PLAIN || *out == ROPE_LONGROPE;
    if (!known || !taken)
        s->rc = err_set(s->e, ERR_UNSUPPORTED, "config.json: rope type \"%.40s\" is not supported", type);
}

/* original_max_position_embeddings: a field beside the rule has precedence. */
static void read_old_len(struct fields *s, const struct fields *f, bool own, const struct rule *to)
{
    const struct family_rope *m = &to->c->family->rope;
    struct fields top = {f->j, f->e, f->file, s->rc};
    to->r->old_len = to->c->max_len;
    get_int(s, "original_max_position_embeddings", 1, MAX_POSITIONS, &to->r->old_len);
    if (own) return; /* one rule of several */
    if (m->old_len) to->r->old_len = m->old_len;
    get_int(&top, "original_max_position_embeddings", 1, MAX_POSITIONS, &to->r->old_len);
    if (!s->rc) s->rc = top.rc;
}

/* The scale of cos and sin; `usual` unless the file has one. */
static void read_attention(struct fields *s, double usual, struct rope *r)
{
    r->attention = usual;
    get_real(s, "attention_factor", 0, LARGE, &r->attention);
}

static void read_llama3(struct fields *s, struct rope *r)
{
    need(s, "factor");
    need(s, "low_freq_factor");
    need(s, "high_freq_factor");
    get_real(s, "low_freq_factor", 1e-3, LARGE, &r->low);
    get_real(s, "high_freq_factor", 1e-3, LARGE, &r->high);
    if (!s->rc && r->high <= r->low)
        s->rc = err_set(s->e, ERR_INVALID, "config.json: high_freq_factor must be above low_freq_factor");
}

/* YaRN's scale of cos and sin for a factor */
static double mscale(double factor, double scale)
{
    return factor <= 1 ? 1 : 0.1 * scale * log(factor) + 1;
}

static void read_yarn(struct fields *s, struct rope *r)
{
    double scale = 0, all = 0, slow = 0, fast = 0;
    get_real(s, "mscale", 0, LARGE, &scale);
    get_real(s, "mscale_all_dim", 0, LARGE, &all);
    get_real(s, "beta_slow", 0, LARGE, &slow);
    get_real(s, "beta_fast", 0, LARGE, &fast);
    r->low = slow > 0 ? slow : 1;
    r->high = fast > 0 ? fast : 32;
    r->truncate = true;
    get_bool(s, "truncate", &r->truncate);
    read_attention(s, scale > 0 && all > 0 ? mscale(r->factor, scale) / mscale(r->factor, all) : mscale(r->factor, 1),
                   r);
    if (!s->rc && r->theta <= 1)
        s->rc = err_set(s->e, ERR_INVALID, "config.json: rope_theta must be above 1 with yarn");
}

static void read_divisors(struct fields *s, const char *name, int pairs, float *out)
{
    need(s, name);
    const cJSON *list = get(s, name);
    int n = 0;
    if (s->rc) return;
    for (const cJSON *v = cJSON_IsArray(list) ? list->child : NULL; v; v = v->next, n++) {
        if (!cJSON_IsNumber(v) || !(v->valuedouble >= SMALL && v->valuedouble <= LARGE)) {
            s->rc =
                err_set(s->e, ERR_INVALID, "config.json: %s: number %d must be from %g to %g", name, n, SMALL, LARGE);
            return;
        }
        if (n < pairs) out[n] = (float)v->valuedouble;
    }
    if (n != pairs)
        s->rc = err_set(s->e, ERR_INVALID, "config.json: %s must be a list of %d numbers, one for each rotated pair",
                        name, pairs);
}

static void read_longrope(struct fields *s, int pairs, struct rope *r)
{
    read_divisors(s, "short_factor", pairs, r->divide[0]);
    read_divisors(s, "long_factor", pairs, r->divide[1]);
    if (!s->rc && r->old_len < 2)
        s->rc = err_set(s->e, ERR_INVALID, "config.json: original_max_position_embeddings must be at least 2");
    read_attention(s, r->factor <= 1 ? 1 : sqrt(1 + log(r->factor) / log(r->old_len)), r);
}

/* Every text beyond the positions that the model was made for gets the frequencies of the longest one. */
static void read_dynamic(struct fields *s, int max_len, int pairs, struct rope *r)
{
    need(s, "factor");
    r->old_len = max_len;
    double longest = fmin(floor(max_len * fmax(r->factor, 1)), MAX_POSITIONS);
    r->max_len = (int)longest;
    if (!s->rc && pairs < 2)
        s->rc = err_set(s->e, ERR_INVALID, "config.json: rope type dynamic with fewer than 4 rotated features");
}

/* A rope_scaling or rope_parameters object; own: of one layer type. */
static void read_rule(struct fields *f, const cJSON *object, bool own, const struct rule *to)
{
    struct fields s = {object, f->e, f->file, 0};
    struct rope *r = to->r;
    get_real(&s, "rope_theta", 1, THETA_MAX, &r->theta);
    get_real(&s, "partial_rotary_factor", 0, 1, to->partial);
    read_scaling(&s, &to->c->family->rope, &r->scaling);
    int pairs = (int)(to->c->head_dim * *to->partial) / 2;
    if (r->scaling == ROPE_LLAMA3 || r->scaling == ROPE_YARN || r->scaling == ROPE_LONGROPE)
        read_old_len(&s, f, own, to);
    if (r->scaling == ROPE_YARN || r->scaling == ROPE_LONGROPE) r->factor = (double)to->c->max_len / r->old_len;
    get_real(&s, "factor", 1e-3, LARGE, &r->factor);
    switch (r->scaling) {
    case ROPE_PLAIN: break;
    case ROPE_LINEAR: need(&s, "factor"); break;
    case ROPE_LLAMA3: read_llama3(&s, r); break;
    case ROPE_YARN: read_yarn(&s, r); break;
    case ROPE_LONGROPE: read_longrope(&s, pairs, r); break;
    case ROPE_DYNAMIC: read_dynamic(&s, to->c->max_len, pairs, r); break;
    }
    if (!f->rc) f->rc = s.rc;
}

/* Where a family does not read partial_rotary_factor, transformers ignores it with plain positions and fails with
 * scaled ones. */
static void check_partial(struct fields *f, struct model_config *c, double partial)
{
    bool scaled = false, read = c->family->rope.partial_read;
    for (int i = 0; i < c->n_ropes; i++) scaled |= c->rope[i].scaling != ROPE_PLAIN;
    int rot = (int)(c->head_dim * (read ? partial : 1));
    if (!read && partial < 1 && scaled)
        f->rc = err_set(f->e, ERR_UNSUPPORTED,
                        "config.json: partial_rotary_factor %g with scaled positions: %s models rotate whole heads",
                        partial, c->family->model_type);
    else if (rot % 2)
        f->rc = err_set(f->e, ERR_INVALID, "config.json: an odd number of rotated features (%d of %d) in a head", rot,
                        c->head_dim);
    for (int i = 0; i < c->n_ropes; i++) c->rope[i].rot = rot;
}

/* The lengths that follow from the rules: where texts change frequencies, and the longest one. */
static void set_lengths(struct fields *f, struct model_config *c)
{
    const struct rope *r = &c->rope[0];
    for (int i = 0; i < c->n_ropes && !f->rc; i++) {
        int near = rope_near_len(&c->rope[i]);
        if (near && c->near_len && near != c->near_len)
            f->rc = err_set(f->e, ERR_UNSUPPORTED,
                            "config.json: frequencies that change at %d and at %d positions are not supported",
                            c->near_len, near);
        if (near) c->near_len = near;
    }
    double longest = r->scaling == ROPE_YARN      ? floor(r->old_len * r->factor)
                     : r->scaling == ROPE_DYNAMIC ? r->max_len
                                                  : 0;
    if (longest > c->max_len) c->max_len = (int)fmin(longest, MAX_POSITIONS);
}

/* Ministral 3 multiplies queries by 1 + beta log(1 + floor(position / old_len)), which is 1 before old_len: texts end
 * there, because scaled queries are not implemented. */
static void limit_queries(struct fields *f, const cJSON *rule, struct model_config *c)
{
    struct fields s = {rule, f->e, f->file, f->rc};
    double beta = 0;
    need(&s, "llama_4_scaling_beta"); /* transformers fails as well */
    need(&s, "original_max_position_embeddings");
    get_real(&s, "llama_4_scaling_beta", 0, LARGE, &beta);
    f->rc = s.rc;
    if (!f->rc && beta > 0 && c->max_len > c->rope[0].old_len) c->max_len = c->rope[0].old_len;
}

/* Transformers 5 writes rope_parameters, 4 wrote rope_scaling; the same keys inside.  As in transformers, a non-empty
 * rope_scaling takes precedence. */
void config_read_rope(struct fields *f, struct model_config *c)
{
    const struct family_rope *m = &c->family->rope;
    double partial = m->partial;
    c->n_ropes = m->window_rule ? 2 : 1;
    if (!m->any) return;
    struct rule all = {c, &c->rope[0], &partial}, windows = {c, &c->rope[1], &partial};
    for (int i = 0; i < c->n_ropes; i++)
        c->rope[i] = (struct rope){.theta = i ? m->window_theta : m->theta, .factor = 1, .attention = 1};
    get_real(f, m->theta_field ? m->theta_field : "rope_theta", 1, THETA_MAX, &c->rope[0].theta);
    get_real(f, m->partial_field ? m->partial_field : "partial_rotary_factor", 0, 1, &partial);
    const char *name = "rope_scaling";
    const cJSON *rule = object(f, name), *window_rule = NULL, *full_rule = NULL;
    if (m->window_rule) {
        get_real(f, m->window_theta_field, 1, THETA_MAX, &c->rope[1].theta);
        const cJSON *parameters = object(f, "rope_parameters");
        struct fields types = {parameters, f->e, "config.json: rope_parameters", f->rc};
        need_types(&types);
        window_rule = object(&types, "sliding_attention");
        full_rule = object(&types, "full_attention");
        f->rc = types.rc;
    } else if (!rule) {
        rule = object(f, name = "rope_parameters");
    }
    if (m->scaled && !rule) need(f, name);
    refuse_types(f, name, rule);
    if (full_rule && !f->rc) read_rule(f, full_rule, true, &all);
    if (rule && !f->rc) read_rule(f, rule, false, &all); /* overrides the other, as in transformers */
    if (window_rule && !f->rc) read_rule(f, window_rule, true, &windows);
    if (!f->rc) check_partial(f, c, partial);
    if (!f->rc) set_lengths(f, c);
    if (!f->rc && m->scaled_queries) limit_queries(f, rule, c);
}
