/*
 * bench_count.c: which tokens a model answers with, counted, as the list that drafts are chosen from (model.draft_vocabulary; engine/draft_list.h says
 * what such a file is).
 *
 * The most frequent token comes first, of equal ones the lower id. Where more are wanted than were seen, the lowest ids fill the list up: tokenizers number
 * their tokens by how much text each merged, so that is the next best order.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/bench.h"

void td_bench_count_finish(struct td_bench_count *c)
{
	free(c->of);
	memset(c, 0, sizeof(*c));
}

static int room(struct td_bench_count *c, int32_t id)
{
	size_t size = (size_t)id + 4096;
	uint64_t *grown;

	if ((size_t)id < c->size)
		return 0;
	grown = realloc(c->of, size * sizeof(*grown));
	if (!grown)
		return -1;
	memset(grown + c->size, 0, (size - c->size) * sizeof(*grown));
	c->of = grown;
	c->size = size;
	return 0;
}

int td_bench_count_add(struct td_bench_count *c, const struct td_bench_answer *a)
{
	size_t i;

	for (i = 0; i < a->n; i++) {
		if (a->id[i] < 0 || room(c, a->id[i]))
			return -1;
		c->different += !c->of[a->id[i]]++;
	}
	c->all += a->n;
	return 0;
}

struct entry {
	uint64_t times;
	int32_t id;
};

static int compare(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	return x->times != y->times ? (x->times < y->times ? 1 : -1) : (x->id > y->id) - (x->id < y->id);
}

/* malloc'd, *n entries: all that were seen, or so many as are wanted. */
static struct entry *rank(const struct td_bench_count *c, size_t want, size_t *n)
{
	size_t most = c->size > want ? c->size : want, i;
	struct entry *e = malloc((most + 1) * sizeof(*e));

	for (i = 0; e && i < most; i++)
		e[i] = (struct entry){i < c->size ? c->of[i] : 0, (int32_t)i};
	if (e)
		qsort(e, most, sizeof(*e), compare);
	*n = want ? want : c->different;
	return e;
}

static int write_list(FILE *f, const struct td_bench_count *c, const struct entry *e, size_t n, const char *model, uint64_t *held)
{
	size_t i;

	for (i = 0; i < n; i++)
		*held += e[i].times;
	fprintf(f, "tandem-draft-vocabulary 1\n# counted on %llu tokens that %s answered with, %zu different ones; %.2f %% of them are listed here\n",
		(unsigned long long)c->all, model, c->different, 100.0 * (double)*held / (double)(c->all ? c->all : 1));
	for (i = 0; i < n; i++)
		fprintf(f, "%d\n", e[i].id);
	return ferror(f);
}

int td_bench_count_write(const struct td_bench_count *c, const char *path, size_t want, const char *model)
{
	FILE *f = fopen(path, "w");
	struct entry *e = NULL;
	uint64_t held = 0;
	size_t n = 0;
	int bad = !f;

	if (f) {
		e = rank(c, want, &n);
		bad = !e || write_list(f, c, e, n, model, &held);
		bad |= fclose(f) != 0;
	}
	free(e);
	if (bad) {
		fprintf(stderr, "tandem bench: %s can't be written: %s\n", path, strerror(errno));
		return -1;
	}
	printf("%llu tokens were answered with, %zu different ones; %s lists %zu, which are %.2f %% of the answers\n", (unsigned long long)c->all, c->different, path, n,
	       100.0 * (double)held / (double)(c->all ? c->all : 1));
	return 0;
}
