/* tandem chat: a conversation in the terminal, or line by line in a pipe, with a model in this process.  Main thread;
 * the engine thread and the signal handler only write to an eventfd. */
#include "server/cli/cmd.h"
#include "server/cli/conversation.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static const char usage[] = "tandem chat [--model DIR] [--system TEXT] [options]";
static const char about[] =
    "Talks with a model: a line of input is a message, the answer goes to stdout as it is generated.  A model without\n"
    "chat template continues each line instead.  /help lists the commands; Ctrl-C stops an answer, then ends.";
static const char commands[] = "/reset          forget what was said\n"
                               "/system TEXT    give the model instructions; without TEXT take them back\n"
                               "/help           print this\n"
                               "/exit           end, as Ctrl-D does\n"
                               "A line that ends with \\ goes on in the next one; // at the beginning stands for /.\n";

enum { LINE_MAX_BYTES = 1 << 20, ANSWER_ROOM = 256, EXIT_INTERRUPTED = 130 };

struct chat {
    struct settings *settings;
    struct engine *engine;
    struct conversation said;
    bool interactive;
    struct buf line;  /* the message */
    struct buf input; /* read, but not consumed yet */
    bool input_ended;
};

static bool has_turns(const struct chat *c)
{
    return conversation_has_turns(&c->said);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static int wake = -1; /* an eventfd: signals events of the engine, or Ctrl-C */
static volatile sig_atomic_t interrupted;

static void poke(void)
{
    int keep = errno;
    uint64_t one = 1;
    if (write(wake, &one, sizeof one) < 0) errno = keep; /* the counter is full, so the reader wakes anyway */
    errno = keep;
}

static void on_notify(void *arg)
{
    (void)arg;
    poke();
}

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
    poke();
}

/* Waits until the eventfd is signalled or, with_input, stdin is readable.  @return whether stdin is readable. */
static bool wait_for(bool with_input)
{
    struct pollfd fds[2] = {{.fd = wake, .events = POLLIN}, {.fd = STDIN_FILENO, .events = POLLIN}};
    if (poll(fds, with_input ? 2 : 1, -1) < 0) return false;
    uint64_t count;
    if (fds[0].revents && read(wake, &count, sizeof count) < 0) return false;
    return with_input && fds[1].revents;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* Appends a line without its line feed.  @return false at the end of input or on Ctrl-C. */
static bool read_line(struct chat *c, struct buf *line, struct err *e)
{
    for (;;) {
        const char *end = c->input.len ? memchr(c->input.data, '\n', c->input.len) : NULL;
        if (end || (c->input_ended && c->input.len)) {
            size_t n = end ? (size_t)(end - c->input.data) : c->input.len, used = n + (end != NULL);
            buf_append(line, c->input.data, n - (n && c->input.data[n - 1] == '\r'));
            c->input.len -= used;
            memmove(c->input.data, c->input.data + used, c->input.len);
            return true;
        }
        if (c->input.len > LINE_MAX_BYTES) err_set(e, ERR_INVALID, "a line of more than 1 MiB");
        if (e->code || c->input_ended || interrupted) return false;
        if (!wait_for(true)) continue;
        char block[4096];
        ssize_t n = read(STDIN_FILENO, block, sizeof block);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n > 0) buf_append(&c->input, block, (size_t)n);
        c->input_ended = n <= 0;
    }
}

static void prompt(const struct chat *c, const char *text)
{
    if (!c->interactive) return;
    fputs(text, stdout);
    fflush(stdout);
}

/* Reads a message: a line and its continuation lines.  @return false when there is none. */
static bool read_message(struct chat *c, struct buf *line, struct err *e)
{
    buf_clear(line);
    buf_str(line, "");
    prompt(c, "> ");
    bool more = read_line(c, line, e), any = more;
    while (more && line->len && line->data[line->len - 1] == '\\') {
        line->data[line->len - 1] = '\n';
        prompt(c, "  ");
        more = read_line(c, line, e);
    }
    return any && !e->code && !interrupted;
}

/* ---- an answer --------------------------------------------------------------------------------------------------- */

/* Applies the model's recommended sampling settings where the user set none. */
static void take_recommended(struct settings *s, const struct engine_info *info)
{
    if (!settings_given(s, "repetition-penalty") && info->repetition_penalty > 0)
        s->repetition_penalty = (double)info->repetition_penalty;
    bool greedy = settings_given(s, "temperature") && !(s->temperature > 0);
    if (info->do_sample != 1 || greedy) return;
    if (!settings_given(s, "temperature")) s->temperature = info->temperature > 0 ? (double)info->temperature : 1;
    if (!settings_given(s, "top-p") && info->top_p > 0) s->top_p = (double)info->top_p;
    if (!settings_given(s, "top-k") && info->top_k > 0) s->top_k = info->top_k;
}

