/* Worker threads over pthreads: no OpenMP, so a Mac's stock compiler builds it. */
#if defined(__linux__)
#define _GNU_SOURCE
#include <sched.h>
#include <sys/mman.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "pool.h"

/* A worker looks this often for the next job before it sleeps: about 20 us, the gap between two products of a layer. */
#define SPINS 4000
#define HUGE_PAGE ((size_t)2 << 20)

typedef struct {
    h3_item_fn fn;
    void *context;
    int64_t items;
} h3_job;

typedef struct {
    h3_pool *pool;
    pthread_t thread;
    void *scratch;
} h3_worker;

struct h3_pool {
    pthread_mutex_t caller; /* held for a whole run: one job at a time */
    pthread_mutex_t lock;   /* guards job, open, running, ending */
    pthread_cond_t wake;    /* a job opened, or the pool ends */
    pthread_cond_t idle;    /* the last running worker left the job */
    h3_job job;
    int open;               /* workers may still join the job */
    int running;            /* workers inside the job */
    int ending;
    atomic_uint generation; /* changes with every job, and at the end: what spinning workers look at */
    atomic_llong next;      /* the next free item */
    size_t scratch_bytes;   /* of each worker */
    int threads;
    int started;            /* workers that run: threads - 1, fewer only while the pool is being made */
    h3_worker workers[];    /* [0] is the caller */
};

static void spin_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#if defined(__linux__)
/* The first hyperthread of this cpu's core, or the cpu itself where the system does not say. */
static int first_sibling(int cpu) {
    char path[96];
    int first = cpu;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%d", &first) != 1)
            first = cpu;
        fclose(file);
    }
    return first;
}

int h3_pool_cores(void) {
    static const int most = CPU_SETSIZE;
    cpu_set_t allowed, seen;
    int cores = 0;
    CPU_ZERO(&seen);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        return online > 0 ? (int)online : 1;
    }
    for (int cpu = 0; cpu < most; cpu++) {
        if (!CPU_ISSET(cpu, &allowed))
            continue;
        int core = first_sibling(cpu);
        if (core < 0 || core >= most)
            core = cpu;
        if (!CPU_ISSET(core, &seen)) {
            CPU_SET(core, &seen);
            cores++;
        }
    }
    return cores > 0 ? cores : 1;
}
#elif defined(__APPLE__)
int h3_pool_cores(void) {
    int cores = 0;
    size_t size = sizeof cores;
    /* the fast cores where there are two sorts: work is shared in equal pieces, so slow ones would be waited for */
    if (sysctlbyname("hw.perflevel0.physicalcpu", &cores, &size, 0, 0) == 0 && cores > 0)
        return cores;
    size = sizeof cores;
    if (sysctlbyname("hw.physicalcpu", &cores, &size, 0, 0) == 0 && cores > 0)
        return cores;
    return 1;
}
#else
int h3_pool_cores(void) {
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}
#endif

static void run_items(h3_pool *pool, const h3_job *job, void *scratch) {
    for (;;) {
        int64_t item = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (item >= job->items)
            return;
        job->fn(job->context, item, scratch);
    }
}

static void *worker_main(void *argument) {
    h3_worker *self = argument;
    h3_pool *pool = self->pool;
    unsigned seen = 0;
    for (;;) {
        for (int i = 0; i < SPINS && atomic_load_explicit(&pool->generation, memory_order_relaxed) == seen; i++)
            spin_pause();
        pthread_mutex_lock(&pool->lock);
        while (!pool->ending && atomic_load(&pool->generation) == seen)
            pthread_cond_wait(&pool->wake, &pool->lock);
        if (pool->ending) {
            pthread_mutex_unlock(&pool->lock);
            return 0;
        }
        seen = atomic_load(&pool->generation);
        if (!pool->open) { /* woke too late: the others have done it all */
            pthread_mutex_unlock(&pool->lock);
            continue;
        }
        h3_job job = pool->job;
        pool->running++;
        pthread_mutex_unlock(&pool->lock);
        run_items(pool, &job, self->scratch);
        pthread_mutex_lock(&pool->lock);
        if (--pool->running == 0)
            pthread_cond_signal(&pool->idle);
        pthread_mutex_unlock(&pool->lock);
    }
}

