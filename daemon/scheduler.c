/*
 * scheduler.c: slots, and the rings to and from the workers. Who gets a slot, and when, is the queue's matter (queue.h).
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
_Static_assert((int)TD_QUEUE_SLOTS == (int)TD_SLOTS_MAX, "the queue knows every slot");

int td_scheduler_used(const struct td_daemon *d)
{
	return d->queue.used;
}

/* What runs in a slot; NULL when it ended for its client before the target said DONE. */
static struct td_request *request_in(const struct td_daemon *d, int slot)
{
	return td_request_of(d->queue.stay[slot].entry);
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
	a->k_may_fall = r->k_may_fall;
	a->n_stop = r->n_stop_ids;
	memcpy(a->stop, r->stop_id, sizeof(a->stop));
	a->cache = r->cache;
	a->tenant = r->tenant->number;
	atomic_store(&a->turn, td_queue_turn(&d->queue, slot));
	a->sampling = r->sampling;
	a->grammar_bytes = (int32_t)r->n_grammar;
	if (r->n_grammar)
		memcpy(td_shm_grammar(d->shm, slot), r->grammar, r->n_grammar);
	memcpy(td_shm_ids(d->shm, slot), r->log.ids, (size_t)r->log.n * sizeof(int32_t));
}

static int ring_full(const struct td_ring *ring)
{
	return atomic_load(&ring->head) - atomic_load(&ring->tail) >= TD_RING_RECORDS;
}

/* 1 when a request got a slot. */
static int start_next(struct td_daemon *d)
{
	uint64_t now = td_now_us();
	struct td_request *r = td_request_of(td_queue_next(&d->queue, now));
	int slot = td_queue_free_slot(&d->queue);

	if (!r || ring_full(&d->shm->to_target))
		return 0;
	td_queue_start(&d->queue, &r->entry, slot);
	td_tenant_hold(r->tenant);
	d->slot[slot] = (struct td_slot){.run = ++d->next_run, .started_us = now};
	fill_area(d, slot, r);
	push(d, TD_REC_START, slot, d->slot[slot].run);
	r->state = TD_REQ_RUNNING;
	r->slot = slot;
	r->queue_sum_us += now - r->queued_us;
	td_metrics_start(r, now - r->queued_us);
	if (!r->started_us)
		r->started_us = now;
	return 1;
}

/* Requests that lost their slot because their clients did not read: those whose clients do again wait as others do. */
static void release_held(struct td_daemon *d)
{
	struct td_entry *next;

	for (struct td_entry *e = d->queue.held; e; e = next) {
		const struct td_session *s = td_request_of(e)->session;

		next = e->next;
		if (!s || !s->blocked)
			td_queue_release(&d->queue, e, td_now_us());
	}
}

/* A request that had its turn makes room for one that waits: told as a cancel to the target, and not at all to its client. */
static void cut_one(struct td_daemon *d)
{
	int slot = td_queue_cut(&d->queue, td_now_us());

	if (slot < 0)
		return;
	d->slot[slot].cancel = 1;
	td_log(TD_LOG_DEBUG, "request %llu is interrupted after %.1f ms of device time: %s", (unsigned long long)request_in(d, slot)->number,
	       (double)d->queue.stay[slot].charged_us / 1000, d->queue.stay[slot].idle_us ? "its client does not read, and others wait" : "others are behind");
}

/* 1 when the target had to be told something about this slot. */
static int settle(struct td_daemon *d, int i)
{
	struct td_slot *s = &d->slot[i];
	const struct td_request *r = request_in(d, i);
	int told = 0, pause;

	if (!d->queue.stay[i].flow)
		return 0;
	if (s->cancel && !s->cancel_told) {
		s->cancel_told = push(d, TD_REC_CANCEL, i, s->run);
		return s->cancel_told;
	}
	pause = r && r->stream && r->session && r->session->blocked;
	if (!s->cancel && pause != s->pause_told && push(d, pause ? TD_REC_PAUSE : TD_REC_RESUME, i, s->run)) {
		s->pause_told = pause;
		td_queue_idle(&d->queue, i, pause ? td_now_us() : 0);
		told = 1;
	}
	return told;
}

void td_scheduler_run(struct td_daemon *d)
{
	int told = 0;

	if (!td_supervisor_serving(d))
		return;
	release_held(d);
	while (start_next(d))
		told = 1;
	cut_one(d);
	for (int i = 0; i < d->model.shm.slots; i++)
		told |= settle(d, i);
	if (told)
		td_bell_ring(&d->shm->bell_target);
}

void td_scheduler_detach(struct td_daemon *d, struct td_request *r, int cancel)
{
	d->queue.stay[r->slot].entry = NULL;
	if (cancel) {
		d->slot[r->slot].cancel = 1;
		td_queue_leave(&d->queue, r->slot);
	}
	r->slot = -1;
}

static struct td_tenant *tenant_of(struct td_flow *f)
{
	return (struct td_tenant *)((char *)f - offsetof(struct td_tenant, flow));
}

/* `ended`: by itself, so that how long it took says something. */
static void free_slot(struct td_daemon *d, int slot, int ended)
{
	struct td_tenant *t = tenant_of(d->queue.stay[slot].flow);

	td_queue_free(&d->queue, slot, ended ? td_now_us() - d->slot[slot].started_us : 0);
	d->slot[slot] = (struct td_slot){0};
	td_tenant_drop(&d->tenants, t);
}

