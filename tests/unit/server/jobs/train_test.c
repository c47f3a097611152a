/* What POST /train reads: hyperparameters there and back, the nearest name, the stored form of a job; the parser of
 * forms; routes with a parameter. */
#include "engine/train/params.h"
#include "server/jobs/job_run.h"
#include "server/jobs/train_aliases.h"
#include "server/jobs/train_spec.h"
#include "server/net/multipart.h"
#include "server/net/route.h"
#include "server/store/data_dir.h"

#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct err e;

static cJSON *parse(const char *text)
{
    e.code = 0;
    cJSON *tree = json_parse(text, strlen(text), &e);
    assert_non_null(tree);
    return tree;
}

static bool read_params(const char *text, struct train_params *p)
{
    cJSON *tree = parse(text);
    struct json_at at = {.obj = tree, .path = "h", .e = &e};
    train_params_default(p, TRAIN_LORA);
    bool good = train_params_read(&at, p);
    cJSON_Delete(tree);
    return good;
}

/* Every field with a value that is not its default, and numbers that take 17 digits. */
static void test_there_and_back(void **state)
{
    static const char text[] =
        "{\"epochs\":0.1234567890123456789,\"max_steps\":123456789012,\"batch_tokens\":77,\"micro_tokens\":300,"
        "\"max_length\":99,\"learning_rate\":0.00020000000000000004,\"schedule\":\"linear\",\"min_lr_ratio\":0.1,"
        "\"warmup_ratio\":0.2,\"warmup_steps\":3,\"weight_decay\":0.3,\"beta1\":0.5,\"beta2\":0.25,\"epsilon\":1e-9,"
        "\"max_grad_norm\":0.7,\"lora_r\":3,\"lora_alpha\":5.5,\"lora_dropout\":0.05,\"use_rslora\":true,"
        "\"target_modules\":[\"v_proj\",\"c_fc\"],\"packing\":false,\"group_by_length\":false,\"eval_fraction\":0.25,"
        "\"eval_steps\":7,\"save_steps\":8,\"early_stopping_patience\":2,\"early_stopping_threshold\":0.01,"
        "\"recompute\":\"on\",\"f32\":true,\"seed\":18446744073709551615}";
    struct train_params a, b, plain;
    struct buf first = {0}, second = {0};
    (void)state;
    assert_true(read_params(text, &a));
    train_params_default(&plain, TRAIN_LORA);
    assert_int_equal(a.seed, UINT64_MAX);
    assert_int_equal(a.targets, TARGET_V | TARGET_C_FC);
    train_params_put(&first, &a);
    assert_true(read_params(first.data, &b));
    train_params_put(&second, &b);
    assert_string_equal(first.data, second.data);
    assert_true(a.epochs == b.epochs && a.learning_rate == b.learning_rate && a.lora_alpha == b.lora_alpha);
    assert_true(a.epochs != plain.epochs && a.packing != plain.packing && a.recompute != plain.recompute);
    buf_free(&first);
    buf_free(&second);
}

/* A number of tokens, or as many as fit. */
static void test_micro_tokens(void **state)
{
    struct train_params a, b;
    struct buf text = {0};
    (void)state;
    assert_true(read_params("{\"micro_tokens\":\"auto\",\"memory_mib\":500,\"max_length\":200}", &a));
    assert_int_equal(a.micro_tokens, MICRO_TOKENS_AUTO);
    assert_int_equal(a.memory_mib, 500);
    train_params_put(&text, &a);
    assert_non_null(strstr(text.data, "\"micro_tokens\":\"auto\""));
    assert_true(read_params(text.data, &b));
    assert_int_equal(b.micro_tokens, MICRO_TOKENS_AUTO);
    assert_false(read_params("{\"micro_tokens\":\"many\"}", &a));
    assert_false(read_params("{\"micro_tokens\":-1}", &a));
    buf_free(&text);
}

