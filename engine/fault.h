/*
 * fault.h: fault levers: named spots where a test can make a process crash, hang or misbehave.
 *
 * Armed only by TANDEM_FAULT in tandemd's environment ("name", "name:count" = at the count-th visit; several by commas), which tandemd passes
 * on to its workers with Configure. Reachable by whoever starts the daemon, never by a client. A spot costs one load when nothing is armed.
 */
#ifndef TD_FAULT_H
#define TD_FAULT_H

struct td_ops;
struct td_dev;

void td_fault_arm(const char *spec); /* NULL or "" disarms; unknown names abort with a message that lists the known ones */
/* 1 when the lever of this name is due now. Names: see TD_FAULTS in fault.c. */
int td_fault(const char *name);
/* 1 while a lever is set that is a state and not a moment: asking does not use it up. */
int td_fault_set(const char *name);
/* crash = abort(), hang = sleep for ever, at the spot `where`: levers "<where>.crash" and "<where>.hang". */
void td_fault_spot(const char *where);
/* When the lever is due the device makes an illegal access (td_ops.fault). On a backend that has none the process aborts: a test asked for what cannot be. */
void td_fault_gpu(const char *name, const struct td_ops *ops, struct td_dev *dev);

#endif
