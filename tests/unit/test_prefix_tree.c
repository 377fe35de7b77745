/*
 * test_prefix_tree.c: the prefix cache's pages and tree without a model: random starts, prefills, ends and resets against a plain reference.
 *
 * The reference keeps, for each page, what was written there (tenant, tokens up to and with it, whether the drafter's part is there), and for each
 * checkpoint, what prefix it was made at. A hit must name pages and a checkpoint whose content is that of the prompt that asked, whatever was evicted
 * before; pages are never with two owners, none in use is freed, and a START within the account is never refused.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "target_worker/prefix.h"
#include "tests/lib/unit.h"

enum { SLOTS = 6, UNIT = 2 * TD_PAGE, PER_UNIT = 2, PAGES = 41, MAX_PAGES = 16, STATES = 3, TENANTS = 2, PROMPTS = 12, LONGEST = 7 * UNIT };

struct content {
	uint64_t tenant;
	int n; /* tokens of the prompt up to the end of this unit */
	int part; /* page of the unit */
	int drafted;
	int32_t ids[LONGEST];
};

struct life { /* of a slot */
	int busy, pages, n_prompt, fed, drafted, cached;
	uint64_t tenant;
	const int32_t *ids;
	struct td__place at;
};

static struct td__pages *pages;
static struct td__prefix *tree;
static struct content page_content[PAGES], state_content[STATES];
static struct life life[SLOTS];
static int32_t prompt[PROMPTS][LONGEST];
static int used_pages, hits, refusals;
static unsigned seed;

static int any(int n)
{
	return (int)(rand_r(&seed) >> 3) % n;
}

static int same(const struct content *c, uint64_t tenant, const int32_t *ids, int n)
{
	return c->tenant == tenant && c->n == n && !memcmp(c->ids, ids, sizeof(*ids) * (size_t)n);
}

static void fill(struct content *c, const struct life *l, int n, int part)
{
	*c = (struct content){.tenant = l->tenant, .n = n, .part = part, .drafted = l->drafted};
	memcpy(c->ids, l->ids, sizeof(*c->ids) * (size_t)n);
}

/* Every page has one owner at least or is free, and never two that write. */
static void check_owners(void)
{
	int held[PAGES] = {0}, distinct = 0;

	for (int s = 0; s < SLOTS; s++)
		for (int i = 0; life[s].busy && i < td__pages_held(pages, s); i++)
			held[td__pages_row(pages, s)[i]]++;
	for (int i = 0; i < PAGES; i++) {
		assert_int_equal(td__pages_used(pages, i), held[i]);
		distinct += held[i] > 0;
	}
	assert_int_equal(td__pages_free(pages) + td__pages_idle(pages), PAGES - distinct);
	for (int s = 0; s < SLOTS; s++) /* what a slot will still write is its own */
		for (int i = life[s].fed / TD_PAGE; life[s].busy && i < td__pages_held(pages, s); i++)
			assert_int_equal(held[td__pages_row(pages, s)[i]], 1);
}

static void check_match(const struct life *l, const struct td__match *m, int most)
{
	assert_true(m->units <= m->known && m->known <= most);
	for (int u = 0; u < m->units; u++)
		for (int i = 0; i < PER_UNIT; i++) {
			const struct content *c = &page_content[m->page[u * PER_UNIT + i]];

			assert_true(same(c, l->tenant, l->ids, (u + 1) * UNIT));
			assert_int_equal(c->part, i);
			assert_true(c->drafted || !l->drafted);
		}
	assert_int_equal(m->units > 0, m->state >= 0);
	if (m->units)
		assert_true(same(&state_content[m->state], l->tenant, l->ids, m->units * UNIT));
}

static void start(int slot)
{
	struct life *l = &life[slot];
	int max_total, most, need;
	struct td__match m;

	*l = (struct life){.ids = prompt[any(PROMPTS)], .tenant = (uint64_t)any(TENANTS), .drafted = any(3) > 0, .at = TD__ROOT};
	l->n_prompt = 1 + any(LONGEST);
	max_total = l->n_prompt + any(MAX_PAGES * TD_PAGE - l->n_prompt + 1);
	l->pages = (max_total + TD_PAGE - 1) / TD_PAGE;
	if (used_pages + l->pages > PAGES)
		return;
	most = (l->n_prompt - 1) / UNIT;
	td__prefix_find(tree, l->tenant, l->ids, most, l->drafted, &m);
	check_match(l, &m, most);
	td__pages_share(pages, slot, m.page, m.units * PER_UNIT);
	l->fed = m.units * UNIT;
	l->at = m.at;
	hits += m.units > 0;
	need = l->pages - td__pages_held(pages, slot);
	refusals += td__prefix_room(tree, need) || td__pages_take(pages, slot, need);
	l->busy = 1;
	l->cached = 1;
	used_pages += l->pages;
}