/* What only method full has. */
static void test_full_there_and_back(void **state)
{
    struct train_params a, b;
    struct buf text = {0};
    (void)state;
    cJSON *tree = parse("{\"optimizer\":\"muon\",\"dropout\":0.1,\"ema_decay\":0.995,\"random_init\":true}");
    struct json_at at = {.obj = tree, .path = "h", .e = &e};
    train_params_default(&a, TRAIN_FULL);
    train_params_default(&b, TRAIN_FULL);
    assert_true(a.optimizer == OPTIMIZER_ADAMW && a.dropout == 0 && a.ema_decay == 0);
    assert_true(train_params_read(&at, &a));
    cJSON_Delete(tree);
    train_params_put(&text, &a);
    tree = parse(text.data);
    at.obj = tree;
    assert_true(train_params_read(&at, &b));
    assert_true(b.optimizer == OPTIMIZER_MUON && b.dropout == 0.1 && b.ema_decay == 0.995 && b.random_init);
    cJSON_Delete(tree);
    buf_free(&text);
}

static void test_wrong_fields_are_named(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{\"learning_rate\":1.5}", "h.learning_rate: must be above 0 and at most 1"},
        {"{\"learningrate\":1}", "h.learningrate: unknown field; did you mean `learning_rate`?"},
        {"{\"optimizer\":\"muon\"}", "h.optimizer: muon only with method full"},
        {"{\"optimizer\":\"sgd\"}", "h.optimizer: must be one of adamw, muon, adamw_8bit"},
        {"{\"dropout\":0.1}", "h.dropout: only with method full; did you mean `lora_dropout`?"},
        {"{\"dropout\":1}", "h.dropout: must be at least 0 and at most 0.999"},
        {"{\"beta1\":0.99999999}", "h.beta1: must be at least 0 and at most 0.99999"},
        {"{\"lora_dropout\":0.999999}", "h.lora_dropout: must be at least 0 and at most 0.999"},
        {"{\"early_stopping_patience\":1e9}", "h.early_stopping_patience: must be between 0 and 1000000"},
        {"{\"ema_decay\":0.9}", "h.ema_decay: only with method full"},
        {"{\"lr\":1}", "did you mean `learning_rate`?"},
        {"{\"zzzzzzzzzzzzzz\":1}", "h.zzzzzzzzzzzzzz: unknown field"},
        {"{\"lora_r\":1.5}", "h.lora_r: expected a whole number"},
        {"{\"schedule\":\"cos\"}", "h.schedule: must be one of constant, linear, cosine"},
        {"{\"target_modules\":[\"q_proj\",\"k_prj\"]}", "unknown module \"k_prj\"; did you mean k_proj"},
        {"{\"micro_tokens\":100,\"max_length\":200}", "h.micro_tokens: must be at least max_length"},
    };
    struct train_params p;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_false(read_params(cases[i].text, &p));
        assert_non_null(strstr(e.msg, cases[i].message));
    }
}

