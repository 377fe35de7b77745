/*
 * graph.cu: steps that come again and again, kept as CUDA graphs (td_ops.replay); and the clock of a step.
 *
 * The first time that a step is asked for its calls are made as ever: kernels are loaded, scratch memory finds its size. The second time the stream
 * records them, and the graph is kept. From then on the step is one launch. A recorded step begins with a kernel that fetches the batches' td_seq from
 * pinned memory to where the recorded kernels read them, and ends with one that tells the host: the times of the marks, then a number that counts
 * steps. The host looks for that number (replay_wait), which comes sooner than the driver's word that the stream is idle.
 *
 *	host:	write td_seq, launch -----------------------------------------------> sees `done`
 *	GPU:	               fetch td_seq, mark 0 | kernels of the step ... | marks, done
 *
 * What a graph holds is addresses: all graphs are dropped when memory is freed or scratch memory moves. A step that can't be recorded is an error, not
 * a slow step. What must never happen: a launch with another form than the recorded one (the key names all that grids are made of), or td_seq that no
 * operation would have taken: check() stands for the checks that the operations make when they are called.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/internal.cuh"

enum { KEPT = 64, CHECK_US = 100 };

/* What the launches of a step are made of; compared as bytes. */
struct form {
	const void *who;
	uint32_t what;
	int ctx_max;
	int n;
	struct {
		int n_seq, n_rows, max_rows;
	} batch[TD_REPLAY_BATCHES];
	int none; /* no bytes between the fields or behind them */
};

struct kept {
	struct form form; /* who NULL: empty */
	uint64_t used; /* by the clock of uses */
	cudaGraphExec_t exec; /* NULL: seen once */
	struct td_seq *seq, *seq_dev; /* pinned, device: (TD_REPLAY_BATCHES * slots), the batches one after the other */
	uint64_t launch; /* number of its last */
};

/* Pinned: what the GPU tells the host. */
struct board {
	volatile unsigned long long done, mark[TD_MARKS];
};

/* The GPU's own. */
struct td_cuda_clock {
	unsigned long long steps, mark[TD_MARKS];
};

struct td_cuda_replay {
	struct kept kept[KEPT];
	struct td_seq *seq, *seq_dev; /* of all */
	struct board *board, *board_dev;
	struct td_cuda_clock *clock;
	uint64_t uses, launches;
	struct kept *recording;
	int spin; /* processors are to spare */
};

/* ---- kernels ------------------------------------------------------------------------------------------------------------------------ */

static __global__ void begin_kernel(const uint32_t *from, uint32_t *to, int words, struct td_cuda_clock *clock)
{
	after_previous();
	for (int i = threadIdx.x; i < words; i += blockDim.x)
		to[i] = from[i];
	if (threadIdx.x == 0)
		clock->mark[TD_MARK_BEGIN] = device_ns();
	__threadfence(); /* kernels may read td_seq before they wait for the one before them */
	__syncthreads(); /* one thread is enough to let them start */
	let_next_start();
}

static __global__ void mark_kernel(struct td_cuda_clock *clock, int i)
{
	let_next_start();
	after_previous();
	clock->mark[i] = device_ns();
}

static __global__ void end_kernel(struct td_cuda_clock *clock, struct board *board)
{
	after_previous();
	for (int i = 0; i < TD_MARKS; i++)
		board->mark[i] = i == TD_MARK_END ? device_ns() : clock->mark[i];
	__threadfence_system(); /* and all that the step wrote to the host before */
	board->done = ++clock->steps;
}

/* ---- life --------------------------------------------------------------------------------------------------------------------------- */

int td__cuda_replay_open(struct td_dev *dev)
{
	size_t each = (size_t)TD_REPLAY_BATCHES * dev->batch_cap, bytes = KEPT * each * sizeof(struct td_seq);
	struct td_cuda_replay *r = (struct td_cuda_replay *)calloc(1, sizeof(*r));
	cpu_set_t mine;

	dev->replay = r;
	if (!r) {
		td__cuda_fail(dev, TD_E_NOMEM, "no memory for the device's own data");
		return -1;
	}
	r->spin = sched_getaffinity(0, sizeof(mine), &mine) == 0 && CPU_COUNT(&mine) > 2;
	if (td__cuda_check(dev, cudaHostAlloc((void **)&r->board, sizeof(*r->board), cudaHostAllocMapped), "words of the steps") ||
	    td__cuda_check(dev, cudaHostAlloc((void **)&r->seq, bytes, cudaHostAllocMapped), "batches of recorded steps") ||
	    td__cuda_check(dev, cudaMalloc(&r->seq_dev, bytes), "batches of recorded steps") ||
	    td__cuda_check(dev, cudaMalloc(&r->clock, sizeof(*r->clock)), "marks of a step") ||
	    td__cuda_check(dev, cudaMemsetAsync(r->clock, 0, sizeof(*r->clock), dev->stream), "marks of a step") ||
	    td__cuda_check(dev, cudaHostGetDevicePointer((void **)&r->board_dev, r->board, 0), "words of the steps"))
		return -1;
	memset((void *)r->board, 0, sizeof(*r->board));
	for (int i = 0; i < KEPT; i++) {
		r->kept[i].seq = r->seq + i * each;
		r->kept[i].seq_dev = r->seq_dev + i * each;
	}
	return 0;
}

