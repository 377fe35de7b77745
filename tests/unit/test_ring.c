/*
 * test_ring.c: records arrive whole, once and in order; a full ring refuses; bells lose no wake-up, between threads and between processes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/shm.h"

enum { MANY = 300000, HOPS = 20000 };

/* Memory as two processes see it: one fd, mapped twice. */
static void *shared(size_t size, int *fd)
{
	void *p;

	*fd = memfd_create("test", 0);
	assert_true(*fd >= 0);
	assert_int_equal(ftruncate(*fd, (off_t)size), 0);
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	assert_true(p != MAP_FAILED);
	return p;
}

struct pair {
	struct td_ring ring;
	struct td_bell filled, freed;
};

static struct td_record make(uint64_t i)
{
	struct td_record r = {.epoch = 1, .kind = TD_REC_COMMIT, .request = i, .a = (uint32_t)i, .b = (uint32_t)~i};

	for (int k = 0; k < TD_BLOCK_MAX; k++)
		r.token[k] = (int32_t)(i * 31 + (uint64_t)k);
	return r;
}

static void produce(struct pair *p)
{
	for (uint64_t i = 1; i <= MANY; i++) {
		struct td_record r = make(i);

		for (;;) {
			uint32_t seen = atomic_load(&p->freed.count);

			if (td_ring_push(&p->ring, &r))
				break;
			td_bell_wait(&p->freed, seen, 5000);
		}
		td_bell_ring(&p->filled);
	}
}

/* 0 when everything came in order. */
static int consume(struct pair *p)
{
	for (uint64_t i = 1; i <= MANY; i++) {
		struct td_record r, want = make(i);

		for (;;) {
			uint32_t seen = atomic_load(&p->filled.count);

			if (td_ring_pop(&p->ring, &r))
				break;
			td_bell_wait(&p->filled, seen, 5000);
		}
		want.sequence = i;
		if (memcmp(&r, &want, sizeof(r)))
			return 1;
		td_bell_ring(&p->freed);
	}
	return 0;
}

static void *produce_thread(void *p)
{
	produce(p);
	return NULL;
}

static void two_threads(void **state)
{
	int fd;
	struct pair *p = shared(sizeof(*p), &fd);
	pthread_t t;

	(void)state;
	assert_int_equal(pthread_create(&t, NULL, produce_thread, p), 0);
	assert_int_equal(consume(p), 0);
	pthread_join(t, NULL);
	assert_int_equal(atomic_load(&p->ring.head), MANY);
	assert_int_equal(atomic_load(&p->ring.tail), MANY);
	assert_int_equal(atomic_load(&p->filled.sleepers), 0);
	munmap(p, sizeof(*p));
	close(fd);
}