h3_pool *h3_pool_create(int threads) {
    if (threads < 1)
        return 0;
    h3_pool *pool = calloc(1, sizeof *pool + (size_t)threads * sizeof pool->workers[0]);
    if (!pool)
        return 0;
    pthread_mutex_init(&pool->caller, 0);
    pthread_mutex_init(&pool->lock, 0);
    pthread_cond_init(&pool->wake, 0);
    pthread_cond_init(&pool->idle, 0);
    pool->threads = threads;
    for (int i = 1; i < threads; i++) {
        pool->workers[i].pool = pool;
        if (pthread_create(&pool->workers[i].thread, 0, worker_main, &pool->workers[i]) != 0) {
            h3_pool_destroy(pool);
            return 0;
        }
        pool->started = i;
    }
    return pool;
}

void h3_pool_destroy(h3_pool *pool) {
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->ending = 1;
    atomic_fetch_add(&pool->generation, 1);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 1; i <= pool->started; i++)
        pthread_join(pool->workers[i].thread, 0);
    for (int i = 0; i < pool->threads; i++)
        free(pool->workers[i].scratch);
    pthread_cond_destroy(&pool->idle);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->caller);
    free(pool);
}

int h3_pool_threads(const h3_pool *pool) { return pool->threads; }

/* No worker is inside a job here, so the buffers may move. */
static h3_status reserve(h3_pool *pool, int64_t scratch_bytes) {
    if ((size_t)scratch_bytes <= pool->scratch_bytes)
        return H3_OK;
    size_t size = ((size_t)scratch_bytes + 4095) & ~(size_t)4095, alignment = 64;
    if (size >= HUGE_PAGE / 2) { /* a panel read over and over: few TLB entries */
        alignment = HUGE_PAGE;
        size = (size + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    }
    pool->scratch_bytes = 0;
    for (int i = 0; i < pool->threads; i++) {
        free(pool->workers[i].scratch);
        pool->workers[i].scratch = 0;
    }
    for (int i = 0; i < pool->threads; i++) {
        if (posix_memalign(&pool->workers[i].scratch, alignment, size) != 0) {
            pool->workers[i].scratch = 0;
            return H3_NO_MEMORY;
        }
#if defined(__linux__)
        if (alignment == HUGE_PAGE)
            madvise(pool->workers[i].scratch, size, MADV_HUGEPAGE);
#endif
    }
    pool->scratch_bytes = size;
    return H3_OK;
}

h3_status h3_pool_run(h3_pool *pool, h3_item_fn fn, void *context, int64_t items, int64_t scratch_bytes) {
    if (items <= 0)
        return H3_OK;
    pthread_mutex_lock(&pool->caller);
    h3_status status = reserve(pool, scratch_bytes);
    if (status != H3_OK)
        goto cleanup;
    h3_job job = {fn, context, items};
    atomic_store(&pool->next, 0);
    int shared = pool->threads > 1 && items > 1;
    if (shared) {
        pthread_mutex_lock(&pool->lock);
        pool->job = job;
        pool->open = 1;
        atomic_fetch_add(&pool->generation, 1);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->lock);
    }
    run_items(pool, &job, pool->workers[0].scratch);
    if (shared) {
        pthread_mutex_lock(&pool->lock);
        pool->open = 0; /* a worker that still sleeps need not be waited for */
        while (pool->running > 0)
            pthread_cond_wait(&pool->idle, &pool->lock);
        pthread_mutex_unlock(&pool->lock);
    }
cleanup:
    pthread_mutex_unlock(&pool->caller);
    return status;
}
