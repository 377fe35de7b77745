/*
 * gdn_scan.cu: the chunked delta rule (gdn_chunk.cu), second half, where there are products of warpgroups: chunk after chunk with the state.
 *
 * Work: a block of one warpgroup per value head and 64 columns of its state, which it carries in registers, transposed: columns down, so that a sum's
 * fragment is the next product's operand as it is. Per chunk, with all of a product's other operand read from shared memory once for the four warps:
 *
 *	R = S^T W^T	D^T = U^T - R	S'^T = exp(G_last) S^T + (exp(G_last - G) D)^T K	O^T = exp(G) (S^T Q^T) + D^T P^T
 *
 *	products	W(i)  Q(i)                   P(i)  K(i)           W(i+1)
 *	meanwhile	      D                            O(i)
 *	between		              exp(G), halves of D               S as halves
 *
 * Registers of sums may be written by nothing else while products run (the assembler then waits after each product), so S is scaled between the pairs.
 * The chain is 596 instructions of one warp a scheduler, with 900 cycles of tensor cores. Operands come by the bulk copy engine, as they lie in scratch
 * memory, into two places in turn; half of a place is filled again, for the chunk after next, once all four warps are done with it. Registers and shared
 * memory are such that a block of `local` fits beside: the next piece's.
 *
 * What must never happen: a place filled before the products that read it have ended, for they run on behind the instructions that ask for them.
 */
#include "kernels/cuda/gdn_chunk.cuh"

enum { GROUP_WARPS = 4, COLUMNS = GROUP_WARPS * 16 };
enum { EARLY, LATE, HALVES }; /* operands that a chunk is done with first: W, decays and Q; then K and P */

/* Of a chunk in shared memory. */
template <int KD> struct place {
	float since[N], left[N];
	uint4 w[KD * N / 8], q[KD * N / 8], k[KD * N / 8], p[P_ROOM * 32];
};
struct place_gates {
	uint64_t full[HALVES], empty[HALVES];
};
template <int KD> struct scan_shared {
	struct place<KD> place[2];
	struct place_gates gate[2];
};

#ifdef TD_CUDA_GROUPS
/* What a block works on. w, q, k, p: where the operands of the chunk lie that is asked for next; and how far chunks lie apart. */
struct scan_part {
	size_t first; /* chunk of the scratch memory */
	int n, head, group; /* chunks; group: of 16 columns, this warp's */
	const char *w, *q, *k, *p;
	size_t w_step, key_step, p_step;
};

template <int KD> static __device__ __forceinline__ void find_operands(const struct chunk_args &c, struct scan_part *x)
{
	size_t key = x->first * c.g.w.k_heads + x->head / c.g.group, at = x->first * c.g.w.v_heads + x->head;

	x->w = (const char *)decays_of(c, at);
	x->q = (const char *)(c.q + key * (KD / 4) * 32);
	x->k = (const char *)(c.k + key * (KD / 4) * 32);
	x->p = (const char *)(c.p + at * P_ROOM * 32);
	x->w_step = (size_t)c.g.w.v_heads * (KD / 4 + 1) * 512;
	x->key_step = (size_t)c.g.w.k_heads * (KD / 4) * 512;
	x->p_step = (size_t)c.g.w.v_heads * P_ROOM * 512;
}

/* Asks for half of the operands of chunk i, the next one, once their places are free. One thread asks, all wait. */
template <int KD> static __device__ __forceinline__ void refill(struct scan_part &x, struct scan_shared<KD> *sh, int half, int i)
{
	enum { OPERAND = KD * N * 2, DECAYS = 2 * N * 4, P_BYTES = P_ROOM * 512 };
	struct place<KD> *to = &sh->place[i & 1];
	uint64_t *full = &sh->gate[i & 1].full[half];
	int one = threadIdx.x == 0 && i < x.n;

	if (i >= 2 && i < x.n)
		gate_wait(&sh->gate[i & 1].empty[half], (i / 2 - 1) & 1);
	if (half == EARLY) {
		gate_expect_if(one, full, DECAYS + 2 * OPERAND);
		gate_copy_if(one, full, to->since, x.w, DECAYS + OPERAND);
		gate_copy_if(one, full, to->q, x.q, OPERAND);
		x.w += x.w_step;
		x.q += x.key_step;
	} else {
		gate_expect_if(one, full, OPERAND + P_BYTES);
		gate_copy_if(one, full, to->k, x.k, OPERAND);
		gate_copy_if(one, full, to->p, x.p, P_BYTES);
		x.k += x.key_step;
		x.p += x.p_step;
	}
}