/* The names of transformers, TRL and PEFT. */
static void test_other_names(void **state)
{
    static const struct {
        const char *theirs, *ours;
        int rows;
    } same[] = {
        {"{\"num_train_epochs\":2,\"max_seq_length\":64,\"r\":4,\"adam_beta1\":0.5,\"adam_beta2\":0.75,\"adam_"
         "epsilon\":1e-6}",
         "{\"epochs\":2,\"max_length\":64,\"lora_r\":4,\"beta1\":0.5,\"beta2\":0.75,\"epsilon\":1e-6}", 0},
        {"{\"lr_scheduler_type\":\"constant_with_warmup\",\"optim\":\"adamw_torch_fused\",\"bf16\":false}",
         "{\"schedule\":\"constant\",\"optimizer\":\"adamw\",\"f32\":true}", 0},
        {"{\"optim\":\"adamw_bnb_8bit\"}", "{\"optimizer\":\"adamw_8bit\"}", 0},
        {"{\"optim\":\"paged_adamw_8bit\"}", "{\"optimizer\":\"adamw_8bit\"}", 0},
        {"{\"gradient_checkpointing\":true,\"bf16\":true,\"fp16\":false,\"logging_steps\":5,\"report_to\":\"none\"}",
         "{\"recompute\":\"on\",\"f32\":false}", 0},
        {"{\"per_device_train_batch_size\":4,\"gradient_accumulation_steps\":8,\"task_type\":\"CAUSAL_LM\"}", "{}", 32},
        {"{\"per_device_train_batch_size\":3,\"seed\":18446744073709551615}", "{\"seed\":18446744073709551615}", 3},
        {"{\"num_train_epochs\":null,\"epochs\":null,\"target_modules\":[\"q_proj\"]}",
         "{\"target_modules\":[\"q_proj\"]}", 0},
    };
    static const char *const bad[][2] = {
        {"{\"max_seq_length\":64,\"max_length\":64}",
         "h.max_seq_length: is the same as `max_length`: give one of them"},
        {"{\"bf16\":true,\"f32\":true}", "h.bf16: is the same as `f32`: give one of them"},
        {"{\"batch_tokens\":64,\"per_device_train_batch_size\":1}",
         "h.per_device_train_batch_size: is the same as `batch_tokens`"},
        {"{\"gradient_accumulation_steps\":2}", "h.gradient_accumulation_steps: needs per_device_train_batch_size"},
        {"{\"per_device_train_batch_size\":60000,\"gradient_accumulation_steps\":2}", "more than 65536 rows to a step"},
        {"{\"per_device_train_batch_size\":0}", "h.per_device_train_batch_size: must be between 1 and 65536"},
        {"{\"fp16\":true}", "h.fp16: is not supported"},
        {"{\"optim\":\"sgd\"}", "h.optim: must be one of adamw, adamw_torch"},
        {"{\"gradient_checkpointing\":1}", "h.gradient_checkpointing: expected a boolean"},
        {"{\"num_train_epochs\":\"x\"}", "h.epochs: expected a number"},
        {"{\"r\":4,\"learningrate\":1}", "did you mean `learning_rate`?"},
    };
    struct train_params a, b;
    struct buf ours = {0}, theirs = {0};
    bool is_bool;
    (void)state;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        int rows = 0;
        cJSON *tree = parse(same[i].theirs);
        struct json_at at = {.obj = tree, .path = "h", .e = &e};
        train_params_default(&a, TRAIN_LORA);
        if (!train_hyperparameters_read(&at, &a, &rows)) fail_msg("%s", e.msg);
        assert_int_equal(rows, same[i].rows);
        assert_true(read_params(same[i].ours, &b));
        buf_clear(&ours);
        buf_clear(&theirs);
        train_params_put(&theirs, &a);
        train_params_put(&ours, &b);
        assert_string_equal(theirs.data, ours.data);
        cJSON_Delete(tree);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int rows = 0;
        cJSON *tree = parse(bad[i][0]);
        struct json_at at = {.obj = tree, .path = "h", .e = &e};
        train_params_default(&a, TRAIN_LORA);
        assert_false(train_hyperparameters_read(&at, &a, &rows));
        if (!strstr(e.msg, bad[i][1])) fail_msg("%s, not %s", e.msg, bad[i][1]);
        cJSON_Delete(tree);
    }
    assert_true(train_hyperparameter_known("bf16", &is_bool) && is_bool);
    assert_true(train_hyperparameter_known("max_seq_length", &is_bool) && !is_bool);
    assert_false(train_hyperparameter_known("zzz", &is_bool));
    buf_free(&ours);
    buf_free(&theirs);
}

