/*
 * test_safetensors.c: a checkpoint is read as it is, and a lying or damaged one is refused with a sentence that names file and tensor.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/safetensors.h"
#include "tests/lib/model_files.h"
#include "tests/lib/unit.h"

static struct td_error err;

static const char valid[] = "{\"__metadata__\":{\"format\":\"pt\"},"
			    "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
			    "\"b.weight\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]},"
			    "\"c\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[32,40]},"
			    "\"e\":{\"dtype\":\"U8\",\"shape\":[0,7],\"data_offsets\":[40,40]},"
			    "\"z\":{\"dtype\":\"F8_E4M3\",\"shape\":[5],\"data_offsets\":[40,45]}}   ";

static int setup(void **state)
{
	memset(&err, 0, sizeof(err));
	return scratch_setup(state);
}

static void expect(const char *what, int rc, int code, const char *text)
{
	if (rc == code && err.code == code && (!text || strstr(err.text, text)))
		return;
	fail_msg("%s: got %s \"%s\", expected %s with \"%s\"", what, td_error_name(rc), rc ? err.text : "", td_error_name(code), text ? text : "");
}

static int try_open(const char *path)
{
	struct td_st *st = NULL;
	int rc;

	memset(&err, 0, sizeof(err));
	rc = td_st_open(path, &st, &err);
	if (rc)
		assert_null(st);
	td_st_close(st);
	return rc;
}

static void test_read(void **state)
{
	struct td_st_tensor *t;
	char id[100] = "x ", again[100] = "";
	struct td_st *st;

	(void)state;
	st_write(scratch, "model.safetensors", valid, -1, 45);
	assert_int_equal(td_st_open(scratch, &st, &err), 0);
	assert_int_equal(td_st_count(st), 5);
	assert_string_equal(td_st_at(st, 0)->name, "a");
	assert_string_equal(td_st_at(st, 4)->name, "z");
	assert_null(td_st_at(st, 5));
	assert_null(td_st_find(st, "b"));
	assert_null(td_st_find(st, ""));
	assert_null(td_st_find(st, "__metadata__"));
	t = td_st_find(st, "b.weight");
	assert_non_null(t);
	assert_int_equal(t->used, 1);
	assert_int_equal(td_st_at(st, 0)->used, 0);
	assert_int_equal(t->dtype, TD_BF16);
	assert_int_equal(t->n_dims, 1);
	assert_int_equal(t->dim[0], 4);
	assert_int_equal(t->bytes, 8);
	for (size_t i = 0; i < t->bytes; i++)
		assert_int_equal(((const unsigned char *)t->data)[i], 24 + i);
	t = td_st_find(st, "a");
	assert_int_equal(t->n_dims, 2);
	assert_int_equal(t->dim[1], 3);
	assert_int_equal(td_st_find(st, "c")->n_dims, 0);
	assert_int_equal(td_st_find(st, "e")->bytes, 0);
	t = td_st_find(st, "z");
	assert_int_equal(t->dtype, TD_ST_OTHER);
	assert_string_equal(t->dtype_name, "F8_E4M3");
	td_st_identity(st, id, sizeof(id));
	assert_int_equal(strncmp(id, "x files=1 bytes=", 16), 0);
	td_st_close(st);
	td_st_close(NULL);

	/* the same file by its own path is the same; the same bytes at another time are not */
	char path[128];
	snprintf(path, sizeof(path), "%s/model.safetensors", scratch);
	assert_int_equal(td_st_open(path, &st, &err), 0);
	td_st_identity(st, again, sizeof(again));
	assert_string_equal(id + 2, again);
	td_st_close(st);
	struct timespec times[2] = { { .tv_sec = 5 }, { .tv_sec = 5 } };
	must(utimensat(AT_FDCWD, path, times, 0) == 0, path);
	assert_int_equal(td_st_open(path, &st, &err), 0);
	again[0] = '\0';
	td_st_identity(st, again, sizeof(again));
	assert_string_not_equal(id + 2, again);
	td_st_close(st);
}

