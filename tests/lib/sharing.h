/*
 * sharing.h: a simulator of the slots and of who gets them: the daemon's own queue (daemon/queue.c) with a model of the workers that needs no worker,
 * no clock and no luck: the same seed gives the same run.
 *
 * The model: a step takes STEP us and something for each row. Each slot that decodes has drafts + 1 rows in it, of which a random number is accepted; of the
 * prompts one chunk, of the slot with the least turn. What a step took is charged by rows. A request whose stay was cut short fills its cache
 * again with all it has.
 * Clients: each has one request at a time and thinks between them; a tenant is as many clients as one likes.
 */
#ifndef TD_TESTS_SHARING_H
#define TD_TESTS_SHARING_H

#include "daemon/queue.h"

enum { SIM_FLOWS = 72, SIM_CLIENTS = 640, SIM_SAMPLES = 1 << 17, SIM_WINDOWS = 4096 };

struct sim_client {
	struct td_entry e;
	int flow, slot; /* slot -1: not running */
	enum td_band band;
	int prompt_lo, prompt_hi, out_lo, out_hi; /* tokens of its requests */
	uint64_t think_lo, think_hi; /* us from an end to the next request */
	int once; /* no request after the first */
	/* its request */
	int prompt, out, filled, made, to_fill;
	int open;
	uint64_t next_us, arrived_us, first_us, last_us, waited_us;
	uint64_t requests, ended, tokens, cuts;
};

struct sim_samples {
	uint32_t us[SIM_SAMPLES];
	int n;
};

struct sim {
	struct td_queue q;
	struct td_flow flow[SIM_FLOWS];
	int n_flows;
	struct sim_client client[SIM_CLIENTS];
	int n_clients;
	uint64_t now_us, number, random, soonest_us; /* soonest: no request comes before */
	int chunk, drafts;
	int watched; /* flow whose latencies are kept */
	struct sim_samples first_token, inter_token; /* of the watched one */
	uint64_t tokens, steps, idle_us, cuts, max_wait_us;
	double dearest_us, dearest_set_us; /* device time / weight: of one stay, and of a flow's stays that ran at one time */
	uint64_t window_us, window_end;
	int n_windows;
	double window[SIM_WINDOWS]; /* Jain's index of the flows' service in each */
	double served_before[SIM_FLOWS];
	int gap_of[2]; /* flows whose gap is kept; equal: none */
	double gap_us, gap_base[2];
	int gap_on;
};

void sim_init(struct sim *s, uint64_t seed, int slots, int pages);
int sim_flow(struct sim *s, double weight);
/* n clients of a flow, all alike; the first request comes at a random time within `spread`. The first one is returned. */
struct sim_client *sim_clients(struct sim *s, int flow, int n, int prompt_lo, int prompt_hi, int out_lo, int out_hi, uint64_t think_us, uint64_t spread_us);
uint64_t sim_random(struct sim *s, uint64_t lo, uint64_t hi);
/* Runs to end_us. NULL, or what should never be. */
const char *sim_run(struct sim *s, uint64_t end_us);
const char *sim_check(struct sim *s); /* counts and lists agree; nothing that could start is left waiting */
uint32_t sim_percentile(struct sim_samples *x, double p); /* sorts */

#endif