static enum train_method method_of(const char *field)
{
    static const struct {
        const char *field;
        enum train_method method;
    } of[] = {{"beta", TRAIN_DPO},
              {"label_smoothing", TRAIN_DPO},
              {"gamma", TRAIN_SIMPO},
              {"center_rewards_coefficient", TRAIN_REWARD},
              {"teacher_top_k", TRAIN_DISTILL},
              {"desirable_weight", TRAIN_KTO},
              {"undesirable_weight", TRAIN_KTO},
              {"samples", TRAIN_GRPO},
              {"prompts_per_step", TRAIN_GRPO},
              {"max_new_tokens", TRAIN_GRPO},
              {"temperature", TRAIN_GRPO},
              {"num_iterations", TRAIN_GRPO},
              {"clip_low", TRAIN_GRPO},
              {"clip_high", TRAIN_GRPO}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (!strcmp(of[i].field, field)) return of[i].method;
    return strncmp(field, "lora", 4) ? TRAIN_FULL : TRAIN_LORA;
}

/* A field at the limits of its range, and beyond them.  @return whether it has one. */
static bool check_limits(const cJSON *f)
{
    const struct model_config c = {.max_len = 1048576};
    const struct train_range *r = train_range(f->string);
    struct train_params p;
    struct buf one = {0};
    bool whole = f->valuedouble == (int64_t)f->valuedouble && r && r->max == (int64_t)r->max;
    assert_true((r != NULL) == (cJSON_IsNumber(f) && strcmp(f->string, "seed") != 0));
    if (!r) return false;
    const double inside[] = {r->above_min ? nextafter(r->min, 1) : r->min, r->max};
    const double beyond[] = {r->above_min ? r->min : r->min - (whole ? 1 : 1e-9), r->max + (whole ? 1 : 1e-9)};
    for (int side = 0; side < 4; side++) {
        double v = side < 2 ? inside[side] : beyond[side - 2];
        if (whole && v != (int64_t)v) continue; /* "above 0" of what is a number */
        buf_clear(&one);
        buf_printf(&one, "{\"%s\":%.17g}", f->string, v);
        cJSON *tree = parse(one.data);
        struct json_at at = {.obj = tree, .path = "h", .e = &e};
        train_params_default(&p, method_of(f->string));
        if (p.method == TRAIN_GRPO) p.samples = p.prompts_per_step = 2, p.max_length = 1048576;
        assert_int_equal(train_params_read(&at, &p), side < 2);
        if (side < 2 && train_params_check(&p, &c, &e)) fail_msg("%s: %s", one.data, e.msg);
        cJSON_Delete(tree);
    }
    buf_free(&one);
    return true;
}

/* A number at a limit, or the next beyond it, is one thing to the reader of requests and to the engine; and what has to
 * be less than 1 is so in the floats of the arithmetic, too. */
static void test_one_set_of_limits(void **state)
{
    struct train_params p;
    struct buf all = {0}, sampled = {0};
    int n = 0, n_sampled = 0;
    (void)state;
    train_params_default(&p, TRAIN_FULL);
    train_params_put(&all, &p);
    train_params_default(&p, TRAIN_GRPO);
    train_params_put(&sampled, &p);
    cJSON *names = parse(all.data), *of_grpo = parse(sampled.data);
    for (const cJSON *f = names->child; f; f = f->next) n += check_limits(f);
    for (const cJSON *f = of_grpo->child; f; f = f->next)
        if (!cJSON_HasObjectItem(names, f->string) && strcmp(f->string, "adam_epsilon") != 0)
            n_sampled += check_limits(f);
    assert_true(n > 20 && n_sampled == 7);
    static const char *const below_one[] = {"beta1", "beta2", "dropout", "ema_decay", "lora_dropout"};
    for (size_t i = 0; i < sizeof below_one / sizeof *below_one; i++)
        assert_true((float)train_range(below_one[i])->max < 1);
    cJSON_Delete(of_grpo);
    cJSON_Delete(names);
    buf_free(&all);
    buf_free(&sampled);
}

static void test_a_job_is_stored_as_it_was_asked(void **state)
{
    struct train_limits lim = {.model_id = "m", .weight_type = "bf16", .max_model_len = 512, .max_lora_rank = 256};
    struct train_spec a, b;
    struct buf text = {0}, again = {0};
    (void)state;
    cJSON *tree =
        parse("{\"serve_as\":\"x\",\"from\":\"y\",\"dataset\":{\"rows\":[{\"a\":1},{\"a\":2}],\"no_eos\":true},"
              "\"validation\":{\"file\":\"file-1\"},\"metadata\":{\"k\":\"v\\\"\"},"
              "\"hyperparameters\":{\"lora_r\":2}}");
    assert_int_equal(train_spec_read(&a, tree, &lim, &e), 0);
    assert_int_equal(a.data.size, 2);
    train_spec_put(&text, &a);
    lim.stored = true;
    cJSON *stored = parse(text.data);
    assert_int_equal(train_spec_read(&b, stored, &lim, &e), 0);
    train_spec_put(&again, &b);
    assert_string_equal(text.data, again.data);
    assert_true(b.data.kind == DATA_ROWS && b.data.no_eos && b.eval.kind == DATA_FILE && b.p.lora_r == 2);
    cJSON_Delete(tree);
    cJSON_Delete(stored);
    train_spec_free(&a);
    train_spec_free(&b);
    buf_free(&text);
    buf_free(&again);
}

/* A base that is not loaded: a default is made to fit when the job begins, what the client named is not. */
static void test_a_default_length_fits_later(void **state)
{
    static const struct {
        const char *body;
        bool fits;
    } cases[] = {{"", true},
                 {",\"hyperparameters\":{}", true},
                 {",\"hyperparameters\":{\"epochs\":2,\"max_length\":null}", true},
                 {",\"hyperparameters\":{\"max_length\":512}", false},
                 {",\"hyperparameters\":{\"max_seq_length\":512}", false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct train_limits lim = {.model_id = "m", .max_model_len = INT_MAX, .max_lora_rank = 8};
        struct train_spec a, b;
        struct buf text = {0};
        buf_printf(&text, "{\"dataset\":{\"rows\":[{\"a\":1}]}%s}", cases[i].body);
        cJSON *tree = parse(text.data);
        assert_int_equal(train_spec_read(&a, tree, &lim, &e), 0);
        assert_true(a.fit_length == cases[i].fits && a.p.max_length == 512 && a.p.lora_r == 8);
        buf_clear(&text);
        train_spec_put(&text, &a);
        cJSON *stored = parse(text.data);
        train_spec_read(&b, stored, &lim, &e);
        assert_true((strstr(e.msg, "fit_length") != NULL) == cases[i].fits); /* no client may say it */
        train_spec_free(&b);
        lim = (struct train_limits){.model_id = "", .weight_type = "", .max_model_len = INT_MAX, .stored = true};
        assert_int_equal(train_spec_read(&b, stored, &lim, &e), 0);
        assert_true(b.fit_length == cases[i].fits);
        cJSON_Delete(tree);
        cJSON_Delete(stored);
        train_spec_free(&a);
        train_spec_free(&b);
        buf_free(&text);
    }
}

static void test_files_and_weights(void **state)
{
    struct train_limits lim = {.model_id = "m", .weight_type = "bf16", .max_model_len = 512, .max_lora_rank = 256};
    struct train_spec a;
    struct buf text = {0};
    static const char stored[] = "\"path\":[\"a*.jsonl\",[\"b\",\"c\"],\"d\"],\"weights\":[0.7,0.1,2],"
                                 "\"map\":{\"prompt\":\"question\"}";
    static const char *const bad[][2] = {
        {"\"path\":[]", "dataset.path: the list is empty"},
        {"\"path\":[\"a\",[]]", "dataset.path: a list in it is empty"},
        {"\"path\":[\"a\",[[\"b\"]]]", "dataset.path: expected a string, or a list of them"},
        {"\"file\":[\"a\",7]", "dataset.file: expected a string, or a list of them"},
        {"\"file\":\"a\",\"weights\":[1,2]", "dataset.weights: expected 1, one for each set of `path` or `file`"},
        {"\"rows\":[{}],\"weights\":[1]", "dataset.weights: expected 0, one for each set of `path` or `file`"},
        {"\"path\":\"a\",\"weights\":[0]", "dataset.weights: must be numbers above 0 and at most 1e9"},
        {"\"path\":\"a\",\"map\":{\"text\":3}", "dataset.map: text: expected a string"},
        {"\"path\":\"a\",\"map\":[]", "dataset.map: expected an object"},
        {"\"path\":\"a\",\"weights\":3", "dataset.weights: expected a list of numbers"},
    };
    (void)state;
    buf_printf(&text, "{\"dataset\":{%s}}", stored);
    cJSON *tree = parse(text.data);
    assert_int_equal(train_spec_read(&a, tree, &lim, &e), 0);
    assert_int_equal(a.data.n_refs, 4);
    assert_int_equal(a.data.ref[2].set, 1);
    buf_clear(&text);
    train_spec_put(&text, &a);
    assert_non_null(strstr(text.data, stored));
    cJSON_Delete(tree);
    train_spec_free(&a);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        buf_clear(&text);
        buf_printf(&text, "{\"dataset\":{%s}}", bad[i][0]);
        tree = parse(text.data);
        assert_int_equal(train_spec_read(&a, tree, &lim, &e), 422);
        assert_string_equal(e.msg, bad[i][1]);
        cJSON_Delete(tree);
        train_spec_free(&a);
    }
    buf_free(&text);
}

static void test_names(void **state)
{
    static const char *const good[] = {"a", "A-1_b.c:d", "ft:demo:tandem::abc"};
    static const char *const bad[] = {"", ".", "..", ".a", "-a", "a/b", "a b", "a\n", "ä"};
    char id[DATA_ID_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_true(data_name_ok(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(data_name_ok(bad[i]));
    data_id(id, "job-");
    assert_true(data_name_ok(id) && strlen(id) == 24);
}

/* ---- routes ---------------------------------------------------------------------------------------------------- */

static void test_routes_with_a_parameter(void **state)
{
    static const struct http_route routes[] = {
        {HTTP_M_GET, "/train/{id}", NULL, 0},      {HTTP_M_POST, "/train/{id}/cancel", NULL, 0},
        {HTTP_M_POST, "/train/validate", NULL, 0}, {HTTP_M_DELETE, "/train/{id}", NULL, 0},
        {HTTP_M_GET, "/train/*", NULL, 0},
    };
    static const struct {
        enum http_method method;
        const char *path, *param;
        int status, route;
    } cases[] = {
        {HTTP_M_GET, "/train/job-1", "job-1", 200, 0},    {HTTP_M_HEAD, "/train/job-1", "job-1", 200, 0},
        {HTTP_M_DELETE, "/train/job-1", "job-1", 200, 3}, {HTTP_M_POST, "/train/job-1/cancel", "job-1", 200, 1},
        {HTTP_M_POST, "/train/validate", "", 200, 2},     {HTTP_M_POST, "/train/other", "", 405, -1},
        {HTTP_M_POST, "/train//cancel", "", 405, -1}, /* a segment is not empty; the star still has the path */
        {HTTP_M_GET, "/train/a/b", "", 200, 4},           {HTTP_M_GET, "/trai/a", "", 404, -1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct route_match m;
        route_find(routes, 5, cases[i].method, cases[i].path, &m);
        assert_int_equal(m.status, cases[i].status);
        assert_ptr_equal(m.route, cases[i].route < 0 ? NULL : &routes[cases[i].route]);
        if (m.route) assert_string_equal(m.param, cases[i].param);
    }
}

/* ---- forms ----------------------------------------------------------------------------------------------------- */

static bool on_begin(void *arg, const struct multipart_part *p, struct err *err)
{
    (void)err;
    buf_printf(arg, "<%s|%s>", p->name, p->filename);
    return true;
}

static bool on_data(void *arg, const char *p, size_t n, struct err *err)
{
    (void)err;
    buf_append(arg, p, n);
    return true;
}

static bool on_end(void *arg, struct err *err)
{
    (void)err;
    buf_str(arg, "</>");
    return true;
}

/* However the bytes are cut, the same comes out: content that nearly is a delimiter among it. */
static void test_forms_in_pieces(void **state)
{
    static const struct multipart_events on = {on_begin, on_data, on_end};
    static const char body[] = "--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\none\r\n--\r\r\n--\r\n-B\r\n"
                               "--B\r\ncontent-disposition: form-data; name=f; filename=\"x\\y/z\"\r\n\r\n\r\n--B--";
    (void)state;
    for (size_t piece = 1; piece <= sizeof body; piece++) {
        struct multipart m;
        struct buf seen = {0};
        assert_int_equal(multipart_init(&m, "multipart/form-data; boundary=B", &on, &seen, &e), 0);
        for (size_t at = 0; at < sizeof body - 1; at += piece) {
            size_t n = sizeof body - 1 - at < piece ? sizeof body - 1 - at : piece;
            assert_int_equal(multipart_feed(&m, body + at, n, &e), 0);
        }
        assert_int_equal(multipart_end(&m, &e), 0);
        assert_string_equal(seen.data, "<a|>one\r\n--\r\r\n--\r\n-B</><f|z></>");
        buf_free(&seen);
    }
}

/* An event says all skips since the job began: what was counted before a pause, or by another process, is not new. */
static void test_skips_are_counted_once(void **state)
{
    (void)state;
    static struct jobs jobs;
    static struct run run = {.jobs = &jobs};
    static const struct {
        int64_t step, skipped;
        uint64_t counted;
    } steps[] = {{1, 1, 1}, {2, 1, 1}, {3, 3, 3}, {2, 4, 4}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        jobs_on_event(&run,
                      &(struct train_event){.kind = TRAIN_STEP, .step = steps[i].step, .skipped = steps[i].skipped});
        assert_int_equal(jobs.view.skipped, steps[i].counted);
    }
    jobs.view.last = (struct train_event){0}; /* as after a pause */
    jobs_on_event(&run, &(struct train_event){.kind = TRAIN_STEP, .step = 4, .skipped = 4});
    assert_int_equal(jobs.view.skipped, 4);
    jobs_on_event(&run, &(struct train_event){.kind = TRAIN_STEP, .step = 5, .skipped = 5});
    assert_int_equal(jobs.view.skipped, 5);
}

/* What the runner itself notes has no figures, and those of a job outlive it. */
static void test_figures_of_the_last_job(void **state)
{
    (void)state;
    static struct jobs jobs;
    static struct run run = {.jobs = &jobs};
    const struct jobs_view *v = &jobs.view;
    struct train_event ev = {.kind = TRAIN_PLAN, .eval_loss = NAN, .best_eval_loss = NAN};
    jobs_on_event(&run, &ev);
    assert_true(isnan(v->eval_loss) && isnan(v->best_eval_loss));
    ev = (struct train_event){
        .kind = TRAIN_EVAL, .eval_loss = 3, .best_eval_loss = 2, .evals_since_best = 4, .usage.host_peak = 77};
    jobs_on_event(&run, &ev);
    jobs_on_event(&run, &(struct train_event){.kind = TRAIN_WARNING});
    assert_true(v->eval_loss == 3 && v->best_eval_loss == 2);
    ev = (struct train_event){.kind = TRAIN_STEP,
                              .step = 9,
                              .eval_loss = NAN,
                              .best_eval_loss = 2,
                              .evals_since_best = 4,
                              .usage.host_peak = 99};
    jobs_on_event(&run, &ev);
    assert_true(v->eval_loss == 3 && v->evals_since_best == 4 && v->peak_host == 99);
    ev = (struct train_event){.kind = TRAIN_PLAN, .eval_loss = NAN, .best_eval_loss = 1.5};
    jobs_on_event(&run, &ev); /* another job, one that goes on */
    assert_true(isnan(v->eval_loss) && v->best_eval_loss == 1.5 && v->evals_since_best == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_full_there_and_back),
        cmocka_unit_test(test_wrong_fields_are_named),
        cmocka_unit_test(test_other_names),
        cmocka_unit_test(test_one_set_of_limits),
        cmocka_unit_test(test_a_job_is_stored_as_it_was_asked),
        cmocka_unit_test(test_a_default_length_fits_later),
        cmocka_unit_test(test_files_and_weights),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_routes_with_a_parameter),
        cmocka_unit_test(test_forms_in_pieces),
        cmocka_unit_test(test_micro_tokens),
        cmocka_unit_test(test_skips_are_counted_once),
        cmocka_unit_test(test_figures_of_the_last_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