/* This warp is done with half of the operands in this place. */
static __device__ __forceinline__ void release(struct place_gates *g, int half)
{
	__syncwarp();
	if ((threadIdx.x & 31) == 0)
		gate_arrive(&g->empty[half]);
}

/* r = state^T x^T, x = W or Q */
template <int KD> static __device__ __forceinline__ void ask_rows(const uint32_t (*s)[4], const uint4 *x, float (&r)[N / 8][4])
{
	group_begin();
#pragma unroll
	for (int d = 0; d < KD / 16; d++)
		if (d == 0)
			group_mma_halves<0>(r, s[d], operand_of_matrices(x));
		else
			group_mma_halves<1>(r, s[d], operand_of_matrices(x) + d * 4 * 32);
	group_commit();
}

/* D of the chunk in operands: as it is, and with what is left of it at the chunk's end. u: this lane's words of U. */
template <int KD>
static __device__ __forceinline__ void make_d(const struct place<KD> *x, float (*r)[4], const uint4 u[4], uint32_t plain[4][4], uint32_t late[4][4])
{
	int t = (threadIdx.x & 3) * 2;

#pragma unroll
	for (int j = 0; j < 4; j++) {
		take_from_u(u[j], r + 2 * j);
		operand(plain[j], r[2 * j], r[2 * j + 1]);
#pragma unroll
		for (int n = 0; n < 2; n++) {
			float *d = r[2 * j + n];
			float2 left = *(const float2 *)&x->left[(2 * j + n) * 8 + t];

			d[0] *= left.x;
			d[1] *= left.y;
			d[2] *= left.x;
			d[3] *= left.y;
		}
		operand(late[j], r[2 * j], r[2 * j + 1]);
	}
}

template <int KD> static __device__ __forceinline__ void times_since(const struct place<KD> *x, float (*o)[4])
{
#pragma unroll
	for (int n = 0; n < N / 8; n++) {
		float2 e = *(const float2 *)&x->since[n * 8 + (threadIdx.x & 3) * 2];

		o[n][0] *= e.x;
		o[n][1] *= e.y;
		o[n][2] *= e.x;
		o[n][3] *= e.y;
	}
}

/* o += D^T P^T */
static __device__ __forceinline__ void ask_within(const uint32_t (*d)[4], const uint4 *p, float (&o)[N / 8][4])
{
	group_begin();
#pragma unroll
	for (int j = 0; j < 4; j++)
		group_mma_halves<1>(o, d[j], operand_of_matrices(p) + j * 4 * 32);
	group_commit();
}

/* state += D^T K */
template <int KD> static __device__ __forceinline__ void ask_state(const uint32_t (*d)[4], const uint4 *k, float (&state)[KD / 8][4])
{
	group_begin();
#pragma unroll
	for (int j = 0; j < 4; j++)
		group_mma_halves<1>(state, d[j], operand_of_matrices(k) + j * (KD / 16) * 32);
	group_commit();
}

template <int KD> static __device__ __forceinline__ void fade(float (*state)[4], float decay)
{
#pragma unroll
	for (int d = 0; d < KD / 8; d++)
#pragma unroll
		for (int n = 0; n < 4; n++)
			state[d][n] *= decay;
}

template <int KD> static __device__ __forceinline__ void as_operands(float (*state)[4], uint32_t (*s)[4])
{
#pragma unroll
	for (int d = 0; d < KD / 16; d++)
		operand(s[d], state[2 * d], state[2 * d + 1]);
}

static __device__ __forceinline__ void put_outputs(const float (*o)[4], bf16 *to, int ld)
{
	uint32_t word[N / 8][2];

	words_of_tokens(o, word);
#pragma unroll
	for (int n = 0; n < N / 8; n++)
#pragma unroll
		for (int h = 0; h < 2; h++)
			*(uint32_t *)(to + (size_t)n * 8 * ld + h * 8) = word[n][h];
}

/* What a warp keeps from chunk to chunk. */
template <int KD> struct carried {
	float state[KD / 8][4];
	uint4 u[4]; /* this lane's words of the next chunk's U */
	bf16 *to; /* where this lane's next outputs go */
};

