/*
 * queue.h: who waits, who runs, and who is next: the policy of sharing, with nothing around it.
 *
 * It knows neither sockets nor shared memory nor a clock: time comes as an argument, so a simulator drives this very code (tests/unit/test_d_fair.c).
 * A flow is one tenant as the queue sees it, an entry one request that waits, a stay the time of one in a slot, from START until the slot is free
 * again. A stay outlives its request's end by a step or so: the slot and its pages are taken and its work is charged until then.
 *
 * The order, in which the first that may start is the next:
 *   1. the band: interactive before batch; a batch request that waited batch_age_us counts as interactive from then on;
 *   2. whoever stays within its share of the pages with this request before those who would borrow;
 *   3. the flow's clock: device microseconds charged, divided by its weight, with what its stays will probably still use;
 *   4. the flow that was served least recently;
 *   and inside a flow the order of arrival.
 * A flow that did not wait has its clock lifted to the least one of those that do (to the largest one of those that run when nobody waits): time in which
 * it wanted nothing is not saved up. Work that its stays did while others waited stays charged.
 * A request that lacks pages is overtaken a bounded number of times; then pages are kept for it. Suspects (of killing workers) wait apart: they
 * go first, alone.
 *
 * A stay that does no work, since its client does not read, gives way to whoever waits; its request waits apart, held, until it can go on.
 *
 * Who owns: entries, flows are the caller's; the queue only links them. A flow must outlive its entries and stays.
 * What must never happen: a request lost or in two places; a slot that stays empty while some request may start; a stay cut short before it lasted a quantum.
 */
#ifndef TD_QUEUE_H
#define TD_QUEUE_H

#include <stdint.h>

enum td_band { TD_BAND_INTERACTIVE, TD_BAND_BATCH, TD_BANDS };
enum { TD_QUEUE_SLOTS = 64, TD_QUEUE_FLOWS = 1024 };

struct td_flow;

struct td_entry {
	/* set by the caller before td_queue_add */
	struct td_flow *flow;
	uint64_t number; /* order of arrival */
	enum td_band band;
	int pages; /* that it needs to run */
	/* the queue's */
	struct td_entry *next, *prev;
	int waiting;
	int aged; /* of batch, waited long: counts as interactive */
	int overtaken; /* how often others took pages that it waits for */
	int suspect, lone;
	int held; /* nothing may start it for now: it waits apart */
	uint64_t queued_us; /* waits since */
};

struct td_fifo {
	struct td_entry *head, *tail;
	int n;
};

struct td_flow {
	/* settings */
	double weight; /* > 0 */
	int max_running; /* 0 = as many as there are slots */
	double memory_share; /* of the pages, 0..1; 0 = by weight among those that are active */
	/* the queue's */
	double clock_us; /* device time charged / weight */
	double mean_us; /* what a stay of this flow costs, from those that ended */
	double expected_us; /* what those that run will probably still use */
	struct td_fifo fifo[TD_BANDS];
	int queued; /* in its FIFOs and among the suspects */
	int running; /* stays */
	int pages; /* of its stays */
	int at; /* place in the queue's list of flows that wait, from 1; 0: none of its entries is in a FIFO */
	uint64_t served; /* order in which flows got their last slot */
	uint64_t charged_us; /* in all, without weight */
};

/* Settings as they are when nobody says anything. */
#define TD_FLOW_INIT ((struct td_flow){.weight = 1})

struct td_stay {
	struct td_flow *flow; /* NULL: the slot is free */
	struct td_entry *entry; /* NULL: ended for its client, the worker does not know yet */
	int band; /* as which it started */
	int pages, commits;
	int leaving; /* the worker was told to stop it */
	int cut; /* ... to make room for another: it goes on later */
	uint64_t idle_us; /* does no work since; 0: works */
	uint64_t charged_us, fill_us; /* fill: up to its first token */
	double expected_us;
};

struct td_queue {
	/* settings */
	int slots, pages;
	uint64_t batch_age_us, quantum_us; /* quantum 0: nothing that runs is cut short */
	int in_order; /* 1: plain order of arrival instead of all this */
	/* state: zeroed at first */
	struct td_flow *waiting[TD_QUEUE_FLOWS]; /* those with entries in their FIFOs, in no order */
	int n_waiting;
	struct td_entry *suspects; /* by (lone, number) */
	struct td_entry *held; /* in no order */
	int n; /* entries that wait */
	struct td_stay stay[TD_QUEUE_SLOTS];
	int used, leaving, pages_used;
	int blocked; /* the last td_queue_next passed over someone who lacks pages */
	uint64_t now_us; /* as of then */
	uint64_t served;
	double clock_us; /* what a flow's clock is lifted to when nobody else is there; never falls */
	double mean_us; /* device time of a stay */
	double mean_stay_us; /* how long one lasts */
	uint64_t n_ended;
};

/* A request arrives or comes back: to its place by number in its flow's FIFO, or among the suspects or those that are held. */
void td_queue_add(struct td_queue *q, struct td_entry *e, uint64_t now_us);
void td_queue_remove(struct td_queue *q, struct td_entry *e); /* it waits no longer */
/* Who may start now, given free slots and pages; NULL: nobody. */
struct td_entry *td_queue_next(struct td_queue *q, uint64_t now_us);
int td_queue_free_slot(const struct td_queue *q); /* -1: none */
void td_queue_start(struct td_queue *q, struct td_entry *e, int slot); /* what td_queue_next said */
/* Device time used in a slot; `commit`: tokens came of it. */
void td_queue_charge(struct td_queue *q, int slot, uint64_t us, int commit);
void td_queue_idle(struct td_queue *q, int slot, uint64_t since_us); /* nothing is done there for now; 0: it is again */
void td_queue_release(struct td_queue *q, struct td_entry *e, uint64_t now_us); /* a held one may start again */
void td_queue_leave(struct td_queue *q, int slot); /* the worker is, or will be, told to stop what runs there */
/* The slot is free; its entry, if it is to wait again, is added after this. lasted_us: since its start, 0 = that says nothing. */
void td_queue_free(struct td_queue *q, int slot, uint64_t lasted_us);
/* The slot whose stay should be cut short for somebody who waits: it is leaving from now on. -1: none. */
int td_queue_cut(struct td_queue *q, uint64_t now_us);
uint64_t td_queue_turn(const struct td_queue *q, int slot); /* the least is to be prefilled first */

/* How many will start before it, as things stand. `rank`: how many are before it in its FIFO, -1 = count them. */
int td_queue_ahead(const struct td_queue *q, const struct td_entry *e, int rank);
/* How long until a request with so many before it gets a slot, by what stays lasted so far; 0 when a slot is free, and while too few ended to say. */
uint64_t td_queue_wait_us(const struct td_queue *q, int ahead);

#endif
