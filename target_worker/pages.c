/*
 * pages.c: the pool of KV pages and each slot's row of the page table (host copy; target.c uploads a row when it changes).
 *
 * A request gets all its pages when it starts, so that it can't fail for memory in flight. A free list, no allocation after create.
 */
#include <stdlib.h>

#include "target_worker/internal.h"

struct td__pages {
	int n_free, max_pages;
	int32_t *free_page; /* stack (n_pages) */
	int32_t *row; /* (slots, max_pages) */
	int *held; /* (slots) */
};

struct td__pages *td__pages_create(int n_pages, int slots, int max_pages)
{
	struct td__pages *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->max_pages = max_pages;
	p->free_page = malloc(sizeof(*p->free_page) * (size_t)n_pages);
	p->row = calloc((size_t)slots * (size_t)max_pages, sizeof(*p->row));
	p->held = calloc((size_t)slots, sizeof(*p->held));
	if (!p->free_page || !p->row || !p->held) {
		td__pages_destroy(p);
		return NULL;
	}
	for (int i = 0; i < n_pages; i++)
		p->free_page[i] = n_pages - 1 - i;
	p->n_free = n_pages;
	return p;
}

void td__pages_destroy(struct td__pages *p)
{
	if (!p)
		return;
	free(p->free_page);
	free(p->row);
	free(p->held);
	free(p);
}

int td__pages_take(struct td__pages *p, int slot, int n)
{
	int32_t *row = p->row + (size_t)slot * (size_t)p->max_pages;

	if (n > p->n_free || n > p->max_pages || p->held[slot])
		return -1;
	for (int i = 0; i < n; i++)
		row[i] = p->free_page[--p->n_free];
	p->held[slot] = n;
	return 0;
}

void td__pages_release(struct td__pages *p, int slot)
{
	const int32_t *row = p->row + (size_t)slot * (size_t)p->max_pages;

	for (int i = 0; i < p->held[slot]; i++)
		p->free_page[p->n_free++] = row[i];
	p->held[slot] = 0;
}

const int32_t *td__pages_row(const struct td__pages *p, int slot)
{
	return p->row + (size_t)slot * (size_t)p->max_pages;
}
