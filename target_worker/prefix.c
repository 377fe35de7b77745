/*
 * prefix.c: the tree of known prompt units, its checkpoints, and what to evict.
 *
 * A node is found by a hash of its tokens, seeded by the hash of the node before it, and of the tenant and a random key at the root; then tenant, parent
 * and tokens are compared, since a hash is no proof. Nodes lie in one array with their tokens and pages beside; nothing is allocated after create:
 * each node keeps pages of its own, so there are never more nodes than units of pages.
 *
 * Eviction is GreedyDual, for pages and for checkpoints apart: a thing's worth is the clock at its last use plus the prefill that it saves, in tokens; the
 * least worth goes, and the clock moves to its worth. So what is dear to compute stays longer, but not for ever. A chain goes from its end: the end of
 * one without a checkpoint saves nothing and goes first. A checkpoint that a conversation has passed (its next turn has a deeper one) saves only
 * who changes an earlier message; it goes before others of its age.
 *
 * Pages that a slot holds are never freed here. When all ends of chains are in use and pages are short all the same (they lie further up, because a
 * request computed that part itself), ends in use are forgotten, which frees nothing by itself but the way to their parents.
 * A search goes over all nodes: some thousands, a few times for each START that finds the pool full.
 */
#include "target_worker/prefix.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "kernels/kernels.h"

struct node {
	uint64_t hash, serial, tenant; /* serial 0: not in use */
	uint64_t used; /* the pages' clock at the last use */
	int32_t parent, next; /* next: in the bucket, or in the list of unused nodes */
	int32_t children, depth; /* depth: units, this one included */
	int32_t state; /* checkpoint, or -1 */
	int drafted;
};

struct state {
	int32_t node; /* -1: free */
	uint64_t used; /* the checkpoints' clock at the last use */
	int passed;
};

struct td__prefix {
	struct td__pages *pages;
	int unit, per_unit; /* tokens, pages */
	int n_nodes, n_states, held_states, unused;
	uint32_t mask; /* of buckets */
	uint64_t key, serial, clock, state_clock, evicted;
	struct node *node;
	int32_t *bucket;
	int32_t *ids; /* (n_nodes, unit) */
	int32_t *page; /* (n_nodes, per_unit) */
	int32_t *chain; /* (n_nodes * per_unit): pages of a match */
	struct state *state;
};

struct td__prefix *td__prefix_create(struct td__pages *pages, int n_pages, int unit, int n_states, uint64_t key)
{
	struct td__prefix *p = calloc(1, sizeof(*p));
	size_t n;

	if (!p)
		return NULL;
	p->pages = pages;
	p->unit = unit;
	p->per_unit = unit / TD_PAGE;
	p->n_nodes = n_pages / p->per_unit;
	p->n_states = n_states;
	p->key = key;
	n = (size_t)p->n_nodes + 1;
	for (p->mask = 1; p->mask < n; p->mask *= 2)
		;
	p->node = calloc(n, sizeof(*p->node));
	p->bucket = malloc(p->mask * sizeof(*p->bucket));
	p->ids = malloc(n * (size_t)unit * sizeof(*p->ids));
	p->page = malloc(n * (size_t)p->per_unit * sizeof(*p->page));
	p->chain = malloc(n * (size_t)p->per_unit * sizeof(*p->chain));
	p->state = malloc(((size_t)n_states + 1) * sizeof(*p->state));
	if (!p->node || !p->bucket || !p->ids || !p->page || !p->chain || !p->state) {
		td__prefix_destroy(p);
		return NULL;
	}
	p->mask--;
	td__prefix_clear(p);
	return p;
}

void td__prefix_destroy(struct td__prefix *p)
{
	if (!p)
		return;
	free(p->node);
	free(p->bucket);
	free(p->ids);
	free(p->page);
	free(p->chain);
	free(p->state);
	free(p);
}

static int32_t *pages_of(const struct td__prefix *p, int n)
{
	return p->page + (size_t)n * (size_t)p->per_unit;
}

static void drop_pages(struct td__prefix *p, int n)
{
	for (int i = 0; i < p->per_unit; i++)
		td__pages_drop(p->pages, pages_of(p, n)[i]);
}

