#include "tests/lib/sharing.h"

#include <stdlib.h>
#include <string.h>

enum { STEP_US = 800, ROW_US = 8, PROMPT_US = 13 };

void sim_init(struct sim *s, uint64_t seed, int slots, int pages)
{
	memset(s, 0, sizeof(*s));
	s->random = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
	s->q.slots = slots;
	s->q.pages = pages;
	s->q.batch_age_us = 60000000;
	s->q.quantum_us = 1000000;
	s->chunk = 256;
	s->drafts = 7;
	s->watched = -1;
	s->window_us = 1000000;
}

uint64_t sim_random(struct sim *s, uint64_t lo, uint64_t hi)
{
	s->random ^= s->random << 13;
	s->random ^= s->random >> 7;
	s->random ^= s->random << 17;
	return lo + (s->random >> 11) % (hi - lo + 1);
}

int sim_flow(struct sim *s, double weight)
{
	s->flow[s->n_flows].weight = weight;
	return s->n_flows++;
}

struct sim_client *sim_clients(struct sim *s, int flow, int n, int prompt_lo, int prompt_hi, int out_lo, int out_hi, uint64_t think_us, uint64_t spread_us)
{
	struct sim_client *first = &s->client[s->n_clients];

	s->soonest_us = s->now_us;
	for (int i = 0; i < n; i++)
		s->client[s->n_clients++] = (struct sim_client){.flow = flow, .slot = -1, .prompt_lo = prompt_lo, .prompt_hi = prompt_hi, .out_lo = out_lo,
								 .out_hi = out_hi, .think_lo = think_us - think_us / 4, .think_hi = think_us + think_us / 4,
								 .next_us = s->now_us + sim_random(s, 0, spread_us)};
	return first;
}

/* ---- samples ------------------------------------------------------------------------------------------------------------------------- */

static void sample(struct sim_samples *x, uint64_t us)
{
	if (x->n < SIM_SAMPLES)
		x->us[x->n++] = us > UINT32_MAX ? UINT32_MAX : (uint32_t)us;
}

