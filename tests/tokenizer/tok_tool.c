/* The tokenizer behind a pipe, for test_conformance.py.  One request per line, its payload right behind it:
 *
 *   parse 0 N       payload: a tokenizer.json; it becomes the tokenizer of what follows.  Answer: nanoseconds
 *   gguf 0 N        payload: a GGUF file.  Answer: the tokenizer.json made from it
 *   encode F N      payload: text; F: TOKENIZE_ flags.  Answer: (id, start, end) as three int32 a token
 *   input M N       payload: two texts, each behind a uint32 of its length; the second's UINT32_MAX: there is none.
 *                   M: the limit, and in bits 16.. 1: no template, 2: cut in front, 4, 8: cut the first, the second.
 *                   Answer: (id, start, end, type) as four int32 a token
 *   decode S N      payload: ids as int32; S: 1 to skip special tokens.  Answer: the text
 *   stream M N      payload: ids; M: mid_context.  Answer: for each push, and for the flush, a uint32 length and bytes
 *   info 0 0        answer: "size", then one line per id: special flag and spelling's length, spelling
 *   find 0 N        payload: a spelling.  Answer: its id in decimal
 *   time R N        payload: text, encoded R times.  Answer: the best time in nanoseconds of processor time
 *
 * The answer is a line "ok N" and N bytes, or "err" and a message on one line.  */
#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/files/gguf_model.h"
#include "engine/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct tokenizer *tokenizer;

/* processor time, so that a busy machine does not make a test fail */
static uint64_t cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int do_parse(long arg, const char *in, size_t n, struct buf *out, struct err *e)
{
    tokenizer_close(tokenizer);
    uint64_t start = cpu_now();
    tokenizer = tokenizer_parse(in, n, e);
    buf_printf(out, "%llu", (unsigned long long)(cpu_now() - start));
    return tokenizer ? 0 : e->code;
}

static int do_gguf(long arg, const char *in, size_t n, struct buf *out, struct err *e)
{
    struct gguf *g = gguf_parse(in, n, e);
    int rc = g ? gguf_tokenizer_json(g, out, e) : e->code;
    gguf_close(g);
    return rc;
}

static int do_encode(long arg, const char *in, size_t n, struct buf *out, struct err *e)
{
    struct tokens t = {0};
    int rc = tokenizer_encode(tokenizer, in, n, (unsigned)arg, &t, e);
    for (size_t i = 0; i < t.n && !rc; i++) buf_append(out, &t.v[i], sizeof t.v[i]);
    tokens_free(&t);
    return rc;
}

static int do_input(long arg, const char *in, size_t n, struct buf *out, struct err *e)
{
    const char *texts[2] = {NULL, NULL};
    uint32_t sizes[2] = {0, 0};
    for (int i = 0; i < 2 && n >= 4; i++) {
        memcpy(&sizes[i], in, 4);
        in += 4;
        n -= 4;
        if (sizes[i] > n) break;
        texts[i] = in;
        in += sizes[i];
        n -= sizes[i];
    }
    struct encode_input x = {.text = texts[0], .n_text = sizes[0], .pair = texts[1], .n_pair = texts[1] ? sizes[1] : 0};
    x.max = (size_t)(arg & 0xffff);
    x.cut = arg & 4 << 16 ? CUT_FIRST : arg & 8 << 16 ? CUT_SECOND : CUT_LONGEST;
    x.cut_left = arg & 2 << 16;
    struct tokens t = {0};
    struct buf types = {0};
    int rc = tokenizer_encode_input(tokenizer, &x, arg & 1 << 16 ? 0 : TOKENIZE_SPECIAL, &t, &types, e);
    for (size_t i = 0; i < t.n && !rc; i++) {
        int32_t type = types.data[i];
        buf_append(out, &t.v[i], sizeof t.v[i]);
        buf_append(out, &type, sizeof type);
    }
    tokens_free(&t);
    buf_free(&types);
    return rc;
}

