/*
 * sample.c: what to propose and what to accept.
 *
 * A row of logits becomes a distribution in the order that struct td_sampling states, as weights over all ids (dense, 0 = cut away) and their total;
 * a draw walks the weights in ascending id. Cuts to the best (top_k, top_p, the drafter's TD_CAND_MAX) find their threshold by a radix search on
 * the bits of the weights: no sort, and the same choice as a sort by (weight descending, id ascending).
 *
 * Exactness (dflash 2.3.4). For a draft d with proposal q and target p: accepted with probability min(1, p(d)/q(d)), otherwise the token is drawn
 * from max(p - q, 0). q is taken as it was stored, in float32, and the drafter draws from these very numbers. Each position has its own numbers for
 * proposing, accepting and drawing, so what was tried in an earlier block has no influence.
 *
 * Bad logits: NaN counts as -inf; a row with nothing finite means token 0. What must never happen: a token id outside [0, vocab_real) committed.
 */
#include <float.h>

#include "kernels/cpu/cpu.h"
#include "kernels/philox.h"

struct job {
	struct td_dev *dev;
	const struct td_batch *b;
	struct td_tensor logits;
	int vocab; /* real ids; of a proposal from some ids, the columns of these */
	int wide; /* columns of a row of counts */
	const int32_t *id; /* of each column, NULL: itself */
	const struct td_sampling *sampling;
	const uint16_t *counts;
	uint16_t *counts_out;
	struct td_draft *proposal;
	const struct td_draft *draft;
	int32_t *anchor;
	struct td_verdict *verdict;
	const uint32_t *line; /* mask */
};

/* ---- from logits to weights ------------------------------------------------------------------------------------------------------- */

static float sane(float logit)
{
	if (isnan(logit))
		return -INFINITY;
	return logit > FLT_MAX ? FLT_MAX : logit;
}

static float penalise(const struct td_sampling *s, float logit, uint16_t count)
{
	int times = count & 0x7fff;

	if (count && s->repetition > 0)
		logit = logit > 0 ? logit / s->repetition : logit * s->repetition;
	if (times)
		logit -= s->presence + s->frequency * (float)times;
	return logit;
}

static int penalises(const struct td_sampling *s)
{
	return (s->repetition > 0 && s->repetition != 1) || s->presence != 0 || s->frequency != 0;
}

/* The column of an id, or -1. */
static int column_of(const int32_t *id, int vocab, int32_t token)
{
	int low = 0, high = vocab;

	if (!id)
		return token >= 0 && token < vocab ? token : -1;
	while (low < high) {
		int mid = (low + high) / 2;

		if (id[mid] < token)
			low = mid + 1;
		else
			high = mid;
	}
	return low < vocab && id[low] == token ? low : -1;
}

/* Bias and penalties into l (vocab), whose columns stand for `id`. `extra`: tokens to count as output on top of `counts`, each of a column. */
static void adjust(const struct td_sampling *s, const float *logits, const int32_t *id, const uint16_t *counts, const int32_t *extra, int n_extra, int vocab,
		   float *l)
{
	float before[TD_DRAFT_MAX];
	int column[TD_DRAFT_MAX];

	for (int i = 0; i < vocab; i++)
		l[i] = sane(logits[i]);
	for (int i = 0; i < s->n_bias && i < TD_BIAS_MAX; i++) {
		int at = column_of(id, vocab, s->bias_id[i]);

		if (at >= 0)
			l[at] = sane(l[at] + s->bias[i]);
	}
	if (!penalises(s))
		return;
	for (int i = 0; i < n_extra; i++) {
		column[i] = column_of(id, vocab, extra[i]);
		before[i] = l[column[i]];
	}
	for (int i = 0; i < vocab; i++) {
		uint16_t count = counts[id ? id[i] : i];

		if (count)
			l[i] = penalise(s, l[i], count);
	}
	for (int i = 0; i < n_extra; i++) {
		uint16_t count = counts[extra[i]];

		for (int e = 0; e < n_extra; e++)
			if (extra[e] == extra[i])
				td__count_token(&count);
		l[column[i]] = penalise(s, before[i], count);
	}
}

/* The largest, lowest id on a tie; 0 when nothing is finite. */
static int best(const float *l, int vocab)
{
	int at = 0;

	for (int i = 1; i < vocab; i++)
		if (l[i] > l[at])
			at = i;
	return at;
}

/*
 * Keeps the best weights: the first `limit` (by_mass 0), or the fewest whose mass reaches `limit` (by_mass 1), ties by lower id; the others become 0.
 * Three passes narrow the threshold's bits down from the top: buckets of 11, 11 and 10 bits, positive floats ordering like their bits.
 */
