/*
 * shm.h: the memory that tandemd and its two workers share (one memfd), and the way of a cycle through it.
 *
 * tandemd creates it (td_shm_create), passes the fd to each worker at exec, all map it (td_shm_map). It never moves and never grows.
 * It holds: the header with the epoch; one slot area per slot (what to run: written by tandemd before it pushes START); three rings of
 * fixed-size records (tandemd -> target, target -> tandemd, drafter -> tandemd); the step records (what the target tells the drafter); the
 * flags and bells; and, on the CPU backend, the exchange region.
 *
 * A step. The target numbers its steps (prefill chunk or verify) from 1 in each epoch. It fills step record n % TD_STEPS, writes features to
 * exchange buffer n % TD_FEATURE_BUFS, then sets flag `target` to (epoch << 32 | n). The drafter takes the steps in order: appends the features
 * to its KV cache, drafts for the entries that ask for it, then sets flag `drafter` to the same value. Before the target reuses a buffer or a step
 * record of step n it waits for drafter >= n. A request is ready to be verified when drafter >= the step that asked for its draft.
 * Without a drafter process (`drafter_present` 0) nobody waits and nothing is written for it.
 * Both workers number their KV pages alike: where an entry begins a request, the pages of its slot lie beside the record (td_shm_table), under the same
 * protection. So a page that several requests share holds both workers' keys and values; the drafter follows every entry, also of requests that
 * ended meanwhile, lest it leave a hole in such a page.
 *
 * Epochs. tandemd raises the epoch when a worker died: it stores the new epoch, poisons both flags of the old one (TD_FLAG_POISON) and rings
 * the bells. A survivor drops all requests when it sees the epoch change, answers RESET_DONE with the new epoch, and numbers its steps from 1.
 * Records of an older epoch are dropped by whoever reads them. No flag is ever set back.
 *
 * What must never happen: a pointer in here (only offsets); a record read without checking its epoch; an index from here used unchecked by tandemd.
 */
#ifndef TD_SHM_H
#define TD_SHM_H

#include <stdatomic.h>
#include <stdint.h>

#include "kernels/kernels.h"

enum {
	TD_SHM_VERSION = 5,
	TD_STEPS = 4,
	TD_FEATURE_BUFS = 2,
	TD_RING_RECORDS = 4096,
	TD_SLOTS_MAX = 64,
	TD_STOP_IDS_MAX = 32,
	TD_VERDICTS = 4,
	TD_GRAMMAR_MAX = 65536, /* bytes of a compiled grammar (engine/grammar.h) */
};

/* ---- ring: single producer, single consumer ---------------------------------------------------------------------------------------- */

enum td_record_kind {
	/* tandemd -> target */
	TD_REC_START = 1, /* slot area `slot` holds request `request`: run it */
	TD_REC_CANCEL, /* stop it; the target answers DONE (cancelled) unless it had ended */
	TD_REC_PAUSE, /* leave it out of batches (slow reader) */
	TD_REC_RESUME,
	/* target -> tandemd */
	TD_REC_PREFILL, /* a = prompt tokens done, b = all; n = 0: the first `a` came from the prefix cache, else us_charge is this chunk's cost */
	TD_REC_COMMIT, /* n tokens at positions a.. ; drafted, accepted of the step; b = the commit's number since START, from 0; reason = 1 for a decode step, 0 for the first token, which the prefill made */
	TD_REC_DONE, /* the slot is free again; reason = enum td_finish; follows the last COMMIT */
	/* both workers -> tandemd */
	TD_REC_RESET_DONE, /* epoch in `epoch` */
};

enum td_finish { TD_FIN_STOP = 1 /* stop id */, TD_FIN_LENGTH, TD_FIN_CANCELLED, TD_FIN_ERROR, TD_FIN_CONSTRAINT /* nothing that its grammar allows could be chosen */ };

struct td_record {
	uint32_t epoch;
	uint16_t kind; /* enum td_record_kind */
	uint16_t slot;
	uint64_t request; /* tandemd's number of the request */
	uint64_t sequence; /* counts the records of this ring, from 1 */
	uint32_t a, b;
	uint16_t n, reason; /* COMMIT: tokens, decode step or not; DONE: enum td_finish */
	uint16_t drafted, accepted; /* COMMIT of a verify step: drafts proposed and accepted */
	int32_t token[TD_BLOCK_MAX];
	uint32_t us_step; /* COMMIT: microseconds of the step that made it, waiting left out */
	uint32_t us_charge; /* PREFILL, COMMIT: device time that this request used since its last record: its rows' share of the step, its draft included */
	uint32_t us_wasted; /* COMMIT: of us_charge, the share of rows whose drafts were rejected */
	uint32_t pad[3];
};
_Static_assert(sizeof(struct td_record) == 128, "a record is two cache lines");

