/*
 * records.c: what the target tells tandemd: commits, ends, progress.
 *
 * A full ring means that tandemd is far behind (or stopped): the worker waits, since a record must not be lost; an epoch change ends the wait.
 */
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/fault.h"
#include "target_worker/internal.h"

void td__target_push(struct td_target *t, struct td_record *rec)
{
	static const struct timespec pause = {0, 200000};

	rec->epoch = t->epoch;
	while (!td_ring_push(&t->shm->from_target, rec)) {
		if (atomic_load(&t->shm->epoch) != t->epoch)
			return;
		td__target_notify(t);
		nanosleep(&pause, NULL);
	}
}

void td__target_notify(struct td_target *t)
{
	uint64_t one = 1;

	if (t->o.event_fd >= 0 && write(t->o.event_fd, &one, sizeof(one)) < 0) {
		/* EAGAIN: the counter is full of unread wake-ups, so tandemd will wake anyway. */
	}
}

void td__target_end(struct td_target *t, int slot, enum td_finish reason)
{
	struct td__slot *s = &t->slot[slot];
	struct td_record rec = {.kind = TD_REC_DONE, .slot = (uint16_t)slot, .request = s->request, .reason = (uint16_t)reason, .a = (uint32_t)s->total};

	td__pages_release(t->pages, slot);
	memset(s, 0, sizeof(*s));
	td__target_push(t, &rec);
}

static int is_stop(const struct td_slot_area *area, int32_t token)
{
	for (int i = 0; i < area->n_stop && i < TD_STOP_IDS_MAX; i++)
		if (area->stop[i] == token)
			return 1;
	return 0;
}

/* A verdict entry is free again once a later commit of the slot was popped: tandemd reads entries in the order of the records. */
static void verdict_write(struct td_target *t, struct td__slot *s, struct td_slot_area *area, const struct td_verdict *v)
{
	static const struct timespec pause = {0, 100000};

	while (s->commits >= TD_VERDICTS && atomic_load(&t->shm->from_target.tail) < s->commit_sequence[(s->commits + 1) % TD_VERDICTS] &&
	       atomic_load(&t->shm->epoch) == t->epoch) {
		td__target_notify(t);
		nanosleep(&pause, NULL);
	}
	memcpy(&area->verdict[s->commits % TD_VERDICTS], v, sizeof(*v));
}

int td__target_commit(struct td_target *t, int slot, const struct td_verdict *v, int drafted, const struct td__cost *cost)
{
	struct td__slot *s = &t->slot[slot];
	struct td_slot_area *area = td_shm_slot(t->shm, slot);
	struct td_record rec = {.kind = TD_REC_COMMIT, .slot = (uint16_t)slot, .request = s->request, .a = (uint32_t)s->total};
	int n = 0, stopped = 0;

	while (n < v->n && !stopped && s->total + n < s->max_total) {
		rec.token[n] = v->token[n];
		stopped = is_stop(area, v->token[n++]);
	}
	if (td__constrain_commit(t, slot, rec.token, n)) {
		td__target_end(t, slot, TD_FIN_CONSTRAINT);
		return 0;
	}
	rec.n = (uint16_t)n;
	rec.drafted = (uint16_t)(drafted > 0 ? drafted : 0);
	rec.accepted = (uint16_t)(drafted > 0 ? (v->n - 1 < n ? v->n - 1 : n) : 0);
	rec.reason = drafted >= 0; /* a verify step, as opposed to a prefill's first token */
	rec.b = s->commits;
	rec.us_step = (uint32_t)cost->step_us;
	rec.us_charge = (uint32_t)(s->owed_us + cost->rows_us + cost->draft_us);
	if (drafted > 0) /* the rows of rejected drafts, and their part of the drafter's work */
		rec.us_wasted = (uint32_t)((uint64_t)(drafted + 1 - v->n) * cost->rows_us / (uint64_t)(drafted + 1) +
					   (uint64_t)(drafted + 1 - v->n) * cost->draft_us / (uint64_t)drafted);
	s->owed_us = 0;
	if (area->sampling.logprobs >= 0)
		verdict_write(t, s, area, v);
	td_fault_spot("target.commit");
	td__target_push(t, &rec);
	s->commit_sequence[s->commits++ % TD_VERDICTS] = rec.sequence;
	s->total += n;
	if (stopped)
		td__target_end(t, slot, TD_FIN_STOP);
	else if (s->total >= s->max_total)
		td__target_end(t, slot, TD_FIN_LENGTH);
	return n;
}
