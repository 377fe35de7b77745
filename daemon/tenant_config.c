/*
 * tenant_config.c: what sections [tenant NAME] say: lists of users, groups and API keys, and names.
 *
 * Names of users and groups are looked up when the configuration is read, at start and at a reload, and never while a client waits. Lists add up: a second line of
 * the same name continues the first, since a line of the file is bounded.
 */
#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/tenant.h"

enum { KEY_MIN = 8, KEY_MAX = 256, LIST_MAX = 4096, WORD_MAX = 300 };

static int no_memory(struct td_error *err)
{
	return td_error_set(err, TD_E_NOMEM, "out of memory");
}

/* ---- sections ------------------------------------------------------------------------------------------------------------------------ */

static int is_name(const char *name, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!isalnum((unsigned char)name[i]) && !strchr("_.@-", name[i]))
			return 0;
	return n > 0 && n < TD_TENANT_NAME;
}

struct td_tenant_config *td_tenant_config_get(struct td_tenants_config *c, const char *name, size_t n, struct td_error *err)
{
	struct td_tenant_config *grown;

	for (int i = 0; i < c->n; i++)
		if (strlen(c->tenant[i].name) == n && !memcmp(c->tenant[i].name, name, n))
			return &c->tenant[i];
	if (!is_name(name, n)) {
		td_error_set(err, TD_E_INVALID, "[tenant %.*s]: a name has 1 to %d letters, digits, _ . @ or -", (int)(n < 80 ? n : 80), name, TD_TENANT_NAME - 1);
		return NULL;
	}
	if (c->n == TD_TENANTS_MAX / 2) {
		td_error_set(err, TD_E_INVALID, "[tenant %.*s]: there are %d tenants already, as many as there may be", (int)n, name, c->n);
		return NULL;
	}
	grown = realloc(c->tenant, (size_t)(c->n + 1) * sizeof(*grown));
	if (!grown) {
		no_memory(err);
		return NULL;
	}
	c->tenant = grown;
	grown += c->n++;
	*grown = (struct td_tenant_config){.weight = 1, .band = TD_BAND_INTERACTIVE};
	memcpy(grown->name, name, n);
	return grown;
}

void td_tenant_config_finish(struct td_tenant_config *t)
{
	free(t->uids.id);
	free(t->gids.id);
	for (int i = 0; i < t->keys.n; i++)
		free(t->keys.key[i]);
	free(t->keys.key);
	memset(t, 0, sizeof(*t));
}

void td_tenants_config_finish(struct td_tenants_config *c)
{
	for (int i = 0; i < c->n; i++)
		td_tenant_config_finish(&c->tenant[i]);
	free(c->tenant);
	free(c->unknown);
	free(c->order);
	free(c->exposed);
	memset(c, 0, sizeof(*c));
}

/* ---- lists --------------------------------------------------------------------------------------------------------------------------- */

/* The next word of a list; 0 at its end, or TD_E_INVALID. */
static int next_word(const char **at, char word[WORD_MAX], struct td_error *err)
{
	const char *p = *at + strspn(*at, ", \t");
	size_t n = strcspn(p, ", \t");

	if (!n)
		return 0;
	if (n >= WORD_MAX)
		return td_error_set(err, TD_E_INVALID, "one of the list is longer than %d bytes", WORD_MAX - 1);
	memcpy(word, p, n);
	word[n] = 0;
	*at = p + n;
	return 1;
}

static int add_id(struct td_id_list *l, uint32_t id, struct td_error *err)
{
	uint32_t *grown;

	for (int i = 0; i < l->n; i++)
		if (l->id[i] == id)
			return 0;
	if (l->n == LIST_MAX)
		return td_error_set(err, TD_E_INVALID, "the list is longer than %d", LIST_MAX);
	grown = realloc(l->id, (size_t)(l->n + 1) * sizeof(*grown));
	if (!grown)
		return no_memory(err);
	l->id = grown;
	l->id[l->n++] = id;
	return 0;
}

/* 1 when the word is a number; it has to be one that can be an id. */
static int number(const char *word, uint32_t *id, const char *what, struct td_error *err)
{
	char *end;
	unsigned long v;

	if (!isdigit((unsigned char)*word))
		return 0;
	errno = 0;
	v = strtoul(word, &end, 10);
	if (*end || errno || v >= UINT32_MAX)
		return td_error_set(err, TD_E_INVALID, "%s %s: no such number can be", what, word);
	*id = (uint32_t)v;
	return 1;
}

static int ids(struct td_id_list *l, const char *value, int groups, struct td_error *err)
{
	char word[WORD_MAX];
	int rc, any = 0;

	while ((rc = next_word(&value, word, err)) > 0) {
		uint32_t id = 0;

		any = 1;
		rc = number(word, &id, groups ? "group" : "user", err);
		if (rc < 0)
			return rc;
		if (!rc) {
			const struct passwd *pw = groups ? NULL : getpwnam(word);
			const struct group *gr = groups ? getgrnam(word) : NULL;

			if (!pw && !gr)
				return td_error_set(err, TD_E_INVALID, "there is no %s %s", groups ? "group" : "user", word);
			id = pw ? pw->pw_uid : gr->gr_gid;
		}
		rc = add_id(l, id, err);
		if (rc)
			return rc;
	}
	return rc || any ? rc : td_error_set(err, TD_E_INVALID, "the list is empty");
}

int td_tenant_config_uids(struct td_tenant_config *t, const char *value, struct td_error *err)
{
	return ids(&t->uids, value, 0, err);
}

int td_tenant_config_gids(struct td_tenant_config *t, const char *value, struct td_error *err)
{
	return ids(&t->gids, value, 1, err);
}

static int add_key(struct td_key_list *l, const char *word, struct td_error *err)
{
	char **grown;

	if (l->n == LIST_MAX)
		return td_error_set(err, TD_E_INVALID, "the list is longer than %d", LIST_MAX);
	grown = realloc(l->key, (size_t)(l->n + 1) * sizeof(*grown));
	if (!grown)
		return no_memory(err);
	l->key = grown;
	l->key[l->n] = strdup(word);
	if (!l->key[l->n])
		return no_memory(err);
	l->n++;
	return 0;
}

/* Sentences here don't repeat a key: they end up in logs. */
int td_tenant_config_keys(const struct td_tenants_config *c, struct td_tenant_config *t, const char *value, struct td_error *err)
{
	char word[WORD_MAX];
	int rc, any = 0;

	while ((rc = next_word(&value, word, err)) > 0) {
		size_t n = strlen(word);

		any++;
		if (n < KEY_MIN || n > KEY_MAX)
			return td_error_set(err, TD_E_INVALID, "key %d of the list has %zu bytes; a key has %d to %d", any, n, KEY_MIN, KEY_MAX);
		for (size_t i = 0; i < n; i++)
			if (!isgraph((unsigned char)word[i]))
				return td_error_set(err, TD_E_INVALID, "key %d of the list has a byte that is no printable character of ASCII", any);
		for (int i = 0; i < c->n; i++)
			for (int k = 0; k < c->tenant[i].keys.n; k++)
				if (!strcmp(c->tenant[i].keys.key[k], word))
					return td_error_set(err, TD_E_INVALID, "key %d of the list is one of tenant %s already", any, c->tenant[i].name);
		rc = add_key(&t->keys, word, err);
		if (rc)
			return rc;
	}
	return rc || any ? rc : td_error_set(err, TD_E_INVALID, "the list is empty");
}
