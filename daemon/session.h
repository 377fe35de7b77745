/*
 * session.h: one client connection, whatever it speaks.
 *
 * A session is a stream of bytes in and out, the requests that listen on it, and what bounds all that (session.c). What the bytes mean is its protocol's
 * matter: frames of protobuf (frames.c) or HTTP (http.c), chosen by the socket that the client came to. The rest of the daemon speaks to a session
 * by the functions below and never asks which it is. A protocol keeps its own state in the session and frees it in `closing`.
 */
#ifndef TD_SESSION_H
#define TD_SESSION_H

#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "proto/frame.h"
#include "tandem.pb-c.h"

struct td_daemon;
struct td_error;
struct td_ids;
struct td_job;
struct td_request;
struct td_session;
struct td_tenant;

struct td_session_protocol {
	const char *name;
	int metric; /* enum td_protocol */
	/* Bytes of the client; returns how many were used. Those left are offered again once the session is neither blocked nor on hold. */
	size_t (*feed)(struct td_session *s, const uint8_t *data, size_t n);
	void (*go_on)(struct td_session *s); /* neither blocked nor on hold any more: what was taken in already */
	int (*half)(const struct td_session *s); /* 1: in the middle of a message */
	size_t (*held)(const struct td_session *s); /* memory that a message takes which is not whole yet */
	void (*accepted)(struct td_session *s, const struct td_request *r, uint32_t position);
	void (*queued)(struct td_session *s, const struct td_request *r, uint32_t position); /* its place changed */
	/* Output tokens [r->sent, r->sent + n) and the text up to text_end; n may be 0 when only text is left. */
	void (*delta)(struct td_session *s, struct td_request *r, int n, size_t text_end);
	void (*finish)(struct td_session *s, const struct td_request *r);
	void (*error)(struct td_session *s, uint64_t tag, const struct td_error *e, uint32_t retry_ms); /* tag 0: the connection's last words */
	size_t (*last_words)(uint8_t *out, size_t size, int code, const char *text); /* to a connection that gets no session: bytes written */
	void (*check)(struct td_session *s, uint64_t now_us); /* once per tick while it is open: time limits */
	void (*closing)(struct td_session *s); /* gives back the protocol's state */
	int answers_eof; /* a client that only ended its side gets what is written already */
	int one_call; /* all its requests are choices of one answer */
	int resumes; /* a request whose client is lost waits for Resume; else it is cancelled */
};
extern const struct td_session_protocol td_frames;

enum td_session_state { TD_SES_OPEN, TD_SES_ENDING /* says its last words */, TD_SES_CLOSED };

struct td_frames_state {
	struct td_frame_reader in;
	int greeted;
	uint64_t since_us; /* a frame is half here since, 0 = none */
};

struct td_session {
	struct td_daemon *d;
	const struct td_session_protocol *protocol;
	union {
		uv_handle_t handle;
		uv_stream_t stream;
		uv_pipe_t pipe;
		uv_tcp_t tcp;
	} io;
	struct td_session *next, *prev;
	struct td_session *dirty_next;
	int dirty;
	uint64_t number;
	uid_t uid;
	pid_t pid;
	struct td_tenant *tenant; /* a reference; NULL until Hello, or until a key said it */
	uint32_t tenant_generation;
	enum td_session_state state;
	int tcp; /* not a Unix socket */
	int reading;
	int eof; /* the client ended its side */
	int linger; /* ENDING: 1: after the last words it gets the time to read them; 2: it has them */
	uv_shutdown_t shutdown;
	uint64_t opened_us, ending_us;
	struct td_frames_state frames; /* of td_frames */
	struct td_http *http; /* of td_http */
	uint8_t *rest; /* read, but not fed to the protocol yet: NULL unless blocked or on hold */
	size_t rest_n;
	/* output: [0, out_n) waits; `flying` is with libuv */
	uint8_t *out, *flying;
	size_t out_n, out_size, flying_size;
	uv_write_t write;
	int writing;
	int hold; /* the protocol takes no more input for now */
	int woken; /* `hold` was lifted: goes on at the next flush */
	int blocked; /* more is waiting than allowed: no deltas, no reading */
	unsigned was_blocked; /* how often */
	uint64_t blocked_us;
	struct td_request *requests; /* attached, by session_next */
	struct td_job *jobs;
};

/* Takes a connected fd of a Unix socket or (`tcp`) of TCP, also on failure. */
int td_session_open(struct td_daemon *d, int fd, const struct td_session_protocol *protocol, int tcp, struct td_error *err);
void td_session_close(struct td_session *s); /* now; its requests are lost */
/* Error with tag 0, then the connection ends once that is written. */
void td_session_refuse(struct td_session *s, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void td_session_end(struct td_session *s); /* ends once what it has to say is written */
/* The same; then its side is shut, and what the client still sends is read and dropped for a while: a close with unread input can destroy the last words. */
void td_session_linger(struct td_session *s);
void td_session_error(struct td_session *s, uint64_t tag, const struct td_error *e);
/* The same where it is known how long to wait before trying again; 0 = it is not. */
void td_session_error_retry(struct td_session *s, uint64_t tag, const struct td_error *e, uint32_t retry_ms);
uint8_t *td_session_reserve(struct td_session *s, size_t n); /* room for n bytes of output, to be filled at once; NULL: none, or the session ends */
size_t td_session_pending(const struct td_session *s);
void td_session_go_on(struct td_session *s); /* `hold` was lifted */
void td_session_attach(struct td_session *s, struct td_request *r, uint64_t tag);
void td_session_detach(struct td_request *r);
void td_sessions_flush(struct td_daemon *d); /* once per turn */
void td_sessions_check(struct td_daemon *d, uint64_t now_us); /* time limits, slow readers */
void td_sessions_bound_input(struct td_daemon *d); /* all half-sent messages together: past the bound the largest one's client is refused */
struct td_request *td_session_request(struct td_session *s, uint64_t tag);

/* ---- frames.c ---------------------------------------------------------------------------------------------------------------------- */

void td_session_send(struct td_session *s, const Tandem__ServerMessage *msg); /* of a session that speaks frames */
void td_frames_tokens(struct td_session *s, uint64_t tag, const struct td_ids *ids);

#endif
