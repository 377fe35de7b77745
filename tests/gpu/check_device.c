/*
 * check_device.c: arenas that another mapping shares, checksums, flags and bells.
 */
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/gpu/check.h"

static void arenas(void)
{
	enum { SIZE = 5 * 1000 * 1000 + 3 };
	struct td_arena a, b;
	struct td_error err = {0};
	char *data = host(SIZE), *back = host(SIZE);
	uint64_t one = 0, two = 0, three = 0;
	int ok;

	for (int i = 0; i < SIZE; i++)
		data[i] = (char)rnd();
	if (dut.ops->arena_create(dut.dev, SIZE, &a, &err))
		die("arena_create", &err);
	get(&dut, back, a.base, SIZE);
	ok = 1;
	for (int i = 0; i < SIZE; i++)
		ok &= back[i] == 0;
	verdict_bool("arena", "zero when made", ok);
	dut.ops->upload(dut.dev, a.base, data, SIZE);
	dut.ops->checksum(dut.dev, a.base, SIZE, &one, &err);
	if (dut.ops->arena_import(dut.dev, dup(a.fd), SIZE, 1, &b, &err))
		die("arena_import", &err);
	get(&dut, back, b.base, SIZE);
	dut.ops->checksum(dut.dev, b.base, SIZE, &two, &err);
	verdict_bool("arena", "read-only import holds the data and its checksum", !memcmp(back, data, SIZE) && one == two && b.read_only);
	dut.ops->arena_release(dut.dev, &a);
	get(&dut, back, b.base, SIZE);
	verdict_bool("arena", "outlives the mapping of its maker", !memcmp(back, data, SIZE));
	dut.ops->arena_release(dut.dev, &b);
	dut.ops->arena_release(dut.dev, &b);
	data[SIZE - 1] ^= 1;
	dut.ops->checksum(dut.dev, put(&dut, data, SIZE), SIZE, &two, &err);
	data[SIZE - 1] ^= 1;
	memcpy(back, data, 8);
	memcpy(data, data + 8, 8);
	memcpy(data + 8, back, 8);
	dut.ops->checksum(dut.dev, put(&dut, data, SIZE), SIZE, &three, &err);
	verdict_bool("checksum", "a bit in the last byte, two words exchanged", one != two && one != three && two != three);
	verdict_bool("arena", "a file that is none is refused",
		     dut.ops->arena_import(dut.dev, dup(0), SIZE, 0, &b, &err) < 0 && err.code && err.text[0]);
	drop_all();
}

struct waiter {
	struct td_flag *flag;
	uint64_t value;
};

static void *set_later(void *arg)
{
	struct waiter *w = arg;

	usleep(30000);
	__atomic_store_n((uint64_t *)&w->flag->value, w->value, __ATOMIC_RELEASE);
	return NULL;
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void flags(void)
{
	enum { WORDS = 64 << 20 };
	int fd = memfd_create("flags", 0), rc;
	struct td_flag *flag;
	struct td_bell *bell;
	struct td_error err = {0};
	uint64_t seen, first, value = 7ull << 32 | 1;
	struct waiter w;
	pthread_t thread;
	int64_t start;
	char *busy;

	if (fd < 0 || ftruncate(fd, 8192) || (flag = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
		die("shared memory", NULL);
	bell = (struct td_bell *)(flag + 4);
	busy = put(&dut, NULL, WORDS);
	for (int i = 0; i < 200; i++) /* some milliseconds of work */
		dut.ops->zero(dut.dev, busy, WORDS);
	dut.ops->flag_set(dut.dev, flag, value, bell);
	first = __atomic_load_n((uint64_t *)&flag->value, __ATOMIC_ACQUIRE);
	rc = dut.ops->flag_wait(dut.dev, flag, value, bell, 10000, &err);
	seen = __atomic_load_n((uint64_t *)&flag->value, __ATOMIC_ACQUIRE);
	verdict_bool("flag", "set behind work, waited for", rc == 0 && seen == value && (self || small || first != value));
	if (dut.ops->sync(dut.dev, &err))
		die("sync", &err);
	verdict_bool("flag", "the bell rang", __atomic_load_n((uint32_t *)&bell->count, __ATOMIC_ACQUIRE) == 1);
	dut.ops->flag_set(dut.dev, flag, ++value, bell);
	verdict_bool("flag", "set on an idle stream is there at once", __atomic_load_n((uint64_t *)&flag->value, __ATOMIC_ACQUIRE) == value);
	start = now_ms();
	rc = dut.ops->flag_wait(dut.dev, flag, value + 1, bell, 50, &err);
	verdict_bool("flag", "deadline", rc == TD_E_DEADLINE && now_ms() - start >= 45 && now_ms() - start < 1000);
	if (!self) { /* without a bell: the GPU's wait naps briefly; the CPU's relies on the bell */
		w = (struct waiter){flag, value + 1};
		pthread_create(&thread, NULL, set_later, &w);
		rc = dut.ops->flag_wait(dut.dev, flag, value + 1, bell, -1, &err);
		pthread_join(thread, NULL);
		verdict_bool("flag", "released without a bell", rc == 0);
	}
	__atomic_store_n((uint64_t *)&flag->value, TD_FLAG_POISON(7), __ATOMIC_RELEASE);
	rc = dut.ops->flag_wait(dut.dev, flag, value + 2, bell, 1000, &err);
	verdict_bool("flag", "poison is stale", rc == TD_E_STALE && err.text[0]);
	drop_all(); /* waits for the stream before the page goes */
	close(fd);
}

void check_device(void)
{
	arenas();
	flags();
}
