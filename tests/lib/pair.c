/*
 * pair.c: see pair.h.
 */
#include "tests/lib/pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void die(const struct td_error *err)
{
	fprintf(stderr, "%s\n", err->text);
	exit(1);
}

void pair_greedy(struct td_sampling *s)
{
	memset(s, 0, sizeof(*s));
	s->top_p = 1;
	s->repetition = 1;
	s->logprobs = -1;
}

static void make_shm(struct pair *p, const struct pair_options *o)
{
	const struct td_target_config *t = &p->tw->cfg;
	struct td_shm_config cfg = {.slots = o->slots, .context = o->context, .vocab = t->vocab, .chunk = o->chunk, .host_exchange = 0};
	struct td_error err;

	cfg.features = p->dw ? p->dw->cfg.n_taps * t->hidden : 0;
	cfg.feature_rows = o->chunk > o->slots * TD_BLOCK_MAX ? o->chunk : o->slots * TD_BLOCK_MAX;
	if (td_shm_create(&cfg, &p->shm_fd, &p->shm, &err))
		die(&err);
	p->exchange_base = p->ops->alloc(p->dev, td_exchange_bytes(&cfg, p->ops->act), &err);
	if (!p->exchange_base)
		die(&err);
	td_exchange_layout(&cfg, p->ops->act, p->exchange_base, &p->exchange);
	atomic_store(&p->shm->epoch, 1);
	atomic_store(&p->shm->drafter_present, p->dw != NULL);
}

void pair_open(struct pair *p, const struct pair_options *o)
{
	struct td_dev_options dev = {.threads = o->threads, .slots = o->slots};
	struct td_load how[] = {{.form = o->form & ~o->not_target}, {.form = o->form & ~o->not_drafter}};
	struct td_error err;
	char fingerprint[256];

	memset(p, 0, sizeof(*p));
	p->ops = td_ops_find(o->device, &err);
	if (!p->ops || p->ops->open(&p->dev, &dev, &err) || td_target_weights_load(p->ops, p->dev, o->target_dir, &how[0], &p->tw, fingerprint, &err))
		die(&err);
	if (o->drafter_dir && (td_drafter_weights_load(p->ops, p->dev, o->drafter_dir, &how[1], &p->dw, fingerprint, &err) ||
			       td_pair_check(&p->tw->cfg, &p->dw->cfg, &err)))
		die(&err);
	make_shm(p, o);
	struct td_target_options topt = {.ops = p->ops, .dev = p->dev, .shm = p->shm, .exchange = p->exchange, .event_fd = -1, .weights = p->tw,
					 .n_taps = p->dw ? p->dw->cfg.n_taps : 0, .tap = p->dw ? p->dw->cfg.tap : NULL,
					 .pool = {.kv_pages = o->kv_pages ? o->kv_pages : o->slots * o->context / TD_PAGE,
						  .prefix_states = o->prefix_states}, .vocab_real = p->tw->cfg.vocab, .vocab_fd = o->vocab_fd,
					 .probe = o->target_probe, .probe_ctx = o->probe_ctx};

	if (td_target_create(&topt, &p->target, &err))
		die(&err);
	if (!p->dw)
		return;
	struct td_drafter_options dopt = {.ops = p->ops, .dev = p->dev, .shm = p->shm, .exchange = p->exchange, .event_fd = -1, .weights = p->dw,
					  .embed = p->tw->embed, .head = p->tw->head, .exact = p->tw->exact, .kv_pages = topt.pool.kv_pages, .vocab_real = p->tw->cfg.vocab,
					  .draft_id = o->draft_id, .n_draft_ids = o->n_draft_ids, .probe = o->drafter_probe, .probe_ctx = o->probe_ctx};

	if (td_drafter_create(&dopt, &p->drafter, &err))
		die(&err);
}

void pair_close(struct pair *p)
{
	td_drafter_destroy(p->drafter);
	td_target_destroy(p->target);
	p->ops->free(p->dev, p->exchange_base);
	td_drafter_weights_free(p->ops, p->dev, p->dw);
	td_target_weights_free(p->ops, p->dev, p->tw);
	p->ops->close(p->dev);
	td_shm_unmap(p->shm);
	close(p->shm_fd);
}

uint64_t pair_allocations(const struct pair *p)
{
	return p->ops->allocations ? p->ops->allocations(p->dev) : 0;
}

