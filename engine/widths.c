/*
 * widths.c: the table of cycle times, its file, and the choice (widths.h).
 */
#include "engine/widths.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "engine/file.h"
#include "kernels/assume.h"

const int td_width_requests[TD_WIDTH_COUNTS] = {1, 2, 4, 8, 16}, td_width_drafts[TD_WIDTH_CHOICES] = {0, 1, 3, 5, 7, 11, 15};

enum { FEW = 256 /* samples of a place are fewer: the assumption counts as so many */, FILE_MAX = 1 << 16 };

/* ---- file ----------------------------------------------------------------------------------------------------------------------------- */

static const char *without_number(const char *device)
{
	const char *colon = strchr(device, ':');

	return !strncmp(device, "GPU ", 4) && colon ? colon + 2 : device;
}

void td_widths_key(const char *device, const struct td_target_config *t, const struct td_drafter_config *d, const char *form, char key[512])
{
	snprintf(key, 512, "%.200s; target %d %d %d %d, %d %d %d, %d %d %d %d, %d %d; drafter %d %d %d, %d %d %d, %d %d %d, %d %d; %.40s; %s", without_number(device),
		 t->layers, t->hidden, t->intermediate, t->vocab, t->heads, t->kv_heads, t->head_dim, t->k_heads, t->v_heads, t->k_dim, t->v_dim, t->quant.bits,
		 t->quant.size[0], d->layers, d->hidden, d->intermediate, d->heads, d->kv_heads, d->head_dim, d->block, d->n_taps, d->window, d->quant.bits,
		 d->quant.size[0], form, TD_VERSION);
}

static int state_folder(char *out, size_t size)
{
	const char *made = getenv("STATE_DIRECTORY"), *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	int n;

	if (made && *made == '/')
		n = snprintf(out, size, "%.*s", (int)strcspn(made, ":"), made);
	else if (geteuid() == 0)
		n = snprintf(out, size, "/var/lib/tandem");
	else if (xdg && *xdg == '/')
		n = snprintf(out, size, "%s/tandem", xdg);
	else if (home && *home == '/')
		n = snprintf(out, size, "%s/.local/state/tandem", home);
	else
		return -1;
	return n > 0 && (size_t)n < size ? 0 : -1;
}

int td_widths_path(const char *folder, const char *key, char path[TD_WIDTH_PATH])
{
	char state[TD_WIDTH_PATH - 64];
	int n;

	if (!folder || !strcmp(folder, "auto")) {
		if (state_folder(state, sizeof(state)))
			return -1;
		folder = state;
	}
	n = snprintf(path, TD_WIDTH_PATH, "%s/widths-%016llx.json", folder, (unsigned long long)XXH3_64bits(key, strlen(key)));
	return n > 0 && n < TD_WIDTH_PATH ? 0 : -1;
}

static int index_of(const int *list, int n, json_int_t value)
{
	int i;

	for (i = 0; i < n && list[i] != value; i++)
		;
	return i < n ? i : -1;
}

static int take(const json_t *root, const char *key, struct td_widths *w)
{
	const json_t *cycles = json_object_get(root, "cycles"), *one;
	const char *of = json_string_value(json_object_get(root, "of"));
	size_t i;

	memset(w, 0, sizeof(*w));
	if (!of || strcmp(of, key) || !json_is_array(cycles))
		return -1;
	json_array_foreach(cycles, i, one) {
		int r = index_of(td_width_requests, TD_WIDTH_COUNTS, json_integer_value(json_object_get(one, "requests")));
		int k = index_of(td_width_drafts, TD_WIDTH_CHOICES, json_integer_value(json_object_get(one, "drafts")));
		double us = json_number_value(json_object_get(one, "us"));

		if (r < 0 || k < 0 || !(us > 0) || us > 1e9)
			return -1;
		w->us[r][k] = us;
	}
	return 0;
}

int td_widths_read(const char *path, const char *key, struct td_widths *w, struct td_error *err)
{
	json_t *root = NULL;
	json_error_t why;
	char *text = NULL;
	size_t n = 0;
	int rc = 0;
	struct stat st;
	FILE *f;
	int fd;

	if ((rc = td__file_open(path, &fd, &st, err)))
		return rc;
	f = fdopen(fd, "r");
	if (!f) {
		close(fd);
		return td_error_set(err, TD_E_IO, "%.300s: %s", path, strerror(errno));
	}
	text = malloc(FILE_MAX);
	if (text)
		n = fread(text, 1, FILE_MAX, f);
	if (!text)
		rc = td_error_set(err, TD_E_NOMEM, "out of memory");
	else if (ferror(f) || n == FILE_MAX)
		rc = td_error_set(err, TD_E_IO, "%.300s can't be read, or is too long", path);
	fclose(f);
	if (!rc)
		root = json_loadb(text, n, 0, &why);
	if (!rc && (!root || take(root, key, w)))
		rc = td_error_set(err, TD_E_FORMAT, "%.300s is not a table of this device, pair and version; remove it, or run tandem bench --tune again", path);
	json_decref(root);
	free(text);
	return rc;
}

int td_widths_write(const char *path, const char *key, const struct td_widths *w, struct td_error *err)
{
	json_t *cycles = json_array(), *root = json_pack("{s:s, s:o}", "of", key, "cycles", cycles);
	char folder[TD_WIDTH_PATH], fresh[TD_WIDTH_PATH + 8];
	char *slash;
	int rc = 0;

	for (int r = 0; r < TD_WIDTH_COUNTS; r++)
		for (int k = 0; k < TD_WIDTH_CHOICES; k++)
			if (w->us[r][k] > 0)
				json_array_append_new(cycles, json_pack("{s:i, s:i, s:f}", "requests", td_width_requests[r], "drafts", td_width_drafts[k], "us", w->us[r][k]));
	snprintf(folder, sizeof(folder), "%s", path);
	slash = strrchr(folder, '/');
	if (slash && slash > folder) {
		*slash = '\0';
		mkdir(folder, 0755); /* that it is there is seen below */
	}
	snprintf(fresh, sizeof(fresh), "%s.new", path);
	if (json_dump_file(root, fresh, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) || rename(fresh, path)) {
		rc = td_error_set(err, TD_E_IO, "%.300s can't be written: %s", path, strerror(errno));
		unlink(fresh);
	}
	json_decref(root);
	return rc;
}

/* ---- the choice ----------------------------------------------------------------------------------------------------------------------- */

void td_widths_rates(const uint64_t *accepted_at, const uint64_t *drafted_at, int n, int tenths, double rate[TD_DRAFT_MAX])
{
	double p = td_assumed_probability(tenths) / 65536.0, assumed = 1;

	for (int i = 0; i < TD_DRAFT_MAX; i++) {
		uint64_t seen = i < n ? drafted_at[i] : 0, right = i < n ? accepted_at[i] : 0;

		assumed *= p;
		rate[i] = ((double)right + FEW * assumed) / ((double)seen + FEW);
	}
}

int td_widths_choose(const struct td_widths *w, int requests, int most, const double rate[TD_DRAFT_MAX])
{
	double best = 0;
	int r = 0, choice = -1;

	while (r + 1 < TD_WIDTH_COUNTS && td_width_requests[r] < requests)
		r++;
	for (int k = 0; k < TD_WIDTH_CHOICES && td_width_drafts[k] <= most; k++) {
		double tokens = 1;

		for (int i = 0; i < td_width_drafts[k]; i++)
			tokens += rate[i];
		if (w->us[r][k] > 0 && tokens / w->us[r][k] > best) {
			best = tokens / w->us[r][k];
			choice = td_width_drafts[k];
		}
	}
	return choice;
}
