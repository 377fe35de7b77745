/*
 * tenant.c: the table of tenants: who a client is, and what becomes of that in a reload.
 *
 * The table is small and looked through from its beginning: once per connection, not per request. A tenant that was made for a uid stays after its last
 * connection, since its clock and its part of the prefix cache belong to it; when the table is full the one that was seen least recently goes.
 */
#include "daemon/tenant.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "engine/clock.h"

enum { GROUPS = 1024 };
_Static_assert((int)TD_QUEUE_FLOWS == (int)TD_TENANTS_MAX, "every tenant may wait");

/* ---- table --------------------------------------------------------------------------------------------------------------------------- */

static struct td_tenant *by_name(const struct td_tenants *t, const char *name)
{
	for (int i = 0; i < t->n; i++)
		if (!strcmp(t->tenant[i]->cfg.name, name))
			return t->tenant[i];
	return NULL;
}

static void remove_at(struct td_tenants *t, int i)
{
	td_tenant_config_finish(&t->tenant[i]->cfg);
	free(t->tenant[i]);
	t->tenant[i] = t->tenant[--t->n];
}

/* A place in the table, if need be that of the tenant of its own that was seen least recently and is not in use. */
static int make_room(struct td_tenants *t)
{
	int oldest = -1;

	if (t->n < TD_TENANTS_MAX)
		return 1;
	for (int i = 0; i < t->n; i++)
		if (!t->tenant[i]->configured && !t->tenant[i]->refs && (oldest < 0 || t->tenant[i]->used_us < t->tenant[oldest]->used_us))
			oldest = i;
	if (oldest >= 0)
		remove_at(t, oldest);
	return oldest >= 0;
}

/* Settings into force; the lists of *c are taken over. */
static void configure(struct td_tenant *x, struct td_tenant_config *c)
{
	int64_t rate = x->cfg.tokens_per_minute;

	td_tenant_config_finish(&x->cfg);
	x->cfg = *c;
	c->uids = c->gids = (struct td_id_list){0};
	c->keys = (struct td_key_list){0};
	x->flow.weight = x->cfg.weight;
	x->flow.max_running = x->cfg.max_running;
	x->flow.memory_share = x->cfg.memory_share / 100.0;
	if (!rate || x->tokens > (double)x->cfg.tokens_per_minute)
		x->tokens = (double)x->cfg.tokens_per_minute;
}

static struct td_tenant *add(struct td_tenants *t, struct td_tenant_config *c)
{
	struct td_tenant *x = make_room(t) ? calloc(1, sizeof(*x)) : NULL;

	if (!x)
		return NULL;
	x->number = ++t->next_number;
	x->flow.weight = 1;
	configure(x, c);
	t->tenant[t->n++] = x;
	return x;
}

/* A copy of the settings without lists, under another name. */
static struct td_tenant_config named(const struct td_tenant_config *from, const char *name)
{
	struct td_tenant_config c = *from;

	c.uids = c.gids = (struct td_id_list){0};
	c.keys = (struct td_key_list){0};
	memset(c.name, 0, sizeof(c.name));
	snprintf(c.name, sizeof(c.name), "%s", name);
	return c;
}

static struct td_tenant *add_named(struct td_tenants *t, const char *name)
{
	struct td_tenant_config c = named(&t->fallback, name);

	return add(t, &c);
}

struct td_tenant *td_tenant_hold(struct td_tenant *x)
{
	x->refs++;
	return x;
}

void td_tenant_drop(struct td_tenants *t, struct td_tenant *x)
{
	if (!x || --x->refs || x->configured || x->own)
		return;
	for (int i = 0; i < t->n; i++)
		if (t->tenant[i] == x) {
			remove_at(t, i);
			return;
		}
}

void td_tenants_finish(struct td_tenants *t)
{
	while (t->n)
		remove_at(t, t->n - 1);
}

/* ---- configuration into force -------------------------------------------------------------------------------------------------------- */

static enum td_unknown unknown_of(const char *word)
{
	return !word || !strcmp(word, "own") ? TD_UNKNOWN_OWN : !strcmp(word, "default") ? TD_UNKNOWN_DEFAULT : TD_UNKNOWN_REFUSE;
}

