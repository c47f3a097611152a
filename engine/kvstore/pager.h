/* The thread that reads and writes KV pages on disk (store.h), so that the engine thread never waits for a file.
 *
 * Jobs carry a buffer of one page.  Their number is fixed, which bounds memory; a part of them is kept for reading. The
 * engine thread takes a job, fills it, submits it, and gets reading ones back; writing ones return to the pool by
 * themselves.  Reads go before writes.  `wake` is called on the pager's thread when something came back that the engine
 * thread was told it would have to wait for. */
#ifndef TANDEM_ENGINE_KVSTORE_PAGER_H
#define TANDEM_ENGINE_KVSTORE_PAGER_H

#include "engine/kvstore/store.h"

struct pager;

enum page_job_kind { JOB_READ, JOB_WRITE };

struct page_job {
    struct page_job *next;
    enum page_job_kind kind;
    struct kv_name name, parent; /* parent, depth: of JOB_WRITE */
    uint32_t depth;
    uint64_t tag; /* the submitter's */
    int index;    /* likewise */
    bool right;   /* of a JOB_READ that came back: the page is in `page` */
    unsigned char *page;
};

/* The store becomes the pager's, also on failure.  @return NULL: no thread, or no memory for its buffers. */
struct pager *pager_open(struct kv_store *, size_t page_bytes, void (*wake)(void *arg), void *arg, struct err *e);
/* Drops the jobs that are not done and closes the store. */
void pager_close(struct pager *); /* NULL is allowed */
struct kv_store *pager_store(struct pager *);

/* ---- the engine thread ---- */

/* @return a job with a buffer, NULL: none is free; wake() is called when one to write is, and when a read is done. */
struct page_job *pager_take(struct pager *, enum page_job_kind);
void pager_submit(struct pager *, struct page_job *);
/* @return the reading jobs that are done, in order; each goes back by pager_give.  wake() is called for the next. */
struct page_job *pager_done(struct pager *);
void pager_give(struct pager *, struct page_job *);
/* Waits until everything submitted is done, or the clock shows `until`.  @return whether it is. */
bool pager_flush(struct pager *, uint64_t until);

#endif
