/*
 * pair.h: target and drafter engines in one process, for tests: the workers' own code on one device, without processes and channels between.
 *
 * pair_open loads both models; pair_run feeds requests and calls back for each draft and each commit; pair_submit, pair_step and pair_cancel do the
 * same by hand. The shm is a real one, so that slot areas,
 * rings and step records are what the workers use. Exits with a message on any failure: it serves test programs only.
 */
#ifndef TD_TESTS_PAIR_H
#define TD_TESTS_PAIR_H

#include "drafter_worker/drafter.h"
#include "target_worker/target.h"

struct pair_options {
	const char *device, *target_dir, *drafter_dir; /* drafter_dir NULL: no drafter */
	int slots, context, chunk, threads;
	int form; /* struct td_load */
	int not_target, not_drafter; /* of form, what one of them is loaded without */
	int vocab_fd; /* struct td_target_options */
	const int32_t *draft_id; /* struct td_drafter_options */
	int n_draft_ids;
	int kv_pages, prefix_states; /* 0: slots * context, no prefix cache */
	td_target_probe *target_probe;
	td_drafter_probe *drafter_probe;
	void *probe_ctx;
};

struct pair {
	const struct td_ops *ops;
	struct td_dev *dev;
	struct td_shm *shm;
	void *exchange_base;
	struct td_exchange exchange;
	struct td_target_weights *tw;
	struct td_drafter_weights *dw;
	struct td_target *target;
	struct td_drafter *drafter;
	uint64_t requests;
	int shm_fd;
	int lazy; /* the drafter works only when the target needs it to: it follows later than requests end */
};

struct pair_request { /* in */
	const int32_t *ids;
	int n_ids, n_prompt; /* n_ids > n_prompt: the rest was committed in an earlier life */
	int max_total, k;
	int stop_at_eos;
	const uint8_t *grammar; /* compiled, NULL: free output */
	size_t n_grammar;
	int cache; /* struct td_slot_area */
	uint64_t tenant, turn;
	struct td_sampling sampling;
	/* out */
	int32_t *out; /* (max_total - n_ids) */
	int n_out, finish; /* enum td_finish */
	int cycles, drafted, accepted;
	int cached, prefilled; /* prompt tokens from the prefix cache, and computed */
	uint64_t charge_us, wasted_us;
	uint64_t request; /* number given */
	int slot;
};

struct pair_hooks { /* any may be NULL */
	void *ctx;
	void (*draft)(void *ctx, int slot, const struct td_draft *draft); /* after each draft of the slot */
	void (*commit)(void *ctx, const struct td_record *rec);
};

void pair_open(struct pair *p, const struct pair_options *o);
void pair_close(struct pair *p);
/* Starts a request in a slot that is free. */
void pair_submit(struct pair *p, struct pair_request *r, int slot);
/* A step of the target at most, then the drafter; takes the records of req. 0 when nothing moved. */
int pair_step(struct pair *p, struct pair_request *req, int n, const struct pair_hooks *hooks);
void pair_cancel(struct pair *p, struct pair_request *r); /* told; ends with the next step */
/* As after a worker's death: both drop all requests and begin a new epoch. */
void pair_new_epoch(struct pair *p);
/* Runs n requests (n <= slots) together to their ends. */
void pair_run(struct pair *p, struct pair_request *req, int n, const struct pair_hooks *hooks);
/* Device allocations so far; 0 where nobody counts. */
uint64_t pair_allocations(const struct pair *p);
void pair_greedy(struct td_sampling *s);

#endif
