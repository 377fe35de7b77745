/*
 * pages.c: the pool of KV pages: which slots hold a page, which the prefix cache keeps, and each slot's row of the page table (host copy; target.c
 * uploads a row when it changes).
 *
 * A request gets all its pages when it starts, so that it can't fail for memory in flight; the first of them may be shared with others, through the
 * prefix cache (prefix.c). A page is free when no slot holds it and the cache does not keep it; idle when only the cache does. So free + idle is what
 * a START can count on, and that is what tandemd's own account says. No allocation after create.
 */
#include <stdlib.h>

#include "target_worker/prefix.h"

struct td__pages {
	int n_free, n_idle, max_pages;
	int32_t *free_page; /* stack (n_pages) */
	int32_t *row; /* (slots, max_pages) */
	int *held; /* (slots) */
	uint16_t *users; /* (n_pages): slots that hold it */
	uint8_t *kept; /* (n_pages): by the cache */
};

struct td__pages *td__pages_create(int n_pages, int slots, int max_pages)
{
	struct td__pages *p = calloc(1, sizeof(*p));
	size_t n = (size_t)n_pages;

	if (!p)
		return NULL;
	p->max_pages = max_pages;
	p->free_page = malloc(sizeof(*p->free_page) * n);
	p->row = calloc((size_t)slots * (size_t)max_pages, sizeof(*p->row));
	p->held = calloc((size_t)slots, sizeof(*p->held));
	p->users = calloc(n, sizeof(*p->users));
	p->kept = calloc(n, sizeof(*p->kept));
	if (!p->free_page || !p->row || !p->held || !p->users || !p->kept) {
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
	free(p->users);
	free(p->kept);
	free(p);
}

static void hold(struct td__pages *p, int32_t page)
{
	if (!p->users[page]++ && p->kept[page])
		p->n_idle--;
}

static void let_go(struct td__pages *p, int32_t page)
{
	if (--p->users[page])
		return;
	if (p->kept[page])
		p->n_idle++;
	else
		p->free_page[p->n_free++] = page;
}

int td__pages_take(struct td__pages *p, int slot, int n)
{
	int32_t *row = p->row + (size_t)slot * (size_t)p->max_pages;

	if (n > p->n_free || p->held[slot] + n > p->max_pages)
		return -1;
	for (int i = 0; i < n; i++) {
		row[p->held[slot]] = p->free_page[--p->n_free];
		hold(p, row[p->held[slot]++]);
	}
	return 0;
}

void td__pages_share(struct td__pages *p, int slot, const int32_t *page, int n)
{
	int32_t *row = p->row + (size_t)slot * (size_t)p->max_pages;

	for (int i = 0; i < n; i++) {
		hold(p, page[i]); /* first: it may be the one that lies there */
		if (i < p->held[slot])
			let_go(p, row[i]);
		else
			p->held[slot] = i + 1;
		row[i] = page[i];
	}
}

void td__pages_release(struct td__pages *p, int slot)
{
	const int32_t *row = p->row + (size_t)slot * (size_t)p->max_pages;

	for (int i = 0; i < p->held[slot]; i++)
		let_go(p, row[i]);
	p->held[slot] = 0;
}

int td__pages_keep(struct td__pages *p, int32_t page)
{
	if (p->kept[page] || !p->users[page])
		return -1;
	p->kept[page] = 1;
	return 0;
}

void td__pages_drop(struct td__pages *p, int32_t page)
{
	p->kept[page] = 0;
	if (p->users[page])
		return;
	p->n_idle--;
	p->free_page[p->n_free++] = page;
}

int td__pages_held(const struct td__pages *p, int slot)
{
	return p->held[slot];
}

int td__pages_used(const struct td__pages *p, int32_t page)
{
	return p->users[page];
}

int td__pages_free(const struct td__pages *p)
{
	return p->n_free;
}

int td__pages_idle(const struct td__pages *p)
{
	return p->n_idle;
}

const int32_t *td__pages_row(const struct td__pages *p, int slot)
{
	return p->row + (size_t)slot * (size_t)p->max_pages;
}
