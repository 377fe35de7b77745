/*
 * queue.c: the policy of sharing (queue.h says what it is).
 *
 * All flows that wait stand in one array, and each question looks at each of them once: with the few tenants of one machine that is less than keeping
 * an order up to date, since clocks change with every record of the workers and questions come only when a slot is free. FIFOs are lists: a request is
 * added at the end but for one that comes back, and that belongs to the front.
 */
#include "daemon/queue.h"

#include <stddef.h>

enum {
	OVERTAKES = 8, /* by others, of one that lacks pages; then pages are kept for it */
	FILL_RATIO = 10, /* a stay that is cut short lasted at least so many times what filling its cache costs again */
	KNOWN = 8, /* stays that must have ended before their length says something */
	AVERAGE = 8, /* weight of the past in averages */
	IDLE_US = 1000000, /* so long a stay may do nothing while somebody waits */
};

/* One that may be next, and what it is compared by. */
struct pick {
	struct td_entry *e;
	int band, over;
	double key;
};

static double larger(double a, double b)
{
	return a > b ? a : b;
}

/* ---- FIFOs --------------------------------------------------------------------------------------------------------------------------- */

static void fifo_add(struct td_fifo *f, struct td_entry *e)
{
	struct td_entry *before = f->tail;

	if (f->head && e->number < f->head->number)
		before = NULL;
	while (before && before->number > e->number)
		before = before->prev;
	e->prev = before;
	e->next = before ? before->next : f->head;
	*(before ? &before->next : &f->head) = e;
	*(e->next ? &e->next->prev : &f->tail) = e;
	f->n++;
}

static void fifo_remove(struct td_fifo *f, struct td_entry *e)
{
	*(e->prev ? &e->prev->next : &f->head) = e->next;
	*(e->next ? &e->next->prev : &f->tail) = e->prev;
	f->n--;
}

/* Those apart: suspects and those that are held. */
static void apart_add(struct td_queue *q, struct td_entry *e)
{
	struct td_entry **p = e->held ? &q->held : &q->suspects;

	while (!e->held && *p && ((*p)->lone < e->lone || ((*p)->lone == e->lone && (*p)->number < e->number)))
		p = &(*p)->next;
	e->next = *p;
	*p = e;
}

static void apart_remove(struct td_queue *q, struct td_entry *e)
{
	struct td_entry **p = e->held ? &q->held : &q->suspects;

	while (*p != e)
		p = &(*p)->next;
	*p = e->next;
}

static void list_flow(struct td_queue *q, struct td_flow *f)
{
	if (f->at)
		return;
	q->waiting[q->n_waiting++] = f;
	f->at = q->n_waiting;
}

static void unlist_flow(struct td_queue *q, struct td_flow *f)
{
	struct td_flow *last;

	if (!f->at || f->fifo[TD_BAND_INTERACTIVE].n || f->fifo[TD_BAND_BATCH].n)
		return;
	last = q->waiting[--q->n_waiting];
	q->waiting[f->at - 1] = last;
	last->at = f->at;
	f->at = 0;
}

/* ---- clocks -------------------------------------------------------------------------------------------------------------------------- */

static int is_capped(const struct td_flow *f)
{
	return f->max_running && f->running >= f->max_running;
}

static int waits_in(const struct td_flow *f, int band)
{
	const struct td_entry *batch = f->fifo[TD_BAND_BATCH].head;

	if (band == TD_BAND_INTERACTIVE)
		return f->fifo[TD_BAND_INTERACTIVE].n || (batch && batch->aged);
	return batch && !batch->aged;
}

/* A flow that begins to wait in a band starts level with those that are there: with the least clock of those that wait for the same and could have it.
 * When nobody does, everybody has what he wants, so nobody has anything to catch up on: it starts level with the largest clock that runs. */
