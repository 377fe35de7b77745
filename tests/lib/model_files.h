/*
 * model_files.h: for tests: a scratch folder, and checkpoints written into it byte by byte, right or wrong on purpose.
 *
 * Failures of the file system itself abort the test: they are not what is tested.
 */
#ifndef TD_TEST_MODEL_FILES_H
#define TD_TEST_MODEL_FILES_H

#include <stddef.h>
#include <stdint.h>

void must(int ok, const char *what);

const char *scratch_make(char dir[64]); /* returns dir */
void scratch_remove(const char *dir);
/* cmocka's set-up and tear-down of a test: `scratch` is a new folder. */
extern char scratch[64];
int scratch_setup(void **state);
int scratch_teardown(void **state);

void file_write(const char *dir, const char *name, const void *data, size_t size);
void file_text(const char *dir, const char *name, const char *text);
char *file_read(const char *dir, const char *name, size_t *size); /* malloc'd, with a NUL behind; size may be NULL */

/* A safetensors file: length (of the header, or `claim` when >= 0), header, then `data` bytes that count up. Returns its size; *out is malloc'd. */
size_t st_bytes(const char *header, size_t header_size, long long claim, size_t data, unsigned char **out);
void st_write(const char *dir, const char *name, const char *header, long long claim, size_t data);

#endif