#define T(name, dtype, shape, offsets) "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct {
	const char *what, *header;
	long long claim;
	size_t data;
	const char *text;
} lies[] = {
	{ "header longer than the file", "{}", 3, 0, "truncated" },
	{ "header length huge", "{}", 0x7fffffffffffffffLL, 0, "100 MB" },
	{ "header length just above the cap", "{}", (100 << 20) + 1, 0, "100 MB" },
	{ "header length at the cap", "{}", 100 << 20, 0, "truncated" },
	{ "header length zero", "{}", 0, 2, "truncated" },
	{ "header length one", "{}", 1, 2, "truncated" },
	{ "header cut by its length", "{ }", 2, 0, "not valid JSON" },
	{ "header takes in data", "{}", 4, 4, "not valid JSON" },
	{ "header is a list", "[]", -1, 0, "begin with {" },
	{ "header begins with a space", " {}", -1, 0, "begin with {" },
	{ "empty file of tensors with a tail", "{}", -1, 5, "5 bytes at its end" },
	{ "not JSON", "{]", -1, 0, "not valid JSON" },
	{ "two objects", "{}{}", -1, 0, "not valid JSON" },
	{ "name not UTF-8", "{" T("a\xff", "U8", "[1]", "[0,1]") "}", -1, 1, "not valid JSON" },
	{ "name overlong UTF-8", "{" T("a\xc0\x80", "U8", "[1]", "[0,1]") "}", -1, 1, "not valid JSON" },
	{ "name with a NUL", "{" T("a\\u0000b", "U8", "[1]", "[0,1]") "}", -1, 1, "not valid JSON" },
	{ "name empty", "{" T("", "U8", "[1]", "[0,1]") "}", -1, 1, "name has 0 bytes" },
	{ "name twice", "{" T("a", "U8", "[1]", "[0,1]") "," T("a", "U8", "[1]", "[1,2]") "}", -1, 2, "duplicate" },
	{ "dtype twice", "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", -1, 1, "duplicate" },
	{ "metadata is text", "{\"__metadata__\":\"x\"}", -1, 0, "__metadata__" },
	{ "metadata holds a number", "{\"__metadata__\":{\"n\":1}}", -1, 0, "__metadata__" },
	{ "entry is a number", "{\"tensor_a\":1}", -1, 0, "tensor tensor_a" },
	{ "entry is null", "{\"tensor_a\":null}", -1, 0, "tensor tensor_a" },
	{ "dtype missing", "{\"tensor_a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", -1, 1, "tensor tensor_a: unknown dtype" },
	{ "dtype unknown", "{" T("tensor_a", "F31", "[1]", "[0,4]") "}", -1, 4, "unknown dtype F31" },
	{ "dtype in small letters", "{" T("tensor_a", "f32", "[1]", "[0,4]") "}", -1, 4, "unknown dtype f32" },
	{ "dtype is a number", "{\"tensor_a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,1]}}", -1, 1, "unknown dtype" },
	{ "dtype smaller than the bytes", "{" T("tensor_a", "BF16", "[2]", "[0,8]") "}", -1, 8, "ask for 4 bytes, data_offsets give 8" },
	{ "dtype larger than the bytes", "{" T("tensor_a", "F64", "[2]", "[0,8]") "}", -1, 8, "ask for 16 bytes" },
	{ "half a byte", "{" T("tensor_a", "F4", "[3]", "[0,1]") "}", -1, 1, "ends inside a byte" },
	{ "shape missing", "{\"tensor_a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", -1, 1, "shape is missing" },
	{ "shape is a number", "{" T("tensor_a", "U8", "1", "[0,1]") "}", -1, 1, "shape is missing or no list" },
	{ "shape negative", "{" T("tensor_a", "U8", "[-1]", "[0,1]") "}", -1, 1, "shape[0]" },
	{ "shape twice negative", "{" T("tensor_a", "U8", "[-1,-1]", "[0,1]") "}", -1, 1, "shape[0]" },
	{ "shape fractional", "{" T("tensor_a", "U8", "[1,1.5]", "[0,1]") "}", -1, 1, "shape[1]" },
	{ "shape of text", "{" T("tensor_a", "U8", "[\"1\"]", "[0,1]") "}", -1, 1, "shape[0]" },
	{ "shape too long", "{" T("tensor_a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", -1, 1, "9 dimensions" },
	{ "shape overflows", "{" T("tensor_a", "U8", "[4294967296,4294967296]", "[0,1]") "}", -1, 1, "overflows" },
	{ "shape overflows to the right size", "{" T("tensor_a", "U8", "[4294967297,4294967295,4294967297]", "[0,1]") "}", -1, 1, "overflows" },
	{ "bits overflow", "{" T("tensor_a", "F64", "[4611686018427387904]", "[0,0]") "}", -1, 0, "overflows" },
	{ "shape beyond 64 bits", "{" T("tensor_a", "U8", "[99999999999999999999]", "[0,1]") "}", -1, 1, "not valid JSON" },
	{ "offsets missing", "{\"tensor_a\":{\"dtype\":\"U8\",\"shape\":[1]}}", -1, 1, "data_offsets" },
	{ "offsets of one", "{" T("tensor_a", "U8", "[1]", "[0]") "}", -1, 1, "data_offsets" },
	{ "offsets of three", "{" T("tensor_a", "U8", "[1]", "[0,1,1]") "}", -1, 1, "data_offsets" },
	{ "offsets negative", "{" T("tensor_a", "U8", "[2]", "[-1,1]") "}", -1, 1, "[-1, 1]" },
	{ "offsets reversed", "{" T("tensor_a", "U8", "[1]", "[1,0]") "}", -1, 1, "[1, 0]" },
	{ "offsets beyond the file", "{" T("tensor_a", "U8", "[2]", "[0,2]") "}", -1, 1, "tensor tensor_a: data_offsets [0, 2]" },
	{ "offsets far beyond", "{" T("tensor_a", "U8", "[2]", "[9223372036854775805,9223372036854775807]") "}", -1, 1, "outside" },
	{ "offsets fractional", "{" T("tensor_a", "U8", "[1]", "[0,1.0]") "}", -1, 1, "pair of integers" },
	{ "gap at the start", "{" T("tensor_a", "U8", "[1]", "[1,2]") "}", -1, 2, "1 bytes before tensor tensor_a" },
	{ "gap inside", "{" T("a", "U8", "[1]", "[0,1]") "," T("tensor_b", "U8", "[1]", "[2,3]") "}", -1, 3, "before tensor tensor_b" },
	{ "tail", "{" T("a", "U8", "[1]", "[0,1]") "}", -1, 2, "1 bytes at its end" },
	{ "overlap", "{" T("aa", "U8", "[2]", "[0,2]") "," T("bb", "U8", "[2]", "[1,3]") "}", -1, 3, "tensor bb overlaps with aa" },
	{ "one place twice", "{" T("aa", "U8", "[2]", "[0,2]") "," T("bb", "U8", "[2]", "[0,2]") "}", -1, 2, "overlaps" },
	{ "empty tensor inside another", "{" T("aa", "U8", "[2]", "[0,2]") "," T("bb", "U8", "[0]", "[1,1]") "}", -1, 2, "overlaps" },
};

static void test_lies(void **state)
{
	char name[300], *header;

	(void)state;
	for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++) {
		st_write(scratch, "model.safetensors", lies[i].header, lies[i].claim, lies[i].data);
		expect(lies[i].what, try_open(scratch), TD_E_FORMAT, lies[i].text);
		if (!strstr(err.text, "model.safetensors"))
			fail_msg("%s: the message names no file: %s", lies[i].what, err.text);
	}
	memset(name, 'n', sizeof(name));
	name[201] = '\0';
	assert_true(asprintf(&header, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", name) > 0);
	st_write(scratch, "model.safetensors", header, -1, 1);
	expect("long name", try_open(scratch), TD_E_FORMAT, "name has 201 bytes");
	free(header);
	st_write(scratch, "model.safetensors", "{}", -1, 0);
	expect("no tensors at all is valid", try_open(scratch), 0, NULL);
}

/* Deep nesting must end in a message, not in an exhausted stack. */
static void test_deep(void **state)
{
	size_t n = 1 << 20;
	char *header = malloc(n + 6);

	(void)state;
	assert_non_null(header);
	memcpy(header, "{\"a\":", 5);
	memset(header + 5, '[', n);
	header[n + 5] = '\0';
	st_write(scratch, "model.safetensors", header, -1, 0);
	expect("deep", try_open(scratch), TD_E_FORMAT, "not valid JSON");
	free(header);
}

static void test_truncated(void **state)
{
	unsigned char *p;
	size_t n = st_bytes(valid, strlen(valid), -1, 45, &p);

	(void)state;
	for (size_t k = 0; k < n; k++) {
		file_write(scratch, "model.safetensors", p, k);
		if (try_open(scratch) != TD_E_FORMAT)
			fail_msg("cut to %zu of %zu bytes: %s", k, n, td_error_name(err.code));
	}
	file_write(scratch, "model.safetensors", p, n);
	expect("whole", try_open(scratch), 0, NULL);
	p[n] = 0;
	file_write(scratch, "model.safetensors", p, n + 1);
	expect("one byte more", try_open(scratch), TD_E_FORMAT, "at its end");
	free(p);
}

static uint64_t next(uint64_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x;
}

/* Whatever the header says: an error, or tensors whose every byte can be read. */
static void test_flips(void **state)
{
	uint64_t seed = 0x9e3779b97f4a7c15ULL;
	int good = 0, bad = 0;
	unsigned char *p;
	size_t n = st_bytes(valid, strlen(valid), -1, 45, &p);

	(void)state;
	for (int round = 0; round < 6000; round++) {
		size_t at[3] = { 0 };
		unsigned char old[3] = { 0 };
		int k = 1 + (int)(next(&seed) % 3);
		struct td_st *st;

		for (int i = 0; i < k; i++) {
			at[i] = next(&seed) % (n - 45);
			old[i] = p[at[i]];
			p[at[i]] = round % 2 ? (unsigned char)(old[i] ^ (1u << next(&seed) % 8)) : (unsigned char)"0123456789[]{},:\"-"[next(&seed) % 18];
		}
		file_write(scratch, "model.safetensors", p, n);
		memset(&err, 0, sizeof(err));
		if (td_st_open(scratch, &st, &err) == 0) {
			volatile unsigned sum = 0;

			for (size_t i = 0; i < td_st_count(st); i++)
				for (size_t j = 0; j < td_st_at(st, i)->bytes; j++)
					sum += ((const unsigned char *)td_st_at(st, i)->data)[j];
			td_st_close(st);
			good++;
		} else {
			assert_int_equal(err.code, TD_E_FORMAT);
			assert_non_null(strstr(err.text, "model.safetensors"));
			bad++;
		}
		for (int i = k - 1; i >= 0; i--)
			p[at[i]] = old[i];
	}
	free(p);
	if (good < 10 || bad < 1000)
		fail_msg("%d headers were still valid, %d were not: the test has lost its point", good, bad);
}

/* ---- shards ------------------------------------------------------------------------------------------------------------------------------ */

static void index_write(const char *map)
{
	char text[1024];

	snprintf(text, sizeof(text), "{\"metadata\":{\"total_size\":3},\"weight_map\":%s}", map);
	file_text(scratch, "model.safetensors.index.json", text);
}

static void test_shards(void **state)
{
	static const struct {
		const char *map, *text;
		int code;
	} wrong[] = {
		{ "{\"a\":\"s1\",\"b\":\"s1\"}", "tensor b is listed in s1 but is not there", TD_E_FORMAT },
		{ "{\"a\":\"s1\",\"b\":\"s2\",\"c\":\"s2\",\"x\":\"s2\"}", "tensor x is listed in s2", TD_E_FORMAT },
		{ "{\"a\":\"s2\",\"b\":\"s1\",\"c\":\"s2\"}", "is not there", TD_E_FORMAT },
		{ "{\"a\":\"s1\",\"b\":\"s2\"}", "does not list tensor c", TD_E_FORMAT },
		{ "{\"a\":\"s1\",\"b\":\"s3\"}", "s3", TD_E_NOT_FOUND },
		{ "{\"a\":\"s1\",\"b\":\"s2\",\"c\":\"s2\",\"d\":\"copy\"}", "tensor a is in more than one shard", TD_E_FORMAT },
		{ "{\"a\":\"../s1\"}", "tensor a: shard name ../s1 is not a plain file name", TD_E_FORMAT },
		{ "{\"a\":\"/etc/passwd\"}", "not a plain file name", TD_E_FORMAT },
		{ "{\"a\":\"sub/s1\"}", "not a plain file name", TD_E_FORMAT },
		{ "{\"a\":\"..\"}", "not a plain file name", TD_E_FORMAT },
		{ "{\"a\":\".\"}", "not a plain file name", TD_E_FORMAT },
		{ "{\"a\":\"\"}", "not a plain file name", TD_E_FORMAT },
		{ "{\"a\":7}", "not a plain file name", TD_E_FORMAT },
		{ "{\"a\":\"folder\"}", "not a regular file", TD_E_INVALID },
		{ "{\"a\":\"pipe\"}", "not a regular file", TD_E_INVALID },
		{ "{\"a\":\"cut\"}", "truncated", TD_E_FORMAT },
		{ "{}", "no weight_map", TD_E_FORMAT },
		{ "[]", "no weight_map", TD_E_FORMAT },
		{ "null", "no weight_map", TD_E_FORMAT },
		{ "{\"a\":\"s1\",\"a\":\"s2\"}", "duplicate", TD_E_FORMAT },
		{ "{\"a\":\"s1\"", "not valid JSON", TD_E_FORMAT },
	};
	struct td_st *st;
	char path[128];

	(void)state;
	st_write(scratch, "s1", "{" T("a", "U8", "[1]", "[0,1]") "}", -1, 1);
	st_write(scratch, "s2", "{" T("c", "U8", "[0]", "[0,0]") "," T("b", "U8", "[2]", "[0,2]") "}", -1, 2);
	st_write(scratch, "copy", "{" T("a", "U8", "[1]", "[0,1]") "," T("d", "U8", "[1]", "[1,2]") "}", -1, 2);
	st_write(scratch, "cut", "{" T("a", "U8", "[1]", "[0,1]") "}", -1, 0);
	snprintf(path, sizeof(path), "%s/folder", scratch);
	must(mkdir(path, 0700) == 0, path);
	snprintf(path, sizeof(path), "%s/pipe", scratch);
	must(mkfifo(path, 0600) == 0, path);
	index_write("{\"a\":\"s1\",\"b\":\"s2\",\"c\":\"s2\"}");
	assert_int_equal(td_st_open(scratch, &st, &err), 0);
	assert_int_equal(td_st_count(st), 3);
	assert_int_equal(td_st_find(st, "b")->bytes, 2);
	assert_int_equal(((const unsigned char *)td_st_find(st, "b")->data)[1], 1);
	td_st_close(st);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		index_write(wrong[i].map);
		expect(wrong[i].map, try_open(scratch), wrong[i].code, wrong[i].text);
	}
}

static void test_no_file(void **state)
{
	char path[5000];

	(void)state;
	expect("empty folder", try_open(scratch), TD_E_NOT_FOUND, "neither model.safetensors nor");
	snprintf(path, sizeof(path), "%s/nothing", scratch);
	expect("no folder", try_open(path), TD_E_NOT_FOUND, "can't be opened");
	snprintf(path, sizeof(path), "%s/model.safetensors", scratch);
	must(mkfifo(path, 0600) == 0, path);
	expect("a pipe", try_open(scratch), TD_E_INVALID, "not a regular file");
	unlink(path);
	must(mkdir(path, 0700) == 0, path);
	expect("a folder", try_open(scratch), TD_E_INVALID, "not a regular file");
	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	expect("a long path", try_open(path), TD_E_INVALID, "too long");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_read, setup, scratch_teardown),	  cmocka_unit_test_setup_teardown(test_lies, setup, scratch_teardown),
		cmocka_unit_test_setup_teardown(test_deep, setup, scratch_teardown),	  cmocka_unit_test_setup_teardown(test_truncated, setup, scratch_teardown),
		cmocka_unit_test_setup_teardown(test_flips, setup, scratch_teardown),	  cmocka_unit_test_setup_teardown(test_shards, setup, scratch_teardown),
		cmocka_unit_test_setup_teardown(test_no_file, setup, scratch_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
