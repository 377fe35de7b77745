/*
 * error.h: one table of errors for C, the wire, HTTP and metrics.
 *
 * A function that can fail returns 0 or one of the negative codes below and, where it takes a `struct td_error *`, leaves a sentence
 * for people in it: what, where, what to do. The code's name is the stable interface; the sentence is not. Nothing here allocates.
 */
#ifndef TD_ERROR_H
#define TD_ERROR_H

/* X(NAME, number, wire name, HTTP status). Numbers are never reused. */
#define TD_ERRORS(X) \
	X(INTERNAL, -1, "internal", 500) \
	X(NOMEM, -2, "out_of_memory", 503) \
	X(IO, -3, "io", 500) \
	X(NOT_FOUND, -4, "not_found", 404) \
	X(INVALID, -5, "invalid_argument", 400) \
	X(FORMAT, -6, "bad_format", 500) \
	X(UNSUPPORTED, -7, "unsupported", 501) \
	X(MISMATCH, -8, "model_mismatch", 500) \
	X(CONTEXT, -9, "context_exceeded", 400) \
	X(QUEUE_FULL, -10, "queue_full", 429) \
	X(TOO_LARGE, -11, "too_large", 413) \
	X(PROTOCOL, -12, "protocol", 400) \
	X(CANCELLED, -13, "cancelled", 499) \
	X(DEADLINE, -14, "deadline_exceeded", 504) \
	X(LOADING, -15, "loading", 503) \
	X(WORKER, -16, "worker_failed", 503) \
	X(DEVICE, -17, "device", 503) \
	X(BUSY, -18, "in_use", 503) \
	X(PERMISSION, -19, "permission_denied", 403) \
	X(DRAINING, -20, "draining", 503) \
	X(STALE, -21, "stale_epoch", 500) \
	X(LIMIT, -22, "limit", 429) \
	X(CLOSED, -23, "closed", 500) \
	X(SLOW_READER, -24, "slow_reader", 408) \
	X(UNAUTHORIZED, -25, "unauthorized", 401) \
	X(TENANT_QUEUE, -26, "tenant_queue_full", 429) \
	X(TENANT_RATE, -27, "tenant_rate", 429) \
	X(DEADLINE_EARLY, -28, "deadline_unmeetable", 504) \
	X(SCHEMA, -29, "unsupported_schema", 400)

enum td_error_code {
	TD_OK = 0,
#define X(name, number, wire, http) TD_E_##name = number,
	TD_ERRORS(X)
#undef X
};

struct td_error {
	int code; /* TD_OK or a TD_E_ value */
	char text[480]; /* one line, no newline at its end, UTF-8 */
};

/* Sets *err (may be NULL) and returns `code`, so that `return td_error_set(...)` reads well. */
int td_error_set(struct td_error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "prefix: " before the sentence that is there; returns err->code. */
int td_error_prefix(struct td_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

const char *td_error_name(int code); /* wire name, "ok" for 0, "internal" for an unknown code */
int td_error_code(const char *name, int otherwise); /* of a wire name; `otherwise` for one that is none of ours */
int td_error_http(int code); /* HTTP status */

#endif
