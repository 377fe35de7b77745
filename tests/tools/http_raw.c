/*
 * http_raw.c: bytes to an HTTP server and back, for tests that say each byte themselves.
 *
 *   http_raw ADDRESS < bytes          sends standard input, prints what comes until the other side ends or nothing comes for a while
 *   http_raw ADDRESS fuzz SEED N      N mutations of valid requests, each on a connection of its own: an answer must be HTTP with a known status, or the
 *                                     connection must end; prints how often each status came
 *   http_raw ADDRESS load IDLE STREAMS GAPS FILE
 *                                     IDLE connections that say nothing, STREAMS at once with the request in FILE: times between events, in microseconds,
 *                                     of GAPS of them at most
 * ADDRESS: a path, or 127.0.0.1:PORT. Options before it: -w MS (wait so long for more, 2000), -s BYTES (send so many at a time), -d MS (and pause so long),
 * -e (end our side when all is sent), -h MS (hang up after so long), -r MS (read nothing for so long, or until SIGUSR1), -i (send standard input as it comes).
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static int wait_ms = 2000, piece, pause_ms, end_side, hang_ms, deaf_ms, as_it_comes;

static void die(const char *what)
{
	fprintf(stderr, "http_raw: %s: %s\n", what, strerror(errno));
	exit(2);
}

static uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static int dial(const char *address)
{
	const char *colon = strrchr(address, ':');
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	struct sockaddr_in in = {.sin_family = AF_INET};
	int tcp = *address != '/' && colon, fd = socket(tcp ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), rc;

	if (fd < 0)
		die("socket");
	if (tcp) {
		in.sin_port = htons((uint16_t)atoi(colon + 1));
		in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	} else {
		snprintf(un.sun_path, sizeof(un.sun_path), "%s", address);
	}
	do
		rc = tcp ? connect(fd, (struct sockaddr *)&in, sizeof(in)) : connect(fd, (struct sockaddr *)&un, sizeof(un));
	while (rc < 0 && (errno == EINTR || errno == EAGAIN));
	if (rc < 0)
		die(address);
	return fd;
}

static void wake(int number) /* usleep ends */
{
	(void)number;
}

/* ---- bytes as they are ------------------------------------------------------------------------------------------------------------- */

static char *read_all(FILE *f, size_t *n)
{
	char *p = NULL;
	size_t size = 0;

	*n = 0;
	for (;;) {
		size_t got;

		if (*n == size && !(p = realloc(p, size = 2 * size + 65536)))
			die("memory");
		got = fread(p + *n, 1, size - *n, f);
		if (!got)
			return p;
		*n += got;
	}
}

/* What comes meanwhile is printed; 0 when the other side ended. */
static int take(int fd, int ms)
{
	struct pollfd p = {fd, POLLIN, 0};
	char buf[65536];
	ssize_t n;

	if (poll(&p, 1, ms) <= 0)
		return -1;
	n = read(fd, buf, sizeof(buf));
	if (n <= 0) {
		printf("%s", n ? "\n[reset]\n" : "\n[end]\n");
		return 0;
	}
	fwrite(buf, 1, (size_t)n, stdout);
	fflush(stdout); /* a test may wait for it */
	return 1;
}

/* Standard input as it comes, until either side ends. 0 when the other did. */
static int relay(int fd)
{
	struct pollfd p[2] = {{0, POLLIN, 0}, {fd, POLLIN, 0}};
	char buf[4096];
	ssize_t n;

	for (;;) {
		if (poll(p, 2, wait_ms) <= 0)
			return 1;
		if (p[1].revents && !take(fd, 0))
			return 0;
		if (!p[0].revents)
			continue;
		n = read(0, buf, sizeof(buf));
		if (n <= 0)
			return 1;
		if (send(fd, buf, (size_t)n, MSG_NOSIGNAL) != n)
			return 0;
	}
}

static int talk(const char *address)
{
	uint64_t began = now_us();
	int fd = dial(address), rc = 1;
	size_t n = 0, at = 0;
	char *data = NULL;

	if (as_it_comes)
		rc = relay(fd);
	else
		data = read_all(stdin, &n);

	while (at < n && rc) {
		size_t some = piece && (size_t)piece < n - at ? (size_t)piece : n - at;
		ssize_t sent = send(fd, data + at, some, MSG_NOSIGNAL);

		if (sent <= 0)
			break;
		at += (size_t)sent;
		if (pause_ms)
			rc = take(fd, pause_ms);
	}
	if (end_side)
		shutdown(fd, SHUT_WR);
	usleep((useconds_t)deaf_ms * 1000);
	while (rc) {
		int left = hang_ms ? hang_ms - (int)((now_us() - began) / 1000) : wait_ms;

		if (left <= 0)
			break;
		rc = take(fd, left);
		if (rc < 0) {
			puts("\n[silence]");
			break;
		}
	}
	free(data);
	close(fd);
	return 0;
}

/* ---- mutations --------------------------------------------------------------------------------------------------------------------- */

static uint64_t state;

static uint32_t draw(uint32_t n)
{
	state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(state >> 33) % n;
}

