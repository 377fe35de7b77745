/*
 * metrics.h: what Prometheus is told: counters and histograms that events feed, and the text in which they are told.
 *
 * An event (accepted, started, committed, ended, refused) costs a few additions to fixed arrays, and no allocation. All else is read where it
 * lives when somebody asks (metrics_text.c).
 * Labels are bounded: the first TD_METRICS_TENANTS names have figures of their own, later ones share those of "other"; codes, bands, outcomes, positions
 * and roles are fixed lists. So a client can't grow the text by what it sends.
 * A meter lives as long as the daemon: a request keeps a pointer to its tenant's, whatever becomes of the tenant's configuration.
 */
#ifndef TD_METRICS_H
#define TD_METRICS_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/queue.h"
#include "engine/shm.h"

struct td_daemon;
struct td_request;

enum {
	TD_METRICS_TENANTS = 64,
	TD_METRICS_BOUNDS = 16,
	TD_METRICS_NAME = 64, /* bytes of a tenant's name, its end included */
	TD_METRICS_CODES = 64, /* error code -n at place n; one that is none of ours at that of "internal" */
};

/* Microseconds; bucket i counts what is at most bound i, and more than bound i - 1. Each histogram goes with one of the lists of bounds below. */
struct td_histogram {
	uint64_t bucket[TD_METRICS_BOUNDS + 1]; /* the last: more than every bound */
	uint64_t count, sum_us;
};
extern const uint64_t td_bounds_wait[TD_METRICS_BOUNDS]; /* 1 ms to 5 min: waits and first tokens */
extern const uint64_t td_bounds_token[TD_METRICS_BOUNDS]; /* 0.5 ms to 5 s: tokens and steps */
extern const uint64_t td_bounds_request[TD_METRICS_BOUNDS]; /* 50 ms to 1 h */
void td_histogram_add(struct td_histogram *h, const uint64_t bounds[TD_METRICS_BOUNDS], uint64_t us, uint64_t times);

enum td_outcome { /* how a request ended */
	TD_OUT_STOP,
	TD_OUT_LENGTH,
	TD_OUT_CANCELLED,
	TD_OUT_LOST, /* its client hung up; it may be resumed, and then ends once more */
	TD_OUT_ERROR, /* + place of the code, below TD_METRICS_CODES */
	TD_OUTCOMES = TD_OUT_ERROR + TD_METRICS_CODES,
};

struct td_meter { /* one tenant's */
	char name[TD_METRICS_NAME];
	uint64_t requests, prompt_tokens, output_tokens, cycles, drafted, accepted;
	uint64_t cached_tokens, device_us, wasted_us;
	uint64_t ended[TD_OUTCOMES], refused[TD_METRICS_CODES];
	struct td_histogram queue_wait, first_token, inter_token;
};

enum td_protocol { TD_PROTOCOL_SOCKET /* frames of tandem.proto */, TD_PROTOCOL_HTTP, TD_PROTOCOLS };

struct td_metrics {
	struct td_meter meter[TD_METRICS_TENANTS + 1]; /* the last is "other" */
	int n_meters; /* of those with names */
	uint64_t opened[TD_PROTOCOLS]; /* connections */
	uint64_t errors[TD_METRICS_CODES]; /* told to clients, whatever about */
	uint64_t drafted_at[TD_DRAFT_MAX];
	struct td_histogram gap, duration, step;
	struct {
		char *text; /* NULL: none */
		size_t n;
		uint64_t at_us;
	} kept; /* metrics_text.c's */
};

/* The meter of a tenant, made when its name is new; never NULL. */
struct td_meter *td_metrics_meter(struct td_metrics *m, const char *tenant);

/* Events. `r->meter` is set by the first and used by the others. */
void td_metrics_accept(struct td_daemon *d, struct td_request *r, const char *tenant);
void td_metrics_refuse(struct td_daemon *d, const char *tenant, int code); /* a request that was not accepted */
void td_metrics_start(struct td_request *r, uint64_t waited_us); /* it got a slot; started_us is not set yet the first time */
/* Before the request's figures are brought up to date: last_us is that of the commit before. `tokens`, `accepted`: those that count. */
void td_metrics_commit(struct td_daemon *d, const struct td_request *r, const struct td_record *rec, int tokens, int accepted, uint64_t now_us);
void td_metrics_charge(struct td_meter *m, uint64_t us, uint64_t wasted_us); /* device time */
void td_metrics_know(struct td_daemon *d); /* the configuration was put into force */
void td_metrics_cached(struct td_request *r, uint32_t tokens); /* what the prefix cache gave; before r->cached_tokens is set */
void td_metrics_end(struct td_daemon *d, const struct td_request *r); /* its state and finish or error are set */
void td_metrics_error(struct td_daemon *d, int code); /* some error was told to a client */
void td_metrics_connect(struct td_daemon *d, enum td_protocol protocol);

struct td_metrics_now { /* by place of the meter, and band */
	uint32_t waiting[TD_METRICS_TENANTS + 1][TD_BANDS], running[TD_METRICS_TENANTS + 1][TD_BANDS];
};
void td_metrics_now(const struct td_daemon *d, struct td_metrics_now *now);
/* Those that are told, in their order: with names, then "other" once there are as many names as may be. Returns how many. */
int td_metrics_meters(const struct td_metrics *m, const struct td_meter *list[TD_METRICS_TENANTS + 1]);

/* The text (format 0.0.4, Content-Type "text/plain; version=0.0.4; charset=utf-8"): malloc'd, *n bytes and a NUL; NULL when there is no memory. */
char *td_metrics_render(const struct td_daemon *d, size_t *n);

/* The same for whoever asks: made anew when the last one is TD_METRICS_KEEP_US old, since anyone may ask in a tight loop, and the loop waits while it is
 * made. Lent: it stands until the next call. */
enum { TD_METRICS_KEEP_US = 200000 };
const char *td_metrics_text(struct td_daemon *d, uint64_t now_us, size_t *n);
void td_metrics_finish(struct td_metrics *m);

#endif