static void lift(struct td_queue *q, struct td_flow *f, int band)
{
	double floor = 0;
	int found = 0;

	for (int i = 0; i < q->n_waiting; i++) {
		const struct td_flow *g = q->waiting[i];

		if (g == f || is_capped(g) || !waits_in(g, band))
			continue;
		floor = found && floor < g->clock_us ? floor : g->clock_us;
		found = 1;
	}
	for (int i = 0; i < q->slots && !found; i++)
		if (q->stay[i].flow)
			floor = larger(floor, q->stay[i].flow->clock_us);
	if (!found)
		floor = q->used ? floor : q->clock_us;
	f->clock_us = larger(f->clock_us, floor);
}

/* What a start is decided by: what was used, and what those that run will probably still use. Without the latter a flow that is behind by little would get
 * all slots that are free at once. */
static double key_of(const struct td_flow *f)
{
	return f->clock_us + f->expected_us / f->weight;
}

/* Sum of the weights of those that want something. */
static double active_weight(const struct td_queue *q)
{
	double sum = 0;

	for (int i = 0; i < q->n_waiting; i++)
		sum += q->waiting[i]->weight;
	for (int i = 0; i < q->slots; i++) {
		const struct td_flow *f = q->stay[i].flow;

		if (f && !f->at)
			sum += f->weight / f->running;
	}
	return sum;
}

static double share_of_pages(const struct td_queue *q, const struct td_flow *f)
{
	return f->memory_share > 0 ? f->memory_share * q->pages : f->weight / active_weight(q) * q->pages;
}

/* ---- who is next --------------------------------------------------------------------------------------------------------------------- */

static int comes_before(const struct td_queue *q, const struct pick *a, const struct pick *b)
{
	if (q->in_order)
		return a->e->number < b->e->number;
	if (a->band != b->band)
		return a->band < b->band;
	if (a->over != b->over)
		return a->over < b->over;
	if (a->key != b->key)
		return a->key < b->key;
	if (a->e->flow != b->e->flow)
		return a->e->flow->served < b->e->flow->served;
	return a->e->number < b->e->number;
}

static struct pick pick_of(const struct td_queue *q, struct td_entry *e, int band)
{
	const struct td_flow *f = e->flow;

	return (struct pick){.e = e, .band = band, .key = key_of(f),
			     .over = f->memory_share > 0 && f->pages && f->pages + e->pages > f->memory_share * q->pages};
}

static void age(struct td_queue *q, struct td_entry *e, uint64_t now_us)
{
	if (e->aged || now_us < e->queued_us + q->batch_age_us)
		return;
	if (!waits_in(e->flow, TD_BAND_INTERACTIVE))
		lift(q, e->flow, TD_BAND_INTERACTIVE);
	e->aged = 1;
}

/* The heads of a flow's FIFOs, if it may start something. */
static int heads_of(struct td_queue *q, const struct td_flow *f, uint64_t now_us, struct pick out[TD_BANDS])
{
	struct td_entry *batch = f->fifo[TD_BAND_BATCH].head;
	int n = 0;

	if (is_capped(f))
		return 0;
	if (f->fifo[TD_BAND_INTERACTIVE].head)
		out[n++] = pick_of(q, f->fifo[TD_BAND_INTERACTIVE].head, TD_BAND_INTERACTIVE);
	if (!batch)
		return n;
	age(q, batch, now_us);
	out[n++] = pick_of(q, batch, batch->aged ? TD_BAND_INTERACTIVE : TD_BAND_BATCH);
	return n;
}

static int lacks_pages(const struct td_queue *q, const struct td_entry *e)
{
	return q->pages_used + e->pages > q->pages;
}

/* The first of all, and the first for whom there are pages, unless they are kept for one before it. */
static struct td_entry *choose(struct td_queue *q, uint64_t now_us, struct pick *first)
{
	struct pick fits = {0}, kept = {0}, head[TD_BANDS];