static const char *const seeds[] = {
	"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
	"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
	"HEAD /v1/models/target-int4 HTTP/1.0\r\n\r\n",
	"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 24\r\n\r\n{\"prompt\": \"some text\"}\r\n",
	"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n"
	"{\"prompt\": \"a b c d\", \"max_tokens\": 4, \"top_k\": 2}",
	"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
	"19\r\n{\"prompt\": [1, 2, 3, 4], \r\n1a;a=b\r\n\"max_tokens\": 2, \"stop\": \"\r\n3\r\nx\"}\r\n0\r\nTrailer: y\r\n\r\n",
	"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 140\r\n\r\n"
	"{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"max_tokens\": 3, \"stream\": true, \"logprobs\": true, \"top_logprobs\": 2, "
	"\"temperature\": 0.5}",
	"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 112\r\n\r\n"
	"{\"messages\": [{\"role\": \"system\", \"content\": \"Hi\"}, {\"role\": \"user\", \"content\": \"Hi\"}], \"max_tokens\": 3, \"n\": 2}",
	"POST /detokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 21\r\n\r\n{\"tokens\": [1, 2, 3]}",
	"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\nGET /version HTTP/1.1\r\nHost: x\r\n\r\n",
};
static const char *const bits[] = {"\r\n", "\n", "\r", " ", "\t", ":", "\0", "Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n", "\r\n\r\n", "HTTP/1.1", "{", "}", "[[[[",
				   "\"", ",", "\\u0000", "\\ud800", "1e999", "-1", "99999999999999999999", "null", "\xff\xfe", "0\r\n\r\n", "ffffffffffffffff\r\n",
				   "Host: y\r\n", "Connection: close\r\n", "POST", "/v1/completions", "%00", "\x7f"};

/* One mutated request into buf (size 8192); its length. */
static size_t mutate(char *buf)
{
	const char *seed = seeds[draw(sizeof(seeds) / sizeof(*seeds))];
	size_t n = strlen(seed);

	memcpy(buf, seed, n);
	for (uint32_t k = draw(4) + 1; k; k--) {
		uint32_t at = draw((uint32_t)n + 1), len = draw(24) + 1;
		const char *bit = bits[draw(sizeof(bits) / sizeof(*bits))];
		size_t m = *bit ? strlen(bit) : 1;

		len = len < n - at ? len : (uint32_t)n - at;
		switch (draw(6)) {
		case 0: /* another byte */
			if (at < n)
				buf[at] = (char)draw(256);
			break;
		case 1: /* a piece less */
			memmove(buf + at, buf + at + len, n - at - len);
			n -= len;
			break;
		case 2: /* a piece twice */
			if (n + len < 4000) {
				memmove(buf + at + len, buf + at, n - at);
				n += len;
			}
			break;
		case 3: /* cut off */
			n = at;
			break;
		default: /* something that matters somewhere */
			if (n + m < 4000) {
				memmove(buf + at + m, buf + at, n - at);
				memcpy(buf + at, bit, m);
				n += m;
			}
		}
	}
	return n;
}

static int known(int status)
{
	static const int all[] = {100, 200, 204, 400, 401, 403, 404, 405, 408, 411, 413, 414, 415, 417, 429, 431, 500, 501, 503, 504, 505};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (all[i] == status)
			return 1;
	return 0;
}

static int fuzz(const char *address, uint64_t seed, long count)
{
	long times[600] = {0}, silent = 0;

	state = seed;
	for (long i = 0; i < count; i++) {
		char sent[8192], got[65536];
		size_t n = mutate(sent), m = 0;
		int fd = dial(address), status = 0, ends;
		uint64_t until = now_us() + 30000000;

		for (size_t at = 0; at < n;) {
			size_t some = draw(3) ? n - at : draw((uint32_t)(n - at)) + 1;
			ssize_t k = send(fd, sent + at, some, MSG_NOSIGNAL);

			if (k <= 0)
				break;
			at += (size_t)k;
		}
		ends = draw(2) == 0; /* who ends its side hangs up on a generation; the others wait a little for an answer */
		if (ends)
			shutdown(fd, SHUT_WR);
		while (now_us() < until) {
			struct pollfd p = {fd, POLLIN, 0};
			int come = poll(&p, 1, ends ? 30000 : 30);
			ssize_t k = come > 0 ? read(fd, got + m, sizeof(got) - 1 - m) : 0;

			if (k <= 0)
				break;
			m += m + (size_t)k < sizeof(got) / 2 ? (size_t)k : 0;
		}
		if (now_us() >= until) {
			printf("no end after mutation %ld\n", i);
			return 1;
		}
		close(fd);
		got[m] = 0;
		if (m && (sscanf(got, "HTTP/1.1 %d ", &status) != 1 || !known(status))) {
			printf("mutation %ld was answered by: %.80s\n--- it was:\n%.*s\n", i, got, (int)n, sent);
			return 1;
		}
		times[status]++;
		silent += !m;
	}
	for (int s = 100; s < 600; s++)
		if (times[s])
			printf("%d %ld\n", s, times[s]);
	printf("none %ld\n", silent);
	return 0;
}

