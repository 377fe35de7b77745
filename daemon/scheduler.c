/*
 * scheduler.c: slots and pages, and the rings to and from the workers.
 *
 * State first, messages second: the rest of the daemon only says what should be (a request is cancelled, its reader is slow), and once per turn of the
 * loop td_scheduler_run tells the target where its knowledge differs. So a full ring loses nothing; the difference is told the next time.
 * A slot is free again only when the target says DONE, or when a new epoch made it forget everything. Each START has a number of its own (`run`), so
 * that a record about a request's earlier stay in a slot cannot be taken for one about the present stay.
 * Records come from memory that another process writes: epoch, slot, run, position, counts and every token are checked, and a target that breaks the
 * rules is replaced.
 */
#include <string.h>

#include "daemon/daemon.h"
#include "engine/log.h"

/* A worker's death says little of a request that ran in company, so no death of that kind ends one. From SUSPECT deaths on without a token between it
 * runs alone, suspects one after the other, those first that were alone at fewer deaths: the cause is found, and the others are cleared by their first
 * token. LONE deaths of that kind are the end. */
enum { DEATHS_SUSPECT = 2, DEATHS_LONE = 2 };

int td_scheduler_used(const struct td_daemon *d)
{
	int n = 0;

	for (int i = 0; i < d->model.shm.slots; i++)
		n += d->slot[i].busy;
	return n;
}

/* ---- to the target ----------------------------------------------------------------------------------------------------------------- */

static int push(struct td_daemon *d, int kind, int slot, uint64_t run)
{
	struct td_record rec = {.epoch = d->epoch, .kind = (uint16_t)kind, .slot = (uint16_t)slot, .request = run};

	return td_ring_push(&d->shm->to_target, &rec);
}

static void fill_area(struct td_daemon *d, int slot, const struct td_request *r)
{
	struct td_slot_area *a = td_shm_slot(d->shm, slot);

	memset(a, 0, offsetof(struct td_slot_area, verdict));
	a->request = d->slot[slot].run;
	a->epoch = d->epoch;
	a->n_tokens = r->log.n;
	a->n_prompt = r->log.n_prompt;
	a->max_total = r->max_total;
	a->k = r->k;
	a->n_stop = r->n_stop_ids;
	memcpy(a->stop, r->stop_id, sizeof(a->stop));
	a->sampling = r->sampling;
	a->grammar_bytes = (int32_t)r->n_grammar;
	if (r->n_grammar)
		memcpy(td_shm_grammar(d->shm, slot), r->grammar, r->n_grammar);
	memcpy(td_shm_ids(d->shm, slot), r->log.ids, (size_t)r->log.n * sizeof(int32_t));
}

static int is_suspect(const struct td_request *r)
{
	return r->barren >= DEATHS_SUSPECT;
}

/* 1 while a suspect waits for the slots to empty, or runs. */
static int must_wait_alone(const struct td_daemon *d, const struct td_request *r)
{
	for (int i = 0; i < d->model.shm.slots; i++)
		if (d->slot[i].busy && (is_suspect(r) || (d->slot[i].request && is_suspect(d->slot[i].request))))
			return 1;
	return 0;
}

/* Who is next: the head of the queue, but a suspect lets those go first that were alone at fewer deaths. Newcomers are no suspects: none overtakes. */
static struct td_request *next_of(const struct td_queue *q)
{
	struct td_request *first = q->head;

	for (struct td_request *r = first; first && is_suspect(first) && r; r = r->queue_next)
		if (is_suspect(r) && r->lone < first->lone)
			first = r;
	return first;
}

/* 1 when the next of the queue got a slot. Only that one is tried: the order of arrival is kept even when a smaller one would fit. */
static int start_next(struct td_daemon *d)
{
	struct td_request *r = next_of(&d->queue);
	int pages, slot = 0;
	uint64_t now = td_now_us();

	if (!r || must_wait_alone(d, r))
		return 0;
	pages = (r->max_total + TD_PAGE - 1) / TD_PAGE;
	if (d->pages_used + pages > d->model.kv_pages)
		return 0;
	while (slot < d->model.shm.slots && d->slot[slot].busy)
		slot++;
	if (slot == d->model.shm.slots)
		return 0;
	d->slot[slot] = (struct td_slot){.busy = 1, .request = r, .run = ++d->next_run, .pages = pages};
	fill_area(d, slot, r);
	if (!push(d, TD_REC_START, slot, d->slot[slot].run)) {
		d->slot[slot].busy = 0;
		return 0;
	}
	d->pages_used += pages;
	td_queue_remove(&d->queue, r);
	r->state = TD_REQ_RUNNING;
	r->slot = slot;
	r->queue_sum_us += now - r->queued_us;
	td_metrics_start(r, now - r->queued_us);
	if (!r->started_us)
		r->started_us = now;
	return 1;
}

