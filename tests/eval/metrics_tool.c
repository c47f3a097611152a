/* The C side of test_text_metrics.py.  Each line of stdin is {"text", "references", "stem", "ignore"}; a line of scores
 * comes back for each, then one of them all together.  With the argument `stem` each line is a word, and its stem comes
 * back. */
#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/data/json.h"
#include "engine/eval/match.h"
#include "engine/eval/metrics.h"
#include "engine/eval/stem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_BYTES = 1 << 22 };

static void print_scores(const double *sums, bool single)
{
    const struct evaluation_metric *metrics;
    int n = evaluation_metrics(EVALUATION_GENERATION, &metrics);
    for (int m = 0; m < n; m++)
        printf("%s\"%s\":%.17g", m ? "," : "{", metrics[m].name, metrics_score(EVALUATION_GENERATION, m, sums, single));
    puts("}");
}

static void score(const cJSON *row, double *sums)
{
    const cJSON *list = cJSON_GetObjectItem(row, "references");
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(row, "text")), *refs[EVALUATION_LIST_MAX];
    unsigned ignore = (unsigned)cJSON_GetNumberValue(cJSON_GetObjectItem(row, "ignore"));
    int n = 0;
    for (const cJSON *r = list->child; r; r = r->next) refs[n++] = r->valuestring;
    sums[GENERATION_ROWS] = 1;
    sums[GENERATION_EXACT] = match_exact(text, refs, n, ignore);
    rouge_score(text, refs, n, cJSON_IsTrue(cJSON_GetObjectItem(row, "stem")), sums + GENERATION_ROUGE);
    bleu_count(text, refs, n, sums + GENERATION_BLEU);
    chrf_count(text, refs, n, sums + GENERATION_CHRF, sums + GENERATION_CHRF_PLUS);
}

static void stem_lines(char *line)
{
    while (fgets(line, LINE_MAX_BYTES, stdin)) printf("%.*s\n", (int)stem_word(line, strcspn(line, "\n")), line);
    free(line);
}

int main(int argc, char **argv)
{
    char *line = mem_alloc(LINE_MAX_BYTES);
    double all[GENERATION_SUMS] = {0};
    if (argc > 1 && strcmp(argv[1], "stem") == 0) return stem_lines(line), 0;
    while (fgets(line, LINE_MAX_BYTES, stdin)) {
        double sums[GENERATION_SUMS] = {0};
        struct err e = {0};
        cJSON *row = row_parse(line, strlen(line), &e);
        if (!row) {
            fprintf(stderr, "%s\n", e.msg);
            return 1;
        }
        score(row, sums);
        print_scores(sums, true);
        for (int i = 0; i < GENERATION_SUMS; i++) all[i] += sums[i];
        cJSON_Delete(row);
    }
    print_scores(all, false);
    free(line);
    return 0;
}