/* ---- load -------------------------------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

/* What load() has open and measured; kept to the end of the process. */
static struct {
	int *silent, n_silent;
	struct pollfd *p;
	uint64_t *last;
	int n_streams, open;
	uint32_t *gap;
	size_t n_gaps, most;
} l;

static void load_connect(const char *address, const char *file)
{
	FILE *f = fopen(file, "r");
	struct rlimit rl;
	char *body, head[256];
	size_t n;

	if (!f)
		die(file);
	body = read_all(f, &n);
	fclose(f);
	if (getrlimit(RLIMIT_NOFILE, &rl) == 0) {
		rl.rlim_cur = rl.rlim_max;
		setrlimit(RLIMIT_NOFILE, &rl);
	}
	for (int i = 0; i < l.n_silent; i++)
		l.silent[i] = dial(address);
	snprintf(head, sizeof(head), "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", n);
	for (int i = 0; i < l.n_streams; i++) {
		l.p[i] = (struct pollfd){dial(address), POLLIN, 0};
		if (send(l.p[i].fd, head, strlen(head), MSG_NOSIGNAL) < 0 || send(l.p[i].fd, body, n, MSG_NOSIGNAL) < 0)
			die("send");
	}
	free(body);
}

/* Something came of stream i. 0 when it ended before its time. */
static int load_read(int i)
{
	static char buf[65536];
	ssize_t k = read(l.p[i].fd, buf, sizeof(buf) - 1);
	uint64_t now = now_us();

	buf[k > 0 ? k : 0] = 0;
	if (k > 0 && l.last[i] && l.n_gaps < l.most)
		l.gap[l.n_gaps++] = (uint32_t)(now - l.last[i]);
	l.last[i] = now;
	if (k > 0 && !strstr(buf, "[DONE]"))
		return 1;
	if (k <= 0 || !l.n_gaps) {
		printf("a stream ended early: %.200s\n", buf);
		return 0;
	}
	close(l.p[i].fd);
	l.p[i].fd = -1;
	l.open--;
	return 1;
}

/* The idle connections were kept all the time. */
static int idle_answer(void)
{
	static const char ask[] = "GET /version HTTP/1.1\r\nHost: x\r\n\r\n";
	char got[512];

	for (int i = 0; i < l.n_silent; i += l.n_silent / 10 + 1)
		if (send(l.silent[i], ask, sizeof(ask) - 1, MSG_NOSIGNAL) < 0 || read(l.silent[i], got, sizeof(got)) <= 0) {
			printf("idle connection %d was closed\n", i);
			return 0;
		}
	return 1;
}

static int load(const char *address, int idle, int streams, size_t most, const char *file)
{
	l.n_silent = idle;
	l.n_streams = l.open = streams;
	l.most = most;
	l.silent = calloc((size_t)idle + 1, sizeof(*l.silent));
	l.p = calloc((size_t)streams + 1, sizeof(*l.p));
	l.last = calloc((size_t)streams + 1, sizeof(*l.last));
	l.gap = malloc((most + 1) * sizeof(*l.gap));
	if (!l.silent || !l.p || !l.last || !l.gap)
		die("memory");
	load_connect(address, file);
	while (l.open) {
		if (poll(l.p, (nfds_t)streams, 60000) <= 0) {
			puts("a stream hangs");
			return 1;
		}
		for (int i = 0; i < streams; i++)
			if (l.p[i].fd >= 0 && l.p[i].revents && !load_read(i))
				return 1;
	}
	if (!l.n_gaps)
		return 1;
	qsort(l.gap, l.n_gaps, sizeof(*l.gap), by_value);
	printf("gaps %zu p50 %u p99 %u max %u\n", l.n_gaps, l.gap[l.n_gaps / 2], l.gap[l.n_gaps * 99 / 100], l.gap[l.n_gaps - 1]);
	return !idle_answer();
}

int main(int argc, char **argv)
{
	int c;

	signal(SIGPIPE, SIG_IGN);
	sigaction(SIGUSR1, &(struct sigaction){.sa_handler = wake}, NULL);
	while ((c = getopt(argc, argv, "+w:s:d:h:r:ei")) > 0) {
		int value = optarg ? atoi(optarg) : 1;

		if (c == '?')
			return 2;
		*(c == 'w' ? &wait_ms : c == 's' ? &piece : c == 'd' ? &pause_ms : c == 'h' ? &hang_ms : c == 'r' ? &deaf_ms : c == 'i' ? &as_it_comes : &end_side) = value;
	}
	argc -= optind;
	argv += optind;
	if (argc == 1)
		return talk(argv[0]);
	if (argc == 4 && !strcmp(argv[1], "fuzz"))
		return fuzz(argv[0], strtoull(argv[2], NULL, 10), atol(argv[3]));
	if (argc == 6 && !strcmp(argv[1], "load"))
		return load(argv[0], atoi(argv[2]), atoi(argv[3]), (size_t)atol(argv[4]), argv[5]);
	fprintf(stderr, "usage: http_raw [-w MS] [-s BYTES] [-d MS] [-h MS] [-r MS] [-e] ADDRESS [fuzz SEED N | load IDLE STREAMS GAPS FILE]\n");
	return 2;
}
