/*
 * test_shm.c: the shared memory is laid out without overlap, and a header that lies is refused by whoever maps it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/shm.h"

static const struct td_shm_config good = {
	.slots = 3, .context = 192, .vocab = 8192, .features = 1536, .chunk = 64, .feature_rows = 64, .host_exchange = 1,
};

static void parts_do_not_overlap(void **state)
{
	struct td_exchange x;
	struct td_error err = {0};
	struct td_shm *a, *b;
	char *base, *end;
	int fd;

	(void)state;
	assert_int_equal(td_shm_create(&good, &fd, &a, &err), 0);
	assert_int_equal(td_shm_map(fd, &b, &err), 0);
	assert_ptr_not_equal(a, b);
	assert_true(a->off_slots >= sizeof(struct td_shm));
	assert_true((char *)td_shm_slot(a, 3) <= (char *)td_shm_ids(a, 0));
	assert_true((char *)td_shm_ids(a, 3) <= (char *)a + a->off_exchange);
	td_exchange_layout(&a->cfg, TD_F32, (char *)a + a->off_exchange, &x);
	end = (char *)a + a->size;
	assert_true((char *)x.features[0] + 64 * 1536 * 4 <= (char *)x.features[1]);
	assert_true((char *)x.features[1] + 64 * 1536 * 4 <= (char *)x.draft);
	assert_true((char *)(x.draft + 3) <= (char *)x.anchor);
	assert_true((char *)(x.anchor + 3) <= (char *)x.counts);
	assert_true((char *)(x.counts + 3 * 8192) <= end);
	assert_int_equal((uintptr_t)x.counts % 256, 0);
	assert_int_equal((uintptr_t)&a->target % 128, 0);

	/* what one writes the other reads, up to the last byte; each part keeps its own value */
	base = (char *)a;
	memset(base + sizeof(struct td_shm), 0, a->size - sizeof(struct td_shm));
	memset(td_shm_slot(a, 2), 1, sizeof(struct td_slot_area));
	memset(td_shm_ids(a, 2), 2, 192 * 4);
	memset(x.features[0], 3, 64 * 1536 * 4);
	memset(x.features[1], 4, 64 * 1536 * 4);
	memset(x.draft, 5, 3 * sizeof(struct td_draft));
	memset(x.anchor, 6, 3 * 4);
	memset(x.counts, 7, 3 * 8192 * 2);
	td_exchange_layout(&b->cfg, TD_F32, (char *)b + b->off_exchange, &x);
	assert_int_equal(((char *)td_shm_slot(b, 2))[sizeof(struct td_slot_area) - 1], 1);
	assert_int_equal(((char *)td_shm_ids(b, 3))[-1], 2);
	assert_int_equal(((char *)x.features[0])[64 * 1536 * 4 - 1], 3);
	assert_int_equal(((char *)x.features[1])[64 * 1536 * 4 - 1], 4);
	assert_int_equal(((char *)(x.draft + 3))[-1], 5);
	assert_int_equal(x.anchor[2], 0x06060606);
	assert_int_equal(x.counts[3 * 8192 - 1], 0x0707);
	td_shm_unmap(b);
	td_shm_unmap(a);
	close(fd);
}

static void bad_configurations(void **state)
{
	static const struct {
		size_t at;
		int32_t value;
	} bad[] = {
		{offsetof(struct td_shm_config, slots), 0},
		{offsetof(struct td_shm_config, slots), TD_SLOTS_MAX + 1},
		{offsetof(struct td_shm_config, slots), INT32_MIN},
		{offsetof(struct td_shm_config, context), 0},
		{offsetof(struct td_shm_config, context), 100},
		{offsetof(struct td_shm_config, context), INT32_MAX},
		{offsetof(struct td_shm_config, vocab), 0},
		{offsetof(struct td_shm_config, vocab), INT32_MAX},
		{offsetof(struct td_shm_config, features), -1},
		{offsetof(struct td_shm_config, chunk), 65},
		{offsetof(struct td_shm_config, chunk), 0},
		{offsetof(struct td_shm_config, feature_rows), 63},
		{offsetof(struct td_shm_config, feature_rows), INT32_MAX},
		{offsetof(struct td_shm_config, host_exchange), 2},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct td_shm_config cfg = good;
		struct td_error err = {0};
		struct td_shm *shm;
		int fd;

		memcpy((char *)&cfg + bad[i].at, &bad[i].value, sizeof(int32_t));
		assert_int_equal(td_shm_create(&cfg, &fd, &shm, &err), TD_E_INVALID);
		assert_int_equal(fd, -1);
		assert_null(shm);
		assert_true(strlen(err.text) > 20);
	}
}