	first->e = NULL;
	for (int i = 0; i < q->n_waiting; i++) {
		int n = heads_of(q, q->waiting[i], now_us, head);

		for (int k = 0; k < n; k++) {
			int lacks = lacks_pages(q, head[k].e);

			if (!first->e || comes_before(q, &head[k], first))
				*first = head[k];
			if (!lacks && (!fits.e || comes_before(q, &head[k], &fits)))
				fits = head[k];
			if (lacks && head[k].e->overtaken >= OVERTAKES && (!kept.e || comes_before(q, &head[k], &kept)))
				kept = head[k];
		}
	}
	q->blocked = first->e != fits.e;
	if (q->in_order)
		return q->blocked ? NULL : fits.e;
	return fits.e && kept.e && comes_before(q, &kept, &fits) ? NULL : fits.e;
}

static int suspect_runs(const struct td_queue *q)
{
	for (int i = 0; i < q->slots; i++)
		if (q->stay[i].entry && q->stay[i].entry->suspect)
			return 1;
	return 0;
}

struct td_entry *td_queue_next(struct td_queue *q, uint64_t now_us)
{
	struct pick first;

	q->now_us = now_us;
	q->blocked = 0;
	if (!q->n || q->used >= q->slots)
		return NULL;
	if (q->suspects)
		return q->used ? NULL : q->suspects;
	return suspect_runs(q) ? NULL : choose(q, now_us, &first);
}

int td_queue_free_slot(const struct td_queue *q)
{
	for (int i = 0; i < q->slots; i++)
		if (!q->stay[i].flow)
			return i;
	return -1;
}

/* ---- waiting ------------------------------------------------------------------------------------------------------------------------- */

void td_queue_add(struct td_queue *q, struct td_entry *e, uint64_t now_us)
{
	struct td_flow *f = e->flow;

	e->waiting = 1;
	e->overtaken = 0;
	e->queued_us = now_us;
	e->next = e->prev = NULL;
	f->queued++;
	q->n++;
	if (e->suspect || e->held) {
		apart_add(q, e);
		return;
	}
	if (!waits_in(f, e->aged ? TD_BAND_INTERACTIVE : e->band))
		lift(q, f, e->aged ? TD_BAND_INTERACTIVE : e->band);
	fifo_add(&f->fifo[e->band], e);
	list_flow(q, f);
}

void td_queue_remove(struct td_queue *q, struct td_entry *e)
{
	struct td_flow *f = e->flow;

	if (!e->waiting)
		return;
	if (e->suspect || e->held) {
		apart_remove(q, e);
	} else {
		fifo_remove(&f->fifo[e->band], e);
		unlist_flow(q, f);
	}
	e->waiting = 0;
	e->next = e->prev = NULL;
	f->queued--;
	q->n--;
}

void td_queue_release(struct td_queue *q, struct td_entry *e, uint64_t now_us)
{
	td_queue_remove(q, e);
	e->held = 0;
	td_queue_add(q, e, now_us);
}

/* ---- stays --------------------------------------------------------------------------------------------------------------------------- */

/* Those before it in the order that lack pages were overtaken. */
static void note_overtaken(struct td_queue *q, const struct td_entry *e, int band)
{
	struct pick self = pick_of(q, (struct td_entry *)e, band), head[TD_BANDS];

	for (int i = 0; i < q->n_waiting; i++) {
		int n = heads_of(q, q->waiting[i], q->now_us, head);

		for (int k = 0; k < n; k++)
			if (head[k].e != e && lacks_pages(q, head[k].e) && comes_before(q, &head[k], &self))
				head[k].e->overtaken++;
	}
}