/* Some rows more: pages get their content, whole units go to the tree, some edges get a checkpoint. */
static void prefill(int slot)
{
	struct life *l = &life[slot];
	int to = l->fed + UNIT * (1 + any(2)), state;

	if (!l->busy || l->fed == l->n_prompt)
		return;
	to = to < l->n_prompt ? to : l->n_prompt;
	for (int at = l->fed; at < to; at += UNIT) {
		const int32_t *row = td__pages_row(pages, slot) + at / TD_PAGE;
		int whole = at + UNIT <= to;

		for (int i = 0; i < PER_UNIT && at + i * TD_PAGE < to; i++)
			fill(&page_content[row[i]], l, whole ? at + UNIT : to, whole ? i : -1);
		if (whole && l->cached)
			l->cached = td__prefix_add(tree, &l->at, l->tenant, l->ids + at, row, l->drafted);
	}
	l->fed = to;
	if (to % UNIT || !l->cached || any(2))
		return;
	state = td__prefix_checkpoint(tree, l->at);
	if (state >= 0)
		fill(&state_content[state], l, to, 0);
	if (!any(3))
		td__prefix_passed(tree, l->at);
}

static void end(int slot)
{
	if (!life[slot].busy)
		return;
	td__pages_release(pages, slot);
	used_pages -= life[slot].pages;
	life[slot].busy = 0;
}

static void reset(void)
{
	for (int s = 0; s < SLOTS; s++)
		end(s);
	if (any(2)) {
		assert_int_equal(td__prefix_room(tree, PAGES), 0);
		assert_int_equal(td__prefix_states(tree), 0); /* they went with their pages */
	}
	td__prefix_clear(tree);
	assert_int_equal(td__pages_free(pages), PAGES);
	assert_int_equal(td__pages_idle(pages), 0);
	assert_int_equal(td__prefix_states(tree), 0);
}

static void setup_all(unsigned s)
{
	seed = s;
	memset(life, 0, sizeof(life));
	used_pages = hits = refusals = 0;
	for (int i = 0; i < PROMPTS; i++) /* prompts that begin alike, up to some unit */
		for (int j = 0; j < LONGEST; j++)
			prompt[i][j] = i && j < (i % 4) * UNIT + i % 3 ? prompt[i / 2][j] : any(50000);
	pages = td__pages_create(PAGES, SLOTS, MAX_PAGES);
	tree = td__prefix_create(pages, PAGES, UNIT, STATES, s * 77);
	assert_non_null(pages);
	assert_non_null(tree);
}

static void finish_all(void)
{
	td__prefix_destroy(tree);
	td__pages_destroy(pages);
}

static void random_lives(void **state)
{
	int all_hits = 0;

	(void)state;
	for (unsigned s = 1; s <= 40; s++) {
		setup_all(s);
		for (int i = 0; i < 3000; i++) {
			int slot = any(SLOTS), what = any(100);

			if (!life[slot].busy)
				start(slot);
			else if (what < 70)
				prefill(slot);
			else if (what < 99 || any(10))
				end(slot);
			else
				reset();
			check_owners();
			assert_true(td__prefix_states(tree) <= STATES);
		}
		assert_int_equal(refusals, 0);
		assert_true(td__prefix_evicted(tree) > 0);
		all_hits += hits;
		reset();
		finish_all();
	}
	printf("%d hits\n", all_hits);
	assert_true(all_hits > 1000);
}

/* ---- what goes first ---------------------------------------------------------------------------------------------------------------------- */

/* A prompt of n units in slot 0 that ends at once and leaves a checkpoint at its end. Returns the checkpoint. */
static int leave(const int32_t *ids, int units, uint64_t tenant, int want_state)
{
	struct life *l = &life[0];
	struct td__match m;
	int s = -1;

	*l = (struct life){.busy = 1, .ids = ids, .tenant = tenant, .at = TD__ROOT};
	td__prefix_find(tree, tenant, ids, units, 0, &m);
	td__pages_share(pages, 0, m.page, m.units * PER_UNIT);
	assert_int_equal(td__prefix_room(tree, (units - m.units) * PER_UNIT), 0);
	assert_int_equal(td__pages_take(pages, 0, (units - m.units) * PER_UNIT), 0);
	l->at = m.at;
	for (int u = m.units; u < units; u++)
		assert_int_equal(td__prefix_add(tree, &l->at, tenant, ids + u * UNIT, td__pages_row(pages, 0) + u * PER_UNIT, 0), 1);
	if (want_state)
		s = td__prefix_checkpoint(tree, l->at);
	td__pages_release(pages, 0);
	l->busy = 0;
	return s;
}

