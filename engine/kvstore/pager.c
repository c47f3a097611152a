#include "engine/kvstore/pager.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    BUFFER_BYTES = 64 << 20, /* of all jobs together, as far as so many pages fit */
    JOBS_MIN = 8,
    JOBS_MAX = 1024,
    NICE = 5, /* the thread's nice value: steps have priority */
    SWEEP_NS = 1000 * 1000 * 1000,
};

struct job_list {
    struct page_job *first, **end;
};

struct pager {
    struct kv_store *store;
    size_t page_bytes;
    void (*wake)(void *arg);
    void *arg;
    pthread_t thread;
    bool started;
    struct page_job *all; /* (n_jobs) */
    int n_jobs;

    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    struct page_job *free[2]; /* by kind: one half of the jobs is for each */
    struct job_list reads, writes, done;
    bool wants_write, wants_done; /* the engine thread waits for a job of JOB_WRITE, for a read */
    bool working, stopping;
};

static void list_init(struct job_list *l)
{
    l->first = NULL;
    l->end = &l->first;
}

static void list_add(struct job_list *l, struct page_job *j)
{
    j->next = NULL;
    *l->end = j;
    l->end = &j->next;
}

static struct page_job *list_take(struct job_list *l)
{
    struct page_job *j = l->first;
    if (!j) return NULL;
    l->first = j->next;
    if (!l->first) l->end = &l->first;
    return j;
}

/* ---- the thread ---- */

static void give_locked(struct pager *p, struct page_job *j)
{
    j->next = p->free[j->kind];
    p->free[j->kind] = j;
}

/* Does the job, without the lock. */
static void work_on(struct pager *p, struct page_job *j)
{
    if (j->kind == JOB_READ)
        j->right = kv_store_get(p->store, &j->name, j->page);
    else
        kv_store_put(p->store, &j->name, &j->parent, j->depth, j->page);
}

/* Puts a finished job where it belongs.  @return whether the engine thread is to be woken. */
static bool finish(struct pager *p, struct page_job *j)
{
    bool *wants = j->kind == JOB_READ ? &p->wants_done : &p->wants_write, wake = *wants;
    if (j->kind == JOB_READ)
        list_add(&p->done, j);
    else
        give_locked(p, j);
    *wants = false;
    return wake;
}

/* Sleeps until there is work, or the clock shows `until`; 0: for ever. */
static void sleep_locked(struct pager *p, uint64_t until)
{
    struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    pthread_cond_broadcast(&p->idle);
    if (until)
        pthread_cond_timedwait(&p->work, &p->lock, &t);
    else
        pthread_cond_wait(&p->work, &p->lock);
}

static void *pager_main(void *arg)
{
    struct pager *p = arg;
    uint64_t next = clock_now() + SWEEP_NS;          /* when to sweep, 0: after the next job */
    setpriority(PRIO_PROCESS, (id_t)gettid(), NICE); /* on failure it keeps the normal priority */
    pthread_mutex_lock(&p->lock);
    while (!p->stopping) {
        struct page_job *j = list_take(&p->reads);
        bool sweep = !j && next && clock_now() >= next;
        if (!j && !sweep) j = list_take(&p->writes);
        if (!j && !sweep) {
            sleep_locked(p, next);
            continue;
        }
        p->working = true;
        pthread_mutex_unlock(&p->lock);
        if (j) {
            work_on(p, j);
            if (!next || next > clock_now() + SWEEP_NS) next = clock_now() + SWEEP_NS;
        } else {
            uint64_t ns = kv_store_sweep(p->store);
            next = ns ? clock_now() + (ns < SWEEP_NS ? SWEEP_NS : ns) : 0;
        }
        pthread_mutex_lock(&p->lock);
        p->working = false;
        if (!j || !finish(p, j)) continue;
        pthread_mutex_unlock(&p->lock);
        p->wake(p->arg);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- opening and closing ---- */

static bool make_jobs(struct pager *p)
{
    size_t n = BUFFER_BYTES / p->page_bytes / 2 * 2;
    p->n_jobs = n < JOBS_MIN ? JOBS_MIN : n > JOBS_MAX ? JOBS_MAX : (int)n;
    p->all = mem_array((size_t)p->n_jobs, sizeof *p->all);
    for (int i = 0; i < p->n_jobs; i++) {
        struct page_job *j = p->all + i;
        if (!(j->page = mem_try_alloc(p->page_bytes))) return false;
        j->kind = i % 2 ? JOB_WRITE : JOB_READ;
        give_locked(p, j);
    }
    return true;
}

struct pager *pager_open(struct kv_store *store, size_t page_bytes, void (*wake)(void *arg), void *arg, struct err *e)
{
    struct pager *p = mem_zalloc(sizeof *p);
    pthread_condattr_t monotonic;
    *p = (struct pager){.store = store, .page_bytes = page_bytes, .wake = wake, .arg = arg};
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&p->work, &monotonic);
    pthread_cond_init(&p->idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
    list_init(&p->reads);
    list_init(&p->writes);
    list_init(&p->done);
    int rc = make_jobs(p) ? 0 : ENOMEM;
    if (!rc) rc = pthread_create(&p->thread, NULL, pager_main, p);
    if (!rc) {
        pthread_setname_np(p->thread, "tandem-kv-disk");
        p->started = true;
        return p;
    }
    err_set(e, ERR_IO, "--kv-disk: cannot start its thread: %s", strerror(rc));
    pager_close(p);
    return NULL;
}

void pager_close(struct pager *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
    if (p->started) pthread_join(p->thread, NULL);
    kv_store_close(p->store);
    for (int i = 0; i < p->n_jobs; i++) free(p->all[i].page);
    free(p->all);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->idle);
    free(p);
}

struct kv_store *pager_store(struct pager *p)
{
    return p->store;
}

/* ---- the engine thread ---- */

struct page_job *pager_take(struct pager *p, enum page_job_kind kind)
{
    pthread_mutex_lock(&p->lock);
    struct page_job *j = p->free[kind];
    if (j) p->free[kind] = j->next;
    if (kind == JOB_WRITE) p->wants_write = !j;
    pthread_mutex_unlock(&p->lock);
    return j;
}

void pager_submit(struct pager *p, struct page_job *j)
{
    pthread_mutex_lock(&p->lock);
    list_add(j->kind == JOB_READ ? &p->reads : &p->writes, j);
    if (j->kind == JOB_READ) p->wants_done = true;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
}

struct page_job *pager_done(struct pager *p)
{
    pthread_mutex_lock(&p->lock);
    struct page_job *j = p->done.first;
    list_init(&p->done);
    p->wants_done = true;
    pthread_mutex_unlock(&p->lock);
    return j;
}

void pager_give(struct pager *p, struct page_job *j)
{
    pthread_mutex_lock(&p->lock);
    give_locked(p, j);
    pthread_mutex_unlock(&p->lock);
}

bool pager_flush(struct pager *p, uint64_t until)
{
    struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    int rc = 0;
    pthread_mutex_lock(&p->lock);
    while ((p->reads.first || p->writes.first || p->working) && rc == 0)
        rc = pthread_cond_timedwait(&p->idle, &p->lock, &t);
    bool all = !p->reads.first && !p->writes.first && !p->working;
    pthread_mutex_unlock(&p->lock);
    return all;
}