void td_queue_start(struct td_queue *q, struct td_entry *e, int slot)
{
	struct td_flow *f = e->flow;
	struct td_stay *s = &q->stay[slot];
	int band = e->aged ? TD_BAND_INTERACTIVE : e->band;

	if (q->blocked)
		note_overtaken(q, e, band);
	td_queue_remove(q, e);
	*s = (struct td_stay){.flow = f, .entry = e, .band = band, .pages = e->pages, .expected_us = f->mean_us > 0 ? f->mean_us : q->mean_us};
	f->expected_us += s->expected_us;
	f->running++;
	f->pages += e->pages;
	f->served = ++q->served;
	q->used++;
	q->pages_used += e->pages;
	q->clock_us = larger(q->clock_us, f->clock_us);
}

void td_queue_charge(struct td_queue *q, int slot, uint64_t us, int commit)
{
	struct td_stay *s = &q->stay[slot];
	struct td_flow *f = s->flow;
	double less = (double)us < s->expected_us ? (double)us : s->expected_us;

	s->charged_us += us;
	f->charged_us += us;
	f->clock_us += (double)us / f->weight;
	s->expected_us -= less;
	f->expected_us = larger(f->expected_us - less, 0);
	if (!commit)
		return;
	if (!s->commits++)
		s->fill_us = s->charged_us;
	if (s->entry)
		s->entry->suspect = 0;
}

void td_queue_idle(struct td_queue *q, int slot, uint64_t since_us)
{
	q->stay[slot].idle_us = since_us;
}

void td_queue_leave(struct td_queue *q, int slot)
{
	q->leaving += !q->stay[slot].leaving;
	q->stay[slot].leaving = 1;
}

static void average(double *mean, double x)
{
	*mean = *mean > 0 ? *mean + (x - *mean) / AVERAGE : x;
}

void td_queue_free(struct td_queue *q, int slot, uint64_t lasted_us)
{
	struct td_stay *s = &q->stay[slot];
	struct td_flow *f = s->flow;
	int capped = is_capped(f);

	if (s->charged_us && s->commits) {
		average(&f->mean_us, (double)s->charged_us);
		average(&q->mean_us, (double)s->charged_us);
	}
	if (lasted_us && s->commits) {
		average(&q->mean_stay_us, (double)lasted_us);
		q->n_ended++;
	}
	f->running--;
	f->pages -= s->pages;
	f->expected_us = f->running ? larger(f->expected_us - s->expected_us, 0) : 0;
	q->used--;
	q->leaving -= s->leaving;
	q->pages_used -= s->pages;
	*s = (struct td_stay){0};
	if (!q->used && !q->n)
		q->clock_us = larger(q->clock_us, f->clock_us);
	/* While its own limit held it back it had all that it may have: nothing to catch up on. */
	if (capped && f->at && !is_capped(f))
		lift(q, f, waits_in(f, TD_BAND_INTERACTIVE) ? TD_BAND_INTERACTIVE : TD_BAND_BATCH);
}

/* 1 when `s` may give way to `p`. */
static int gives_way(const struct td_queue *q, const struct td_stay *s, const struct pick *p, int lacks, double weights)
{
	const struct td_flow *u = s->flow, *t = p->e->flow;
	int beyond;

	if (!s->entry || s->leaving || s->entry->suspect)
		return 0;
	if (s->idle_us && q->now_us >= s->idle_us + IDLE_US)
		return 1;
	if (!q->quantum_us || q->in_order || !s->commits || s->charged_us < q->quantum_us || s->charged_us < FILL_RATIO * s->fill_us)
		return 0;
	if (s->band != p->band)
		return s->band > p->band;
	if (u == t)
		return 0;
	beyond = u->running * weights > q->slots * u->weight || (lacks && u->pages > share_of_pages(q, u));
	return beyond && t->clock_us + (double)q->quantum_us < u->clock_us;
}

