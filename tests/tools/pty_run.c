/*
 * pty_run.c: runs a command on a terminal of its own and plays the person in front of it.
 *
 *     pty_run COMMAND ARG... -- STEP...
 *
 * Steps: "expect:TEXT" waits until TEXT has appeared after what was matched before, "send:TEXT" types it (\n, \r, \e, \xHH and "^C" are
 * translated in both), "prompt:TEXT" is expect and then waits until the command reads key by key (a line editor shows its prompt a moment
 * earlier; Ctrl-D would mean something else to the terminal then), "more:N" waits for N more bytes, "size:COLUMNSxLINES" changes the terminal's
 * size, "cont:" lets a command go on that has suspended itself, "sh:COMMAND" runs a command of the test's own, which must succeed. The exit code is the command's, 99 when a step failed or the command doesn't end; what it wrote goes to stdout. A step that failed
 * says what it waited for, how long, and what the command was doing; the command is killed then.
 */
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum { STEP_LIMIT_MS = 60000, SEEN_MAX = 1 << 20, FAILED = 99 };

static char seen[SEEN_MAX];
static size_t n_seen, matched;

static long now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* Reads for at most ms; 0 at the end of the terminal. */
static int take(int fd, int ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	ssize_t n;

	if (poll(&p, 1, ms) <= 0)
		return 1;
	n = read(fd, seen + n_seen, SEEN_MAX - 1 - n_seen);
	if (n <= 0)
		return 0;
	n_seen += (size_t)n;
	seen[n_seen] = '\0';
	return n_seen < SEEN_MAX - 1;
}

static int expect(int fd, const char *text)
{
	long until = now_ms() + STEP_LIMIT_MS;
	char *at;

	while (!(at = strstr(seen + matched, text)))
		if (now_ms() > until || !take(fd, 100))
			break;
	if (!at)
		at = strstr(seen + matched, text);
	if (!at)
		return -1;
	matched = (size_t)(at - seen) + strlen(text);
	return 0;
}

static int more(int fd, size_t n)
{
	long until = now_ms() + STEP_LIMIT_MS;

	while (n_seen - matched < n)
		if (now_ms() > until || !take(fd, 100))
			return -1;
	matched += n;
	return 0;
}

static int key_by_key(int fd)
{
	long until = now_ms() + STEP_LIMIT_MS;
	struct termios tio;

	while (tcgetattr(fd, &tio) == 0 && tio.c_lflag & ICANON)
		if (now_ms() > until || !take(fd, 5))
			return -1;
	return 0;
}

/* The process's state, one letter (S: it sleeps), and the place in the kernel where it sleeps. */
static void say_failed(const char *what, pid_t pid, int fd, long ms)
{
	struct termios tio;
	char path[64], where[64] = "?", line[512] = "";
	const char *state;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "r");
	if (!f || !fgets(line, sizeof(line), f))
		line[0] = '\0';
	if (f)
		fclose(f);
	state = strrchr(line, ')');
	snprintf(path, sizeof(path), "/proc/%d/wchan", (int)pid);
	f = fopen(path, "r");
	if (f) {
		where[fread(where, 1, sizeof(where) - 1, f)] = '\0';
		fclose(f);
	}
	fprintf(stderr, "pty_run: step \"%s\" failed after %ld ms; the command's state is %c in %s, the terminal gives it %s; seen since the last match: \"%s\"\n",
		what, ms, state && state[1] ? state[2] : '?', where, tcgetattr(fd, &tio) ? "nothing" : tio.c_lflag & ICANON ? "lines" : "keys", seen + matched);
}

/* \n, \r, \e, \xHH, ^C and so on as the bytes that they stand for. */
static size_t translate(const char *text, char *out, size_t size)
{
	size_t n = 0;
	unsigned hex;

	for (; *text && n + 1 < size; text++) {
		if (text[0] == '^' && text[1] >= '@' && text[1] <= '_')
			out[n++] = (char)(*++text - '@');
		else if (text[0] == '\\' && text[1] && strchr("nre", text[1]))
			text++, out[n++] = *text == 'n' ? '\n' : *text == 'r' ? '\r' : '\033';
		else if (text[0] == '\\' && text[1] == 'x' && sscanf(text + 2, "%2x", &hex) == 1)
			text += 3, out[n++] = (char)hex;
		else
			out[n++] = *text;
	}
	out[n] = '\0';
	return n;
}

/* Once it has stopped itself (Ctrl-Z): lets it go on. */
static int go_on(pid_t pid, int fd)
{
	long until = now_ms() + STEP_LIMIT_MS;
	int status;

	while (waitpid(pid, &status, WNOHANG | WUNTRACED) == 0)
		if (now_ms() > until || !take(fd, 5))
			return -1;
	return WIFSTOPPED(status) ? kill(pid, SIGCONT) : -1;
}

static int resize(int fd, const char *text)
{
	struct winsize w = {0};

	return sscanf(text, "%hux%hu", &w.ws_col, &w.ws_row) == 2 ? ioctl(fd, TIOCSWINSZ, &w) : -1;
}

static int step(pid_t pid, int fd, const char *s)
{
	char text[4096];
	const char *colon = strchr(s, ':');
	size_t n = colon ? translate(colon + 1, text, sizeof(text)) : 0;

	if (!strncmp(s, "expect:", 7))
		return expect(fd, text);
	if (!strncmp(s, "send:", 5))
		return write(fd, text, n) == (ssize_t)n ? 0 : -1;
	if (!strncmp(s, "sh:", 3))
		return system(s + 3);
	if (!strncmp(s, "prompt:", 7))
		return expect(fd, text) || key_by_key(fd);
	if (!strncmp(s, "size:", 5))
		return resize(fd, s + 5);
	if (!strcmp(s, "cont:"))
		return go_on(pid, fd);
	if (!strncmp(s, "more:", 5))
		return more(fd, (size_t)atol(s + 5));
	return -1;
}

int main(int argc, char **argv)
{
	int i, split, fd, status = 0, failed = 0;
	pid_t pid, ended;
	long until, from;

	for (split = 1; split < argc && strcmp(argv[split], "--"); split++)
		;
	if (split < 2 || split >= argc) {
		fprintf(stderr, "usage: pty_run COMMAND ARG... -- STEP...\n");
		return 2;
	}
	argv[split] = NULL;
	pid = forkpty(&fd, NULL, NULL, NULL);
	if (pid == 0) {
		execvp(argv[1], argv + 1);
		_exit(127);
	}
	for (i = split + 1; !failed && i < argc; i++) {
		from = now_ms();
		failed = step(pid, fd, argv[i]);
		if (failed) {
			say_failed(argv[i], pid, fd, now_ms() - from);
			kill(pid, SIGKILL);
		}
	}
	for (until = now_ms() + STEP_LIMIT_MS; (ended = waitpid(pid, &status, WNOHANG)) == 0 && now_ms() < until;)
		if (!take(fd, 100))
			poll(NULL, 0, 10); /* the terminal is closed a moment before the process can be waited for */
	if (!ended) {
		say_failed("the end of the command", pid, fd, STEP_LIMIT_MS);
		failed = 1;
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
	}
	for (i = 0; i < 100 && take(fd, 1); i++)
		;
	fputs(seen, stdout);
	if (failed)
		return FAILED;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