struct td_ring {
	_Atomic uint64_t head; /* records written */
	char pad0[120];
	_Atomic uint64_t tail; /* records read */
	char pad1[120];
	struct td_record record[TD_RING_RECORDS];
};

/* 1 if pushed, 0 if full. Fills in `sequence`. */
int td_ring_push(struct td_ring *ring, struct td_record *rec);
/* 1 if *rec was filled, 0 if empty. */
int td_ring_pop(struct td_ring *ring, struct td_record *rec);

/* ---- bells and flags as host memory ------------------------------------------------------------------------------------------------ */

void td_bell_ring(struct td_bell *bell);
/* Sleeps until the bell rang since `seen` (a value of count read before looking for work), or timeout. Spins for a while first. */
void td_bell_wait(struct td_bell *bell, uint32_t seen, int timeout_ms);
/* How long this process spins at a bell before it sleeps: longer than the other worker's half of a cycle where processors are to spare and a GPU
 * waits; before any wait. */
void td_bell_spin(int us);

/* What the flag tells of must have been waited for: td_ops.sync or replay_wait. */
void td_flag_set(struct td_flag *flag, uint64_t value, struct td_bell *bell);
/* timeout_ms -1 = none; TD_E_STALE if poisoned or of a later epoch, TD_E_DEADLINE */
int td_flag_wait(struct td_flag *flag, uint64_t value, struct td_bell *own, int timeout_ms, struct td_error *err);

/* ---- slot area --------------------------------------------------------------------------------------------------------------------- */

/* What to run in a slot. tandemd writes it while the slot is free, then pushes START; workers only read, except `verdict`. */
struct td_slot_area {
	uint64_t request;
	uint32_t epoch;
	int32_t n_tokens; /* ids to feed: the prompt and, after a crash, the tokens committed before */
	int32_t n_prompt; /* of these, how many are prompt (penalties count the others as output) */
	int32_t max_total; /* stop with LENGTH when prompt + output reach this; <= context */
	int32_t k; /* drafts per step wanted for this request, 0 = plain decoding; at most the drafter's block - 1 */
	int32_t k_may_fall; /* 1: fewer where many requests share the step (width), since its answer doesn't hang on their number */
	int32_t n_stop;
	int32_t stop[TD_STOP_IDS_MAX]; /* ending ids; empty under ignore_eos */
	int32_t cache; /* 1: the prefix cache may serve this request and keep its prompt */
	int32_t grammar_bytes; /* of the slot's grammar (td_shm_grammar); 0 = the output is free */
	uint64_t tenant; /* whose prefix cache */
	_Atomic uint64_t turn; /* prefill goes to the slot with the least turn first; tandemd may change it at any time */
	struct td_sampling sampling;
	/* log-probabilities of commits, when asked for: entry b % TD_VERDICTS, written by the target before the COMMIT record. Read it when the record
	 * is popped, before the next one is: the target reuses an entry only after a later record of this slot was popped. */
	struct td_verdict verdict[TD_VERDICTS];
};
/* token ids of slot s: int32_t[context], at td_shm_ids() */

/* ---- step record: target -> drafter ------------------------------------------------------------------------------------------------ */

struct td_step_entry {
	uint64_t request;
	int32_t slot;
	int32_t row0, rows; /* rows of the feature buffer to append, at positions pos0.. */
	int32_t pos0;
	int32_t begins; /* 1: a new request begins in this slot; what lies before pos0 is in its pages already */
	int32_t draft; /* drafts wanted after appending (k); 0 = none. Anchor = position pos0 + rows, token anchor[slot] */
};

struct td_step {
	uint32_t epoch, number;
	int32_t n_entries;
	int32_t n_rows; /* of features */
	struct td_step_entry entry[TD_SLOTS_MAX];
};

/* ---- header ------------------------------------------------------------------------------------------------------------------------ */

