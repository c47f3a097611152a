#include "server/kvevents/publisher.h"

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/crash.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/kvevents/module.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    QUEUE_BYTES = 64 << 20, /* of batches that wait for the thread; one batch always fits */
    KEPT = 10000,           /* batches kept to be sent again, */
    KEPT_BYTES = 64 << 20,  /* of so many bytes */
    REPLAYS = 16,           /* subscribers that are sent earlier batches at once */
    RETRY_MS = 10,          /* while one of them reads too slowly */
    RESYNCS = 4             /* times that everything is posted without waiting, */
};
static const uint64_t REPLAY_NS = UINT64_C(30000000000); /* and for how long it may take nothing */
static const uint64_t RESYNC_NS = UINT64_C(30000000000); /* and between two later ones */

/* A batch that was posted; what it points to follows it in the same block. */
struct item {
    struct item *next;
    size_t bytes;
    double time;
    struct kv_event_batch b;
};

struct kept {
    char *payload, *topic; /* owned */
    size_t n;
};

struct replay {
    struct kv_wire_request r;
    uint64_t next;  /* the batch that is sent next */
    uint64_t moved; /* clock: when it last took one; 0: this place is free */
};

struct kv_publisher {
    struct kv_publisher_config c; /* its texts are not used after opening, but for topic */
    char *topic;
    struct kv_wire wire;
    struct kv_event_sink sink;
    int wake; /* eventfd: the queue is no longer empty */
    pthread_t thread;

    pthread_mutex_t lock; /* of what follows up to counts */
    struct item *first, **last;
    size_t bytes;
    bool end;
    struct kv_publisher_counts counts;

    /* the thread's */
    struct kept *kept;         /* (KEPT) batch i is at i % KEPT */
    uint64_t oldest, sequence; /* those kept are [oldest, sequence) */
    size_t kept_bytes;
    struct replay replay[REPLAYS];
    uint64_t resynced; /* clock: the times that everything was asked for take until then, RESYNC_NS each */
    bool resync;       /* it is to be */
};

/* ---- engines' threads -------------------------------------------------------------------------------------------- */

static void *put(char **at, const void *data, size_t bytes)
{
    void *to = *at;
    if (bytes) memcpy(to, data, bytes);
    *at += bytes;
    return to;
}

/* Those that need the larger alignment first. */
static struct item *copy(const struct kv_event_batch *b)
{
    size_t model = strlen(b->model) + 1, hashes = b->n_hashes * sizeof *b->hashes, events = b->n * sizeof *b->v,
           tokens = b->n_tokens * sizeof *b->tokens;
    size_t bytes = sizeof(struct item) + events + hashes + tokens + model;
    struct item *i = mem_alloc(bytes);
    char *at = (char *)(i + 1);
    *i = (struct item){.bytes = bytes, .time = (double)clock_unix() * 1e-9, .b = *b};
    i->b.v = put(&at, b->v, events);
    i->b.hashes = put(&at, b->hashes, hashes);
    i->b.tokens = put(&at, b->tokens, tokens);
    i->b.model = put(&at, b->model, model);
    return i;
}

