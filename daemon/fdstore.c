/*
 * fdstore.c: the service manager keeps the arenas' descriptors while tandemd is away, so that a restarted tandemd serves without reading weights.
 *
 * For each worker one message stores two descriptors under one name: the arena, and a small sealed memfd with what tandemd knows of it (the packed Arena
 * message: size, fingerprint, checksums). They come back with $LISTEN_FDS. Both together or none: an arena without its note is worth nothing.
 * What comes back goes to the workers by the same way as after a worker's death, so it is the worker that looks at every checksum. Before that its
 * fingerprint must be that of the folder as this tandemd read it, for this build, backend and form: a new tandemd serves what the configuration names. Whatever else
 * is there is given up, and that is waited for (it may be all of a GPU's memory) before a worker starts. A worker that does not get ready with what was kept
 * is not given it a second time (supervisor.c).
 * What must never happen: that what was stored, however damaged, ends tandemd or keeps it from loading the files.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "daemon/daemon.h"

enum { NOTE_MAX = 16 << 20, CHECKSUMS_MAX = 1 << 20, BARRIER_MS = 5000, HERE_MAX = 8 };

static const char MAGIC[8] = "tdkept1";

struct note_head {
	char magic[8];
	uint64_t bytes, sum; /* of the message that follows */
};

static void store_name(const struct td_child *c, char name[32])
{
	snprintf(name, 32, "tandem-%s", c->name);
}

/* ---- notes ------------------------------------------------------------------------------------------------------------------------- */

static int write_all(int fd, const void *data, size_t n)
{
	for (size_t at = 0; at < n;) {
		ssize_t k = write(fd, (const char *)data + at, n - at);

		if (k <= 0)
			return -1;
		at += (size_t)k;
	}
	return 0;
}

/* *sum tells two notes apart. */
static int note_make(const Tandem__Worker__Arena *arena, uint64_t *sum)
{
	size_t n = tandem__worker__arena__get_packed_size(arena);
	uint8_t *packed = malloc(n + 1);
	struct note_head head = {.bytes = n};
	int fd = -1;

	if (!packed)
		return -1;
	tandem__worker__arena__pack(arena, packed);
	memcpy(head.magic, MAGIC, sizeof(head.magic));
	head.sum = *sum = XXH3_64bits(packed, n);
	fd = memfd_create("tandem-note", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd >= 0 && (write_all(fd, &head, sizeof(head)) || write_all(fd, packed, n) ||
			fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)) {
		close(fd);
		fd = -1;
	}
	free(packed);
	return fd;
}

static int is_note(int fd)
{
	char magic[sizeof(MAGIC)];
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && pread(fd, magic, sizeof(magic), 0) == (ssize_t)sizeof(magic) && !memcmp(magic, MAGIC, sizeof(magic));
}

static Tandem__Worker__Arena *note_read(int fd, uint64_t *sum)
{
	Tandem__Worker__Arena *arena = NULL;
	struct note_head head;
	uint8_t *packed;

	if (pread(fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head) || head.bytes == 0 || head.bytes > NOTE_MAX || !(packed = malloc(head.bytes)))
		return NULL;
	if (pread(fd, packed, head.bytes, sizeof(head)) == (ssize_t)head.bytes && XXH3_64bits(packed, head.bytes) == head.sum)
		arena = tandem__worker__arena__unpack(NULL, head.bytes, packed);
	free(packed);
	*sum = head.sum;
	return arena;
}

/* ---- taking back ------------------------------------------------------------------------------------------------------------------- */

/* Why the arena is not what this tandemd would load, or NULL. */
static const char *misfit(const struct td_child *c, const Tandem__Worker__Arena *arena, int fd)
{
	const struct td_daemon *d = c->d;
	struct stat st;

	if (strcmp(arena->name, c->name) || arena->size == 0 || arena->n_checksum > CHECKSUMS_MAX)
		return "its note is of something else";
	if (!(c == &d->target ? d->model.target_files : d->model.drafter_files)[0])
		return "the model's files can't be looked at";
	if (!td_model_is_of(&d->model, c == &d->target, arena->fingerprint))
		return "it holds another model, or is of another build or form";
	if (fstat(fd, &st) < 0 || (!td_device_is_gpu(&d->model) && !S_ISREG(st.st_mode)) || (S_ISREG(st.st_mode) && (uint64_t)st.st_size != arena->size))
		return "its size is not that of its note";
	return NULL;
}

