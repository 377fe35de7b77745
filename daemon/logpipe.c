/*
 * logpipe.c: what a child process prints, line by line into our own log.
 *
 * The child has the writing end of a pipe as its stdout and stderr, we read the other one whenever something is in it, so that a child that prints
 * waits for us only while we stand still. A line is cut at TD_LOG_LINE bytes and goes on as the next. When the process was reaped, what is still in the
 * pipe is read before it is closed: a dying worker's last lines say why it died. A grandchild that kept the pipe open is not waited for.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "engine/log.h"

enum { READS_PER_TURN = 16 }; /* one that prints without end must not keep the loop */

static void line_end(struct td_logpipe *p)
{
	if (p->n)
		td_log_relay(p->who, p->level, p->line, p->n);
	p->n = 0;
}

static void take(struct td_logpipe *p, const char *text, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (text[i] == '\n') {
			line_end(p);
			continue;
		}
		if (p->n == sizeof(p->line))
			line_end(p);
		p->line[p->n++] = text[i];
	}
}

/* 1 while there may be more. */
static int read_some(struct td_logpipe *p)
{
	char text[4096];
	ssize_t n;

	do
		n = read(p->fd, text, sizeof(text));
	while (n < 0 && errno == EINTR);
	if (n > 0)
		take(p, text, (size_t)n);
	return n > 0 ? 1 : n == 0 ? TD_E_CLOSED : 0;
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
	struct td_logpipe *p = poll->data;
	int rc = status < 0 ? TD_E_CLOSED : 1;

	(void)events;
	for (int i = 0; i < READS_PER_TURN && rc == 1; i++)
		rc = read_some(p);
	if (rc < 0)
		uv_poll_stop(&p->poll); /* its exit follows */
}

int td_logpipe_open(struct td_daemon *d, struct td_logpipe *p, const char *who, enum td_log_level level, int *far_end, struct td_error *err)
{
	int fd[2];

	if (pipe2(fd, O_CLOEXEC) < 0)
		return td_error_set(err, TD_E_LIMIT, "cannot make a pipe: %s", strerror(errno));
	fcntl(fd[0], F_SETFL, O_NONBLOCK);
	p->who = who;
	p->level = level;
	p->fd = fd[0];
	p->n = 0;
	uv_poll_init(&d->loop, &p->poll, p->fd);
	p->poll.data = p;
	uv_poll_start(&p->poll, UV_READABLE, on_readable);
	*far_end = fd[1];
	return 0;
}

void td_logpipe_close(struct td_logpipe *p, void *data, uv_close_cb closed)
{
	for (int i = 0; i < READS_PER_TURN * READS_PER_TURN && read_some(p) == 1; i++) {
		/* more than a pipe holds is a grandchild's */
	}
	line_end(p);
	p->poll.data = data;
	uv_close((uv_handle_t *)&p->poll, closed);
	close(p->fd);
	p->fd = -1;
}
