/*
 * reload.c: SIGHUP: the log file is opened again and the configuration is read again, by the command line that tandemd was started with.
 *
 * The settings' table says what may change while tandemd runs; that changes for what comes next, running requests go on as they began. What can't change is
 * named in the log and stays. All or nothing: a file with an error changes nothing.
 * What must never happen: a request that ends because of it.
 */
#include <stdio.h>
#include <string.h>

#include "daemon/daemon.h"

struct changes {
	int taken, kept;
};

static void tell(void *ctx, const char *section, const char *key, int taken)
{
	struct changes *c = ctx;

	if (taken) {
		c->taken++;
		td_log(TD_LOG_INFO, "reload: %s.%s has changed", section, key);
	} else {
		c->kept++;
		td_log(TD_LOG_WARN, "reload: %s.%s needs a restart", section, key);
	}
}

/* Tenants may not fit: they come first, while nothing has changed. */
static int apply(struct td_daemon *d, struct td_daemon_config *fresh, struct td_error *err)
{
	struct td_daemon_config *c = &d->cfg;
	int queue = c->queue, batch_age_s = c->batch_age_s, quantum_ms = c->quantum_ms, rc = td_admission_configure(d, fresh, err);
	struct changes n = {0};

	if (rc)
		return rc;
	if (fresh->tenants.exposed)
		td_log(TD_LOG_WARN, "%s holds API keys and everybody on this machine may read it (chmod o-r)", fresh->tenants.exposed);
	c->queue = queue; /* these three are in force; here as well they are taken, and told, with the others below */
	c->batch_age_s = batch_age_s;
	c->quantum_ms = quantum_ms;
	d->fds_short = fresh->max_connections > d->fds_room;
	if (d->fds_short)
		fresh->max_connections = d->fds_room;
	td_daemon_config_apply(c, fresh, tell, &n);
	td_log_open("tandemd", (enum td_log_level)c->log_level);
	td_log(TD_LOG_INFO, "reload: %d settings changed, %d need a restart; %d tenants are in use", n.taken, n.kept, d->tenants.n);
	return 0;
}

static void read_again(struct td_daemon *d)
{
	struct td_daemon_config fresh;
	struct td_error err;
	int rc = td_daemon_config_again(d->argc, d->argv, &fresh, &err);

	if (!rc) {
		rc = apply(d, &fresh, &err);
		td_daemon_config_finish(&fresh);
	}
	if (rc)
		td_log(TD_LOG_ERROR, "reload: nothing changes: %s", err.text);
}

void td_reload(struct td_daemon *d)
{
	struct td_error err;

	if (td_log_reopen(&err))
		td_log(TD_LOG_ERROR, "%s", err.text);
	else
		td_log(TD_LOG_INFO, "the log was reopened");
	if (d->draining)
		return;
	td_notify_reloading(d);
	read_again(d);
	td_notify_reloaded(d);
}
