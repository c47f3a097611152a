#include "server/zmq/pack.h"

#include <msgpack/pack.h>
#include <msgpack/sbuffer.h>
#include <string.h>

struct packer {
    msgpack_packer to;
    bool maps, failed;
};

static int append(void *arg, const char *data, size_t n)
{
    return msgpack_sbuffer_write(arg, data, n);
}

static void note(struct packer *p, int rc)
{
    p->failed |= rc != 0;
}

static void put_text(struct packer *p, const char *s)
{
    size_t n = strlen(s);
    note(p, msgpack_pack_str(&p->to, n));
    note(p, msgpack_pack_str_body(&p->to, s, n));
}

static void put_nil(struct packer *p)
{
    note(p, msgpack_pack_nil(&p->to));
}

/* Of an array it is left out. */
static void put_name(struct packer *p, const char *name)
{
    if (p->maps) put_text(p, name);
}

static void begin_event(struct packer *p, const char *type, size_t fields)
{
    if (p->maps)
        note(p, msgpack_pack_map(&p->to, fields + 1));
    else
        note(p, msgpack_pack_array(&p->to, fields + 1));
    put_name(p, "type");
    put_text(p, type);
}

static void put_hashes(struct packer *p, const struct kv_event_batch *b, const struct kv_event *e)
{
    put_name(p, "block_hashes");
    note(p, msgpack_pack_array(&p->to, e->pages));
    for (size_t i = 0; i < e->pages; i++) note(p, msgpack_pack_uint64(&p->to, b->hashes[e->hash + i]));
}

static void put_stored(struct packer *p, const struct kv_event_batch *b, const struct kv_event *e)
{
    size_t n = e->pages * (size_t)b->page_tokens;
    begin_event(p, "BlockStored", 7);
    put_hashes(p, b, e);
    put_name(p, "parent_block_hash");
    if (e->parent)
        note(p, msgpack_pack_uint64(&p->to, e->parent));
    else
        put_nil(p);
    put_name(p, "token_ids");
    note(p, msgpack_pack_array(&p->to, n));
    for (size_t i = 0; i < n; i++) note(p, msgpack_pack_int32(&p->to, b->tokens[e->token + i]));
    put_name(p, "block_size");
    note(p, msgpack_pack_int(&p->to, b->page_tokens));
    put_name(p, "lora_id");
    if (e->version)
        note(p, msgpack_pack_uint64(&p->to, e->version));
    else
        put_nil(p);
    put_name(p, "medium");
    put_nil(p); /* consumers take it for the device's own memory */
    put_name(p, "lora_name");
    if (*e->adapter)
        put_text(p, e->adapter);
    else
        put_nil(p);
}

static void put_event(struct packer *p, const struct kv_event_batch *b, const struct kv_event *e)
{
    switch (e->kind) {
    case KV_STORED: put_stored(p, b, e); return;
    case KV_CLEARED: begin_event(p, "AllBlocksCleared", 0); return;
    case KV_REMOVED:
        begin_event(p, "BlockRemoved", 2);
        put_hashes(p, b, e);
        put_name(p, "medium");
        put_nil(p);
    }
}

char *kv_pack(const struct kv_event_batch *b, double unix_time, bool maps, size_t *n)
{
    msgpack_sbuffer out;
    struct packer p = {.maps = maps};
    msgpack_sbuffer_init(&out);
    msgpack_packer_init(&p.to, &out, append);
    note(&p, msgpack_pack_array(&p.to, 3));
    note(&p, msgpack_pack_double(&p.to, unix_time));
    note(&p, msgpack_pack_array(&p.to, b->n));
    for (size_t i = 0; i < b->n; i++) put_event(&p, b, &b->v[i]);
    note(&p, msgpack_pack_int(&p.to, 0)); /* data_parallel_rank */
    *n = out.size;
    char *data = msgpack_sbuffer_release(&out);
    if (!p.failed) return data;
    free(data);
    return NULL;
}