static void cut(float *w, int n, int by_mass, double limit)
{
	static const struct { int shift, bits; } level[3] = { { 21, 11 }, { 10, 11 }, { 0, 10 } };
	uint32_t prefix = 0, known = 0;
	double above = 0; /* count or mass of what lies over the threshold */

	for (int i = 0; i < 3; i++) {
		const uint32_t mask = (1u << level[i].bits) - 1;
		double bucket[1 << 11] = { 0 };
		uint32_t b = mask;

		for (int t = 0; t < n; t++) {
			uint32_t bits;

			memcpy(&bits, &w[t], 4);
			if (bits && (bits & known) == prefix)
				bucket[bits >> level[i].shift & mask] += by_mass ? w[t] : 1;
		}
		for (; b > 0 && above + bucket[b] < limit; b--)
			above += bucket[b];
		prefix |= b << level[i].shift;
		known |= mask << level[i].shift;
	}
	for (int t = 0; t < n; t++) {
		uint32_t bits;

		memcpy(&bits, &w[t], 4);
		if (bits == prefix && above < limit)
			above += by_mass ? w[t] : 1;
		else if (bits <= prefix)
			w[t] = 0;
	}
}

static double mass(const float *w, int n)
{
	double sum = 0;

	for (int i = 0; i < n; i++)
		sum += w[i];
	return sum;
}

/* l = exp((l - max) / temperature), 0 where that is below min_p or no number at all. */
TD__INLINE void exponentiate_body(float *l, int vocab, float max, float temperature, float min_p)
{
	for (int i = 0; i < vocab; i++) {
		float x = (l[i] - max) / temperature, w = x < -87.0f ? 0 : td__exp(x);

		l[i] = w >= min_p ? w : 0;
	}
}
TD__DISPATCH(exponentiate, (float *l, int vocab, float max, float temperature, float min_p), (l, vocab, max, temperature, min_p))

/* Logits with bias and penalties -> weights, in place; returns their total. Temperature is above 0. The best id always stays. */
static double weights(const struct td_sampling *s, float *l, int vocab)
{
	const int top = best(l, vocab);
	const float max = l[top];

	exponentiate(l, vocab, max, s->temperature, s->min_p > 1 ? 1 : s->min_p);
	if (max == -INFINITY) {
		memset(l, 0, (size_t)vocab * sizeof(*l));
		l[top] = 1;
	}
	if (s->top_k > 0 && s->top_k < vocab)
		cut(l, vocab, 0, s->top_k);
	if (s->top_p < 1)
		cut(l, vocab, 1, fmax((double)s->top_p * mass(l, vocab), FLT_MIN));
	return mass(l, vocab);
}

/* The id at which the running sum passes u * total; the last with weight when rounding leaves none. */
static int draw(const float *w, int vocab, double total, float u)
{
	double left = (double)u * total;
	int last = 0;

	for (int i = 0; i < vocab; i++) {
		if (w[i] <= 0)
			continue;
		last = i;
		left -= w[i];
		if (left < 0)
			break;
	}
	return last;
}

/* ---- propose ---------------------------------------------------------------------------------------------------------------------- */

static void propose_sampled(const struct td_sampling *s, float *l, const int32_t *id, int vocab, uint32_t position, struct td_draft *d, int at)
{
	double total, sum = 0;
	float q[TD_CAND_MAX];
	int n = 0;

	weights(s, l, vocab);
	if (vocab > TD_CAND_MAX)
		cut(l, vocab, 0, TD_CAND_MAX);
	total = mass(l, vocab);
	for (int i = 0; i < vocab && n < TD_CAND_MAX; i++) {
		float share = (float)(l[i] / total);

		if (share <= 0)
			continue;
		d->cand[at][n] = id ? id[i] : i;
		d->q[at][n] = q[n] = share;
		sum += share;
		n++;
	}
	d->n_cand[at] = n;
	d->token[at] = d->cand[at][draw(q, n, sum, td_uniform(s->seed, position, TD_PROPOSE))];
}

static void propose_item(void *job, int index, int thread)
{
	const struct job *j = job;
	const struct td_seq *seq = &j->b->dev[index];
	const struct td_sampling *s = &j->sampling[seq->slot];
	const uint16_t *counts = j->counts + (size_t)seq->slot * (size_t)j->wide;
	struct td_draft *d = &j->proposal[seq->slot];
	float *l = j->dev->scratch[thread].mem;
	int row = 0;

	for (int i = 0; i < index; i++)
		row += j->b->dev[i].rows - 1;
	d->n = seq->rows - 1;
	for (int i = 0; i < d->n; i++) {
		adjust(s, td__row(&j->logits, row + i), j->id, counts, d->token, i, j->vocab, l);
		if (s->temperature > 0) {
			propose_sampled(s, l, j->id, j->vocab, (uint32_t)(seq->pos0 + i + 1), d, i);
		} else {
			int at = best(l, j->vocab);

			d->n_cand[i] = 0;
			d->token[i] = j->id ? j->id[at] : at;
		}
	}
}