static void two_processes(void **state)
{
	int fd, status;
	struct pair *p = shared(sizeof(*p), &fd);
	pid_t pid = fork();

	(void)state;
	assert_true(pid >= 0);
	if (pid == 0) { /* maps it anew, at another address */
		struct pair *own = mmap(NULL, sizeof(*own), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

		_exit(own == MAP_FAILED || own == p ? 2 : consume(own));
	}
	produce(p);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	munmap(p, sizeof(*p));
	close(fd);
}

static void full_ring(void **state)
{
	struct td_ring *ring = calloc(1, sizeof(*ring));
	struct td_record r;

	(void)state;
	assert_int_equal(td_ring_pop(ring, &r), 0);
	for (int round = 0; round < 3; round++) { /* the third begins in the middle of the array */
		for (uint64_t i = 0; i < TD_RING_RECORDS; i++) {
			r = make(i);
			assert_int_equal(td_ring_push(ring, &r), 1);
		}
		r = make(7);
		assert_int_equal(td_ring_push(ring, &r), 0);
		for (uint64_t i = 0; i < TD_RING_RECORDS; i++) {
			assert_int_equal(td_ring_pop(ring, &r), 1);
			assert_int_equal(r.request, i);
		}
		assert_int_equal(td_ring_pop(ring, &r), 0);
		for (uint64_t i = 0; i < 1000; i++) {
			r = make(i);
			assert_int_equal(td_ring_push(ring, &r), 1);
			assert_int_equal(td_ring_pop(ring, &r), 1);
		}
	}
	free(ring);
}

/* The other side wrote nonsense: nothing is read or written outside, nothing loops. */
static void lying_indices(void **state)
{
	static const uint64_t head[] = {5, 0, UINT64_MAX, TD_RING_RECORDS + 1, 1ull << 63}, tail[] = {9, 1, 0, 0, 3};
	struct td_ring *ring = calloc(1, sizeof(*ring));

	(void)state;
	for (size_t i = 0; i < sizeof(head) / sizeof(head[0]); i++) {
		struct td_record r = make(1);

		atomic_store(&ring->head, head[i]);
		atomic_store(&ring->tail, tail[i]);
		assert_int_equal(td_ring_pop(ring, &r), 0);
		assert_int_equal(td_ring_push(ring, &r), 0);
	}
	/* counters that wrap around 2^64 are no nonsense */
	atomic_store(&ring->head, UINT64_MAX);
	atomic_store(&ring->tail, UINT64_MAX);
	for (uint64_t i = 0; i < 4; i++) {
		struct td_record r = make(i);

		assert_int_equal(td_ring_push(ring, &r), 1);
		assert_int_equal(td_ring_pop(ring, &r), 1);
		assert_int_equal(r.request, i);
	}
	free(ring);
}

/* Ping-pong: each hop sleeps unless the answer is quick; a lost wake-up would show as a 5 s pause. */
static void bells_between_processes(void **state)
{
	struct both {
		struct td_bell ping, pong;
	};
	int fd, status;
	struct both *b = shared(sizeof(*b), &fd);
	struct timespec t0, t1;
	pid_t pid = fork();

	(void)state;
	assert_true(pid >= 0);
	if (pid == 0) {
		for (uint32_t i = 0; i < HOPS; i++) {
			while (atomic_load(&b->ping.count) == i)
				td_bell_wait(&b->ping, i, 5000);
			if (i % 7 == 0)
				usleep(60); /* longer than the spin: the other side sleeps for real */
			td_bell_ring(&b->pong);
		}
		_exit(0);
	}
	clock_gettime(CLOCK_MONOTONIC, &t0);
	for (uint32_t i = 0; i < HOPS; i++) {
		td_bell_ring(&b->ping);
		while (atomic_load(&b->pong.count) == i)
			td_bell_wait(&b->pong, i, 5000);
	}
	clock_gettime(CLOCK_MONOTONIC, &t1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	print_message("%d hops there and back: %.2f us each\n", HOPS,
		      ((double)(t1.tv_sec - t0.tv_sec) * 1e6 + (double)(t1.tv_nsec - t0.tv_nsec) / 1e3) / HOPS);
	assert_int_equal(atomic_load(&b->ping.sleepers), 0);
	assert_int_equal(atomic_load(&b->pong.sleepers), 0);
	munmap(b, sizeof(*b));
	close(fd);
}

static double wait_ms(struct td_bell *bell, uint32_t seen, int timeout_ms)
{
	struct timespec t0, t1;

	clock_gettime(CLOCK_MONOTONIC, &t0);
	td_bell_wait(bell, seen, timeout_ms);
	clock_gettime(CLOCK_MONOTONIC, &t1);
	return (double)(t1.tv_sec - t0.tv_sec) * 1e3 + (double)(t1.tv_nsec - t0.tv_nsec) / 1e6;
}

static void bell_timeouts(void **state)
{
	struct td_bell bell = {0};
	double ms;

	(void)state;
	ms = wait_ms(&bell, 0, 30);
	assert_true(ms >= 29 && ms < 30000);
	assert_true(wait_ms(&bell, 0, 0) < 10000);
	td_bell_ring(&bell);
	assert_int_equal(atomic_load(&bell.count), 1);
	assert_true(wait_ms(&bell, 0, 60000) < 30000); /* it rang since */
	assert_int_equal(atomic_load(&bell.sleepers), 0);
}

static void *ring_later(void *bell)
{
	usleep(30000);
	td_bell_ring(bell);
	return NULL;
}

static void bell_for_ever(void **state)
{
	struct td_bell bell = {0};
	pthread_t t;

	(void)state;
	assert_int_equal(pthread_create(&t, NULL, ring_later, &bell), 0);
	td_bell_wait(&bell, 0, -1);
	assert_int_equal(atomic_load(&bell.count), 1);
	pthread_join(t, NULL);
}

static struct td_bell spun;
static int slept;

static void *look_and_ring(void *arg)
{
	(void)arg;
	usleep(5000);
	slept = (int)atomic_load(&spun.sleepers);
	td_bell_ring(&spun);
	return NULL;
}

/* A worker beside a GPU spins longer than half a cycle. */
static void bell_spins(void **state)
{
	pthread_t t;

	(void)state;
	td_bell_spin(20 * 1000 * 1000);
	assert_int_equal(pthread_create(&t, NULL, look_and_ring, NULL), 0);
	td_bell_wait(&spun, 0, -1);
	pthread_join(t, NULL);
	assert_int_equal(slept, 0);
	assert_true(wait_ms(&spun, 1, 10) < 10000); /* no longer than it may */
	td_bell_spin(0);
	assert_int_equal(pthread_create(&t, NULL, look_and_ring, NULL), 0);
	td_bell_wait(&spun, 1, -1);
	pthread_join(t, NULL);
	assert_int_equal(slept, 1);
	td_bell_spin(20);
}

static struct td_flag there, back;
static struct td_bell bell_a, bell_b;
static const uint64_t epoch = (uint64_t)5 << 32;

static void *partner(void *arg)
{
	struct td_error err;

	(void)arg;
	for (uint64_t i = 1; i <= 2000; i++) {
		if (td_flag_wait(&there, epoch | i, &bell_b, 5000, &err))
			return (void *)1;
		td_flag_set(&back, epoch | i, &bell_a);
	}
	usleep(20000);
	atomic_store(&back.value, TD_FLAG_POISON(5));
	td_bell_ring(&bell_a);
	return NULL;
}

static void flags(void **state)
{
	struct td_error err = {0};
	struct timespec from, to;
	pthread_t thread;
	void *rc;

	(void)state;
	pthread_create(&thread, NULL, partner, NULL);
	for (uint64_t i = 1; i <= 2000; i++) {
		td_flag_set(&there, epoch | i, &bell_b);
		if (td_flag_wait(&back, epoch | i, &bell_a, 5000, &err))
			fail_msg("hop %d: %s", (int)i, err.text);
	}
	/* poisoned while we sleep; poisoned already; a later epoch; an earlier step is done whatever comes */
	assert_int_equal(td_flag_wait(&back, epoch | 9999, &bell_a, 5000, &err), TD_E_STALE);
	assert_int_equal(td_flag_wait(&back, epoch | 9999, &bell_a, 5000, &err), TD_E_STALE);
	pthread_join(thread, &rc);
	assert_null(rc);
	atomic_store(&back.value, (uint64_t)6 << 32 | 3);
	assert_int_equal(td_flag_wait(&back, epoch | 1, &bell_a, 5000, &err), TD_E_STALE);
	assert_int_equal(td_flag_wait(&back, (uint64_t)6 << 32 | 2, &bell_a, 0, &err), 0);
	clock_gettime(CLOCK_MONOTONIC, &from);
	assert_int_equal(td_flag_wait(&back, (uint64_t)6 << 32 | 4, &bell_a, 60, &err), TD_E_DEADLINE);
	clock_gettime(CLOCK_MONOTONIC, &to);
	assert_in_range((to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000, 55, 30000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_threads), cmocka_unit_test(two_processes), cmocka_unit_test(full_ring), cmocka_unit_test(lying_indices),
		cmocka_unit_test(bells_between_processes), cmocka_unit_test(bell_timeouts), cmocka_unit_test(bell_for_ever),
		cmocka_unit_test(bell_spins), cmocka_unit_test(flags),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
