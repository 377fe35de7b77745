/*
 * test_k_device.c: the CPU as a device: the pool does each item once, arenas outlive their mapping and keep their size, errors stick, batches are the
 * device's own copies, a step of replay makes its calls each time and times them; and td_ops_find says what is missing.
 */
#include "k_common.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"

static _Atomic int touched[5000];
static _Atomic int wrong;

static void touch(void *job, int item, int thread)
{
	if (job != touched || thread < 0 || thread >= 4)
		wrong = 1;
	touched[item]++;
}

static void pool(void **state)
{
	struct td__pool *p = td__pool_create(4);

	(void)state;
	assert_non_null(p);
	for (int run = 0; run < 3000; run++) {
		int items = (int)(k_random() % 200) + (run % 100 ? 0 : 4000), grain = 1 + (int)(k_random() % 9);

		memset(touched, 0, sizeof(touched));
		td__pool_run(p, items, grain, touch, touched);
		for (int i = 0; i < 5000; i++)
			if (touched[i] != (i < items))
				fail_msg("run %d of %d items, grain %d: item %d done %d times", run, items, grain, i, touched[i]);
		if (run % 500 == 0)
			usleep(2000); /* let the workers fall asleep */
	}
	assert_int_equal(wrong, 0);
	td__pool_destroy(p);
	td__pool_destroy(NULL);
}

static void opening(void **state)
{
	struct td_dev_options opt = { .threads = 100000 };
	struct td_error err = { 0 };
	struct td_dev *dev = (struct td_dev *)1;
	char text[256];

	(void)state;
	assert_int_equal(ops->open(&dev, &opt, &err), TD_E_INVALID);
	assert_null(dev);
	assert_non_null(strstr(err.text, "100000"));
	opt.threads = 0;
	assert_int_equal(ops->open(&dev, &opt, &err), 0);
	ops->describe(dev, text, sizeof(text));
	assert_non_null(strstr(text, "thread"));
	ops->close(dev);
	ops->close(NULL);
}

static void memory(void **state)
{
	struct td_dev *dev = k_open(2);
	struct td_error err = { 0 };
	uint64_t sum[2];
	char *p = ops->alloc(dev, 1000, &err), back[1000];

	(void)state;
	assert_int_equal((uintptr_t)p % 256, 0);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(p[i], 0);
	memset(back, 7, sizeof(back));
	ops->upload(dev, p, back, 999);
	assert_int_equal(ops->checksum(dev, p, 1000, &sum[0], &err), 0);
	ops->zero(dev, p + 1, 1);
	assert_int_equal(ops->checksum(dev, p, 1000, &sum[1], &err), 0);
	assert_true(sum[0] != sum[1]);
	assert_int_equal(ops->download(dev, back, p, 1000, &err), 0);
	assert_true(back[0] == 7 && back[1] == 0 && back[998] == 7 && back[999] == 0);
	ops->free(dev, p);
	ops->free(dev, NULL);
	assert_null(ops->alloc(dev, SIZE_MAX - 10, &err));
	assert_int_equal(err.code, TD_E_NOMEM);
	k_close(dev);
}

static void arenas(void **state)
{
	struct td_dev *dev = k_open(1);
	struct td_error err = { 0 };
	struct td_arena a, b;
	int fd;

	(void)state;
	assert_int_equal(ops->arena_create(dev, 100000, &a, &err), 0);
	memset(a.base, 9, a.size);
	fd = dup(a.fd);
	assert_int_not_equal(ftruncate(fd, 10), 0); /* nobody can cut it off under us */
	ops->arena_release(dev, &a);
	assert_null(a.base);
	ops->arena_release(dev, &a);
	/* it is still there for who kept the fd */
	assert_int_equal(ops->arena_import(dev, dup(fd), 100000, 1, &b, &err), 0);
	assert_int_equal(((char *)b.base)[99999], 9);
	assert_int_equal(b.read_only, 1);
	ops->arena_release(dev, &b);
	/* another size, a closed fd: an error, and the fd is taken */
	int other = dup(fd);
	assert_int_equal(ops->arena_import(dev, other, 100001, 0, &b, &err), TD_E_MISMATCH);
	assert_non_null(strstr(err.text, "100001"));
	assert_int_equal(fcntl(other, F_GETFD), -1);
	assert_int_equal(ops->arena_import(dev, -1, 100000, 0, &b, &err), TD_E_IO);
	close(fd);
	/* no room, no fds */
	assert_int_equal(ops->arena_create(dev, 0, &a, &err), TD_E_INVALID);
	{
		struct rlimit old, none;

		/* The limit on file sizes is the net: without the check this would take all memory of the machine. */
		signal(SIGXFSZ, SIG_IGN);
		getrlimit(RLIMIT_FSIZE, &old);
		none = old;
		none.rlim_cur = 1 << 20;
		setrlimit(RLIMIT_FSIZE, &none);
		assert_int_equal(ops->arena_create(dev, (size_t)1 << 60, &a, &err), TD_E_NOMEM);
		assert_non_null(strstr(err.text, "available"));
		assert_int_equal(ops->arena_create(dev, (size_t)2 << 20, &a, &err), TD_E_NOMEM); /* the system refuses */
		setrlimit(RLIMIT_FSIZE, &old);
	}
	{
		struct rlimit old, none;

		getrlimit(RLIMIT_NOFILE, &old);
		none = old;
		none.rlim_cur = 3;
		setrlimit(RLIMIT_NOFILE, &none);
		assert_int_equal(ops->arena_create(dev, 4096, &a, &err), TD_E_IO);
		setrlimit(RLIMIT_NOFILE, &old);
	}
	assert_null(a.base);
	k_close(dev);
}