static int rows_ok(struct td_dev *dev, const char *op, const struct job *j)
{
	if (j->logits.dtype != TD_F32 || j->vocab < 1) {
		td__fail(dev, TD_E_INTERNAL, "%s: logits must be F32 and have ids, not %d of %d", op, j->vocab, j->logits.cols);
		return 0;
	}
	for (int i = 0; i < j->b->n_seq; i++) {
		if (j->b->dev[i].rows < 1 || j->b->dev[i].rows > TD_BLOCK_MAX) {
			td__fail(dev, TD_E_INTERNAL, "%s: a block of %d rows", op, j->b->dev[i].rows);
			return 0;
		}
	}
	return !td__scratch_need(dev, (size_t)j->logits.cols * sizeof(float));
}

void td__propose(struct td_dev *dev, const struct td_batch *b, struct td_tensor logits, const struct td_columns *of, int vocab_real,
		 const struct td_sampling *sampling, const uint16_t *counts, struct td_draft *draft)
{
	struct job job = { .dev = dev, .b = b, .logits = logits, .vocab = vocab_real < logits.cols ? vocab_real : logits.cols, .sampling = sampling };

	job.wide = of ? of->vocab : logits.cols;
	job.id = of ? of->id : NULL;
	if (of && of->n != logits.cols) {
		td__fail(dev, TD_E_INTERNAL, "propose: %d columns of logits for %d ids", logits.cols, of->n);
		return;
	}
	job.vocab = of ? of->n : job.vocab;
	job.counts = counts;
	job.proposal = draft;
	if (rows_ok(dev, "propose", &job))
		td__parallel(dev, b->n_seq, 1, propose_item, &job);
}

/* ---- mask ------------------------------------------------------------------------------------------------------------------------- */

static void mask_item(void *job, int index, int thread)
{
	const struct job *j = job;
	const int words = TD_MASK_WORDS(j->logits.cols);
	const uint32_t *bits = j->line + (size_t)index * (size_t)(words + 1);
	float *l;

	(void)thread;
	if (bits[words] >= (uint32_t)j->logits.rows)
		return;
	l = td__row(&j->logits, (int)bits[words]);
	for (int i = 0; i < j->logits.cols; i++)
		if (!(bits[i / 32] >> i % 32 & 1))
			l[i] = -INFINITY;
}

void td__mask(struct td_dev *dev, struct td_tensor logits, const uint32_t *line, int n)
{
	struct job job = { .dev = dev, .logits = logits, .line = line };

	if (logits.dtype != TD_F32) {
		td__fail(dev, TD_E_INTERNAL, "mask: logits must be F32");
		return;
	}
	td__parallel(dev, n, 1, mask_item, &job);
}

/* ---- accept ----------------------------------------------------------------------------------------------------------------------- */

/* Takes q out of the weights (which sum to `total`), or leaves them when nothing would be left; returns the new total. */
static double residual(float *w, int vocab, double total, const struct td_draft *d, int at)
{
	float saved[TD_CAND_MAX] = { 0 };
	int n = d->n_cand[at] > 0 ? d->n_cand[at] < TD_CAND_MAX ? d->n_cand[at] : TD_CAND_MAX : 1;
	const int32_t *id = d->n_cand[at] > 0 ? d->cand[at] : &d->token[at];
	double left;

	for (int i = 0; i < n; i++) {
		if (id[i] < 0 || id[i] >= vocab)
			continue;
		saved[i] = w[id[i]];
		w[id[i]] = d->n_cand[at] > 0 ? (float)fmax(saved[i] - d->q[at][i] * total, 0) : 0;
	}
	left = mass(w, vocab);
	if (left > 0)
		return left;
	for (int i = 0; i < n; i++)
		if (id[i] >= 0 && id[i] < vocab)
			w[id[i]] = saved[i];
	return total;
}

/* q of the drafted token: 1 for a point mass, 0 when it is missing from its own list (then it is never accepted). */
static float drafted_q(const struct td_draft *d, int at)
{
	if (d->n_cand[at] <= 0)
		return 1;
	for (int i = 0; i < d->n_cand[at] && i < TD_CAND_MAX; i++)
		if (d->cand[at][i] == d->token[at])
			return d->q[at][i];
	return 0;
}