/* 1 when the target had to be told something about this slot. */
static int settle(struct td_daemon *d, int i)
{
	struct td_slot *s = &d->slot[i];
	int told = 0, pause;

	if (!s->busy)
		return 0;
	if (s->cancel && !s->cancel_told) {
		s->cancel_told = push(d, TD_REC_CANCEL, i, s->run);
		return s->cancel_told;
	}
	pause = s->request && s->request->stream && s->request->session && s->request->session->blocked;
	if (!s->cancel && pause != s->pause_told && push(d, pause ? TD_REC_PAUSE : TD_REC_RESUME, i, s->run)) {
		s->pause_told = pause;
		told = 1;
	}
	return told;
}

void td_scheduler_run(struct td_daemon *d)
{
	int told = 0;

	if (!td_supervisor_serving(d))
		return;
	for (int i = 0; i < d->model.shm.slots; i++)
		told |= settle(d, i);
	while (start_next(d))
		told = 1;
	if (told)
		td_bell_ring(&d->shm->bell_target);
}

void td_scheduler_detach(struct td_daemon *d, struct td_request *r, int cancel)
{
	struct td_slot *s = &d->slot[r->slot];

	s->request = NULL;
	s->cancel = cancel;
	r->slot = -1;
}

static void free_slot(struct td_daemon *d, struct td_slot *s)
{
	d->pages_used -= s->pages;
	*s = (struct td_slot){0};
}

void td_scheduler_reset(struct td_daemon *d)
{
	int alone = td_scheduler_used(d) == 1; /* work for a client that hung up is company, too */

	for (int i = 0; i < d->model.shm.slots; i++) {
		struct td_request *r = d->slot[i].request;

		free_slot(d, &d->slot[i]);
		if (!r)
			continue;
		r->slot = -1;
		r->restarts++;
		r->state = TD_REQ_QUEUED;
		r->queued_us = td_now_us();
		td_queue_add(&d->queue, r);
		r->lone += alone && is_suspect(r);
		r->barren++;
		if (r->lone >= DEATHS_LONE)
			td_request_fail(d, r, TD_E_WORKER, "a worker died %d times in a row while this request ran, the last %d times alone, without a token between",
					r->barren, r->lone);
	}
	d->pages_used = 0;
}

/* ---- from the target --------------------------------------------------------------------------------------------------------------- */

static const char *commit_fault(const struct td_daemon *d, const struct td_slot *s, const struct td_record *rec)
{
	const struct td_request *r = s->request;

	if (rec->n < 1 || rec->n > TD_BLOCK_MAX || rec->drafted > TD_DRAFT_MAX || rec->accepted > rec->drafted)
		return "counts out of range";
	if (rec->b != s->commits)
		return "a commit is missing";
	if (rec->a != (uint32_t)r->log.n || r->log.n + rec->n > r->max_total)
		return "its position is not the next one";
	for (int i = 0; i < rec->n; i++)
		if (rec->token[i] < 0 || rec->token[i] >= d->model.vocab_real)
			return "a token id is out of range";
	return NULL;
}

/* What a record says of the device time that the request used. */
static void charge(struct td_request *r, const struct td_record *rec)
{
	uint32_t wasted = rec->us_wasted < rec->us_charge ? rec->us_wasted : rec->us_charge;

	r->gpu_us += rec->us_charge;
	r->wasted_us += wasted;
	td_metrics_charge(r, rec->us_charge, wasted);
}

static void take_prefill(struct td_slot *s, const struct td_record *rec)
{
	struct td_request *r = s->request;

	if (!r)
		return;
	charge(r, rec);
	if (rec->n || rec->a >= (uint32_t)r->log.n_prompt)
		return;
	td_metrics_cached(r, rec->a);
	r->cached_tokens = rec->a;
}

