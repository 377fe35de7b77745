/*
 * tokenize_digest.c: what tandem's tokenizer makes of the random texts and of files, in the form that tests/tokenizer_vs_reference.py compares.
 *
 * tokenize_digest TOKENIZER            the digests of the random texts
 * tokenize_digest TOKENIZER FILE...    one line per file: "hash ids bytes path" ("invalid" instead of the hash for text that isn't UTF-8)
 * tokenize_digest TOKENIZER --text I   the ids of random text number I, to look into a difference
 * tokenize_digest TOKENIZER --speed FILE...   encoding and decoding in MB/s
 */
#include <time.h>

#include "tests/tokenizer_random.h"

static char *read_file(const char *path, size_t *n)
{
	FILE *f = fopen(path, "rb");
	char *text = NULL;
	size_t size = 0, got;

	*n = 0;
	if (!f) {
		perror(path);
		exit(1);
	}
	do {
		size += 1 << 20;
		text = realloc(text, size);
		got = fread(text + *n, 1, size - *n, f);
		*n += got;
	} while (got);
	fclose(f);
	return text;
}

static void file_line(const struct td_tokenizer *t, const char *path)
{
	XXH3_state_t *h;
	struct td_ids ids = {0};
	size_t n;
	char *text = read_file(path, &n);

	if (!td_utf8_check(text, n)) {
		printf("invalid 0 %zu %s\n", n, path);
	} else {
		h = XXH3_createState();
		XXH3_64bits_reset(h);
		digest_round(h, t, text, n, 1);
		td_encode(t, text, n, 1, &ids, NULL);
		printf("%016llx %zu %zu %s\n", (unsigned long long)XXH3_64bits_digest(h), ids.n, n, path);
		td_ids_finish(&ids);
		XXH3_freeState(h);
	}
	free(text);
}

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void speed(const struct td_tokenizer *t, int n_files, char **file)
{
	double start, encode = 0, decode = 0;
	size_t bytes = 0, tokens = 0, n;
	int i;

	for (i = 0; i < n_files; i++) {
		struct td_ids ids = {0};
		char *text = read_file(file[i], &n);

		if (td_utf8_check(text, n)) {
			start = now();
			td_encode(t, text, n, 1, &ids, NULL);
			encode += now() - start;
			bytes += n;
			tokens += ids.n;
			free(text);
			start = now();
			text = td_decode(t, ids.id, ids.n, 0, &n);
			decode += now() - start;
		}
		td_ids_finish(&ids);
		free(text);
	}
	printf("%zu bytes, %zu tokens: encode %.1f MB/s, decode %.1f MB/s\n", bytes, tokens, (double)bytes / encode / 1e6, (double)bytes / decode / 1e6);
}

int main(int argc, char **argv)
{
	struct td_tokenizer *t;
	struct td_error err;
	uint64_t digest[DIGEST_KINDS];
	int i;

	if (argc < 2) {
		fprintf(stderr, "usage: tokenize_digest TOKENIZER [FILE... | --text I | --speed FILE...]\n");
		return 2;
	}
	if (td_tokenizer_load(argv[1], &t, &err)) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	if (argc == 2) {
		digest_random(t, digest);
		for (i = 0; i < DIGEST_KINDS; i++)
			printf("%s %d %016llx\n", digest_kind[i], i < 3 ? RANDOM_TEXTS : RANDOM_SEQUENCES, (unsigned long long)digest[i]);
	} else if (!strcmp(argv[2], "--text") && argc == 4) {
		struct td_ids ids = {0};
		char *text = malloc(RANDOM_TEXT_MAX);
		size_t n = random_text((uint32_t)atoi(argv[3]), text);

		td_encode(t, text, n, 1, &ids, NULL);
		for (size_t k = 0; k < ids.n; k++)
			printf("%d%c", ids.id[k], k + 1 < ids.n ? ' ' : '\n');
		td_ids_finish(&ids);
		free(text);
	} else if (!strcmp(argv[2], "--speed")) {
		speed(t, argc - 3, argv + 3);
	} else {
		for (i = 2; i < argc; i++)
			file_line(t, argv[i]);
	}
	td_tokenizer_free(t);
	return 0;
}
