/*
 * log.c: lines to stderr and, where asked for, to a file.
 *
 * Two sinks, each with its own count of lines that it could not take. A sink that works again says first how many lines are missing and why; that the
 * file does not work is told on stderr as well, once.
 * stderr may be a pipe whose reader sleeps: it is polled before each line and a line is shorter than PIPE_BUF, so that a write never blocks.
 * A line that was cut (disk full in its middle) is ended before the next one begins.
 * What must never happen: a log that blocks, kills (SIGPIPE is ignored from td_log_open on) or recurses into itself.
 */
#include "engine/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "engine/fault.h"

struct sink {
	int fd; /* -1: none */
	int torn; /* the last line lacks its end */
	int why; /* errno of the last failure */
	unsigned long missing; /* lines since it worked last */
};

static struct {
	pthread_mutex_t lock;
	const char *who;
	enum td_log_level level;
	struct sink err, file;
	char path[1024];
	unsigned long dropped; /* lines that some sink did not get */
} lg = {.lock = PTHREAD_MUTEX_INITIALIZER, .who = "tandem", .level = TD_LOG_INFO, .err = {.fd = STDERR_FILENO}, .file = {.fd = -1}};

static const char *const level_name[] = {"debug", "info", "warn", "error"};
enum { N_LEVELS = sizeof(level_name) / sizeof(level_name[0]) };

void td_log_open(const char *who, enum td_log_level level)
{
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* a file that may not grow (ulimit -f) costs lines, not the process */
	pthread_mutex_lock(&lg.lock);
	lg.who = who;
	lg.level = level;
	pthread_mutex_unlock(&lg.lock);
}

/* Opens lg.path and puts it in the place of the file that was open; on failure the old one stays. */
static int file_open(struct td_error *err)
{
	int fd = open(lg.path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0640);

	if (fd < 0)
		return td_error_set(err, errno == EACCES || errno == EPERM ? TD_E_PERMISSION : TD_E_IO,
				    "cannot open the log file %s: %s; check the folder and its rights", lg.path, strerror(errno));
	if (lg.file.fd >= 0)
		close(lg.file.fd);
	lg.file.fd = fd;
	lg.file.torn = 0;
	return 0;
}

int td_log_file(const char *path, struct td_error *err)
{
	int rc;

	if (strlen(path) >= sizeof(lg.path))
		return td_error_set(err, TD_E_INVALID, "the path of the log file is longer than %zu bytes", sizeof(lg.path) - 1);
	pthread_mutex_lock(&lg.lock);
	memcpy(lg.path, path, strlen(path) + 1);
	rc = file_open(err);
	pthread_mutex_unlock(&lg.lock);
	return rc;
}

int td_log_reopen(struct td_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&lg.lock);
	if (lg.path[0])
		rc = file_open(err);
	pthread_mutex_unlock(&lg.lock);
	return rc;
}

/* Bytes that went out, or -1 with errno. */
static ssize_t put_bytes(struct sink *s, const char *text, size_t n)
{
	struct pollfd p = {.fd = s->fd, .events = POLLOUT};
	ssize_t k;

	if (s == &lg.file && td_fault("log.full")) {
		errno = ENOSPC;
		return -1;
	}
	if (poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT)) {
		errno = p.revents ? EPIPE : EAGAIN;
		return -1;
	}
	do
		k = write(s->fd, text, n);
	while (k < 0 && errno == EINTR);
	return k;
}

static int put_line(struct sink *s, const char *text, size_t n)
{
	ssize_t k;

	if (s->torn) {
		if (put_bytes(s, "\n", 1) != 1)
			goto failed;
		s->torn = 0;
	}
	k = put_bytes(s, text, n);
	if (k == (ssize_t)n)
		return 0;
	s->torn = k > 0;
	if (k >= 0)
		errno = ENOSPC;
failed:
	s->why = errno;
	s->missing++;
	lg.dropped++;
	return -1;
}

static size_t head_make(char *out, size_t size, enum td_log_level level, const char *who)
{
	struct timespec now;
	struct tm tm;

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	return (size_t)snprintf(out, size, "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ %-5s %s: ", tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour,
				tm.tm_min, tm.tm_sec, now.tv_nsec / 1000000, level_name[level], who);
}