void td__prefix_clear(struct td__prefix *p)
{
	p->unused = -1;
	for (int i = p->n_nodes - 1; i >= 0; i--) {
		if (p->node[i].serial)
			drop_pages(p, i);
		p->node[i] = (struct node){.next = p->unused};
		p->unused = i;
	}
	for (int i = 0; i < p->n_states; i++)
		p->state[i].node = -1;
	memset(p->bucket, -1, ((size_t)p->mask + 1) * sizeof(*p->bucket));
	p->held_states = 0;
	p->clock = p->state_clock = 0;
}

/* ---- finding --------------------------------------------------------------------------------------------------------------------------- */

static int valid(const struct td__prefix *p, struct td__place at)
{
	return at.node < 0 ? at.serial == 0 : p->node[at.node].serial == at.serial;
}

static uint64_t hash_after(const struct td__prefix *p, int parent, uint64_t tenant, const int32_t *ids)
{
	uint64_t before = parent < 0 ? XXH3_64bits_withSeed(&tenant, sizeof(tenant), p->key) : p->node[parent].hash;

	return XXH3_64bits_withSeed(ids, (size_t)p->unit * sizeof(*ids), before);
}

static int child(const struct td__prefix *p, int parent, uint64_t hash, uint64_t tenant, const int32_t *ids)
{
	for (int n = p->bucket[hash & p->mask]; n >= 0; n = p->node[n].next)
		if (p->node[n].hash == hash && p->node[n].parent == parent && p->node[n].tenant == tenant &&
		    !memcmp(p->ids + (size_t)n * (size_t)p->unit, ids, (size_t)p->unit * sizeof(*ids)))
			return n;
	return -1;
}

static void use_state(struct td__prefix *p, int state)
{
	p->state[state].used = p->state_clock;
	p->state[state].passed = 0;
}

void td__prefix_find(struct td__prefix *p, uint64_t tenant, const int32_t *ids, int most, int drafted, struct td__match *m)
{
	int at = -1;

	*m = (struct td__match){.state = -1, .at = TD__ROOT, .page = p->chain};
	while (m->known < most) {
		const int32_t *unit = ids + (size_t)m->known * (size_t)p->unit;
		int n = child(p, at, hash_after(p, at, tenant, unit), tenant, unit);

		if (n < 0 || (drafted && !p->node[n].drafted))
			break;
		at = n;
		m->known++;
		if (p->node[n].state < 0)
			continue;
		m->units = m->known;
		m->state = p->node[n].state;
		m->at = (struct td__place){n, p->node[n].serial};
	}
	if (m->state >= 0)
		use_state(p, m->state);
	for (int n = m->at.node, u = m->units; u-- > 0; n = p->node[n].parent) {
		memcpy(p->chain + (size_t)u * (size_t)p->per_unit, pages_of(p, n), sizeof(*p->chain) * (size_t)p->per_unit);
		p->node[n].used = p->clock;
	}
}

/* ---- keeping --------------------------------------------------------------------------------------------------------------------------- */

static int keep_pages(struct td__prefix *p, int n, const int32_t *page)
{
	for (int i = 0; i < p->per_unit; i++) {
		if (!td__pages_keep(p->pages, page[i])) {
			pages_of(p, n)[i] = page[i];
			continue;
		}
		while (i-- > 0)
			td__pages_drop(p->pages, page[i]);
		return -1;
	}
	return 0;
}

static int new_node(struct td__prefix *p, int parent, uint64_t hash, uint64_t tenant, const int32_t *ids, const int32_t *page)
{
	int n = p->unused;

	if (n < 0 || keep_pages(p, n, page))
		return -1;
	p->unused = p->node[n].next;
	p->node[n] = (struct node){.hash = hash, .serial = ++p->serial, .tenant = tenant, .parent = parent, .next = p->bucket[hash & p->mask], .state = -1,
			      .depth = parent < 0 ? 1 : p->node[parent].depth + 1};
	p->bucket[hash & p->mask] = n;
	memcpy(p->ids + (size_t)n * (size_t)p->unit, ids, (size_t)p->unit * sizeof(*ids));
	if (parent >= 0)
		p->node[parent].children++;
	return n;
}

/* The same tokens, but now with the drafter's part: these pages take the place of the old ones. */
static void replace_pages(struct td__prefix *p, int n, const int32_t *page)
{
	int32_t *old = p->chain; /* nobody's at this time */

	memcpy(old, pages_of(p, n), sizeof(*old) * (size_t)p->per_unit);
	if (keep_pages(p, n, page)) {
		memcpy(pages_of(p, n), old, sizeof(*old) * (size_t)p->per_unit);
		return;
	}
	for (int i = 0; i < p->per_unit; i++)
		td__pages_drop(p->pages, old[i]);
	p->node[n].drafted = 1;
}

