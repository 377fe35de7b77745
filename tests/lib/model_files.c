/*
 * model_files.c: scratch folders, files in them, safetensors headers with any lie in them (model_files.h).
 */
#include "tests/lib/model_files.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char scratch[64];

void must(int ok, const char *what)
{
	if (ok)
		return;
	perror(what);
	abort();
}

static int unlink_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st, (void)flag, (void)ftw;
	return remove(path);
}

void scratch_remove(const char *dir)
{
	nftw(dir, unlink_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *scratch_make(char dir[64])
{
	strcpy(dir, "/tmp/tandem-test-XXXXXX");
	must(mkdtemp(dir) != NULL, "mkdtemp");
	return dir;
}

void file_write(const char *dir, const char *name, const void *data, size_t size)
{
	char path[512];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "wb");
	must(f && fwrite(data, 1, size, f) == size && fclose(f) == 0, path);
}

void file_text(const char *dir, const char *name, const char *text)
{
	file_write(dir, name, text, strlen(text));
}

char *file_read(const char *dir, const char *name, size_t *size)
{
	char path[512], *data;
	FILE *f;
	long n = -1;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "rb");
	must(f && fseek(f, 0, SEEK_END) == 0 && (n = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0, path);
	data = calloc(1, (size_t)n + 1);
	must(data && fread(data, 1, (size_t)n, f) == (size_t)n && fclose(f) == 0, path);
	if (size)
		*size = (size_t)n;
	return data;
}

size_t st_bytes(const char *header, size_t header_size, long long claim, size_t data, unsigned char **out)
{
	uint64_t n = claim >= 0 ? (uint64_t)claim : header_size;
	unsigned char *p = malloc(8 + header_size + data + 1);

	must(p != NULL, "malloc");
	for (int i = 0; i < 8; i++)
		p[i] = (unsigned char)(n >> (8 * i));
	memcpy(p + 8, header, header_size);
	for (size_t i = 0; i < data; i++)
		p[8 + header_size + i] = (unsigned char)i;
	*out = p;
	return 8 + header_size + data;
}

void st_write(const char *dir, const char *name, const char *header, long long claim, size_t data)
{
	unsigned char *p;
	size_t n = st_bytes(header, strlen(header), claim, data, &p);

	file_write(dir, name, p, n);
	free(p);
}

int scratch_setup(void **state)
{
	(void)state;
	scratch_make(scratch);
	return 0;
}

int scratch_teardown(void **state)
{
	(void)state;
	scratch_remove(scratch);
	return 0;
}