static int do_decode(long arg, const char *in, size_t n, struct buf *out, struct err *e)
{
    tokenizer_decode(tokenizer, (const int32_t *)(const void *)in, n / 4, arg != 0, out);
    return 0;
}

static void piece_out(struct buf *piece, struct buf *out)
{
    uint32_t n = (uint32_t)piece->len;
    buf_append(out, &n, sizeof n);
    buf_append(out, piece->data, n);
    buf_clear(piece);
}

static int do_stream(long arg, const char *in, size_t n, struct buf *out, struct err *e)
{
    struct detok d = {.mid_context = arg != 0};
    struct buf piece = {0};
    for (size_t i = 0; i + 4 <= n; i += 4) {
        int32_t id;
        memcpy(&id, in + i, sizeof id);
        detok_push(&d, tokenizer, id, &piece);
        piece_out(&piece, out);
    }
    detok_flush(&d, tokenizer, &piece);
    piece_out(&piece, out);
    buf_free(&piece);
    return 0;
}

static int do_info(long arg, const char *in, size_t n, struct buf *out, struct err *e)
{
    int size = tokenizer_size(tokenizer);
    buf_printf(out, "%d\n", size);
    for (int32_t id = 0; id < size; id++) {
        const char *s = tokenizer_spelling(tokenizer, id);
        buf_printf(out, "%d %d %s\n", tokenizer_is_special(tokenizer, id), s ? (int)strlen(s) : -1, s ? s : "");
    }
    return 0;
}

static int do_find(long arg, const char *in, size_t n, struct buf *out, struct err *e)
{
    buf_printf(out, "%d", (int)tokenizer_find(tokenizer, in));
    return 0;
}

static int do_time(long arg, const char *in, size_t n, struct buf *out, struct err *e)
{
    uint64_t best = UINT64_MAX;
    for (long i = 0; i < arg; i++) {
        struct tokens t = {0};
        uint64_t start = cpu_now();
        int rc = tokenizer_encode(tokenizer, in, n, 0, &t, e);
        uint64_t took = cpu_now() - start;
        tokens_free(&t);
        if (rc) return rc;
        if (took < best) best = took;
    }
    buf_printf(out, "%llu", (unsigned long long)best);
    return 0;
}

static const struct {
    const char *name;
    int (*run)(long arg, const char *in, size_t n, struct buf *out, struct err *e);
} commands[] = {{"parse", do_parse}, {"gguf", do_gguf},     {"encode", do_encode},
                {"input", do_input}, {"decode", do_decode}, {"stream", do_stream},
                {"info", do_info},   {"find", do_find},     {"time", do_time}};

static int command_run(const char *name, long arg, const char *in, size_t n, struct buf *out, struct err *e)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(name, commands[i].name)) continue;
        if (commands[i].run != do_parse && commands[i].run != do_gguf && !tokenizer)
            return err_set(e, ERR_INVALID, "no tokenizer yet");
        return commands[i].run(arg, in, n, out, e);
    }
    return err_set(e, ERR_INVALID, "no such command");
}

int main(void)
{
    char line[128], name[32];
    while (fgets(line, sizeof line, stdin)) {
        long arg;
        size_t n;
        if (sscanf(line, "%31s %ld %zu", name, &arg, &n) != 3) return 2;
        char *in = mem_alloc(n + 1);
        if (fread(in, 1, n, stdin) != n) return 2;
        in[n] = 0;
        struct buf out = {0};
        struct err e = {0};
        if (command_run(name, arg, in, n, &out, &e)) {
            printf("err %s\n", e.msg);
        } else {
            printf("ok %zu\n", out.len);
            if (out.len) fwrite(out.data, 1, out.len, stdout);
        }
        fflush(stdout);
        buf_free(&out);
        free(in);
    }
    tokenizer_close(tokenizer);
    return 0;
}
