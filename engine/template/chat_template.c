/* Chat templates: finding them in a model's directory, parsing, rendering (chat_template.h). */
#include "engine/template/chat_template.h"

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/files/model_file.h"
#include "engine/template/chat_input.h"
#include "engine/tokenizer/text.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_MAX = 64 << 20 };

/* --- parsing */

struct parse_call {
    struct chat_template *t;
    const char *source;
    size_t n;
    struct jprogram *into;
};

static void parse(void *arg)
{
    struct parse_call *c = arg;
    struct jinja *j = &c->t->j;
    j->line = j->column = 1;
    for (size_t i = 0; i < c->n;) {
        int len = utf8_step(c->source + i, c->n - i);
        if (len <= 0) jinja_fail(j, "byte %zu is not UTF-8", i);
        i += (size_t)len;
    }
    char *copy = jinja_alloc(j, c->n + 1);
    memcpy(copy, c->source, c->n);
    if (c->into == &c->t->tools || !c->t->source.s) c->t->source = (struct jstr){.s = copy, .n = c->n};
    jinja_parse(j, (struct jstr){.s = copy, .n = c->n}, c->into);
}

/* FNV-1a, 64 bits; the NUL that ends each text is counted. */
static void identify(struct chat_template *t, const char *text, size_t n)
{
    for (size_t i = 0; i <= n; i++)
        t->identity = (t->identity ^ (i < n ? (unsigned char)text[i] : 0)) * UINT64_C(0x100000001b3);
}

static bool add_program(struct chat_template *t, const char *source, size_t n, struct jprogram *into, struct err *e)
{
    struct err own = {0};
    identify(t, into == &t->tools ? "tool_use" : "", into == &t->tools ? 8 : 0);
    identify(t, source, n);
    if (chat_attempt(&t->j, parse, &(struct parse_call){t, source, n, into}, &own)) return true;
    err_set(e, own.code, "%s", own.msg);
    return false;
}

static struct chat_template *template_new(void)
{
    struct chat_template *t = mem_zalloc(sizeof *t);
    t->identity = UINT64_C(0xcbf29ce484222325);
    jinja_begin(&t->j, NULL);
    return t;
}

struct chat_template *chat_template_parse(const char *source, size_t n, struct err *e)
{
    struct chat_template *t = template_new();
    if (add_program(t, source, n, &t->normal, e)) {
        chat_adapt_probe(t);
        return t;
    }
    chat_template_free(t);
    return NULL;
}

void chat_template_free(struct chat_template *t)
{
    if (!t) return;
    jinja_end(&t->j);
    for (int i = 0; i < t->n_tokens; i++) {
        free(t->tokens[i].name);
        free(t->tokens[i].text);
    }
    free(t->tokens);
    free(t);
}

uint64_t chat_template_identity(const struct chat_template *t)
{
    return t ? t->identity : 0;
}

const char *chat_template_source(const struct chat_template *t, size_t *n)
{
    *n = t ? t->source.n : 0;
    return t ? t->source.s : NULL;
}

/* --- a model's directory */

static void set_token(struct chat_template *t, const char *name, const char *text)
{
    for (int i = 0; i < t->n_tokens; i++)
        if (strcmp(t->tokens[i].name, name) == 0) return;
    t->tokens = mem_resize(t->tokens, (size_t)t->n_tokens + 1, sizeof *t->tokens);
    identify(t, name, strlen(name));
    identify(t, text, strlen(text));
    t->tokens[t->n_tokens++] = (struct chat_token){mem_strdup(name), mem_strdup(text)};
}

/* bos_token, eos_token...: a string, or an object with "content". */
static void take_tokens(struct chat_template *t, const cJSON *config)
{
    for (const cJSON *c = config ? config->child : NULL; c; c = c->next) {
        size_t n = c->string ? strlen(c->string) : 0;
        if (n < 7 || strcmp(c->string + n - 6, "_token") != 0) continue;
        const cJSON *text = cJSON_IsObject(c) ? cJSON_GetObjectItemCaseSensitive(c, "content") : c;
        if (cJSON_IsString(text)) set_token(t, c->string, text->valuestring);
    }
}

/* NULL when there is no such file (e->code 0) or it cannot be read. */
static char *read_optional(const char *dir, const char *name, size_t limit, size_t *n, struct err *e)
{
    char *data = NULL;
    struct err own = {0};
    if (model_file_read(dir, name, limit, &data, n, &own) && own.code != ERR_NOT_FOUND)
        err_set(e, own.code, "%s", own.msg);
    return data;
}