/* Chunk i, whose operands lie in this place. */
template <int KD, int PLACE>
static __device__ __forceinline__ void advance(const struct chunk_args &c, struct scan_part &x, struct scan_shared<KD> *sh, struct carried<KD> &own, int i)
{
	struct place<KD> *now = &sh->place[PLACE];
	struct place_gates *gate = &sh->gate[PLACE];
	float r[N / 8][4], o[N / 8][4];
	uint32_t s[KD / 16][4], plain[4][4], late[4][4];
	int turn = i / 2 & 1;

	as_operands<KD>(own.state, s);
	gate_wait(&gate->full[EARLY], turn);
	ask_rows<KD>(s, now->w, r);
	ask_rows<KD>(s, now->q, o);
	if (i > 0)
		refill<KD>(x, sh, LATE, i + 1);
	group_wait<1>();
	group_hold(r);
	make_d<KD>(now, r, own.u, plain, late);
	take_u(c, x.first + (i + 1 < x.n ? i + 1 : i), x.head, x.group, own.u);
	gate_wait(&gate->full[LATE], turn); /* also lest D should be made behind the next wait */
	group_wait<0>();
	group_hold(o);
	group_hold(s);
	times_since<KD>(now, o);
	fade<KD>(own.state, now->since[N - 1]); /* not while products run: those that wait for it would not be started behind them */
	release(gate, EARLY);
	ask_within(plain, now->p, o);
	ask_state<KD>(late, now->k, own.state);
	refill<KD>(x, sh, EARLY, i + 2);
	group_wait<1>();
	group_hold(o);
	put_outputs(o, own.to, c.g.ld_out);
	own.to += (size_t)N * c.g.ld_out;
	group_wait<0>();
	group_hold(own.state);
	group_hold(late);
	release(gate, LATE);
}
#endif

/* grid (v_heads * v_dim / COLUMNS, sequences) */
template <int KD> static __global__ void __launch_bounds__(GROUP_WARPS * 32, 1) group_scan_kernel(const struct chunk_args c)
{
#ifdef TD_CUDA_GROUPS
	extern __shared__ __align__(128) char group_scan_sh[];
	struct scan_shared<KD> *sh = (struct scan_shared<KD> *)group_scan_sh;
	const struct gdn_args &p = c.g;
	int slices = p.w.v_dim / COLUMNS;
	struct carried<KD> own;
	struct scan_part x;
	struct td_seq s;
	float *kept;

	if (threadIdx.x == 0)
		for (int i = 0; i < 2 * HALVES; i++) {
			gate_make(&sh->gate[i & 1].full[i / 2], 1);
			gate_make(&sh->gate[i & 1].empty[i / 2], GROUP_WARPS);
		}
	__syncthreads();
	after_previous();
	let_next_start(); /* not earlier: the next kernel is the next piece's `local`, which reads what was there before this one began */
	s = part_of(p.seq[blockIdx.y], ROWS_BLOCKS);
	x.n = min(s.rows / N - c.chunk0, c.count);
	if (x.n <= 0)
		return;
	x.first = first_place(c, s);
	x.head = blockIdx.x / slices;
	x.group = blockIdx.x % slices * GROUP_WARPS + threadIdx.x / 32;
	s.row0 += c.chunk0 * N;
	s.rows -= c.chunk0 * N;
	find_operands<KD>(c, &x);
#pragma unroll
	for (int i = 0; i < 2; i++)
#pragma unroll
		for (int half = 0; half < HALVES; half++)
			refill<KD>(x, sh, half, i);
	if (s.rows == x.n * N)
		keep_tail(p, s);
	kept = p.st.s + ((size_t)s.slot * p.w.v_heads + x.head) * KD * p.w.v_dim;
	move_state<KD, false>(kept, p.w.v_dim, x.group * 16, own.state);
	take_u(c, x.first, x.head, x.group, own.u);
	own.to = outputs_of(p, s.row0, x.head, x.group * 16);
	for (int i = 0; i < x.n; i++) {
		advance<KD, 0>(c, x, sh, own, i);
		if (++i < x.n)
			advance<KD, 1>(c, x, sh, own, i);
	}
	move_state<KD, true>(kept, p.w.v_dim, x.group * 16, own.state);
#else
	__trap(); /* code for another GPU */
#endif
}

template <int KD> static void scan(struct td_dev *dev, const struct chunk_args &c, int n_seq)
{
	td__cuda_shared(dev, group_scan_kernel<KD>, sizeof(struct scan_shared<KD>));
	td__cuda_launch(dev, "gdn: scan over chunks", group_scan_kernel<KD>, dim3(c.g.w.v_heads * (c.g.w.v_dim / COLUMNS), n_seq), GROUP_WARPS * 32,
			sizeof(struct scan_shared<KD>), c);
}

int td__cuda_gdn_scans(const struct td_dev *dev, const struct gdn_args &p)
{
	return dev->groups && p.w.v_dim % COLUMNS == 0 &&
	       (p.w.k_dim == 128 ? sizeof(struct scan_shared<128>) : sizeof(struct scan_shared<64>)) <= dev->shared_max;
}

void td__cuda_gdn_scan(struct td_dev *dev, const struct chunk_args &c, int n_seq)
{
	if (c.g.w.k_dim == 128)
		scan<128>(dev, c, n_seq);
	else
		scan<64>(dev, c, n_seq);
}
