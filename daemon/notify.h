/*
 * notify.h: tandemd and the program that started it: what systemd (or another that speaks its protocols) is told and what it hands over.
 *
 *   notify.c    readiness, status, watchdog by $NOTIFY_SOCKET; descriptors that were passed by $LISTEN_FDS
 *   fdstore.c   arenas that outlive tandemd: given to the service manager, taken back by the next tandemd
 *   reload.c    SIGHUP: the configuration file is read again
 *
 * Without a service manager every call does nothing. What must never happen: that a failing or hostile notify socket blocks the loop or ends tandemd; that
 * a worker inherits one of these variables or descriptors.
 */
#ifndef TD_NOTIFY_H
#define TD_NOTIFY_H

#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "engine/error.h"

struct td_daemon;
struct td_child;

enum { TD_PASSED_MAX = 32, TD_PASSED_NAME = 64, TD_STATUS_TEXT = 256 };

struct td_passed {
	int fd; /* -1: somebody took it */
	char name[TD_PASSED_NAME];
};

struct td_notify {
	int fd; /* -1: nobody wants to be told */
	struct sockaddr_un to;
	socklen_t to_size;
	uint64_t watchdog_us; /* 0: none */
	struct td_passed passed[TD_PASSED_MAX];
	int n_passed;
	/* what was said */
	int ready, stopping;
	int serving; /* when told last */
	int ready_owed; /* RELOADING was said, READY not yet */
	uint64_t pinged_us, told_us;
	char status[TD_STATUS_TEXT];
};

/* ---- notify.c ---------------------------------------------------------------------------------------------------------------------- */

/* Reads the variables and removes them from the environment: before anything opens a descriptor. */
void td_notify_open(struct td_notify *n);
void td_notify_close(struct td_notify *n); /* also what was passed and nobody took */
/* One message of lines NAME=value, with descriptors beside it. 0, or a negative code: it was not sent; nobody listening is 0. */
int td_notify_send(struct td_notify *n, const int *fds, int n_fds, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* Waits until all that was sent was worked on, `ms` at most. 0, or TD_E_DEADLINE. Blocks: before the loop runs only. */
int td_notify_barrier(struct td_notify *n, int ms);
void td_notify_starting(struct td_notify *n); /* before the loop runs: reading takes its time */
void td_notify_check(struct td_daemon *d, uint64_t now_us); /* in each turn of the timer: readiness, status, watchdog */
void td_notify_stopping(struct td_daemon *d);
void td_notify_reloading(struct td_daemon *d);
void td_notify_reloaded(struct td_daemon *d);
/* The next passed descriptor of this name, which is the caller's from now on; -1: there is none. */
int td_notify_take(struct td_notify *n, const char *name);
/* The same for a listening socket of this family (AF_UNIX, AF_INET for both versions): by name, or with NULL of any name that is not for us otherwise. */
int td_notify_take_socket(struct td_notify *n, const char *name, int family);

/* ---- fdstore.c --------------------------------------------------------------------------------------------------------------------- */

/* What the predecessor left and still fits goes to both children, all else that was passed is given up: after the sockets were taken, before a worker starts. */
void td_fdstore_take(struct td_daemon *d);
void td_fdstore_keep(struct td_child *c); /* its arena may be a new one */
void td_fdstore_drop(struct td_child *c); /* its arena is worth nothing any more */

/* ---- reload.c ---------------------------------------------------------------------------------------------------------------------- */

void td_reload(struct td_daemon *d);

#endif