static void count(struct td_daemon *d, struct td_request *r, const struct td_record *rec, int appended)
{
	uint64_t now = td_now_us();
	int accepted = rec->accepted < appended ? rec->accepted : appended; /* a stop string may have cut the block */

	td_metrics_commit(d, r, rec, appended, accepted, now);
	if (!r->first_us)
		r->first_us = now;
	r->last_us = now;
	r->barren = r->lone = 0;
	charge(r, rec);
	d->count.commits++;
	d->count.output_tokens += (uint64_t)appended;
	if (!rec->reason)
		return;
	r->cycles++;
	r->drafted += rec->drafted;
	r->accepted += (uint32_t)accepted;
	d->count.cycles++;
	d->count.drafted += rec->drafted;
	d->count.accepted += (uint64_t)accepted;
	for (int i = 0; i < accepted; i++)
		d->count.accepted_at[i]++;
}

static void take_commit(struct td_daemon *d, struct td_slot *s, const struct td_record *rec)
{
	struct td_request *r = s->request;
	const struct td_verdict *v = NULL;
	const char *fault;
	struct td_error err;
	int before, rc, stopped;

	if (!r) { /* ended for its client; if the target does not know that, it has to be told */
		s->cancel = 1;
		return;
	}
	fault = commit_fault(d, s, rec);
	if (fault) {
		td_child_kill(&d->target, TD_E_PROTOCOL, "it broke the rules of commits: %s", fault);
		return;
	}
	if (r->sampling.logprobs >= 0)
		v = &td_shm_slot(d->shm, rec->slot)->verdict[s->commits % TD_VERDICTS];
	s->commits++;
	before = r->log.n;
	rc = td_request_commit(r, rec->token, rec->n, v, &stopped, &err);
	count(d, r, rec, r->log.n - before);
	td_supervisor_progress(d);
	if (rc < 0)
		td_request_fail(d, r, rc, "%s", err.text);
	else if (rc == 1)
		td_request_end(d, r, r->finish);
	else
		td_stream_pump(d, r);
}

static void take_done(struct td_daemon *d, struct td_slot *s, const struct td_record *rec)
{
	struct td_request *r = s->request;

	/* The daemon sees natural ends by itself, at the token that makes them. */
	if (r && rec->reason != TD_FIN_ERROR) {
		td_child_kill(&d->target, TD_E_PROTOCOL, "it ended a request that is not at its end (reason %u)", rec->reason);
		return;
	}
	free_slot(d, s);
	if (!r)
		return;
	r->slot = -1;
	td_request_fail(d, r, TD_E_INTERNAL, "the target refused the request; its log says why");
}

static void take_target(struct td_daemon *d, const struct td_record *rec)
{
	struct td_slot *s;

	if (rec->kind == TD_REC_RESET_DONE) {
		td_supervisor_reset_done(d, &d->target, rec->epoch);
		return;
	}
	if (rec->epoch != d->epoch || d->target.state != TD_CHILD_READY)
		return;
	if (rec->slot >= d->model.shm.slots) {
		td_child_kill(&d->target, TD_E_PROTOCOL, "it speaks of slot %u of %d", rec->slot, d->model.shm.slots);
		return;
	}
	s = &d->slot[rec->slot];
	if (!s->busy || s->run != rec->request)
		return;
	if (rec->kind == TD_REC_COMMIT)
		take_commit(d, s, rec);
	else if (rec->kind == TD_REC_DONE)
		take_done(d, s, rec);
	else if (rec->kind == TD_REC_PREFILL)
		take_prefill(s, rec);
	else
		td_child_kill(&d->target, TD_E_PROTOCOL, "it sent a record of kind %u", rec->kind);
}

void td_scheduler_read_target(struct td_daemon *d)
{
	struct td_record rec;

	for (int i = 0; i < TD_RING_RECORDS && td_ring_pop(&d->shm->from_target, &rec); i++)
		take_target(d, &rec);
}

void td_scheduler_read_drafter(struct td_daemon *d)
{
	struct td_record rec;

	for (int i = 0; i < TD_RING_RECORDS && td_ring_pop(&d->shm->from_drafter, &rec); i++)
		if (rec.kind == TD_REC_RESET_DONE)
			td_supervisor_reset_done(d, &d->drafter, rec.epoch);
}
