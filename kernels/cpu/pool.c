/*
 * pool.c: a few threads that share one loop at a time.
 *
 * A job is a range of items that the caller and the workers claim, `grain` at a time, from one atomic word (generation << 32 | next item). The
 * caller waits for the items to be done, not for the workers: a worker that the system has put aside holds nobody up unless it holds an item.
 * Between jobs the word is closed (next = CLOSED) before the job's fields change; a claim is a compare-and-swap on the whole word, so a worker that
 * comes late can't take an item of a job whose fields it did not read.
 *
 * Workers spin for a few microseconds after a job, since the next operation follows at once in a forward pass, then sleep on a futex. The spin is
 * short on purpose: the other worker process wants the same processors.
 *
 * What must never happen: a job that starts another (one caller, no nesting).
 */
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"

enum { SPIN = 400, CLOSED = INT_MAX };

struct td__pool {
	int threads; /* with the caller's */
	int started;
	pthread_t *thread;
	_Atomic int stop;
	_Alignas(64) _Atomic uint64_t word;
	_Alignas(64) _Atomic uint32_t bell; /* a new job: workers sleep on it */
	_Atomic int sleepers;
	_Alignas(64) _Atomic uint32_t done; /* items; the caller sleeps on it */
	_Atomic int caller_sleeps;
	_Alignas(64) _Atomic int items, grain; /* may be read by a late worker while the caller sets the next job: see take() */
	td__work *work;
	void *job;
};

struct start {
	struct td__pool *pool;
	int index;
};

static void pause_cpu(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Takes items of the job that is open, if any, until none is left. */
static void take(struct td__pool *p, int thread)
{
	uint64_t word = atomic_load(&p->word);

	for (;;) {
		int next = (int)(uint32_t)word, items, grain, n;

		if (next == CLOSED)
			return;
		items = atomic_load(&p->items);
		grain = atomic_load(&p->grain);
		n = items - next < grain ? items - next : grain;
		if (n <= 0)
			return;
		if (!atomic_compare_exchange_weak(&p->word, &word, word + (uint32_t)n))
			continue;
		for (int i = 0; i < n; i++)
			p->work(p->job, next + i, thread);
		/* After this line the job may be over and its fields another's. */
		if (atomic_fetch_add(&p->done, (uint32_t)n) + (uint32_t)n == (uint32_t)items && atomic_load(&p->caller_sleeps))
			futex_wake(&p->done);
		word = atomic_load(&p->word);
	}
}

static void *worker(void *arg)
{
	struct start *start = arg;
	struct td__pool *p = start->pool;
	int index = start->index;
	uint32_t seen = 0;

	free(start);
	while (!atomic_load(&p->stop)) {
		uint32_t now = atomic_load(&p->bell);

		if (now == seen) {
			for (int i = 0; i < SPIN && (now = atomic_load(&p->bell)) == seen; i++)
				pause_cpu();
		}
		if (now == seen) {
			atomic_fetch_add(&p->sleepers, 1);
			futex_wait(&p->bell, seen);
			atomic_fetch_sub(&p->sleepers, 1);
			continue;
		}
		seen = now;
		take(p, index);
	}
	return NULL;
}

struct td__pool *td__pool_create(int threads)
{
	struct td__pool *p = NULL;
	sigset_t all, old;

	if (posix_memalign((void **)&p, 64, sizeof(*p)))
		return NULL;
	memset(p, 0, sizeof(*p));
	p->threads = threads;
	atomic_store(&p->word, CLOSED);
	p->thread = calloc((size_t)threads, sizeof(*p->thread));
	if (!p->thread)
		goto fail;
	/* Signals are the main thread's business. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	for (int i = 1; i < threads; i++) {
		struct start *start = malloc(sizeof(*start));

		if (!start)
			break;
		*start = (struct start){ p, i };
		if (pthread_create(&p->thread[i], NULL, worker, start)) {
			free(start);
			break;
		}
		p->started = i;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (p->started == threads - 1)
		return p;
fail:
	td__pool_destroy(p);
	return NULL;
}

void td__pool_destroy(struct td__pool *p)
{
	if (!p)
		return;
	atomic_store(&p->stop, 1);
	atomic_fetch_add(&p->bell, 1);
	futex_wake(&p->bell);
	for (int i = 1; i <= p->started; i++)
		pthread_join(p->thread[i], NULL);
	free(p->thread);
	free(p);
}

void td__pool_run(struct td__pool *p, int items, int grain, td__work *work, void *job)
{
	uint64_t generation = (atomic_load(&p->word) >> 32) + 1;

	if (items <= 0)
		return;
	if (p->threads == 1 || items <= grain) {
		for (int i = 0; i < items; i++)
			work(job, i, 0);
		return;
	}
	atomic_store(&p->items, items);
	atomic_store(&p->grain, grain);
	p->work = work;
	p->job = job;
	atomic_store(&p->done, 0);
	atomic_store(&p->word, generation << 32);
	atomic_fetch_add(&p->bell, 1);
	if (atomic_load(&p->sleepers))
		futex_wake(&p->bell);
	take(p, 0);
	for (int i = 0; i < SPIN && atomic_load(&p->done) != (uint32_t)items; i++)
		pause_cpu();
	atomic_store(&p->caller_sleeps, 1);
	for (uint32_t done; (done = atomic_load(&p->done)) != (uint32_t)items;)
		futex_wait(&p->done, done);
	atomic_store(&p->caller_sleeps, 0);
	atomic_store(&p->word, generation << 32 | CLOSED);
}