int td__prefix_add(struct td__prefix *p, struct td__place *at, uint64_t tenant, const int32_t *ids, const int32_t *page, int drafted)
{
	uint64_t hash;
	int n;

	if (!valid(p, *at))
		return 0;
	hash = hash_after(p, at->node, tenant, ids);
	n = child(p, at->node, hash, tenant, ids);
	if (n >= 0 && drafted && !p->node[n].drafted) {
		replace_pages(p, n, page);
	} else if (n < 0) {
		n = new_node(p, at->node, hash, tenant, ids, page);
		if (n < 0)
			return 0;
		p->node[n].drafted = drafted;
	}
	p->node[n].used = p->clock;
	*at = (struct td__place){n, p->node[n].serial};
	return 1;
}

/* ---- evicting -------------------------------------------------------------------------------------------------------------------------- */

static uint64_t state_worth(const struct td__prefix *p, int s)
{
	return p->state[s].used + (p->state[s].passed ? 0 : (uint64_t)p->node[p->state[s].node].depth * (uint64_t)p->unit);
}

static uint64_t worth(const struct td__prefix *p, int n)
{
	return p->node[n].used + (p->node[n].state < 0 ? 0 : (uint64_t)p->node[n].depth * (uint64_t)p->unit);
}

static void free_state(struct td__prefix *p, int s)
{
	p->node[p->state[s].node].state = -1;
	p->state[s].node = -1;
	p->held_states--;
}

/* The checkpoint with the least worth, to be written over. */
static int take_state(struct td__prefix *p)
{
	int least = -1;

	for (int i = 0; i < p->n_states; i++) {
		if (p->state[i].node < 0)
			return i;
		if (least < 0 || state_worth(p, i) < state_worth(p, least))
			least = i;
	}
	if (least >= 0) {
		p->state_clock = state_worth(p, least) > p->state_clock ? state_worth(p, least) : p->state_clock;
		free_state(p, least);
	}
	return least;
}

int td__prefix_checkpoint(struct td__prefix *p, struct td__place at)
{
	int s;

	if (at.node < 0 || !valid(p, at))
		return -1;
	if (p->node[at.node].state >= 0) {
		use_state(p, p->node[at.node].state);
		return -1;
	}
	s = take_state(p);
	if (s < 0)
		return -1;
	p->state[s].node = at.node;
	p->node[at.node].state = s;
	p->held_states++;
	use_state(p, s);
	return s;
}

void td__prefix_passed(struct td__prefix *p, struct td__place at)
{
	if (at.node >= 0 && valid(p, at) && p->node[at.node].state >= 0 && p->node[at.node].children == 1)
		p->state[p->node[at.node].state].passed = 1;
}

static void remove_node(struct td__prefix *p, int n)
{
	struct node *node = &p->node[n];
	int32_t *link = &p->bucket[node->hash & p->mask];

	p->clock = worth(p, n) > p->clock ? worth(p, n) : p->clock;
	while (*link != n)
		link = &p->node[*link].next;
	*link = node->next;
	if (node->parent >= 0)
		p->node[node->parent].children--;
	if (node->state >= 0)
		free_state(p, node->state);
	drop_pages(p, n);
	p->evicted += (uint64_t)p->per_unit;
	*node = (struct node){.next = p->unused};
	p->unused = n;
}

/* The end of a chain with the least worth; with in_use 0 only one that no slot holds. */
static int victim(const struct td__prefix *p, int in_use)
{
	int least = -1;

	for (int n = 0; n < p->n_nodes; n++)
		if (p->node[n].serial && !p->node[n].children && (in_use || !td__pages_used(p->pages, pages_of(p, n)[0])) &&
		    (least < 0 || worth(p, n) < worth(p, least)))
			least = n;
	return least;
}

int td__prefix_room(struct td__prefix *p, int n)
{
	if (td__pages_free(p->pages) + td__pages_idle(p->pages) < n)
		return -1;
	while (td__pages_free(p->pages) < n) {
		int v = victim(p, 0);

		if (v < 0)
			v = victim(p, 1);
		if (v < 0)
			return -1;
		remove_node(p, v);
	}
	return 0;
}

int td__prefix_states(const struct td__prefix *p)
{
	return p->held_states;
}

uint64_t td__prefix_evicted(const struct td__prefix *p)
{
	return p->evicted;
}
