/*
 * log.h: one line per event: time, level, who, text; to stderr and, in tandemd, to a file.
 *
 * A log that can't be written (disk full, pipe closed) never stops the process: lines are dropped, counted, and the count is told when writing
 * works again. Not for per-token events. Safe from any thread.
 */
#ifndef TD_LOG_H
#define TD_LOG_H

#include <stddef.h>

#include "engine/error.h"

enum td_log_level { TD_LOG_DEBUG, TD_LOG_INFO, TD_LOG_WARN, TD_LOG_ERROR };

void td_log_open(const char *who, enum td_log_level level); /* `who`: tandemd, target, drafter; literal */
int td_log_file(const char *path, struct td_error *err); /* also append to this file; reopened by td_log_reopen (SIGHUP, logrotate) */
int td_log_reopen(struct td_error *err);
void td_log(enum td_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A line of another process, without its end. One that begins as ours do is taken as it is and by its own level; any other is put under `who`
 * and `level`. At most TD_LOG_LINE bytes. */
enum { TD_LOG_LINE = 1920 };
void td_log_relay(const char *who, enum td_log_level level, const char *line, size_t n);
int td_log_level_parse(const char *text); /* -1 when unknown */
unsigned long td_log_dropped(void);

#endif