/* What ran in a slot waits again, at the front of what its tenant has waiting. */
static void requeue(struct td_daemon *d, struct td_request *r)
{
	r->slot = -1;
	td_admission_enqueue(d, r);
}

void td_scheduler_reset(struct td_daemon *d)
{
	int alone = td_scheduler_used(d) == 1; /* work for a client that hung up is company, too */

	for (int i = 0; i < d->model.shm.slots; i++) {
		struct td_request *r = request_in(d, i);

		if (!d->queue.stay[i].flow)
			continue;
		free_slot(d, i, 0);
		if (!r)
			continue;
		r->restarts++;
		r->lone += alone && r->entry.suspect;
		r->barren++;
		r->entry.suspect = r->barren >= DEATHS_SUSPECT;
		r->entry.lone = r->lone;
		requeue(d, r);
		if (r->lone >= DEATHS_LONE)
			td_request_fail(d, r, TD_E_WORKER, "a worker died %d times in a row while this request ran, the last %d times alone, without a token between",
					r->barren, r->lone);
	}
}

/* ---- from the target --------------------------------------------------------------------------------------------------------------- */

static const char *commit_fault(const struct td_daemon *d, const struct td_slot *s, const struct td_request *r, const struct td_record *rec)
{
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

/* What a record says of the device time that was used: its tenant pays, also for what ran on after the request's end. Workers that don't share a step out
 * among its requests charge the whole of it. */
static void charge(struct td_daemon *d, const struct td_record *rec)
{
	struct td_request *r = request_in(d, rec->slot);
	struct td_flow *f = d->queue.stay[rec->slot].flow;
	uint32_t us = rec->us_charge ? rec->us_charge : rec->us_step, wasted = rec->us_wasted < us ? rec->us_wasted : us;

	td_queue_charge(&d->queue, rec->slot, us, rec->kind == TD_REC_COMMIT);
	for (int i = 0; i < d->model.shm.slots; i++)
		if (d->queue.stay[i].flow == f)
			atomic_store_explicit(&td_shm_slot(d->shm, i)->turn, td_queue_turn(&d->queue, i), memory_order_relaxed);
	td_metrics_charge(r ? r->meter : td_metrics_meter(&d->metrics, tenant_of(f)->cfg.name), us, wasted);
	if (!r)
		return;
	r->gpu_us += us;
	r->wasted_us += wasted;
}

static void take_prefill(struct td_daemon *d, const struct td_record *rec)
{
	struct td_request *r = request_in(d, rec->slot);

	charge(d, rec);
	if (!r || rec->n || rec->a >= (uint32_t)r->log.n_prompt)
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
	td_tenant_spend(r->tenant, appended, now);
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
	td_width_count(d);
}

static void take_commit(struct td_daemon *d, struct td_slot *s, const struct td_record *rec)
{
	struct td_request *r = request_in(d, rec->slot);
	const struct td_verdict *v = NULL;
	const char *fault;
	struct td_error err;
	int before, rc, stopped;

	if (!r) { /* ended for its client; if the target does not know that, it has to be told */
		s->cancel = 1;
		td_queue_leave(&d->queue, rec->slot);
		charge(d, rec);
		return;
	}
	fault = commit_fault(d, s, r, rec);
	if (fault) {
		td_child_kill(&d->target, TD_E_PROTOCOL, "it broke the rules of commits: %s", fault);
		return;
	}
	if (r->sampling.logprobs >= 0)
		v = &td_shm_slot(d->shm, rec->slot)->verdict[s->commits % TD_VERDICTS];
	s->commits++;
	charge(d, rec);
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

static void take_done(struct td_daemon *d, const struct td_record *rec)
{
	struct td_request *r = request_in(d, rec->slot);
	int cut = d->queue.stay[rec->slot].cut;

	/* The daemon sees natural ends by itself, at the token that makes them. */
	if (r && rec->reason != TD_FIN_ERROR && !(r->n_grammar && rec->reason == TD_FIN_CONSTRAINT) && !(cut && rec->reason == TD_FIN_CANCELLED)) {
		td_child_kill(&d->target, TD_E_PROTOCOL, "it ended a request that is not at its end (reason %u)", rec->reason);
		return;
	}
	free_slot(d, rec->slot, !cut);
	if (r && rec->reason == TD_FIN_CANCELLED) {
		requeue(d, r);
	} else if (r) {
		r->slot = -1;
		if (rec->reason == TD_FIN_CONSTRAINT)
			td_request_fail(d, r, TD_E_SCHEMA, "the constraint leaves nothing to choose here: all that it allows is impossible, or its pattern has too many ways");
		else
			td_request_fail(d, r, TD_E_INTERNAL, "the target refused the request; its log says why");
	}
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
	if (!d->queue.stay[rec->slot].flow || s->run != rec->request)
		return;
	if (rec->kind == TD_REC_COMMIT)
		take_commit(d, s, rec);
	else if (rec->kind == TD_REC_DONE)
		take_done(d, rec);
	else if (rec->kind == TD_REC_PREFILL)
		take_prefill(d, rec);
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
