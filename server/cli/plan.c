/* tandem plan: how a job could be divided over GPUs that need not be here.  Main thread. */
#include "server/cli/cmd.h"
#include "server/cli/hyperparameters.h"
#include "server/jobs/split_report.h"
#include "server/jobs/train_aliases.h"
#include "server/jobs/train_params.h"

#include <stdio.h>
#include <string.h>

static const char usage[] = "tandem plan --gpus 8x80G [--model DIR] [--method lora|qlora|full|...] [--link GB/S] "
                            "[--tflops N | --bench FILE] [--json] [hyperparameters]";
static const char about[] =
    "Says which ways of dividing a job over GPUs fit: their memory on a card, the bytes that a step sends, and the "
    "time\n"
    "to expect from the rates of cards and link.  Reads the shapes of a model, not its weights.";

static int run(const struct settings *s, const cJSON *hyperparameters)
{
    struct err e = {0};
    struct train_split_question q = {
        .model = settings_model_dir(s), .quantize = s->quantize, .link = s->link * 1e9, .flops = s->tflops * 1e12};
    struct train_split_answer a;
    struct json_at at = {hyperparameters, "", &e};
    enum train_method method;
    struct buf out = {0};
    int batch_rows = 0;
    train_method_parse(s->method, &method);
    train_params_default(&q.p, method);
    if (!train_hyperparameters_read(&at, &q.p, &batch_rows) || split_gpus_parse(s->gpus, &q.gpus, &q.memory, &e)) {
        fprintf(stderr, "tandem: %s\nusage: %s\n", e.msg, usage);
        return 2;
    }
    if (s->bench_file && !(q.flops > 0)) q.flops = split_bench_rate(s->bench_file, &e);
    if (e.code || train_splits(&q, &a, &e)) return cmd_fail(&e);
    (s->json ? split_json : split_text)(&out, &q, &a);
    if (s->json) buf_char(&out, '\n');
    fwrite(out.data, 1, out.len, stdout);
    buf_free(&out);
    return 0;
}

int cmd_plan(int argc, char **argv)
{
    struct settings s = {0};
    struct err e = {0};
    int status = 2;
    cJSON *hyperparameters = hyperparameters_take(&argc, argv, &e);
    if (!hyperparameters) {
        fprintf(stderr, "tandem: %s\nusage: %s\n", e.msg, usage);
        return status;
    }
    if (cmd_settings(&s, CMD_PLAN, argc, argv, usage, about, &status)) {
        if (s.gpus) {
            status = run(&s, hyperparameters);
        } else {
            fprintf(stderr, "tandem: --gpus is missing\nusage: %s\n", usage);
            status = 2;
        }
    } else if (status == 0) {
        hyperparameters_help();
    }
    settings_free(&s);
    cJSON_Delete(hyperparameters);
    return status;
}