/* The two of `fd` are an arena and its note, in any order. NULL when the child has its arena, else why not. */
static const char *adopt(struct td_child *c, const int fd[2])
{
	int note = is_note(fd[1]);
	Tandem__Worker__Arena *arena;
	const char *why;
	uint64_t sum;

	if (is_note(fd[!note]) || !is_note(fd[note]))
		return "there is not one arena and one note";
	arena = note_read(fd[note], &sum);
	if (!arena)
		return "its note is damaged";
	why = misfit(c, arena, fd[!note]);
	if (why) {
		tandem__worker__arena__free_unpacked(arena, NULL);
		return why;
	}
	c->arena = arena;
	c->arena_fd = fd[!note];
	c->stored = sum;
	close(fd[note]);
	return NULL;
}

/* 1 when something must be given up. */
static int take_one(struct td_child *c)
{
	const char *why = "there is not one arena and one note";
	int fd[HERE_MAX], n = 0;
	char name[32];

	store_name(c, name);
	while (n < HERE_MAX && (fd[n] = td_notify_take(&c->d->notify, name)) >= 0)
		n++;
	if (n == 0)
		return 0;
	if (c->state == TD_CHILD_OFF)
		why = "there is no such worker now";
	else if (n == 2)
		why = adopt(c, fd);
	if (!why) {
		td_log(TD_LOG_INFO, "the %s's weights are in memory: %.1f MiB", c->name, (double)c->arena->size / (1 << 20));
		return 0;
	}
	td_log(TD_LOG_WARN, "what was kept of the %s is given up: %s", c->name, why);
	while (n-- > 0)
		close(fd[n]);
	while ((n = td_notify_take(&c->d->notify, name)) >= 0)
		close(n);
	return td_notify_send(&c->d->notify, NULL, 0, "FDSTOREREMOVE=1\nFDNAME=%s", name) == 0;
}

/* Of a version that kept other things, for example: nobody will ever ask for it. */
static int give_up_rest(struct td_notify *n)
{
	int given_up = 0;

	for (int i = 0; i < n->n_passed; i++) {
		struct td_passed *p = &n->passed[i];

		if (p->fd < 0)
			continue;
		td_log(TD_LOG_INFO, "a descriptor \"%s\" was passed that nobody knows; it is given up", p->name);
		close(p->fd);
		p->fd = -1;
		given_up |= td_notify_send(n, NULL, 0, "FDSTOREREMOVE=1\nFDNAME=%s", p->name) == 0;
	}
	return given_up;
}

void td_fdstore_take(struct td_daemon *d)
{
	int given_up = take_one(&d->target);

	given_up |= take_one(&d->drafter);
	given_up |= give_up_rest(&d->notify);
	if (given_up && td_notify_barrier(&d->notify, BARRIER_MS))
		td_log(TD_LOG_WARN, "the service manager does not say that it gave up what it kept; if memory is short, loading fails");
}

/* ---- giving away ------------------------------------------------------------------------------------------------------------------- */

void td_fdstore_keep(struct td_child *c)
{
	struct td_notify *n = &c->d->notify;
	uint64_t sum = 0;
	char name[32];
	int fd[2];

	if (n->fd < 0 || !c->arena)
		return;
	fd[0] = c->arena_fd;
	fd[1] = note_make(c->arena, &sum);
	store_name(c, name);
	/* What was loaded again has the very same note, but what is stored was no good. */
	if (fd[1] >= 0 && (sum != c->stored || !c->imported)) {
		/* FDPOLL=0: a device's descriptor has its own idea of being readable. */
		if (td_notify_send(n, NULL, 0, "FDSTOREREMOVE=1\nFDNAME=%s", name) == 0 && td_notify_send(n, fd, 2, "FDSTORE=1\nFDNAME=%s\nFDPOLL=0", name) == 0)
			c->stored = sum;
		else
			td_log(TD_LOG_WARN, "the service manager does not take the %s's arena: its weights will be read again after a restart", c->name);
	}
	if (fd[1] >= 0)
		close(fd[1]);
}

void td_fdstore_drop(struct td_child *c)
{
	char name[32];

	store_name(c, name);
	if (c->stored)
		td_notify_send(&c->d->notify, NULL, 0, "FDSTOREREMOVE=1\nFDNAME=%s", name);
	c->stored = 0;
}
