/* Worker threads. Knows the operating system; knows no kernel. */
#ifndef H3_POOL_H
#define H3_POOL_H

#include <stdint.h>

#include "status.h"

typedef struct h3_pool h3_pool;

/* One piece of work. scratch: this thread's own memory, 64-byte aligned, uninitialised; its content does not last. */
typedef void (*h3_item_fn)(void *context, int64_t item, void *scratch);

/* Cores that this process may use; two hyperthreads of a core count once. At least 1. */
int h3_pool_cores(void);

/* threads >= 1, the caller's own included, so 1 starts no thread. NULL: no memory or no thread. */
h3_pool *h3_pool_create(int threads);

/* Ends and joins the workers. NULL is allowed. */
void h3_pool_destroy(h3_pool *pool);

int h3_pool_threads(const h3_pool *pool);

/*
 * Calls fn for every item 0 .. items-1 and returns when all are done. Threads take the next free item, so the order
 * and the thread of an item change from run to run: an item must write its own output only. One run at a time; a
 * second caller waits. fn must not call h3_pool_run. scratch_bytes: how much scratch each thread needs (0: none).
 */
h3_status h3_pool_run(h3_pool *pool, h3_item_fn fn, void *context, int64_t items, int64_t scratch_bytes);

typedef h3_status (*h3_pool_run_fn)(h3_pool *pool, h3_item_fn fn, void *context, int64_t items, int64_t scratch_bytes);

#endif