static void forget(struct kept *k)
{
	if (k->exec)
		cudaGraphExecDestroy(k->exec);
	k->exec = NULL;
	memset(&k->form, 0, sizeof(k->form));
	k->used = 0;
}

void td__cuda_replay_drop(struct td_dev *dev)
{
	for (int i = 0; dev->replay && i < KEPT; i++)
		forget(&dev->replay->kept[i]);
}

void td__cuda_replay_close(struct td_dev *dev)
{
	struct td_cuda_replay *r = dev->replay;

	if (!r)
		return;
	td__cuda_replay_drop(dev);
	cudaFree(r->clock);
	cudaFree(r->seq_dev);
	cudaFreeHost(r->seq);
	cudaFreeHost(r->board);
	free(r);
	dev->replay = NULL;
}

int td__cuda_recording(const struct td_dev *dev)
{
	return dev->replay && dev->replay->recording != NULL;
}

/* ---- the form of a step ------------------------------------------------------------------------------------------------------------- */

static int check(struct td_dev *dev, const struct td_replay *r, const struct td_batch *b)
{
	int ok = b->n_seq >= 1 && b->n_seq <= dev->batch_cap && b->max_ctx <= r->ctx_max;

	for (int i = 0; ok && i < b->n_seq; i++) {
		const struct td_seq *s = &b->seq[i];

		ok = s->slot >= 0 && s->slot < dev->slots && s->rows >= 1 && s->rows <= b->max_rows && s->rows <= TD_BLOCK_MAX && s->row0 >= 0 &&
		     s->row0 + s->rows <= b->n_rows && s->pos0 >= 0 && s->pos0 + s->rows <= b->max_ctx && s->replay >= 0 && s->replay <= TD_BLOCK_MAX &&
		     !s->commit;
	}
	if (!ok)
		td__cuda_fail(dev, TD_E_INTERNAL, "a step to be kept: a sequence of it lies outside of its batch of %d rows, its %d positions or the %d slots",
			      b->n_rows, r->ctx_max, dev->slots);
	return ok ? 0 : -1;
}

/* Rows come in eights, as the products take them; those that are no sequence's are multiplied for nothing. No grid hangs on the context today; if one
 * does, it is that of the longest. */
static int form_of(struct td_dev *dev, const struct td_replay *r, struct form *f)
{
	memset(f, 0, sizeof(*f));
	f->who = r->who;
	f->what = r->what;
	f->ctx_max = r->ctx_max;
	f->n = r->n;
	for (int i = 0; i < r->n; i++) {
		struct td_batch *b = r->batch[i];

		if (check(dev, r, b))
			return -1;
		b->max_ctx = r->ctx_max;
		if (b->n_rows > b->n_seq) {
			b->n_rows = div_up(b->n_rows, 8) * 8;
			b->max_rows = TD_BLOCK_MAX;
		}
		f->batch[i] = {b->n_seq, b->n_rows, b->max_rows};
	}
	return 0;
}

/* The step of this form; if there is none, the place of the one that was not used for longest, emptied. */
static struct kept *find(struct td_cuda_replay *r, const struct form *f)
{
	struct kept *oldest = &r->kept[0];

	for (int i = 0; i < KEPT; i++) {
		struct kept *k = &r->kept[i];

		if (k->form.who && !memcmp(&k->form, f, sizeof(*f)))
			return k;
		if (k->used < oldest->used)
			oldest = k;
	}
	forget(oldest);
	return oldest;
}

/* ---- a step ------------------------------------------------------------------------------------------------------------------------- */

static void launch(struct td_dev *dev, struct kept *k)
{
	if (td__cuda_check(dev, cudaGraphLaunch(k->exec, dev->stream), "launching a recorded step"))
		return;
	k->launch = ++dev->replay->launches;
}

