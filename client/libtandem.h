/*
 * libtandem.h: inside libtandem: the connection, its open calls, and who does what.
 *
 *   libconn.c    socket, greeting, reading and writing frames, loss and reconnection
 *   libcall.c    open calls: submit, dispatch of answers, cancel, time limits
 *   libpack.c    public structures -> protobuf
 *   libstatus.c  protobuf -> struct tandem_status
 *   libsync.c    the blocking form, made of the other
 *
 * The connection owns its calls; a call is freed where it is ended (td__call_end) and nowhere else. A call outlives the socket: what identifies it
 * to the daemon (the packed request, or number, key and position) stays with it, so that a new socket can take it up.
 */
#ifndef TD_LIBTANDEM_H
#define TD_LIBTANDEM_H

#include <time.h>

#include "client/tandem.h"
#include "proto/frame.h"

enum td__call_kind { TD__GENERATE, TD__STATUS, TD__TOKENIZE, TD__TEXT };

struct td__call {
	struct td__call *next;
	uint64_t tag;
	enum td__call_kind kind;
	struct tandem_handler handler;
	uint8_t *frame; /* the packed request, kept until it is accepted or answered: sent again after a loss */
	size_t n_frame;
	int accepted, cancelling;
	uint64_t request; /* from Accepted */
	uint8_t *key;
	size_t n_key;
	uint32_t position; /* output tokens that the callback has seen */
	uint32_t resumes;
	uint64_t limit_us, heard_us; /* longest silence (0 = any), and when something was heard last */
	struct tandem_status **keep; /* blocking status: takes the result instead of the callback */
};

struct tandem {
	char *path, *client, *tenant;
	uint32_t timeout_ms, retry_ms;
	int fd; /* -1 while lost */
	int greeted; /* Welcome came on this socket */
	int busy; /* inside a callback's caller */
	int closing; /* tandem_close() was called from a callback */
	struct td_error lost; /* why fd is -1, or what the daemon said last about the connection */
	struct tandem_info info;
	Tandem__ServerMessage *welcome; /* owns the strings of info */
	struct td_frame_reader reader;
	uint8_t *out; /* waiting to be written: [out_off, out_n) */
	size_t out_off, out_n, out_size;
	uint64_t next_tag;
	struct td__call *call;
};

static inline uint64_t td__now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

/* libconn.c */
int td__error_out(const struct td_error *from, struct tandem_error *to); /* copies, returns the code */
int td__process(struct tandem *t, struct td_error *err); /* tandem_process without the end of a deferred close */
int td__reconnect(struct tandem *t, struct td_error *err);
int td__queue_out(struct tandem *t, const uint8_t *data, size_t n, struct td_error *err);
int td__queue_message(struct tandem *t, const Tandem__ClientMessage *msg, struct td_error *err);
void td__free(struct tandem *t);

/* libcall.c */
int td__dispatch(struct tandem *t, Tandem__ServerMessage **msg, struct td_error *err); /* may keep *msg: sets it to NULL */
void td__call_end(struct tandem *t, struct td__call *call); /* unlinks and frees, calls nobody */
void td__call_fail(struct tandem *t, struct td__call *call, const struct tandem_error *e); /* the same, with the error callback before */
struct td__call *td__call_find(const struct tandem *t, uint64_t tag);
int td__calls_take_up(struct tandem *t, struct td_error *err); /* on a new socket */
void td__calls_expire(struct tandem *t);
void td__calls_drop_cancelled(struct tandem *t);

/* libpack.c: one packed frame (malloc'd), or NULL and *err */
uint8_t *td__pack_generate(uint64_t tag, const struct tandem_request *r, size_t *n, struct td_error *err);
uint8_t *td__pack_tokenize(uint64_t tag, const struct tandem_prompt *p, size_t *n, struct td_error *err);

/* libstatus.c: takes *msg over */
struct tandem_status *td__status_make(Tandem__ServerMessage **msg);

#endif
