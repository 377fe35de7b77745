/*
 * tenant.h: who a client is to the daemon: name, settings, place in the queue.
 *
 * A tenant is found by the peer's uid (SO_PEERCRED), else by its groups (SO_PEERGROUPS), else by an API key (HTTP on loopback). Sections [tenant NAME] of
 * the configuration make tenants; a uid that none of them names gets, as tenants.unknown says, a tenant of its own (named after the user, with the
 * settings of [tenant default]), the shared tenant "default", or a refusal. A uid that several sections name may choose among them by Hello.tenant; the first
 * of them is what it gets otherwise.
 *
 * Who owns: the daemon owns the table, the table its tenants. Sessions, requests and slots hold references; a tenant whose section
 * vanished in a reload is freed when nobody holds it. Numbers are never used twice: the prefix cache goes by them.
 * What must never happen: a key compared in a time that tells how much of it is right; a table that clients can grow beyond its bound.
 */
#ifndef TD_TENANT_H
#define TD_TENANT_H

#include <stdint.h>
#include <sys/types.h>

#include "daemon/queue.h"
#include "engine/error.h"

enum { TD_TENANTS_MAX = 1024, TD_TENANT_NAME = 64 };

/* ---- configuration ----------------------------------------------------------------------------------------------------------------- */

struct td_id_list {
	uint32_t *id;
	int n;
};

struct td_key_list {
	char **key;
	int n;
};

struct td_tenant_config {
	char name[TD_TENANT_NAME];
	struct td_id_list uids, gids;
	struct td_key_list keys;
	double weight;
	int max_running; /* requests in slots; 0 = no limit of its own */
	int queue; /* requests that may wait; 0 = limits.queue alone */
	int64_t tokens_per_minute; /* prompt and output; 0 = no limit */
	int context; /* tokens of a request; 0 = the model's */
	int memory_share; /* per cent of the KV pages; 0 = by weight */
	int band; /* enum td_band: of requests that do not say */
};

enum td_unknown { TD_UNKNOWN_OWN, TD_UNKNOWN_DEFAULT, TD_UNKNOWN_REFUSE };

struct td_tenants_config {
	struct td_tenant_config *tenant; /* malloc'd (n), in the order in which they were named */
	int n;
	char *unknown; /* own, default, refuse */
	char *order; /* fair, arrival */
	char *exposed; /* a file with API keys that everybody may read; NULL: none */
};

/* The section of this name, made when it is new. NULL + err. */
struct td_tenant_config *td_tenant_config_get(struct td_tenants_config *c, const char *name, size_t n, struct td_error *err);
/* Appends to the lists: "1000, alice". Names are looked up. */
int td_tenant_config_uids(struct td_tenant_config *t, const char *value, struct td_error *err);
int td_tenant_config_gids(struct td_tenant_config *t, const char *value, struct td_error *err);
int td_tenant_config_keys(const struct td_tenants_config *c, struct td_tenant_config *t, const char *value, struct td_error *err);
void td_tenant_config_finish(struct td_tenant_config *t);
void td_tenants_config_finish(struct td_tenants_config *c);

/* ---- tenants ----------------------------------------------------------------------------------------------------------------------- */

struct td_tenant {
	struct td_tenant_config cfg;
	uint64_t number; /* never used twice */
	int refs; /* sessions, requests, slots */
	int configured; /* 0: made for a uid, or its section vanished */
	int place; /* of its section in the configuration */
	int own; /* made for a uid */
	uid_t own_uid;
	struct td_flow flow; /* flow.running, flow.queued, flow.pages, flow.clock_us: how things stand */
	/* token bucket: of tokens_per_minute */
	double tokens; /* what is left; below 0: owed */
	uint64_t tokens_us; /* as of then */
	uint64_t used_us; /* last look-up */
};

struct td_tenants {
	struct td_tenant *tenant[TD_TENANTS_MAX];
	int n;
	enum td_unknown unknown;
	struct td_tenant_config fallback; /* settings of own tenants and of "default" */
	uint64_t next_number;
	uint32_t generation; /* changes when who belongs to whom may have changed */
};

struct td_daemon;

/* Makes the table what the configuration says, at start and at each reload: tenants that stay keep their counters, running requests go on in any case.
 * Lists are taken over from *c. 0, or TD_E_LIMIT or TD_E_NOMEM with the table as it was. */
int td_tenants_apply(struct td_tenants *t, struct td_tenants_config *c, struct td_error *err);
void td_tenants_finish(struct td_tenants *t);

/* Who is at the other end of this socket. `asked`: Hello.tenant, or NULL. A reference, or NULL + err (permission_denied). */
struct td_tenant *td_tenant_by_peer(struct td_tenants *t, int fd, const char *asked, struct td_error *err);
/* Whose key it is: a reference, or NULL + err (unauthorized). */
struct td_tenant *td_tenant_by_key(struct td_tenants *t, const char *key, struct td_error *err);
/* The shared tenant "default": a reference; NULL: no room. */
struct td_tenant *td_tenant_default(struct td_tenants *t);
struct td_tenant *td_tenant_hold(struct td_tenant *t);
void td_tenant_drop(struct td_tenants *t, struct td_tenant *x); /* NULL is fine */

/* ---- token bucket ------------------------------------------------------------------------------------------------------------------ */

/* 0 when requests may come, else the milliseconds until they may. */
uint32_t td_tenant_rate_wait(struct td_tenant *t, uint64_t now_us);
void td_tenant_spend(struct td_tenant *t, int64_t tokens, uint64_t now_us);

#endif