/* Those that no section names any more: own ones take the settings of [tenant default], the others end with their last request. */
static void let_go(struct td_tenants *t)
{
	for (int i = t->n - 1; i >= 0; i--) {
		struct td_tenant *x = t->tenant[i];
		struct td_tenant_config c = named(x->own ? &t->fallback : &x->cfg, x->cfg.name);

		if (x->configured)
			continue;
		configure(x, &c);
		if (!x->refs && !x->own)
			remove_at(t, i);
	}
}

/* Room and memory for all that is new, before anything changes: half a configuration is none. */
static int add_missing(struct td_tenants *t, const struct td_tenants_config *c, struct td_error *err)
{
	int before = t->n, missing = 0;

	for (int i = 0; i < c->n; i++)
		missing += !by_name(t, c->tenant[i].name);
	if (t->n + missing > TD_TENANTS_MAX - 1)
		return td_error_set(err, TD_E_LIMIT, "%d tenants are in use; there is no room for %d new ones", t->n, missing);
	for (int i = 0; i < c->n; i++) {
		if (by_name(t, c->tenant[i].name) || add_named(t, c->tenant[i].name))
			continue;
		while (t->n > before)
			remove_at(t, t->n - 1);
		return td_error_set(err, TD_E_NOMEM, "no memory for tenant %s", c->tenant[i].name);
	}
	return 0;
}

int td_tenants_apply(struct td_tenants *t, struct td_tenants_config *c, struct td_error *err)
{
	const struct td_tenant_config plain = {.weight = 1}, *fallback = &plain;
	int rc = add_missing(t, c, err);

	if (rc)
		return rc;
	for (int i = 0; i < c->n; i++)
		if (!strcmp(c->tenant[i].name, "default"))
			fallback = &c->tenant[i];
	t->unknown = unknown_of(c->unknown);
	t->fallback = named(fallback, "default");
	t->generation++;
	for (int i = 0; i < t->n; i++)
		t->tenant[i]->configured = 0;
	for (int i = 0; i < c->n; i++) {
		struct td_tenant *x = by_name(t, c->tenant[i].name);

		configure(x, &c->tenant[i]);
		x->configured = 1;
		x->place = i;
		x->own = 0;
	}
	let_go(t);
	return 0;
}

/* ---- who is it ----------------------------------------------------------------------------------------------------------------------- */

static int lists(const struct td_id_list *l, uint32_t id)
{
	for (int i = 0; i < l->n; i++)
		if (l->id[i] == id)
			return 1;
	return 0;
}

static int lists_any(const struct td_id_list *l, const gid_t *gid, int n)
{
	for (int i = 0; i < n && l->n; i++)
		if (lists(l, gid[i]))
			return 1;
	return 0;
}

/* Of those that name the uid, else of those that name a group: the one that is asked for, else the first. The order is that of the sections. */
static struct td_tenant *find(const struct td_tenants *t, uid_t uid, const gid_t *gid, int n, const char *asked)
{
	struct td_tenant *first[2] = {NULL, NULL};

	for (int i = 0; i < t->n; i++) {
		struct td_tenant *x = t->tenant[i];
		int by_uid = lists(&x->cfg.uids, uid), by_gid = !by_uid && lists_any(&x->cfg.gids, gid, n);

		if (!x->configured || (!by_uid && !by_gid))
			continue;
		if (asked && !strcmp(asked, x->cfg.name))
			return x;
		if (!first[by_gid] || x->place < first[by_gid]->place)
			first[by_gid] = x;
	}
	return first[0] ? first[0] : first[1];
}

/* The name that the password file has for a uid. Only the file is read: other sources of names may take their time, and the loop has none. */
static void name_of(uid_t uid, char name[TD_TENANT_NAME])
{
	FILE *f = fopen("/etc/passwd", "re");
	const struct passwd *pw;

	snprintf(name, TD_TENANT_NAME, "uid-%u", (unsigned)uid);
	if (!f)
		return;
	while ((pw = fgetpwent(f)))
		if (pw->pw_uid == uid) {
			if (strlen(pw->pw_name) < TD_TENANT_NAME)
				snprintf(name, TD_TENANT_NAME, "%s", pw->pw_name);
			break;
		}
	fclose(f);
}

static struct td_tenant *own_of(struct td_tenants *t, uid_t uid)
{
	char name[TD_TENANT_NAME];
	struct td_tenant *x;

