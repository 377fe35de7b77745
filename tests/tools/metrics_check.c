/*
 * metrics_check.c: holds texts in Prometheus' format against its rules.
 *
 *     metrics_check FILE [LATER]
 *
 * Exit code 0 when FILE is well formed and, with LATER, that is too and no counter fell; 1 with one line of why on stderr.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/promtext.h"

static char *read_file(const char *path)
{
	FILE *f = fopen(path, "r");
	char *text = NULL;
	size_t n = 0;

	if (!f || getdelim(&text, &n, '\0', f) < 0) {
		fprintf(stderr, "metrics_check: can't read %s, or it is empty\n", path);
		exit(1);
	}
	fclose(f);
	return text;
}

int main(int argc, char **argv)
{
	struct td_promtext p[2] = {0};
	int bad = argc < 2 || argc > 3;

	for (int i = 0; !bad && i < argc - 1; i++) {
		char *text = read_file(argv[i + 1]);

		bad = td_promtext_read(&p[i], text);
		if (bad)
			fprintf(stderr, "metrics_check: %s: %s\n", argv[i + 1], p[i].why);
		free(text);
	}
	if (!bad && argc == 3 && td_promtext_grows(&p[0], &p[1])) {
		fprintf(stderr, "metrics_check: %s\n", p[1].why);
		bad = 1;
	}
	if (!bad)
		printf("%d families, %d samples\n", p[argc - 2].n_families, p[argc - 2].n_samples);
	td_promtext_finish(&p[0]);
	td_promtext_finish(&p[1]);
	return bad != 0;
}