int td_queue_cut(struct td_queue *q, uint64_t now_us)
{
	struct pick first;
	double weights;
	int lacks, best = -1;

	if (!q->n_waiting || q->leaving || q->suspects || suspect_runs(q))
		return -1;
	q->now_us = now_us;
	choose(q, now_us, &first);
	if (!first.e)
		return -1;
	lacks = lacks_pages(q, first.e);
	if (q->used < q->slots && !lacks)
		return -1;
	weights = active_weight(q);
	for (int i = 0; i < q->slots; i++) {
		const struct td_stay *s = &q->stay[i], *b = best < 0 ? NULL : &q->stay[best];

		if (!s->flow || !gives_way(q, s, &first, lacks, weights))
			continue;
		if (!b || (s->idle_us && !b->idle_us) || s->band > b->band || (s->band == b->band && s->flow->clock_us > b->flow->clock_us) ||
		    (s->flow == b->flow && s->band == b->band && s->entry->number > b->entry->number))
			best = i;
	}
	if (best < 0)
		return -1;
	if (lacks)
		first.e->overtaken = OVERTAKES; /* or it would be overtaken by the one that makes room */
	td_queue_leave(q, best);
	q->stay[best].cut = 1;
	q->stay[best].entry->held = q->stay[best].idle_us > 0;
	return best;
}

uint64_t td_queue_turn(const struct td_queue *q, int slot)
{
	const struct td_stay *s = &q->stay[slot];

	return (uint64_t)s->band << 62 | ((uint64_t)s->flow->clock_us & ((UINT64_C(1) << 62) - 1));
}

/* ---- forecasts ----------------------------------------------------------------------------------------------------------------------- */

static int rank_of(const struct td_fifo *f, const struct td_entry *e)
{
	int n = 0;

	if (e == f->tail)
		return f->n - 1;
	for (const struct td_entry *p = f->head; p != e; p = p->next)
		n++;
	return n;
}

/* Of n entries that start at key, key + step, ...: how many do before `until`. */
static int started_before(double key, double step, int n, double until)
{
	double count = (until - key) / step;

	return count <= 0 ? 0 : count >= n ? n : (int)count + ((int)count < count);
}

static int older(const struct td_queue *q, const struct td_entry *e)
{
	int n = 0;

	for (int i = 0; i < q->n_waiting; i++)
		for (int band = 0; band < TD_BANDS; band++)
			for (const struct td_entry *p = q->waiting[i]->fifo[band].head; p && p->number < e->number; p = p->next)
				n++;
	return n;
}

/* As if every stay cost the same. */
int td_queue_ahead(const struct td_queue *q, const struct td_entry *e, int rank)
{
	const struct td_flow *f = e->flow;
	double mean = q->mean_us > 0 ? q->mean_us : 1, until;
	int own, n = 0, band = e->aged ? TD_BAND_INTERACTIVE : e->band;

	for (const struct td_entry *s = q->suspects; s && s != e; s = s->next)
		n++;
	if (e->suspect || e->held)
		return n;
	if (q->in_order)
		return n + older(q, e);
	own = rank < 0 ? rank_of(&f->fifo[e->band], e) : rank;
	if (band == TD_BAND_BATCH)
		own += f->fifo[TD_BAND_INTERACTIVE].n;
	until = key_of(f) + own * mean / f->weight;
	for (int i = 0; i < q->n_waiting; i++) {
		const struct td_flow *g = q->waiting[i];
		int first = g->fifo[TD_BAND_INTERACTIVE].n;
		double key = key_of(g), step = mean / g->weight;

		if (g == f)
			continue;
		if (g->served < f->served) /* it wins ties */
			until += step * 1e-6;
		if (band == TD_BAND_INTERACTIVE)
			n += started_before(key, step, first, until);
		else
			n += first + started_before(key + first * step, step, g->fifo[TD_BAND_BATCH].n, until);
		if (g->served < f->served)
			until -= step * 1e-6;
	}
	return n + own;
}

uint64_t td_queue_wait_us(const struct td_queue *q, int ahead)
{
	int before = ahead - (q->slots - q->used);

	if (before < 0 || q->n_ended < KNOWN)
		return 0;
	return (uint64_t)((before + 1) * q->mean_stay_us / q->slots);
}