/* @return how many bytes at the end of the text may be the beginning of a stop text, which is not shown. */
static size_t stop_begun(const struct gen_request *r, const struct buf *text)
{
    size_t most = 0;
    for (int i = 0; i < r->n_stop; i++) {
        for (size_t n = strlen(r->stop[i]); n-- > most + 1;) {
            if (n > text->len || memcmp(text->data + text->len - n, r->stop[i], n) != 0) continue;
            most = n;
            break;
        }
    }
    return most;
}

/* Removes the stop text that ended the answer. */
static void cut_stop(const struct gen_request *r, const struct event *done, struct buf *text)
{
    if (done->finish != FINISH_STOP || done->stop_index < 0 || done->stop_index >= r->n_stop) return;
    const char *stop = r->stop[done->stop_index];
    size_t n = strlen(stop);
    if (n <= text->len && memcmp(text->data + text->len - n, stop, n) == 0) text->len -= n;
}

/* Prints the answer while it is generated and appends it to *text. */
static int run(struct chat *c, const struct gen_request *r, struct buf *text, struct event *done, struct err *e)
{
    uint64_t id = engine_submit(c->engine, r, e);
    if (!id) return e->code;
    bool cancelled = false;
    size_t shown = 0;
    while (done->kind != EV_DONE) {
        if (interrupted && !cancelled) {
            engine_cancel(c->engine, id);
            cancelled = true;
        }
        struct event_batch *list = engine_events(c->engine);
        if (!list) {
            wait_for(false);
            continue;
        }
        for (struct event_batch *b = list; b; b = b->next) {
            for (int i = 0; i < b->n; i++) {
                const struct event *ev = &b->v[i];
                if (ev->kind == EV_DONE) *done = *ev;
                if (ev->kind != EV_TOKEN) continue;
                buf_append(text, b->text + ev->text, ev->gen_len);
            }
        }
        engine_events_done(c->engine, list);
        if (done->kind == EV_DONE) cut_stop(r, done, text);
        size_t end = done->kind == EV_DONE ? text->len : text->len - stop_begun(r, text);
        if (end > shown) fwrite(text->data + shown, 1, end - shown, stdout);
        if (end > shown) shown = end;
        if (fflush(stdout)) return err_set(e, ERR_IO, "stdout is closed");
    }
    if (done->finish == FINISH_ERROR) return err_set(e, ERR_INVALID, "generation failed: %s", done->error);
    return 0;
}

static struct gen_request make_request(const struct chat *c, const int32_t *ids, int n)
{
    static const char *const next_line[] = {"\nuser:"};
    const struct settings *s = c->settings;
    bool plain = c->said.plain && !s->stop.n, limited = settings_given(s, "max-new-tokens") || !has_turns(c);
    int rest = engine_info(c->engine)->max_total_tokens - n;
    return (struct gen_request){
        .prompt = ids,
        .n_prompt = n,
        .sampling = cmd_sampling(s),
        .max_new_tokens = limited && s->max_new_tokens < rest ? s->max_new_tokens : rest,
        .ignore_eos = s->ignore_eos,
        .stop = plain ? next_line : (const char *const *)s->stop.v,
        .n_stop = plain ? 1 : s->stop.n,
        .adapter = s->adapter ? "adapter" : NULL,
    };
}

static int answer(struct chat *c, const char *message, size_t length, struct err *e)
{
    struct settings *s = c->settings;
    const int total = engine_info(c->engine)->max_total_tokens;
    int room = settings_given(s, "max-new-tokens") && s->max_new_tokens < ANSWER_ROOM ? s->max_new_tokens : ANSWER_ROOM;
    if (room > total / 4) room = total / 4;
    if (room < 1) room = 1;

    conversation_user(&c->said, message, length);
    int n = 0, forgotten = 0;
    int32_t *ids = conversation_prompt(&c->said, total - room, &n, &forgotten, e);
    if (forgotten) fprintf(stderr, "[forgot the %d oldest messages: there is no more room]\n", forgotten);
    struct buf text = {0};
    struct event done = {.kind = EV_TOKEN};
    int rc = ids ? 0 : e->code;
    if (ids) {
        const struct gen_request r = make_request(c, ids, n);
        rc = run(c, &r, &text, &done, e);
    }
    if (!rc && (!text.len || text.data[text.len - 1] != '\n')) putchar('\n');
    if (!rc && done.finish == FINISH_LENGTH && has_turns(c))
        fprintf(stderr, "[cut off after %d tokens]\n", done.n_generated);
    if (text.len) {
        conversation_assistant(&c->said, text.data, text.len);
    } else {
        conversation_undo(&c->said);
    }
    fflush(stdout);
    buf_free(&text);
    free(ids);
    return rc;
}