/* Decides one position from its adjusted logits l: the token, and in *accepted whether it is the draft `at` (< 0: there is no draft). */
static int decide(const struct td_sampling *s, float *l, int vocab, uint32_t position, const struct td_draft *d, int at, int *accepted)
{
	const int drafted = at >= 0 ? d->token[at] : -1;
	double total;

	*accepted = 0;
	if (!(s->temperature > 0)) {
		int token = best(l, vocab);

		*accepted = token == drafted;
		return token;
	}
	total = weights(s, l, vocab);
	if (at >= 0) {
		double p = drafted >= 0 && drafted < vocab ? l[drafted] / total : 0, q = drafted_q(d, at);

		if (q > 0 && (double)td_uniform(s->seed, position, TD_ACCEPT) * q < p) {
			*accepted = 1;
			return drafted;
		}
		total = residual(l, vocab, total, d, at);
	}
	return draw(l, vocab, total, td_uniform(s->seed, position, TD_DRAW));
}

/* Log-probabilities of the raw logits; what is not finite is told as -9999. */
static void report(const float *logits, int vocab, int n_top, int token, struct td_verdict *v, int at)
{
	float max = -INFINITY, top[TD_TOP_MAX];
	double sum = 0;
	int n = 0;

	for (int i = 0; i < vocab; i++) {
		float l = sane(logits[i]);
		int to = n;

		max = l > max ? l : max;
		/* Insertion into a short sorted list: nearly every id stops at the first comparison. */
		while (to > 0 && l > top[to - 1])
			to--;
		if (to >= n_top)
			continue;
		n += n < n_top;
		for (int m = n - 1; m > to; m--) {
			top[m] = top[m - 1];
			v->top_id[at][m] = v->top_id[at][m - 1];
		}
		top[to] = l;
		v->top_id[at][to] = i;
	}
	for (int i = 0; i < vocab; i++)
		sum += exp((double)sane(logits[i]) - max);
	for (int i = 0; i < n; i++) {
		double lp = top[i] - max - log(sum);

		v->top_logprob[at][i] = lp > -9999 ? (float)lp : -9999;
	}
	sum = sane(logits[token]) - max - log(sum);
	v->logprob[at] = sum > -9999 ? (float)sum : -9999;
}

static void accept_item(void *job, int index, int thread)
{
	const struct job *j = job;
	const struct td_seq *seq = &j->b->dev[index];
	const struct td_sampling *s = &j->sampling[seq->slot];
	const struct td_draft *d = seq->rows > 1 ? &j->draft[seq->slot] : NULL;
	struct td_verdict *v = &j->verdict[index];
	uint16_t *counts = j->counts_out + (size_t)seq->slot * (size_t)j->wide;
	float *l = j->dev->scratch[thread].mem;
	int n_top = s->logprobs < 0 ? 0 : s->logprobs > TD_TOP_MAX ? TD_TOP_MAX : s->logprobs, accepted = 1;

	v->n = 0;
	v->n_top = n_top < j->vocab ? n_top : j->vocab;
	for (int r = 0; r < seq->rows && accepted; r++) {
		const float *logits = td__row(&j->logits, seq->row0 + r);
		int token;

		/* The counts hold the drafts accepted so far, so this row sees the penalties of its own past. */
		adjust(s, logits, NULL, counts, NULL, 0, j->vocab, l);
		token = decide(s, l, j->vocab, (uint32_t)(seq->pos0 + r + 1), d, r + 1 < seq->rows ? r : -1, &accepted);
		v->logprob[r] = 0;
		if (s->logprobs >= 0)
			report(logits, j->vocab, v->n_top, token, v, r);
		if (penalises(s))
			td__count_token(&counts[token]);
		v->token[v->n++] = token;
	}
	j->anchor[seq->slot] = v->token[v->n - 1];
}

void td__accept(struct td_dev *dev, const struct td_batch *b, struct td_tensor logits, int vocab_real, const struct td_sampling *sampling,
		const struct td_draft *draft, uint16_t *counts, int32_t *anchor, struct td_verdict *verdict)
{
	struct job job = { .dev = dev, .b = b, .logits = logits, .vocab = vocab_real < logits.cols ? vocab_real : logits.cols, .sampling = sampling };

	job.wide = logits.cols;
	job.counts_out = counts;
	job.draft = draft;
	job.anchor = anchor;
	job.verdict = verdict;
	if (rows_ok(dev, "accept", &job))
		td__parallel(dev, b->n_seq, 1, accept_item, &job);
}