struct td_worker_stats { /* written by the worker alone, read by tandemd at leisure; microseconds and counts since start */
	_Atomic uint64_t progress; /* changes whenever the worker got something done: the watchdog's evidence */
	_Atomic uint64_t busy; /* 1 while the worker itself works; 0 while it waits for a command or for the other worker */
	_Atomic uint64_t steps, step_us; /* drafts or verifies, time of the device in them: target, up to the last layer */
	_Atomic uint64_t wait_us; /* target: from the end of a step to that of the verify that needed its drafts, its own device time left out; less the drafter's draft_us it is what hand-overs cost: an idle device */
	_Atomic uint64_t prefill_tokens, prefill_us;
	_Atomic uint64_t commit_us; /* target: time of the device after the layers: head, accept */
	_Atomic uint64_t draft_us; /* drafter: of step_us, the steps that drafted */
	/* target, prefix cache: requests that asked, of these found something, tokens found, pages evicted; now: pages that only the cache holds, states */
	_Atomic uint64_t prefix_lookups, prefix_hits, prefix_hit_tokens, prefix_evicted;
	_Atomic uint64_t prefix_pages, prefix_states, prefix_states_max;
	char pad[192 - 8 * 16];
};

struct td_shm_config { /* fixed at creation */
	int32_t slots, context; /* context: tokens per slot, multiple of TD_PAGE */
	int32_t vocab, features; /* features: columns of a feature row (taps * hidden), 0 without drafter */
	int32_t chunk; /* most rows of a prefill step, multiple of 64 */
	int32_t feature_rows; /* rows of a feature buffer: max(chunk, slots * TD_BLOCK_MAX) */
	int32_t host_exchange; /* 1: the exchange region is part of this memory (CPU backend) */
};

struct td_shm {
	uint32_t magic, version;
	uint64_t size;
	struct td_shm_config cfg;
	uint64_t off_slots, off_ids, off_grammar, off_table, off_exchange;
	_Alignas(128) _Atomic uint32_t epoch;
	_Atomic uint32_t drafter_present;
	_Alignas(128) struct td_flag target, drafter; /* last step done by each */
	struct td_bell bell_target, bell_drafter;
	_Atomic int32_t width[TD_SLOTS_MAX + 1]; /* [n]: drafts of each request while n are decoded together, + 1; 0: as many as it wants. tandemd may change it */
	struct td_worker_stats stats_target, stats_drafter;
	struct td_step step[TD_STEPS];
	struct td_ring to_target, from_target, from_drafter;
};

/* Exchange region: what never needs to touch the host. On the CPU it lies in the shm; on CUDA it is a device allocation shared by IPC handle. */
struct td_exchange {
	void *features[TD_FEATURE_BUFS]; /* act (feature_rows, features) */
	struct td_draft *draft; /* (slots) */
	int32_t *anchor; /* (slots) */
	uint16_t *counts; /* (slots, vocab) */
};
size_t td_exchange_bytes(const struct td_shm_config *cfg, enum td_dtype act);
void td_exchange_layout(const struct td_shm_config *cfg, enum td_dtype act, void *base, struct td_exchange *out);

int td_shm_create(const struct td_shm_config *cfg, int *fd, struct td_shm **shm, struct td_error *err);
int td_shm_map(int fd, struct td_shm **shm, struct td_error *err); /* checks magic, version, size and every offset */
void td_shm_unmap(struct td_shm *shm);

static inline struct td_slot_area *td_shm_slot(struct td_shm *shm, int slot)
{
	return (struct td_slot_area *)((char *)shm + shm->off_slots) + slot;
}
static inline int32_t *td_shm_ids(struct td_shm *shm, int slot)
{
	return (int32_t *)((char *)shm + shm->off_ids) + (size_t)slot * (size_t)shm->cfg.context;
}
/* The slot's compiled grammar: TD_GRAMMAR_MAX bytes, written by tandemd with the slot area. */
static inline uint8_t *td_shm_grammar(struct td_shm *shm, int slot)
{
	return (uint8_t *)shm + shm->off_grammar + (size_t)slot * TD_GRAMMAR_MAX;
}
/* The pages of a slot whose request begins in step record `step` (a number modulo TD_STEPS): int32_t[context / TD_PAGE]. */
static inline int32_t *td_shm_table(struct td_shm *shm, uint32_t step, int slot)
{
	size_t row = (step % TD_STEPS) * (size_t)shm->cfg.slots + (size_t)slot;

	return (int32_t *)((char *)shm + shm->off_table) + row * (size_t)(shm->cfg.context / TD_PAGE);
}
static inline uint64_t td_step_value(uint32_t epoch, uint32_t number)
{
	return (uint64_t)epoch << 32 | number;
}

#endif
