/* A row decoded to text, split where its mask changes (dataset.h). */
#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/data/dataset.h"

#include <stdlib.h>

static void segment_end(struct dataset_preview *p, struct buf *text)
{
    struct dataset_segment *s = &p->v[p->n - 1];
    if (!text->data) buf_str(text, "");
    s->text = text->data;
    s->bytes = text->len;
    *text = (struct buf){0};
}

void dataset_preview(const struct dataset_row *row, const struct tokenizer *t, struct dataset_preview *out)
{
    struct detok d = {0};
    struct buf text = {0};
    *out = (struct dataset_preview){0};
    for (int i = 0; i < row->n; i++) {
        bool trained = row->trained[i];
        if (!out->n || out->v[out->n - 1].trained != trained) {
            if (out->n) segment_end(out, &text);
            out->v = mem_resize(out->v, (size_t)out->n + 1, sizeof *out->v);
            out->v[out->n++] = (struct dataset_segment){.trained = trained};
        }
        out->v[out->n - 1].tokens++;
        detok_push(&d, t, row->id[i], &text); /* an incomplete character goes to the next segment */
    }
    detok_flush(&d, t, &text);
    if (out->n) segment_end(out, &text);
}

void dataset_preview_free(struct dataset_preview *p)
{
    for (int i = 0; i < p->n; i++) free(p->v[i].text);
    free(p->v);
    *p = (struct dataset_preview){0};
}
