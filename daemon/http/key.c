/*
 * key.c: who asks, on a TCP connection: an API key says it (Authorization: Bearer). Without one it is the tenant "default", if http.require_key
 * allows that. A connection may ask with another key each time.
 */
#include <string.h>
#include <strings.h>

#include "daemon/daemon.h"

static int key_required(const struct td_daemon *d)
{
	if (strcmp(d->cfg.http_require_key, "auto"))
		return !strcmp(d->cfg.http_require_key, "yes");
	if (d->tenants.unknown == TD_UNKNOWN_REFUSE) /* else the port would let in whom the socket refuses */
		return 1;
	for (int i = 0; i < d->tenants.n; i++)
		if (d->tenants.tenant[i]->cfg.keys.n)
			return 1;
	return !strcmp(d->cfg.http_allow_remote, "yes");
}

int td_http_identify(struct td_session *s, const char *auth, size_t n, struct td_error *err)
{
	struct td_tenant *t;
	char key[512];

	if (!n) {
		if (key_required(s->d))
			return td_error_set(err, TD_E_UNAUTHORIZED, "an API key is needed: send Authorization: Bearer KEY");
		t = td_tenant_default(&s->d->tenants);
		if (!t)
			return td_error_set(err, TD_E_NOMEM, "there is no room for another tenant");
		td_session_be(s, t);
		return 0;
	}
	if (n < 8 || n - 7 >= sizeof(key) || strncasecmp(auth, "Bearer ", 7))
		return td_error_set(err, TD_E_UNAUTHORIZED, "the header field Authorization must be: Bearer KEY");
	memcpy(key, auth + 7, n - 7);
	key[n - 7] = 0;
	t = td_tenant_by_key(&s->d->tenants, key + strspn(key, " "), err);
	/* Where none is needed, one that nobody knows does no harm: clients that insist on sending one may send anything. */
	if (!t && !key_required(s->d))
		t = td_tenant_default(&s->d->tenants);
	if (!t)
		return TD_E_UNAUTHORIZED;
	td_session_be(s, t);
	return 0;
}