static cJSON *read_json(const char *dir, const char *name, struct err *e)
{
    size_t n;
    char *text = read_optional(dir, name, CONFIG_MAX, &n, e);
    if (!text) return NULL;
    cJSON *json = cJSON_ParseWithLength(text, n);
    if (!cJSON_IsObject(json)) {
        err_set(e, ERR_INVALID, "%s/%s: not a JSON object", dir, name);
        cJSON_Delete(json);
        json = NULL;
    }
    free(text);
    return json;
}

/* "chat_template": a string, or a list of {name, template} of which "default" and "tool_use" are used. */
static bool take_template(struct chat_template *t, const cJSON *item, struct err *e)
{
    if (cJSON_IsString(item)) return add_program(t, item->valuestring, strlen(item->valuestring), &t->normal, e);
    if (item && !cJSON_IsArray(item) && !cJSON_IsNull(item)) {
        err_set(e, ERR_INVALID, "tokenizer_config.json: chat_template: expected a string or a list");
        return false;
    }
    for (const cJSON *c = item ? item->child : NULL; c; c = c->next) {
        const cJSON *name = cJSON_GetObjectItemCaseSensitive(c, "name");
        const cJSON *text = cJSON_GetObjectItemCaseSensitive(c, "template");
        if (!cJSON_IsString(name) || !cJSON_IsString(text)) continue;
        struct jprogram *into = strcmp(name->valuestring, "default") == 0    ? &t->normal
                                : strcmp(name->valuestring, "tool_use") == 0 ? &t->tools
                                                                             : NULL;
        if (into && !add_program(t, text->valuestring, strlen(text->valuestring), into, e)) return false;
    }
    return true;
}

/* One of the directory's files; false: it cannot be read or parsed.  *found: it is there. */
static bool take_file(struct chat_template *t, const char *dir, const char *name, struct jprogram *into, bool *found,
                      struct err *e)
{
    size_t n = 0;
    char *file = read_optional(dir, name, JINJA_SOURCE_MAX, &n, e);
    if (file) *found = true;
    bool good = !e->code && (!file || add_program(t, file, n, into, e));
    free(file);
    return good;
}

/* Whether there are templates of any name. */
static bool has_templates(const char *dir)
{
    bool any = false;
    DIR *d = opendir(dir);
    for (struct dirent *f; d && (f = readdir(d));) {
        size_t n = strlen(f->d_name);
        any = any || (n > 6 && strcmp(f->d_name + n - 6, ".jinja") == 0);
    }
    if (d) closedir(d);
    return any;
}

/* transformers' layout: files, and only without any of them what tokenizer_config.json says. */
static void take_directory(struct chat_template *t, const char *dir, const cJSON *config, struct err *e)
{
    bool found = false;
    if (!take_file(t, dir, "chat_template.jinja", &t->normal, &found, e)) return;
    if (!take_file(t, dir, "additional_chat_templates/default.jinja", &t->normal, &found, e)) return;
    if (!take_file(t, dir, "additional_chat_templates/tool_use.jinja", &t->tools, &found, e)) return;
    if (found) return;
    char *more = file_join(dir, "additional_chat_templates");
    if (has_templates(more))
        err_set(e, ERR_INVALID,
                "%s: there is no chat_template.jinja, and here neither default.jinja nor tool_use.jinja (where there "
                "are template files, the one in tokenizer_config.json does not count)",
                more);
    else
        take_template(t, cJSON_GetObjectItemCaseSensitive(config, "chat_template"), e);
    free(more);
}

/* path: of the template's file; NULL: the directory's own */
static bool load(struct chat_template *t, const char *dir, const char *path, struct err *e)
{
    size_t n = 0;
    char *file = NULL;
    if (path) file_read(path, JINJA_SOURCE_MAX, &file, &n, e);
    cJSON *config = e->code ? NULL : read_json(dir, "tokenizer_config.json", e);
    cJSON *map = e->code ? NULL : read_json(dir, "special_tokens_map.json", e);
    if (!e->code) {
        take_tokens(t, config);
        take_tokens(t, map);
        if (file)
            add_program(t, file, n, &t->normal, e);
        else
            take_directory(t, dir, config, e);
    }
    cJSON_Delete(map);
    cJSON_Delete(config);
    free(file);
    return !e->code && (t->normal.names || t->tools.names);
}

static struct chat_template *load_new(const char *model_dir, const char *path, struct err *e)
{
    struct chat_template *t = template_new();
    struct err own = {0};
    if (load(t, model_dir, path, &own)) {
        chat_adapt_probe(t);
        return t;
    }
    if (own.code) err_set(e, own.code, "%s", own.msg);
    chat_template_free(t);
    return NULL;
}

struct chat_template *chat_template_load(const char *model_dir, struct err *e)
{
    return load_new(model_dir, NULL, e);
}

struct chat_template *chat_template_load_file(const char *model_dir, const char *path, struct err *e)
{
    return load_new(model_dir, path, e);
}