static void sink_write(struct sink *s, const char *line, size_t n)
{
	if (s->fd < 0)
		return;
	if (s->missing) {
		char told[256];
		unsigned long missing = s->missing;
		size_t k = head_make(told, sizeof(told), TD_LOG_WARN, lg.who);

		k += (size_t)snprintf(told + k, sizeof(told) - k, "%lu log lines were lost here: %s\n", missing, strerror(s->why));
		if (put_line(s, told, k) < 0)
			return; /* counted once: for the caller's line, which is not tried */
		s->missing = 0;
	}
	put_line(s, line, n);
}

/* Once when the file begins to fail, where it is still seen: a disk that stays full never lets the file itself say so. */
static void file_failed(void)
{
	char told[sizeof(lg.path) + 256];
	size_t n = head_make(told, sizeof(told), TD_LOG_WARN, lg.who);

	n += (size_t)snprintf(told + n, sizeof(told) - n, "the log file %s takes no lines: %s; they are only here until it does\n", lg.path, strerror(lg.file.why));
	sink_write(&lg.err, told, n);
}

/* line[head, n) is text, with room for one byte more. The lock is held. */
static void line_write(char *line, size_t head, size_t n)
{
	unsigned long missing = lg.file.missing;

	for (size_t i = head; i < n; i++)
		if ((unsigned char)line[i] < 0x20)
			line[i] = ' ';
	line[n++] = '\n';
	sink_write(&lg.err, line, n);
	sink_write(&lg.file, line, n);
	if (!missing && lg.file.missing)
		file_failed();
}

void td_log(enum td_log_level level, const char *fmt, ...)
{
	char line[2048]; /* below PIPE_BUF */
	size_t head, n;
	va_list ap;
	int saved = errno;

	if (level < lg.level)
		return;
	pthread_mutex_lock(&lg.lock);
	head = head_make(line, sizeof(line), level, lg.who);
	va_start(ap, fmt);
	errno = saved; /* for %m */
	n = (size_t)vsnprintf(line + head, sizeof(line) - head - 1, fmt, ap);
	va_end(ap);
	n = n < sizeof(line) - head - 1 ? n + head : sizeof(line) - 2;
	line_write(line, head, n);
	pthread_mutex_unlock(&lg.lock);
	errno = saved;
}

/* Where the text begins and *level, when the line has a head such as ours; 0 when it has none. */
static size_t head_parse(const char *line, size_t n, enum td_log_level *level)
{
	static const char shape[] = "0000-00-00T00:00:00.000Z ";
	size_t at = sizeof(shape) - 1;

	if (n < at + 6)
		return 0;
	for (size_t i = 0; i < at; i++)
		if (shape[i] == '0' ? line[i] < '0' || line[i] > '9' : line[i] != shape[i])
			return 0;
	for (int i = 0; i < N_LEVELS; i++) {
		size_t k = strlen(level_name[i]);

		if (memcmp(line + at, level_name[i], k) || line[at + k] != ' ')
			continue;
		*level = (enum td_log_level)i;
		return at + 6;
	}
	return 0;
}

void td_log_relay(const char *who, enum td_log_level level, const char *text, size_t n)
{
	char line[2048]; /* below PIPE_BUF */
	size_t head = head_parse(text, n, &level), at;

	if (n > TD_LOG_LINE)
		n = TD_LOG_LINE;
	pthread_mutex_lock(&lg.lock);
	if (level >= lg.level) {
		at = head ? 0 : head_make(line, sizeof(line), level, who);
		memcpy(line + at, text, n);
		line_write(line, at + head, at + n);
	}
	pthread_mutex_unlock(&lg.lock);
}

int td_log_level_parse(const char *text)
{
	for (int i = 0; i < N_LEVELS; i++)
		if (!strcasecmp(text, level_name[i]))
			return i;
	return -1;
}

unsigned long td_log_dropped(void)
{
	unsigned long n;

	pthread_mutex_lock(&lg.lock);
	n = lg.dropped;
	pthread_mutex_unlock(&lg.lock);
	return n;
}