void pair_submit(struct pair *p, struct pair_request *r, int slot)
{
	struct td_slot_area *a = td_shm_slot(p->shm, slot);
	struct td_record rec = {.epoch = atomic_load(&p->shm->epoch), .kind = TD_REC_START, .slot = (uint16_t)slot};

	memset(a, 0, sizeof(*a));
	a->request = rec.request = r->request = ++p->requests;
	a->epoch = rec.epoch;
	a->n_tokens = r->n_ids;
	a->n_prompt = r->n_prompt;
	a->max_total = r->max_total;
	a->k = r->k;
	a->sampling = r->sampling;
	a->grammar_bytes = (int32_t)r->n_grammar;
	if (r->n_grammar)
		memcpy(td_shm_grammar(p->shm, slot), r->grammar, r->n_grammar);
	a->cache = r->cache;
	a->tenant = r->tenant;
	atomic_store(&a->turn, r->turn);
	if (r->stop_at_eos)
		for (int i = 0; i < p->tw->cfg.n_eos; i++)
			a->stop[a->n_stop++] = p->tw->cfg.eos[i];
	memcpy(td_shm_ids(p->shm, slot), r->ids, sizeof(int32_t) * (size_t)r->n_ids);
	r->slot = slot;
	r->n_out = r->finish = r->cycles = r->drafted = r->accepted = r->cached = r->prefilled = 0;
	r->charge_us = r->wasted_us = 0;
	td_ring_push(&p->shm->to_target, &rec);
}

void pair_cancel(struct pair *p, struct pair_request *r)
{
	struct td_record rec = {.epoch = atomic_load(&p->shm->epoch), .kind = TD_REC_CANCEL, .slot = (uint16_t)r->slot, .request = r->request};

	td_ring_push(&p->shm->to_target, &rec);
}

static void take_prefill(struct pair_request *r, const struct td_record *rec)
{
	if (!rec->n)
		r->cached = (int)rec->a;
	else
		r->prefilled = (int)rec->a - r->cached;
}

static void take_records(struct pair *p, struct pair_request *req, int n, const struct pair_hooks *hooks)
{
	struct td_record rec;

	while (td_ring_pop(&p->shm->from_target, &rec)) {
		struct pair_request *r = NULL;

		for (int i = 0; i < n; i++)
			if (req[i].request == rec.request)
				r = &req[i];
		if (!r)
			continue;
		r->charge_us += rec.us_charge;
		r->wasted_us += rec.us_wasted;
		if (rec.kind == TD_REC_PREFILL) {
			take_prefill(r, &rec);
		} else if (rec.kind == TD_REC_COMMIT) {
			memcpy(r->out + r->n_out, rec.token, sizeof(int32_t) * rec.n);
			r->n_out += rec.n;
			r->cycles += rec.reason;
			r->drafted += rec.drafted;
			r->accepted += rec.accepted;
			if (hooks && hooks->commit)
				hooks->commit(hooks->ctx, &rec);
		} else if (rec.kind == TD_REC_DONE) {
			r->finish = rec.reason;
		}
	}
}

static void show_drafts(struct pair *p, struct pair_request *req, int n, const struct pair_hooks *hooks)
{
	struct td_error err;

	for (int i = 0; i < n && hooks && hooks->draft; i++) {
		struct td_draft draft;

		if (req[i].finish)
			continue;
		if (p->ops->download(p->dev, &draft, p->exchange.draft + req[i].slot, sizeof(draft), &err))
			die(&err);
		hooks->draft(hooks->ctx, req[i].slot, &draft);
	}
}

static int drafter_waits(const struct pair *p)
{
	return atomic_load(&p->shm->target.value) < atomic_load(&p->shm->drafter.value) + TD_FEATURE_BUFS;
}

int pair_step(struct pair *p, struct pair_request *req, int n, const struct pair_hooks *hooks)
{
	struct td_error err;
	int rc = td_target_work(p->target, &err), did = rc; /* one step, then the drafter: neither may wait for the other in one thread */

	if (rc < 0)
		die(&err);
	take_records(p, req, n, hooks);
	while (p->drafter && !(p->lazy && did && drafter_waits(p)) && (rc = td_drafter_work(p->drafter, &err)) > 0) {
		did = 1;
		show_drafts(p, req, n, hooks);
	}
	if (rc < 0)
		die(&err);
	return did;
}

void pair_new_epoch(struct pair *p)
{
	uint32_t epoch = atomic_load(&p->shm->epoch);
	struct td_record rec;
	struct td_error err;

	atomic_store(&p->shm->epoch, epoch + 1);
	atomic_store(&p->shm->target.value, TD_FLAG_POISON(epoch));
	atomic_store(&p->shm->drafter.value, TD_FLAG_POISON(epoch));
	if (td_target_work(p->target, &err) < 0 || (p->drafter && td_drafter_work(p->drafter, &err) < 0))
		die(&err);
	while (td_ring_pop(&p->shm->from_target, &rec) || td_ring_pop(&p->shm->from_drafter, &rec))
		;
}

static int open_of(const struct pair_request *req, int n)
{
	int open = 0;

	for (int i = 0; i < n; i++)
		open += !req[i].finish;
	return open;
}

void pair_run(struct pair *p, struct pair_request *req, int n, const struct pair_hooks *hooks)
{
	for (int i = 0; i < n; i++)
		pair_submit(p, &req[i], i);
	while (open_of(req, n)) {
		if (!pair_step(p, req, n, hooks) && open_of(req, n)) {
			fprintf(stderr, "pair_run: nothing moves, %d of %d requests open\n", open_of(req, n), n);
			exit(1);
		}
	}
}
