/*
 * control.h: the control channel between tandemd and one worker: messages of worker.proto over nanomsg PAIR, and the fd socket beside it.
 *
 * Rare and self-describing: load, configure, ready, health, statistics, drain, errors. Everything per cycle goes through shm.h. File
 * descriptors (shm, eventfd, arenas) go over a socketpair with SCM_RIGHTS, one datagram per fd, with a short name.
 * tandemd binds, the worker connects. Both sides own what they created; td_control_close takes zeroed memory.
 */
#ifndef TD_CONTROL_H
#define TD_CONTROL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/error.h"
#include "worker.pb-c.h"

struct td_control {
	int sock; /* nanomsg socket, -1 when closed */
	int rcvfd; /* polled for readability by an event loop; never read */
	_Atomic uint32_t synced; /* control.c's own */
};
#define TD_CONTROL_CLOSED ((struct td_control){-1, -1, 0})

int td_control_bind(struct td_control *c, const char *path, struct td_error *err); /* removes a stale socket file first */
int td_control_connect(struct td_control *c, const char *path, struct td_error *err); /* waits up to 5 s for the other side */
void td_control_close(struct td_control *c);
/* TD_E_BUSY when the peer takes no more within 10 ms, or is not connected. A message that the peer has not received yet is lost when this side
 * closes or exits. Failure is a worker's last word and is not: its send returns when the peer has received it, or after 2 s. */
int td_control_send(struct td_control *c, const Tandem__Worker__Message *msg, struct td_error *err);
/* 1 and *msg (free with tandem__worker__message__free_unpacked(msg, NULL)), 0 when there is none within timeout_ms (0 = at once, -1 = for ever), or an error. */
int td_control_recv(struct td_control *c, Tandem__Worker__Message **msg, int timeout_ms, struct td_error *err);

/* fds over a socketpair (SOCK_SEQPACKET). The receiver owns the fd it gets. `name` up to 31 bytes. */
int td_fd_send(int sock, int fd, const char *name, struct td_error *err);
int td_fd_recv(int sock, int *fd, char name[32], int timeout_ms, struct td_error *err); /* TD_E_CLOSED at the peer's end, TD_E_DEADLINE */

#endif