static int64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void pause_briefly(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

/* Until step `number` has ended, or the GPU failed. A look at the stream now and then, since a GPU that failed says nothing. */
static void wait_for(struct td_dev *dev, uint64_t number)
{
	struct td_cuda_replay *r = dev->replay;
	int64_t looked = now_us();

	if (!r->spin)
		td__cuda_check(dev, cudaStreamSynchronize(dev->stream), "waiting for the GPU");
	while (!dev->error.code && r->board->done < number) {
		for (int i = 0; i < 32 && r->board->done < number; i++)
			pause_briefly();
		if (now_us() - looked > CHECK_US) {
			cudaError_t e = cudaStreamQuery(dev->stream);

			if (e == cudaErrorNotReady)
				cudaGetLastError(); /* no error */
			else if (!td__cuda_check(dev, e, "waiting for the GPU") && r->board->done < number)
				td__cuda_fail(dev, TD_E_INTERNAL, "GPU %d: the stream is idle, but step %llu of %llu is the last that ended", dev->ordinal,
					      r->board->done, (unsigned long long)number);
			looked = now_us();
		}
	}
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
}

/* The batches' td_seq to their place; returns how many in all. */
static int fill(struct td_dev *dev, const struct td_replay *r, struct kept *k)
{
	int n = 0;

	if (k->launch > dev->replay->board->done)
		wait_for(dev, k->launch); /* it may not have fetched the last ones yet */
	for (int i = 0; i < r->n; i++) {
		memcpy(k->seq + n, r->batch[i]->seq, (size_t)r->batch[i]->n_seq * sizeof(*k->seq));
		r->batch[i]->dev = k->seq_dev + n;
		n += r->batch[i]->n_seq;
	}
	return n;
}

static void begin_plainly(struct td_dev *dev, const struct td_replay *r)
{
	for (int i = 0; i < r->n; i++)
		td__cuda_batch_set(dev, r->batch[i]);
	td__cuda_mark(dev, TD_MARK_BEGIN);
}

static void begin_recording(struct td_dev *dev, const struct td_replay *r, struct kept *k)
{
	int n = fill(dev, r, k);

	if (td__cuda_check(dev, cudaStreamBeginCapture(dev->stream, cudaStreamCaptureModeThreadLocal), "recording a step"))
		return;
	dev->replay->recording = k;
	dev->recurred = NULL;
	td__cuda_launch(dev, "fetching batches", begin_kernel, 1, 128, 0, (const uint32_t *)k->seq, (uint32_t *)k->seq_dev,
			(int)(n * sizeof(struct td_seq) / 4), dev->replay->clock);
}

int td__cuda_replay(struct td_dev *dev, const struct td_replay *r)
{
	struct td_cuda_replay *all = dev->replay;
	struct form f;
	struct kept *k;
	int first;

	if (!dev->error.code && r->n > TD_REPLAY_BATCHES)
		td__cuda_fail(dev, TD_E_INTERNAL, "a step of %d batches", r->n);
	if (dev->error.code || r->what == 0 || form_of(dev, r, &f)) {
		begin_plainly(dev, r);
		return 0;
	}
	k = find(all, &f);
	first = !k->form.who;
	k->form = f;
	k->used = ++all->uses;
	td__cuda_batch_rows(dev, r->batch[r->n - 1]);
	if (k->exec) {
		fill(dev, r, k);
		launch(dev, k);
		return 1;
	}
	if (first)
		begin_plainly(dev, r);
	else
		begin_recording(dev, r, k);
	return 0;
}

/* The stream no longer records, whatever happened. */
static void keep(struct td_dev *dev, struct kept *k)
{
	cudaGraph_t graph = NULL;
	cudaError_t e = cudaStreamEndCapture(dev->stream, &graph);

	dev->replay->recording = NULL;
	if (td__cuda_check(dev, e, "recording a step"))
		return;
	if (!dev->error.code && !td__cuda_check(dev, cudaGraphInstantiate(&k->exec, graph, 0), "keeping a recorded step"))
		launch(dev, k);
	cudaGraphDestroy(graph);
}

void td__cuda_replay_end(struct td_dev *dev)
{
	struct td_cuda_replay *r = dev->replay;

	if (!dev->error.code)
		td__cuda_launch(dev, "end of a step", end_kernel, 1, 1, 0, r->clock, r->board_dev);
	if (r->recording)
		keep(dev, r->recording);
	else if (!dev->error.code)
		r->launches++;
}

int td__cuda_replay_wait(struct td_dev *dev, struct td_error *err)
{
	wait_for(dev, dev->replay->launches);
	return td__cuda_settled(dev, err);
}

void td__cuda_mark(struct td_dev *dev, int i)
{
	if (!dev->error.code)
		td__cuda_launch(dev, "mark", mark_kernel, 1, 1, 0, dev->replay->clock, i);
}

double td__cuda_elapsed_us(struct td_dev *dev, int from, int to)
{
	return ((double)dev->replay->board->mark[to] - (double)dev->replay->board->mark[from]) / 1e3;
}