	for (int i = 0; i < t->n; i++)
		if (t->tenant[i]->own && t->tenant[i]->own_uid == uid)
			return t->tenant[i];
	name_of(uid, name);
	if (by_name(t, name)) /* a section has the name, for others */
		snprintf(name, sizeof(name), "uid-%u", (unsigned)uid);
	x = by_name(t, name) ? NULL : add_named(t, name);
	if (x) {
		x->own = 1;
		x->own_uid = uid;
	}
	return x;
}

static struct td_tenant *shared(struct td_tenants *t)
{
	struct td_tenant *x = by_name(t, "default");

	if (!x)
		x = add_named(t, "default");
	if (x)
		x->configured = 1; /* stays, as if a section named it */
	return x;
}

struct td_tenant *td_tenant_default(struct td_tenants *t)
{
	struct td_tenant *x = shared(t);

	return x ? td_tenant_hold(x) : NULL;
}

struct td_tenant *td_tenant_by_peer(struct td_tenants *t, int fd, const char *asked, struct td_error *err)
{
	gid_t gid[GROUPS + 1];
	struct ucred cred;
	socklen_t size = sizeof(cred), room = GROUPS * sizeof(gid_t);
	struct td_tenant *x;
	int n = 0;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size)) {
		td_error_set(err, TD_E_PERMISSION, "the system does not say who the client is: %s", strerror(errno));
		return NULL;
	}
	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, gid, &room) == 0)
		n = (int)(room / sizeof(gid_t));
	gid[n++] = cred.gid;
	x = find(t, cred.uid, gid, n, asked);
	if (!x && t->unknown == TD_UNKNOWN_REFUSE) {
		td_error_set(err, TD_E_PERMISSION, "user %u belongs to no tenant here: a section [tenant NAME] of the configuration has to name the user or a group",
			     (unsigned)cred.uid);
		return NULL;
	}
	if (!x && t->unknown == TD_UNKNOWN_OWN)
		x = own_of(t, cred.uid);
	if (!x)
		x = shared(t);
	if (!x) {
		td_error_set(err, TD_E_NOMEM, "there is no room for another tenant");
		return NULL;
	}
	x->used_us = td_now_us();
	return td_tenant_hold(x);
}

/* 0 when equal. Takes as long whatever they hold. */
static unsigned differ(const char *a, const char *b)
{
	size_t n = strlen(a), m = strlen(b);
	unsigned diff = n != m;

	for (size_t i = 0; i < m; i++)
		diff |= (unsigned char)a[i < n ? i : 0] ^ (unsigned char)b[i];
	return diff;
}

struct td_tenant *td_tenant_by_key(struct td_tenants *t, const char *key, struct td_error *err)
{
	struct td_tenant *found = NULL;

	for (int i = 0; i < t->n; i++)
		for (int k = 0; k < t->tenant[i]->cfg.keys.n; k++)
			if (!differ(t->tenant[i]->cfg.keys.key[k], key))
				found = t->tenant[i];
	if (!found) {
		td_error_set(err, TD_E_UNAUTHORIZED, "this API key belongs to no tenant");
		return NULL;
	}
	found->used_us = td_now_us();
	return td_tenant_hold(found);
}

/* ---- token bucket -------------------------------------------------------------------------------------------------------------------- */

static void refill(struct td_tenant *x, uint64_t now_us)
{
	double most = (double)x->cfg.tokens_per_minute;

	x->tokens += (double)(now_us - x->tokens_us) * most / 60e6;
	x->tokens_us = now_us;
	if (x->tokens > most)
		x->tokens = most;
}

uint32_t td_tenant_rate_wait(struct td_tenant *x, uint64_t now_us)
{
	if (!x->cfg.tokens_per_minute)
		return 0;
	refill(x, now_us);
	if (x->tokens >= 1)
		return 0;
	return (uint32_t)((1 - x->tokens) * 60e3 / (double)x->cfg.tokens_per_minute) + 1;
}

void td_tenant_spend(struct td_tenant *x, int64_t tokens, uint64_t now_us)
{
	if (!x->cfg.tokens_per_minute)
		return;
	refill(x, now_us);
	x->tokens -= (double)tokens;
}
