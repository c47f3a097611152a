/* tandem doctor: what on this machine slows a model down, each with what to change.  Needs no rights and changes nothing.
 * Exit status 0: nothing to change, 1: something. */
#include "server/cli/cmd.h"

#include "engine/bench/bench.h"
#include "server/ops/machine.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

static const char usage[] = "tandem doctor [--json]";
static const char about[] = "Looks at the machine as far as a model's speed depends on it, and says what to change.\n"
                            "Changes nothing and needs no rights.  Exit status 0: nothing to change, 1: something.";

static void print_text(const struct finding *f, int n)
{
    static const char *const marks[] = {"?", "ok", "!"};
    for (int i = 0; i < n; i++) {
        printf("%-3s %-18s %s\n", marks[f[i].state], f[i].name, f[i].found);
        if (*f[i].advice) printf("    %-18s -> %s\n", "", f[i].advice);
    }
}

static void print_json(const struct finding *f, int n)
{
    static const char *const states[] = {"unknown", "good", "change"};
    cJSON *root = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(root, "findings");
    for (int i = 0; i < n; i++) {
        cJSON *one = cJSON_CreateObject();
        cJSON_AddStringToObject(one, "name", f[i].name);
        cJSON_AddStringToObject(one, "state", states[f[i].state]);
        cJSON_AddStringToObject(one, "found", f[i].found);
        cJSON_AddStringToObject(one, "advice", f[i].advice);
        cJSON_AddItemToArray(list, one);
    }
    char *text = cJSON_Print(root);
    if (text) puts(text);
    cJSON_free(text);
    cJSON_Delete(root);
}

static void look(struct machine *m, const struct settings *s)
{
    struct bench_system system;
    machine_read(m, "", NULL);
    bench_system_read(&system);
    m->threads = s->threads;
    snprintf(m->processor, sizeof m->processor, "%s", system.cpu);
    snprintf(m->level, sizeof m->level, "%s", system.best_level);
    snprintf(m->best_level, sizeof m->best_level, "%s", system.fastest_level);
    if (!m->n_devices) return;
    m->gpu_tried = true;
    bench_opens("cuda", m->gpu_refusal);
}

int cmd_doctor(int argc, char **argv)
{
    static struct machine m;
    static struct finding findings[MACHINE_FINDINGS_MAX];
    struct settings s;
    int status;
    if (cmd_settings(&s, CMD_DOCTOR, argc, argv, usage, about, &status)) {
        look(&m, &s);
        int n = machine_judge(&m, findings);
        status = 0;
        for (int i = 0; i < n; i++) status |= findings[i].state == FINDING_CHANGE;
        (s.json ? print_json : print_text)(findings, n);
    }
    settings_free(&s);
    return status;
}
