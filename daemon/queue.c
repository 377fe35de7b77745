/*
 * queue.c: requests that wait for a slot, in order of arrival.
 *
 * The order is that of their numbers, not of being added: a long prompt is tokenised on another thread and may come later than a short one that
 * arrived after it, and a request that a worker's death threw out of its slot goes back to its old place. The queue owns nothing.
 */
#include "daemon/daemon.h"

void td_queue_add(struct td_queue *q, struct td_request *r)
{
	struct td_request **p = &q->head;

	while (*p && (*p)->number < r->number)
		p = &(*p)->queue_next;
	r->queue_next = *p;
	*p = r;
	q->n++;
}

void td_queue_remove(struct td_queue *q, struct td_request *r)
{
	for (struct td_request **p = &q->head; *p; p = &(*p)->queue_next) {
		if (*p != r)
			continue;
		*p = r->queue_next;
		r->queue_next = NULL;
		q->n--;
		return;
	}
}

int td_queue_place(const struct td_queue *q, const struct td_request *r)
{
	int n = 0;

	for (const struct td_request *p = q->head; p && p != r; p = p->queue_next)
		n++;
	return n;
}