static int by_size(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

uint32_t sim_percentile(struct sim_samples *x, double p)
{
	qsort(x->us, (size_t)x->n, sizeof(x->us[0]), by_size);
	return x->n ? x->us[(int)((x->n - 1) * p)] : 0;
}

/* ---- requests ------------------------------------------------------------------------------------------------------------------------ */

static struct sim_client *client_of(struct td_entry *e)
{
	return (struct sim_client *)e; /* its first member */
}

static void wait_again(struct sim *s, struct sim_client *c)
{
	c->slot = -1;
	td_queue_add(&s->q, &c->e, s->now_us);
}

static void arrive(struct sim *s, struct sim_client *c)
{
	c->prompt = (int)sim_random(s, (uint64_t)c->prompt_lo, (uint64_t)c->prompt_hi);
	c->out = (int)sim_random(s, (uint64_t)c->out_lo, (uint64_t)c->out_hi);
	c->made = 0;
	c->open = 1;
	c->arrived_us = c->next_us > s->now_us ? s->now_us : c->next_us;
	c->requests++;
	c->e = (struct td_entry){.flow = &s->flow[c->flow], .number = ++s->number, .band = c->band, .pages = (c->prompt + c->out + 63) / 64};
	wait_again(s, c);
}

static void end_request(struct sim *s, struct sim_client *c)
{
	c->open = 0;
	c->ended++;
	c->next_us = c->once ? UINT64_MAX : s->now_us + sim_random(s, c->think_lo, c->think_hi);
	if (c->next_us < s->soonest_us)
		s->soonest_us = c->next_us;
}

static void arrivals(struct sim *s)
{
	while (s->soonest_us <= s->now_us) { /* in the order of their times */
		struct sim_client *first = NULL;

		for (int i = 0; i < s->n_clients; i++)
			if (!s->client[i].open && (!first || s->client[i].next_us < first->next_us))
				first = &s->client[i];
		s->soonest_us = first ? first->next_us : UINT64_MAX;
		if (s->soonest_us <= s->now_us)
			arrive(s, first);
	}
}

/* ---- scheduling ---------------------------------------------------------------------------------------------------------------------- */

static void start_all(struct sim *s)
{
	struct td_entry *e;
	int slot;

	while ((e = td_queue_next(&s->q, s->now_us))) {
		struct sim_client *c = client_of(e);

		slot = td_queue_free_slot(&s->q);
		if (s->now_us - e->queued_us > s->max_wait_us)
			s->max_wait_us = s->now_us - e->queued_us;
		td_queue_start(&s->q, e, slot);
		c->slot = slot;
		c->filled = 0;
		c->to_fill = c->prompt + c->made;
	}
	slot = td_queue_cut(&s->q, s->now_us);
	if (slot >= 0) {
		client_of(s->q.stay[slot].entry)->cuts++;
		s->cuts++;
	}
}

static void free_slot(struct sim *s, int slot, int lasted)
{
	const struct td_stay *stay = &s->q.stay[slot];
	double cost = (double)stay->charged_us / stay->flow->weight;

	if (cost > s->dearest_us)
		s->dearest_us = cost;
	td_queue_free(&s->q, slot, (uint64_t)lasted);
}

static void commit(struct sim *s, struct sim_client *c, int n)
{
	if (n > c->out - c->made)
		n = c->out - c->made;
	c->made += n;
	c->tokens += (uint64_t)n;
	s->tokens += (uint64_t)n;
	if (c->flow == s->watched && c->made == n)
		sample(&s->first_token, s->now_us - c->arrived_us);
	else if (c->flow == s->watched)
		sample(&s->inter_token, s->now_us - c->last_us);
	c->last_us = s->now_us;
}

/* One step of the model. */
static void step(struct sim *s)
{
	struct sim_client *fills = NULL;
	uint64_t turn = UINT64_MAX, total = 0, us = STEP_US;
	int rows[TD_QUEUE_SLOTS] = {0}, row_us[TD_QUEUE_SLOTS] = {0};

	for (int i = 0; i < s->q.slots; i++) {
		struct sim_client *c = s->q.stay[i].flow ? client_of(s->q.stay[i].entry) : NULL;

		if (!c)
			continue;
		if (c->filled < c->to_fill && td_queue_turn(&s->q, i) < turn) {
			turn = td_queue_turn(&s->q, i);
			fills = c;
		} else if (c->filled == c->to_fill) {
			rows[i] = s->drafts + 1;
			row_us[i] = ROW_US;
		}
	}
	if (fills) {
		int left = fills->to_fill - fills->filled;

		rows[fills->slot] = left < s->chunk ? left : s->chunk;
		row_us[fills->slot] = PROMPT_US;
	}
	for (int i = 0; i < s->q.slots; i++) {
		total += (uint64_t)rows[i];
		us += (uint64_t)(rows[i] * row_us[i]);
	}
	s->now_us += us;
	s->steps++;
	for (int i = 0; i < s->q.slots; i++) {
		struct td_stay *stay = &s->q.stay[i];
		struct sim_client *c = stay->flow ? client_of(stay->entry) : NULL;
		int n = 0, leaves;

		if (!c)
			continue;
		leaves = stay->leaving;
		if (rows[i] && c == fills) {
			c->filled += rows[i];
			n = c->filled == c->to_fill && !c->made;
		} else if (rows[i]) {
			n = 1 + (int)sim_random(s, 0, (uint64_t)s->drafts);
		}
		if (rows[i])
			td_queue_charge(&s->q, i, us * (uint64_t)rows[i] / total, n > 0);
		if (n)
			commit(s, c, n);
		if (c->made >= c->out) {
			free_slot(s, i, (int)(s->now_us - c->arrived_us));
			end_request(s, c);
		} else if (leaves) {
			free_slot(s, i, 0);
			wait_again(s, c);
		}
	}
}

/* ---- figures ------------------------------------------------------------------------------------------------------------------------- */

static void note_gap(struct sim *s)
{
	const struct td_flow *a = &s->flow[s->gap_of[0]], *b = &s->flow[s->gap_of[1]];
	double gap;

	if (a == b)
		return;
	if (!a->queued || !b->queued) { /* only while both have something waiting do they have a claim */
		s->gap_on = 0;
		return;
	}
	if (!s->gap_on) {
		s->gap_base[0] = (double)a->charged_us / a->weight;
		s->gap_base[1] = (double)b->charged_us / b->weight;
		s->gap_on = 1;
	}
	gap = ((double)a->charged_us / a->weight - s->gap_base[0]) - ((double)b->charged_us / b->weight - s->gap_base[1]);
	gap = gap < 0 ? -gap : gap;
	if (gap > s->gap_us)
		s->gap_us = gap;
}

static void note_sets(struct sim *s)
{
	for (int i = 0; i < s->n_flows && s->gap_of[0] != s->gap_of[1]; i++) {
		double sum = 0;

		for (int k = 0; k < s->q.slots; k++)
			sum += s->q.stay[k].flow == &s->flow[i] ? (double)s->q.stay[k].charged_us / s->flow[i].weight : 0;
		if (sum > s->dearest_set_us)
			s->dearest_set_us = sum;
	}
}

static void note_window(struct sim *s)
{
	double sum = 0, squares = 0;

	if (s->now_us < s->window_end)
		return;
	for (int i = 0; i < s->n_flows; i++) {
		double x = (double)s->flow[i].charged_us / s->flow[i].weight;

		sum += x - s->served_before[i];
		squares += (x - s->served_before[i]) * (x - s->served_before[i]);
		s->served_before[i] = x;
	}
	if (s->window_end && s->n_windows < SIM_WINDOWS && squares > 0)
		s->window[s->n_windows++] = sum * sum / (s->n_flows * squares);
	s->window_end = s->now_us + s->window_us;
}

static const char *check_flow(const struct sim *s, const struct td_flow *f)
{
	int queued = 0, running = 0, pages = 0;

	for (int band = 0; band < TD_BANDS; band++) {
		const struct td_entry *last = NULL;
		int n = 0;

		for (const struct td_entry *e = f->fifo[band].head; e; last = e, e = e->next, n++) {
			if (e->prev != last || e->flow != f || !e->waiting)
				return "a FIFO's links are broken";
			if (last && last->number >= e->number)
				return "a FIFO is out of order";
		}
		if (n != f->fifo[band].n || f->fifo[band].tail != last)
			return "a FIFO's count is wrong";
		queued += n;
	}
	for (const struct td_entry *e = s->q.suspects; e; e = e->next)
		queued += e->flow == f;
	for (const struct td_entry *e = s->q.held; e; e = e->next)
		queued += e->flow == f;
	for (int i = 0; i < s->q.slots; i++)
		if (s->q.stay[i].flow == f) {
			running++;
			pages += s->q.stay[i].pages;
		}
	if (queued != f->queued || running != f->running || pages != f->pages)
		return "a flow's counts are wrong";
	if (!f->at != !(f->fifo[0].n + f->fifo[1].n))
		return "a flow is listed and does not wait, or the other way round";
	if (f->at && s->q.waiting[f->at - 1] != f)
		return "a flow's place in the list is wrong";
	return f->expected_us < 0 ? "a flow expects less than nothing" : NULL;
}

const char *sim_check(struct sim *s)
{
	struct td_queue *q = &s->q;
	int n = 0, used = 0, pages = 0, kept = 0, fits = 0, held = 0, suspects = q->suspects != NULL;

	for (int i = 0; i < s->n_flows; i++) {
		const struct td_flow *f = &s->flow[i];
		const char *wrong = check_flow(s, f);

		if (wrong)
			return wrong;
		n += f->queued;
		used += f->running;
		pages += f->pages;
		if (f->max_running && f->running >= f->max_running)
			continue;
		for (int band = 0; band < TD_BANDS; band++) {
			const struct td_entry *e = f->fifo[band].head;

			fits += e && q->pages_used + e->pages <= q->pages;
			kept += e && e->overtaken >= 8;
		}
	}
	for (int i = 0; i < q->slots; i++)
		suspects += q->stay[i].entry && q->stay[i].entry->suspect;
	if (n != q->n || used != q->used || pages != q->pages_used)
		return "the queue's counts are wrong";
	if (q->pages_used > q->pages || q->used > q->slots)
		return "more is taken than there is";
	if (q->used < q->slots && fits && !kept && !suspects && !q->in_order && td_queue_next(q, s->now_us) == NULL)
		return "something could start, and nothing does";
	for (const struct td_entry *e = q->held; e; e = e->next)
		held++;
	if (!q->used && q->n > held && !td_queue_next(q, s->now_us))
		return "nothing runs, something waits, and nothing starts";
	return NULL;
}

const char *sim_run(struct sim *s, uint64_t end_us)
{
	while (s->now_us < end_us) {
		arrivals(s);
		start_all(s);
		if (s->q.used) {
			step(s);
			note_gap(s);
			note_sets(s);
			note_window(s);
			continue;
		}
		if (s->q.n)
			return "the device is idle while requests wait";
		if (s->soonest_us == UINT64_MAX)
			return sim_check(s); /* all is done */
		s->idle_us += s->soonest_us - s->now_us;
		s->now_us = s->soonest_us;
	}
	return sim_check(s);
}