static void batches(void **state)
{
	struct td_dev *dev = k_open(1);
	struct td_error err = { 0 };
	struct td_seq seq[9] = { { .slot = 3 } };
	struct td_batch b[TD_BATCHES], wide = { .n_seq = 9, .n_rows = 9, .seq = seq };

	(void)state;
	for (int i = 0; i < TD_BATCHES; i++) {
		seq[0].slot = i;
		b[i] = k_batch(dev, seq, 1);
	}
	for (int i = 0; i < TD_BATCHES; i++)
		assert_int_equal(b[i].dev[0].slot, i);
	ops->batch_set(dev, &wide); /* more than the slots that the device was opened for */
	assert_int_equal(wide.n_seq, 0);
	assert_int_equal(ops->sync(dev, &err), TD_E_INTERNAL);
	assert_non_null(strstr(err.text, "9 sequences"));
	err.code = 0;
	assert_int_equal(ops->sync(dev, &err), TD_E_INTERNAL); /* it sticks */
	assert_int_equal(ops->download(dev, &b, &b, 0, &err), TD_E_INTERNAL);
	ops->close(dev);
}

static void steps(void **state)
{
	struct td_dev *dev = k_open(2);
	struct td_error err = { 0 };
	struct td_seq one = { .slot = 1, .rows = 3 }, two[2] = { { .slot = 0, .rows = 1 }, { .slot = 1, .row0 = 1, .rows = 2, .pos0 = 7 } };
	struct td_batch a = { .n_seq = 1, .n_rows = 3, .max_rows = 3, .max_ctx = 3, .seq = &one }, b = { .n_seq = 2, .n_rows = 3, .max_rows = 2, .max_ctx = 9, .seq = two };
	struct td_replay r = { .who = dev, .what = 1, .ctx_max = 64, .n = 2, .batch = { &a, &b } };
	int32_t *said = ops->host_alloc(dev, sizeof(*said), &err);

	(void)state;
	assert_non_null(said);
	assert_int_equal(*said, 0);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(ops->replay(dev, &r), 0);
		assert_int_equal(a.dev[0].slot, 1);
		assert_int_equal(b.dev[1].pos0, 7);
		usleep(2000);
		ops->mark(dev, TD_MARK_HEAD);
		ops->replay_end(dev);
		assert_int_equal(ops->replay_wait(dev, &err), 0);
		assert_true(ops->elapsed_us(dev, TD_MARK_BEGIN, TD_MARK_HEAD) >= 2000);
		assert_true(ops->elapsed_us(dev, TD_MARK_HEAD, TD_MARK_END) >= 0);
	}
	ops->host_free(dev, said);
	k_close(dev);
}

static void finding(void **state)
{
	struct td_error err = { 0 };
	const struct td_ops *found;

	(void)state;
	assert_ptr_equal(td_ops_find("cpu", &err), &td_cpu_ops);
	assert_null(td_ops_find("gpu", &err));
	assert_int_equal(err.code, TD_E_INVALID);
	assert_non_null(strstr(err.text, "\"gpu\""));
	err.code = 0;
	/* a module that can't be: "cuda" fails with a sentence, "auto" falls back and leaves no error */
	setenv("TANDEM_CUDA_MODULE", "/nonexistent/tandem-cuda.so", 1);
	assert_null(td_ops_find("cuda", &err));
	assert_true(err.code == TD_E_DEVICE || err.code == TD_E_NOT_FOUND);
	assert_true(strstr(err.text, "driver") || strstr(err.text, "/nonexistent/tandem-cuda.so"));
	found = td_ops_find("auto", &err);
	assert_ptr_equal(found, &td_cpu_ops);
	assert_int_equal(err.code, 0);
	unsetenv("TANDEM_CUDA_MODULE");
	assert_non_null(td_ops_find("auto", &err));
	assert_non_null(td_ops_find("auto", NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(pool), cmocka_unit_test(opening), cmocka_unit_test(memory), cmocka_unit_test(arenas),
					    cmocka_unit_test(batches), cmocka_unit_test(steps), cmocka_unit_test(finding) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
