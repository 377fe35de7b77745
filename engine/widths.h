/*
 * widths.h: how many drafts a step has for each of n requests that share it: what `tandem bench --tune` measured, and the choice.
 *
 * More drafts cost little while weights are streamed anyway, and much once the rows of many requests fill the tensor cores. So the time of a whole cycle is
 * measured once for some numbers of requests and drafts, and kept in a file of its own for each kind of device, pair of shapes and version (its name is a
 * hash of these). The choice is the number of drafts with the most tokens per time, where tokens follow from how often a draft at each place was right. It
 * hangs on the table and on those rates, never on a time that was taken while serving.
 */
#ifndef TD_WIDTHS_H
#define TD_WIDTHS_H

#include "engine/model.h"

enum { TD_WIDTH_COUNTS = 5, TD_WIDTH_CHOICES = 7, TD_WIDTH_PATH = 4096 };
extern const int td_width_requests[TD_WIDTH_COUNTS], td_width_drafts[TD_WIDTH_CHOICES]; /* ascending */

struct td_widths {
	double us[TD_WIDTH_COUNTS][TD_WIDTH_CHOICES]; /* of a cycle; 0: not measured */
};

/* What a table is of, in words: the device as its worker describes it, both shapes, the form of the weights (model.weights, model.head, model.activations), the version. */
void td_widths_key(const char *device, const struct td_target_config *t, const struct td_drafter_config *d, const char *form, char key[512]);
/* The file of that key in `folder`; NULL or "auto": the state folder ($STATE_DIRECTORY, /var/lib/tandem for root, else $XDG_STATE_HOME/tandem or
 * ~/.local/state/tandem). -1 when there is none or the path is too long. */
int td_widths_path(const char *folder, const char *key, char path[TD_WIDTH_PATH]);
/* TD_E_NOT_FOUND: no such file. */
int td_widths_read(const char *path, const char *key, struct td_widths *w, struct td_error *err);
int td_widths_write(const char *path, const char *key, const struct td_widths *w, struct td_error *err); /* makes the last folder of the path */

/* Of a draft at each place: how likely it and all before it are right. From counts (n places), where they are few from a mean of `tenths` tokens in a
 * block of 16 rows (kernels/assume.h). */
void td_widths_rates(const uint64_t *accepted_at, const uint64_t *drafted_at, int n, int tenths, double rate[TD_DRAFT_MAX]);
/* Drafts for this many requests, at most `most`; -1: the table says nothing. */
int td_widths_choose(const struct td_widths *w, int requests, int most, const double rate[TD_DRAFT_MAX]);

#endif
