/*
 * prefix.h: pages and what the prefix cache knows of them: host memory only, no model and no device, so that a test can drive it alone.
 *
 * Prompts are cut into units (step.c: what prefill may be cut at without another rounding). A known unit is a node under the node of the unit before
 * it; the chain from the root is a prefix of a prompt. A node keeps its unit's pages; at some nodes there is a checkpoint of the recurrent state, and only
 * there can a request begin. All of a chain belongs to one tenant.
 */
#ifndef TD_TARGET_PREFIX_H
#define TD_TARGET_PREFIX_H

#include <stdint.h>

/* ---- pages.c -------------------------------------------------------------------------------------------------------------------------- */

struct td__pages;

struct td__pages *td__pages_create(int n_pages, int slots, int max_pages);
void td__pages_destroy(struct td__pages *p);
/* Gives the slot n pages more; 0, or -1 and nothing taken when the pool has too few free ones. Row of the table: td__pages_row. */
int td__pages_take(struct td__pages *p, int slot, int n);
/* The slot's first n pages become these, which the cache keeps. */
void td__pages_share(struct td__pages *p, int slot, const int32_t *page, int n);
void td__pages_release(struct td__pages *p, int slot);
/* The cache keeps a page that a slot holds; -1 when it does already, or when nobody holds the page. */
int td__pages_keep(struct td__pages *p, int32_t page);
void td__pages_drop(struct td__pages *p, int32_t page);
int td__pages_held(const struct td__pages *p, int slot);
int td__pages_used(const struct td__pages *p, int32_t page); /* slots that hold it */
int td__pages_free(const struct td__pages *p);
int td__pages_idle(const struct td__pages *p); /* kept by the cache alone */
const int32_t *td__pages_row(const struct td__pages *p, int slot);

/* ---- prefix.c ------------------------------------------------------------------------------------------------------------------------- */

struct td__prefix;

/* A place in the tree that outlives changes of it: a node and its number, which no later node gets. node -1: the root. */
struct td__place {
	int32_t node;
	uint64_t serial;
};
#define TD__ROOT ((struct td__place){.node = -1})

struct td__match {
	int known; /* units that the tree has */
	int units; /* of these, how far the deepest checkpoint reaches; 0 = no hit */
	int state; /* its index */
	struct td__place at; /* its node */
	const int32_t *page; /* (units * pages of a unit); good until the next call */
};

/* unit: tokens, a multiple of TD_PAGE. `key` makes the hashes unforeseeable. */
struct td__prefix *td__prefix_create(struct td__pages *pages, int n_pages, int unit, int n_states, uint64_t key);
void td__prefix_destroy(struct td__prefix *p);
void td__prefix_clear(struct td__prefix *p);
/* The longest known beginning of `ids`, at most `most` units. drafted: only units whose pages the drafter has filled, too. A hit counts as use. */
void td__prefix_find(struct td__prefix *p, uint64_t tenant, const int32_t *ids, int most, int drafted, struct td__match *m);
/* The unit after `at`, whose pages a slot holds and has filled. `at` moves on; 0 when the tree has no such place any more. */
int td__prefix_add(struct td__prefix *p, struct td__place *at, uint64_t tenant, const int32_t *ids, const int32_t *page, int drafted);
/* Where to put the state at this place: an index, another checkpoint may have been evicted for it; -1 when there is one already, or the place is gone. */
int td__prefix_checkpoint(struct td__prefix *p, struct td__place at);
/* A request that began at this checkpoint has made a deeper one: without another branch this one is the first to go. */
void td__prefix_passed(struct td__prefix *p, struct td__place at);
/* Evicts until the pool has n free pages; -1 when it can't have them. */
int td__prefix_room(struct td__prefix *p, int n);
int td__prefix_states(const struct td__prefix *p); /* checkpoints held */
uint64_t td__prefix_evicted(const struct td__prefix *p); /* pages so far */

#endif