static int units_of(const int32_t *ids, uint64_t tenant, int most)
{
	struct td__match m;

	td__prefix_find(tree, tenant, ids, most, 0, &m);
	return m.units;
}

static void states_go_by_worth(void **state)
{
	static int32_t other[5][LONGEST];

	(void)state;
	setup_all(5);
	for (int i = 0; i < 5; i++)
		for (int j = 0; j < LONGEST; j++)
			other[i][j] = any(50000);
	assert_true(leave(other[0], 5, 0, 1) >= 0); /* long: dear */
	assert_true(leave(other[1], 1, 0, 1) >= 0);
	assert_true(leave(other[2], 2, 0, 1) >= 0);
	assert_int_equal(td__prefix_states(tree), STATES);
	assert_true(leave(other[3], 2, 0, 1) >= 0);
	assert_int_equal(units_of(other[1], 0, 1), 0); /* the cheapest went */
	assert_int_equal(units_of(other[0], 0, 5), 5);
	assert_int_equal(units_of(other[2], 0, 2), 2); /* used: worth more than its age */
	assert_true(leave(other[4], 1, 0, 1) >= 0);
	assert_int_equal(units_of(other[3], 0, 2), 0);
	/* a long one that nobody uses goes in the end */
	for (int i = 0; i < 30; i++) {
		int32_t *ids = other[1 + i % 4];

		ids[0] = 60000 + i;
		leave(ids, 2, 0, 1);
		units_of(ids, 0, 2);
	}
	assert_int_equal(units_of(other[0], 0, 5), 0);
	finish_all();
}

static void a_passed_state_goes_first(void **state)
{
	static int32_t ids[LONGEST], other[LONGEST];
	struct td__match m;
	struct td__place early;

	(void)state;
	setup_all(6);
	for (int j = 0; j < LONGEST; j++) {
		ids[j] = any(50000);
		other[j] = any(50000);
	}
	leave(ids, 3, 0, 1);
	td__prefix_find(tree, 0, ids, 3, 0, &m);
	early = m.at;
	leave(ids, 5, 0, 1);
	td__prefix_passed(tree, early);
	leave(other, 1, 0, 1); /* worth less than both, but for that */
	other[0]++;
	leave(other, 1, 0, 1);
	assert_int_equal(units_of(ids, 0, 4), 0);
	assert_int_equal(units_of(ids, 0, 5), 5);
	finish_all();
}

static void pages_of_tenants_are_apart(void **state)
{
	static int32_t ids[LONGEST];
	struct td__match m;

	(void)state;
	setup_all(7);
	leave(ids, 4, 1, 1);
	assert_int_equal(units_of(ids, 1, 4), 4);
	td__prefix_find(tree, 2, ids, 4, 0, &m);
	assert_int_equal(m.known, 0);
	leave(ids, 4, 2, 1);
	assert_int_equal(units_of(ids, 2, 4), 4);
	assert_int_equal(td__pages_idle(pages), 16); /* nothing is shared between them */
	finish_all();
}

static void chains_go_from_their_ends(void **state)
{
	static int32_t ids[LONGEST], other[LONGEST];

	(void)state;
	setup_all(8);
	for (int j = 0; j < LONGEST; j++)
		other[j] = j;
	leave(ids, 2, 0, 1);
	leave(ids, 7, 0, 1);
	for (int i = 0; i < 4; i++) {
		other[0] = i;
		leave(other, 6, 0, 0); /* no checkpoints: worth nothing */
	}
	assert_int_equal(units_of(ids, 0, 7), 7);
	assert_int_equal(td__prefix_room(tree, PAGES - 4 * PER_UNIT), 0);
	assert_int_equal(units_of(ids, 0, 7), 2);
	assert_int_equal(td__prefix_room(tree, PAGES), 0);
	assert_int_equal(td__pages_free(pages), PAGES);
	assert_int_equal(td__prefix_room(tree, PAGES + 1), -1);
	finish_all();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_lives), cmocka_unit_test(states_go_by_worth), cmocka_unit_test(a_passed_state_goes_first),
		cmocka_unit_test(pages_of_tenants_are_apart), cmocka_unit_test(chains_go_from_their_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