/* --- rendering */

static void add_span(struct chat_spans *spans, size_t start, size_t end, int message)
{
    if (!spans) return;
    spans->v = mem_resize(spans->v, (size_t)spans->n + 1, sizeof *spans->v);
    spans->v[spans->n++] = (struct chat_span){start, end, message};
}

/* A message's text: a string, or the texts of a list of parts. */
static void put_content(struct buf *out, const cJSON *content)
{
    if (cJSON_IsString(content)) buf_str(out, content->valuestring);
    for (const cJSON *part = cJSON_IsArray(content) ? content->child : NULL; part; part = part->next) {
        const cJSON *text = cJSON_GetObjectItemCaseSensitive(part, "text");
        if (cJSON_IsString(text)) buf_str(out, text->valuestring);
    }
}

static int render_plain(const struct chat_input *in, struct buf *out, struct chat_spans *spans, struct err *e)
{
    if (!cJSON_IsArray(in->messages)) return err_set(e, ERR_INVALID, "messages: expected an array");
    int i = 0;
    for (const cJSON *m = in->messages->child; m; m = m->next, i++) {
        const cJSON *role = cJSON_GetObjectItemCaseSensitive(m, "role");
        if (!cJSON_IsString(role)) return err_set(e, ERR_INVALID, "messages[%d].role: expected a string", i);
        buf_printf(out, "%s:", role->valuestring);
        size_t start = out->len;
        buf_char(out, ' ');
        put_content(out, cJSON_GetObjectItemCaseSensitive(m, "content"));
        if (m->next || !in->continue_final_message) buf_char(out, '\n');
        if (strcmp(role->valuestring, "assistant") == 0) add_span(spans, start, out->len, i);
    }
    if (in->add_generation_prompt) buf_str(out, "assistant:");
    return ERR_OK;
}

/* The page up to the mark of continue_final_message; where the template strips the text, so is the page. */
static int cut_page(struct jstr *page, struct err *e)
{
    size_t n = strlen(CHAT_CONTINUE_MARK) - 1, at = page->n;
    while (at != SIZE_MAX && !(page->n - at >= n && memcmp(page->s + at, CHAT_CONTINUE_MARK, n) == 0)) at--;
    if (at == SIZE_MAX)
        return err_set(e, ERR_INVALID, "continue_final_message: the chat template does not print the final message");
    bool stripped = at + n == page->n || page->s[at + n] != ' ';
    page->n = at;
    for (size_t k; stripped && (k = jinja_space_before(page->s, page->n));) page->n -= k;
    return ERR_OK;
}

/* Whether rendering failed only because of the tools. */
static bool renders_with_tools(const struct chat_template *t, const struct chat_input *in)
{
    static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"tool\",\"description\":\"text\","
                                "\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]";
    struct chat_input with = *in;
    struct chat_view v;
    struct chat_page page;
    struct err e = {0};
    with.tools = cJSON_Parse(tools);
    bool good = with.tools && !chat_view_init(&v, t, &with, &e) &&
                !chat_view_render(&v, v.messages.list->n, in->add_generation_prompt, &page, &e);
    if (with.tools) chat_view_free(&v);
    cJSON_Delete((cJSON *)(uintptr_t)with.tools);
    return good;
}

int chat_template_render(const struct chat_template *t, const struct chat_input *in, struct buf *out,
                         struct chat_spans *spans, struct err *e)
{
    if (spans) *spans = (struct chat_spans){0};
    if (in->continue_final_message && (in->add_generation_prompt || spans))
        return err_set(e, ERR_INVALID, "continue_final_message and add_generation_prompt exclude each other");
    if (!t) return render_plain(in, out, spans, e);
    struct chat_view v;
    struct chat_page page;
    bool tools = cJSON_IsArray(in->tools);
    if (!tools && !t->normal.names)
        return err_set(e, ERR_INVALID,
                       "the model has a chat template for conversations with tools only, and there are "
                       "no tools");
    int r = chat_view_init(&v, t, in, e);
    if (!r) r = chat_view_render(&v, v.messages.list->n, in->add_generation_prompt, &page, e);
    if (r && in->adapt && !tools && renders_with_tools(t, in)) {
        struct err why = *e;
        err_set(e, ERR_INVALID, "the chat template needs tools, and there are none: %.300s", why.msg);
    }
    if (!r && in->continue_final_message) r = cut_page(&page.text, e);
    if (!r && spans) r = chat_find_spans(&v, &page, spans, e);
    for (int i = 0; !r && spans && i < spans->n; i++) {
        spans->v[i].start += out->len;
        spans->v[i].end += out->len;
    }
    if (!r) buf_append(out, page.text.s, page.text.n);
    chat_view_free(&v);
    return r;
}