/* ---- the conversation -------------------------------------------------------------------------------------------- */

static void set_system(struct chat *c, const char *text)
{
    conversation_system(&c->said, text);
    if (text && !has_turns(c)) fprintf(stderr, "[the model has no chat template: it knows no instructions]\n");
}

/* Executes a command line, which begins with one '/'.  @return false to end the program. */
static bool do_command(struct chat *c, const char *line)
{
    const char *rest = line + strcspn(line, " \t\n");
    size_t n = (size_t)(rest - line);
    rest += strspn(rest, " \t\n");
    if ((n == 5 && memcmp(line, "/exit", n) == 0) || (n == 5 && memcmp(line, "/quit", n) == 0)) return false;
    if (n == 6 && memcmp(line, "/reset", n) == 0) {
        conversation_reset(&c->said);
    } else if (n == 7 && memcmp(line, "/system", n) == 0) {
        set_system(c, rest);
    } else {
        if (strcmp(line, "/help") != 0) fprintf(stderr, "[unknown command %.*s]\n", (int)n, line);
        fputs(commands, stderr);
    }
    return true;
}

static void greet(const struct chat *c)
{
    const struct engine_info *info = engine_info(c->engine);
    if (!has_turns(c))
        fprintf(stderr, "%s has no chat template: it continues each line; an empty line goes on.%s\n", info->model_id,
                c->interactive ? "  /help lists the commands." : "");
    else if (c->interactive)
        fprintf(stderr, "%s on %s.  /help lists the commands.\n", info->model_id, info->device);
}

/* @return the exit status, or an error code. */
static int talk(struct chat *c, struct err *e)
{
    for (;;) {
        if (!read_message(c, &c->line, e)) {
            if (c->interactive) putchar('\n');
            return e->code ? e->code : interrupted && !c->interactive ? EXIT_INTERRUPTED : 0;
        }
        const char *line = c->line.data;
        bool slash = line[0] == '/', command = slash && line[1] != '/', more = true;
        size_t skip = slash && !command;
        int rc = 0;
        if (command)
            more = do_command(c, line);
        else if (c->line.len || (!has_turns(c) && c->said.text.len))
            rc = answer(c, line + skip, c->line.len - skip, e);
        if (rc && (!c->interactive || e->code == ERR_IO)) return rc;
        if (rc) cmd_fail(e);
        e->code = 0;
        if (interrupted && !c->interactive) return EXIT_INTERRUPTED;
        if (!more) return 0;
        interrupted = 0;
        prompt(c, command ? "" : "\n");
    }
}

static int chat(struct settings *s, struct engine *engine, struct err *e)
{
    struct chat c = {.settings = s, .engine = engine, .interactive = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)};
    const char *file = s->chat_template;
    struct chat_template *template = NULL;
    c.said.plain = strcmp(file, "plain") == 0;
    const char *dir = settings_model_dir(s);
    if (!c.said.plain) template = *file ? chat_template_load_file(dir, file, e) : chat_template_load(dir, e);
    int rc = e->code;
    c.said.tokenizer = engine_tokenizer(engine);
    c.said.chat = template;
    take_recommended(s, engine_info(engine));
    if (!rc && s->adapter) rc = engine_adapter_load(engine, "adapter", s->adapter, NULL, e);
    if (!rc) rc = engine_start(engine, on_notify, NULL, e);
    if (!rc) {
        struct sigaction sa = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
        sigaction(SIGINT, &sa, NULL);
        greet(&c);
        set_system(&c, s->system);
        rc = talk(&c, e);
    }
    conversation_free(&c.said);
    buf_free(&c.line);
    buf_free(&c.input);
    chat_template_free(template);
    return rc;
}

int cmd_chat(int argc, char **argv)
{
    struct settings s;
    struct err e = {0};
    int status = 0;
    if (cmd_settings(&s, CMD_CHAT, argc, argv, usage, about, &status)) {
        struct engine_config c = cmd_engine_config(&s);
        if (!settings_given(&s, "max-seqs")) c.max_seqs = 1; /* one request at a time: no pages for more */
        wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (wake < 0) err_set(&e, ERR_IO, "eventfd: %s", strerror(errno));
        struct engine *engine = wake < 0 ? NULL : engine_open(&c, &e);
        status = !engine ? e.code : engine_check_generates(engine, &e) ? e.code : chat(&s, engine, &e);
        if (status < 0) status = cmd_fail(&e);
        engine_close(engine);
        if (wake >= 0) close(wake);
    }
    settings_free(&s);
    return status;
}