static void lying_headers(void **state)
{
	struct td_error err = {0};
	struct td_shm *shm, *other;
	int fd;

	(void)state;
	assert_int_equal(td_shm_create(&good, &fd, &shm, &err), 0);
#define LIE(field, value, code) \
	do { \
		__typeof__(shm->field) true_value = shm->field; \
		shm->field = (value); \
		assert_int_equal(td_shm_map(fd, &other, &err), (code)); \
		assert_null(other); \
		shm->field = true_value; \
	} while (0)
	LIE(magic, 1, TD_E_FORMAT);
	LIE(version, TD_SHM_VERSION + 1, TD_E_MISMATCH);
	LIE(size, shm->size + 4096, TD_E_FORMAT);
	LIE(size, 0, TD_E_FORMAT);
	LIE(off_slots, 0, TD_E_FORMAT);
	LIE(off_ids, shm->off_ids + 4096, TD_E_FORMAT);
	LIE(off_grammar, shm->off_grammar + 4096, TD_E_FORMAT);
	LIE(off_table, shm->off_table + 4096, TD_E_FORMAT);
	LIE(off_exchange, UINT64_MAX, TD_E_FORMAT);
	LIE(cfg.slots, 4, TD_E_FORMAT);
	LIE(cfg.slots, -4, TD_E_INVALID);
	LIE(cfg.context, 4096, TD_E_FORMAT);
	LIE(cfg.vocab, INT32_MAX, TD_E_INVALID);
	LIE(cfg.host_exchange, 0, TD_E_FORMAT);
	assert_int_equal(td_shm_map(fd, &other, &err), 0);
	/* a header that is overwritten after mapping does not lead unmap astray */
	shm->size = 1ull << 40;
	td_shm_unmap(other);
	td_shm_unmap(shm);
	td_shm_unmap(NULL);
	close(fd);
}

static void short_or_foreign_memory(void **state)
{
	struct td_error err = {0};
	struct td_shm *shm, *other;
	int fd, cut, pipes[2];
	char page[4096];

	(void)state;
	assert_int_equal(td_shm_create(&good, &fd, &shm, &err), 0);
	cut = memfd_create("cut", 0);
	assert_int_equal(td_shm_map(cut, &other, &err), TD_E_FORMAT); /* empty */
	assert_int_equal(ftruncate(cut, (off_t)sizeof(struct td_shm)), 0);
	assert_int_equal(pread(fd, page, sizeof(page), 0), sizeof(page));
	assert_int_equal(pwrite(cut, page, sizeof(page), 0), sizeof(page));
	assert_int_equal(td_shm_map(cut, &other, &err), TD_E_FORMAT); /* header right, memory short */
	assert_non_null(strstr(err.text, "header says"));
	assert_int_equal(ftruncate(cut, (off_t)shm->size + 1), 0);
	assert_int_equal(td_shm_map(cut, &other, &err), TD_E_FORMAT);
	assert_int_equal(td_shm_map(-1, &other, &err), TD_E_IO);
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(td_shm_map(pipes[0], &other, &err), TD_E_FORMAT);
	/* nobody can pull the pages away */
	assert_int_equal(ftruncate(fd, 4096), -1);
	assert_int_equal(ftruncate(fd, (off_t)shm->size * 2), -1);
	td_shm_unmap(shm);
	close(fd);
	close(cut);
	close(pipes[0]);
	close(pipes[1]);
}

static void no_exchange_on_the_host(void **state)
{
	struct td_shm_config cfg = good;
	struct td_error err = {0};
	struct td_shm *shm;
	int fd;

	(void)state;
	cfg.host_exchange = 0;
	cfg.features = 0;
	assert_int_equal(td_shm_create(&cfg, &fd, &shm, &err), 0);
	assert_int_equal(shm->size, shm->off_exchange);
	assert_int_equal(td_exchange_bytes(&good, TD_BF16) < td_exchange_bytes(&good, TD_F32), 1);
	td_shm_unmap(shm);
	close(fd);
}

static void out_of_descriptors(void **state)
{
	int status;
	pid_t pid = fork();

	(void)state;
	if (pid == 0) {
		struct rlimit none = {0, 0};
		struct td_error err = {0};
		struct td_shm *shm;
		int fd;

		setrlimit(RLIMIT_NOFILE, &none);
		_exit(td_shm_create(&good, &fd, &shm, &err) == TD_E_LIMIT && fd == -1 && !shm ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parts_do_not_overlap), cmocka_unit_test(bad_configurations), cmocka_unit_test(lying_headers),
		cmocka_unit_test(short_or_foreign_memory), cmocka_unit_test(no_exchange_on_the_host), cmocka_unit_test(out_of_descriptors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