static bool post(void *arg, const struct kv_event_batch *b)
{
    struct kv_publisher *p = arg;
    struct item *i = copy(b);
    pthread_mutex_lock(&p->lock);
    bool was_empty = !p->first, room = was_empty || p->bytes + i->bytes <= QUEUE_BYTES;
    if (room) {
        *p->last = i;
        p->last = &i->next;
        p->bytes += i->bytes;
    } else {
        p->counts.refused++;
    }
    pthread_mutex_unlock(&p->lock);
    if (!room) free(i);
    if (was_empty) eventfd_write(p->wake, 1);
    return room;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* The option with what its braces stand for. */
static char *topic_of(const char *topic, const char *model)
{
    char host[256] = "";
    struct buf out = {0};
    gethostname(host, sizeof host - 1);
    for (const char *s = topic; *s;) {
        if (strncmp(s, "{model}", 7) == 0) {
            buf_str(&out, model);
            s += 7;
        } else if (strncmp(s, "{host}", 6) == 0) {
            buf_str(&out, host);
            s += 6;
        } else {
            buf_char(&out, *s++);
        }
    }
    if (!out.data) buf_str(&out, "");
    return out.data;
}

static void drop_oldest(struct kv_publisher *p)
{
    struct kept *k = &p->kept[p->oldest++ % KEPT];
    p->kept_bytes -= k->n;
    free(k->payload);
    free(k->topic);
    *k = (struct kept){0};
}

static void publish(struct kv_publisher *p, const struct item *i)
{
    struct kept k = {0};
    k.payload = p->wire.pack(&i->b, i->time, p->c.maps, &k.n);
    if (!k.payload) { /* a number is left out, so subscribers know */
        log_warn("KV events: no memory for a batch of %zu bytes", i->bytes);
        while (p->oldest < p->sequence) drop_oldest(p);
        p->oldest = ++p->sequence;
        p->resync = true;
        return;
    }
    k.topic = topic_of(p->topic, i->b.model);
    p->wire.send(p->wire.state, k.topic, p->sequence, k.payload, k.n);
    while (p->oldest < p->sequence && (p->sequence - p->oldest == KEPT || p->kept_bytes + k.n > KEPT_BYTES))
        drop_oldest(p);
    p->kept[p->sequence++ % KEPT] = k;
    p->kept_bytes += k.n;
}

/* @return whether these are the last. */
static bool publish_queue(struct kv_publisher *p)
{
    pthread_mutex_lock(&p->lock);
    struct item *i = p->first, *next;
    p->first = NULL;
    p->last = &p->first;
    bool end = p->end;
    pthread_mutex_unlock(&p->lock);
    for (; i; i = next) {
        next = i->next;
        publish(p, i);
        pthread_mutex_lock(&p->lock);
        p->bytes -= i->bytes;
        p->counts.batches++;
        pthread_mutex_unlock(&p->lock);
        free(i);
    }
    return end;
}

/* Everything, with the engines' next steps, which take longer by it: so whoever asks again and again waits.
 * @return the milliseconds after which it is due; -1: it is not wanted. */
static int resync(struct kv_publisher *p)
{
    uint64_t now = clock_now(), latest = now + (RESYNCS - 1) * RESYNC_NS;
    if (!p->resync) return -1;
    if (p->resynced > latest) return (int)((p->resynced - latest) / 1000000) + 1;
    p->resynced = (p->resynced > now ? p->resynced : now) + RESYNC_NS;
    p->resync = false;
    atomic_fetch_add(&p->sink.resync, 1);
    pthread_mutex_lock(&p->lock);
    p->counts.resyncs++;
    pthread_mutex_unlock(&p->lock);
    return -1;
}

/* @return whether there were any. */
static bool take_requests(struct kv_publisher *p)
{
    struct kv_wire_request r;
    uint64_t now = clock_now();
    bool any = false;
    for (int i = 0; i < REPLAYS; i++) {
        if (p->replay[i].moved) continue;
        if (!p->wire.take(p->wire.state, &r)) break;
        any = true;
        p->replay[i] = (struct replay){.r = r, .next = r.from, .moved = now};
        pthread_mutex_lock(&p->lock);
        p->counts.replays++;
        pthread_mutex_unlock(&p->lock);
        p->resync |= r.from < p->oldest;
    }
    return any;
}

/* Sends what the subscriber takes.  @return whether there is more. */
static bool go_on(struct kv_publisher *p, struct replay *r)
{
    for (;;) {
        if (r->next < p->oldest) r->next = p->oldest;
        bool last = r->next >= p->sequence;
        const struct kept *k = &p->kept[r->next % KEPT];
        enum kv_wire_sent sent =
            p->wire.answer(p->wire.state, &r->r, last ? UINT64_MAX : r->next, last ? NULL : k->payload, last ? 0 : k->n,
                           p->c.several_models ? (last ? "" : k->topic) : NULL);
        if (sent == KV_WIRE_FULL && clock_now() - r->moved < REPLAY_NS) return true;
        if (sent != KV_WIRE_SENT || last) {
            r->moved = 0;
            return false;
        }
        r->moved = clock_now();
        r->next++;
    }
}

static void *run(void *arg)
{
    struct kv_publisher *p = arg;
    bool end = false;
    int busy = 0, due = -1;
    crash_thread_begin();
    while (!end) {
        eventfd_t n;
        p->wire.wait(p->wire.state, p->wake, busy < REPLAYS, busy ? RETRY_MS : due);
        eventfd_read(p->wake, &n);
        end = publish_queue(p);
        p->resync |= p->wire.subscribed(p->wire.state);
        if (take_requests(p)) end |= publish_queue(p); /* what was posted before a request belongs to its answer */
        due = resync(p);
        busy = 0;
        for (int i = 0; i < REPLAYS; i++) busy += p->replay[i].moved && go_on(p, &p->replay[i]);
    }
    crash_thread_end();
    return NULL;
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

struct kv_publisher *kv_publisher_open(const struct kv_publisher_config *c, struct err *e)
{
    const struct kv_wire_config wire = {.endpoint = c->endpoint, .replay = c->replay};
    struct kv_publisher *p = mem_zalloc(sizeof *p);
    p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->wake < 0 || kv_wire_load(&wire, &p->wire, e)) {
        if (p->wake < 0) err_set(e, ERR_IO, "--kv-events: eventfd: %s", strerror(errno));
        if (p->wake >= 0) close(p->wake);
        free(p);
        return NULL;
    }
    p->c = *c;
    p->topic = mem_strdup(c->topic);
    p->kept = mem_array(KEPT, sizeof *p->kept);
    p->last = &p->first;
    p->sink = (struct kv_event_sink){.post = post, .arg = p};
    pthread_mutex_init(&p->lock, NULL);
    CHECK(pthread_create(&p->thread, NULL, run, p) == 0);
    pthread_setname_np(p->thread, "tandem-kvevents");
    log_info("kv-events %s endpoint=%s replay=%s note=\"whoever reaches these can read the tokens of all prompts\"",
             p->wire.listens ? "listens" : "connects", c->endpoint, *c->replay ? c->replay : "none");
    return p;
}

void kv_publisher_close(struct kv_publisher *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->end = true;
    pthread_mutex_unlock(&p->lock);
    eventfd_write(p->wake, 1);
    pthread_join(p->thread, NULL);
    p->wire.close(p->wire.state);
    while (p->oldest < p->sequence) drop_oldest(p);
    close(p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p->kept);
    free(p->topic);
    free(p);
}

struct kv_event_sink *kv_publisher_sink(struct kv_publisher *p)
{
    return p ? &p->sink : NULL;
}

struct kv_publisher_counts kv_publisher_counts(struct kv_publisher *p)
{
    struct kv_publisher_counts c = {0};
    if (!p) return c;
    pthread_mutex_lock(&p->lock);
    c = p->counts;
    pthread_mutex_unlock(&p->lock);
    return c;
}
