/*
 * check_device.c: arenas that another mapping shares, checksums.
 */
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

void check_device(void)
{
	arenas();
}
