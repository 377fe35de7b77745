/*
 * draft_list.c: see draft_list.h. A byte for each id of the model says where it came from; the list is what that holds in the end.
 *
 * What must never happen: an id at or above vocab_real, or one twice, in a list.
 */
#include "engine/draft_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/file.h"

#define HEAD "tandem-draft-vocabulary 1"
enum { BYTES_MAX = 64 << 20, LINE = 128, ABSENT = 0, LISTED, ALWAYS };

struct reading {
	const char *path;
	int vocab_real, line, n;
	char *from; /* (vocab_real) */
	struct td_error *err;
};

static int take_id(struct reading *r, const char *text)
{
	char *rest;
	long id = strtol(text, &rest, 10);

	if (rest == text || *rest || *text < '0' || *text > '9')
		return td_error_set(r->err, TD_E_FORMAT, "%s:%d: \"%.40s\" is not a token id", r->path, r->line, text);
	if (id >= r->vocab_real)
		return td_error_set(r->err, TD_E_MISMATCH, "%s:%d: token %ld; ids of this model go from 0 to %d: the list belongs to another one", r->path, r->line,
				    id, r->vocab_real - 1);
	if (r->from[id])
		return td_error_set(r->err, TD_E_FORMAT, "%s:%d: token %ld stands there a second time", r->path, r->line, id);
	r->from[id] = LISTED;
	r->n++;
	return 0;
}

static int read_lines(struct reading *r, FILE *f)
{
	char text[LINE];
	int rc = 0;

	while (!rc && fgets(text, sizeof(text), f)) {
		size_t n = strcspn(text, "\n");

		r->line++;
		if (!text[n] && n + 1 == sizeof(text) && text[0] == '#') /* a comment may be long */
			for (int c; (c = getc(f)) != EOF && c != '\n';)
				;
		text[n] = '\0';
		if (n && text[n - 1] == '\r')
			text[n - 1] = '\0';
		if (r->line == 1 && strcmp(text, HEAD))
			return td_error_set(r->err, TD_E_FORMAT, "%s: is no list of tokens: its first line must be \"%s\"", r->path, HEAD);
		if (r->line > 1 && text[0] && text[0] != '#')
			rc = take_id(r, text);
	}
	if (!rc && ferror(f))
		rc = td_error_set(r->err, TD_E_IO, "%s: can't be read", r->path);
	if (!rc && r->n < TD_DRAFT_LIST_LEAST)
		rc = td_error_set(r->err, TD_E_FORMAT, "%s: %d tokens are too few to draft from: %d are the least", r->path, r->n, TD_DRAFT_LIST_LEAST);
	return rc;
}

static int read_file(struct reading *r)
{
	struct stat st;
	int fd, rc = td__file_open(r->path, &fd, &st, r->err);
	FILE *f;

	if (rc)
		return rc;
	if (st.st_size > BYTES_MAX) {
		close(fd);
		return td_error_set(r->err, TD_E_TOO_LARGE, "%s: %lld bytes are no list of tokens", r->path, (long long)st.st_size);
	}
	f = fdopen(fd, "r");
	if (!f) {
		close(fd);
		return td_error_set(r->err, TD_E_NOMEM, "out of memory");
	}
	rc = read_lines(r, f);
	fclose(f);
	return rc;
}

static void add_always(struct reading *r, const struct td_tokenizer *t, const int *end, int n_end)
{
	for (int id = 0; id < r->vocab_real; id++) {
		size_t n;

		td_token_bytes(t, id, &n);
		if (!r->from[id] && (n == 1 || td_tokenizer_is_added(t, id)))
			r->from[id] = ALWAYS;
	}
	for (int i = 0; i < n_end; i++)
		if (end[i] < r->vocab_real && !r->from[end[i]])
			r->from[end[i]] = ALWAYS;
}

static int collect(const struct reading *r, struct td_draft_list *list)
{
	int n = 0;

	for (int id = 0; id < r->vocab_real; id++)
		n += r->from[id] != ABSENT;
	list->id = malloc(sizeof(*list->id) * (size_t)n);
	if (!list->id)
		return td_error_set(r->err, TD_E_NOMEM, "out of memory");
	for (int id = 0; id < r->vocab_real; id++)
		if (r->from[id] != ABSENT)
			list->id[list->n++] = id;
	list->listed = r->n;
	return 0;
}

int td_draft_list_read(const char *path, const struct td_tokenizer *t, int vocab_real, const int *end, int n_end, struct td_draft_list *list, struct td_error *err)
{
	struct reading r = { .path = path, .vocab_real = vocab_real, .from = calloc((size_t)vocab_real + 1, 1), .err = err };
	int rc;

	memset(list, 0, sizeof(*list));
	if (!r.from)
		return td_error_set(err, TD_E_NOMEM, "out of memory");
	rc = read_file(&r);
	if (!rc) {
		add_always(&r, t, end, n_end);
		rc = collect(&r, list);
	}
	free(r.from);
	return rc;
}

void td_draft_list_finish(struct td_draft_list *list)
{
	free(list->id);
	memset(list, 0, sizeof(*list));
}
