/*
 * linear_pair.cu: two maps of one input in one launch: a large one of 4-bit weights, and a small one of bf16 weights whose blocks take the multiprocessors
 * that the large one leaves free. By itself the small one would be a stage of its own, three microseconds for a third of a megabyte.
 *
 * A block is of the one or of the other, and does what it would do alone (linear_tile.cuh): the same bits.
 */
#include "kernels/cuda/bf16_format.cuh"
#include "kernels/cuda/int4_act8_format.cuh"
#include "kernels/cuda/int4_format.cuh"

enum { NARROW = 4 }; /* eights of rows that a block of the small map takes at most: it has few registers for more */

/* grid (blocks of the large map, those of the small one for each NARROW * 8 rows; 1; groups of NT * 8 rows) */
template <class A, int NT, int T>
static __global__ void __launch_bounds__(THREADS, 1) pair_kernel(const struct linear_args a, const struct linear_args b, int blocks_a, int blocks_b)
{
	enum { NB = NT < NARROW ? NT : NARROW };
	int block = (int)blockIdx.x - blocks_a, second = block >= blocks_b;

	if (block < 0)
		linear_block<A, NT, T>(a, blockIdx.x, blockIdx.z);
	else
		linear_block<bf16_format, NB, 1>(b, second ? block - blocks_b : block, blockIdx.z * (NT / NB) + second);
}

template <class A, int NT, int T>
static void launch_pair(struct td_dev *dev, const struct linear_args &a, const struct linear_args &b, int groups_a, int groups_b)
{
	enum { NB = NT < NARROW ? NT : NARROW };
	size_t shared = linear_shared<A>(a, NT, T), other = linear_shared<bf16_format>(b, NB, 1);
	static size_t allowed;

	shared = shared > other ? shared : other;
	if (shared > allowed)
		td__cuda_shared(dev, pair_kernel<A, NT, T>, allowed = shared);
	td__cuda_launch_ranks(dev, "linear2", pair_kernel<A, NT, T>, dim3((groups_a + groups_b * (NT / NB)) << a.rank_bits, 1, div_up(a.rows, NT * 8)), THREADS,
			      shared, 1 << a.rank_bits, a, b, groups_a << a.rank_bits, groups_b << a.rank_bits);
}

template <class A, int NT> static void launch_pair_wide(struct td_dev *dev, const struct linear_args &a, const struct linear_args &b, int groups_a, int groups_b)
{
	int t = tiles_of<A>(a, NT > 4 ? 1 : NT > 2 ? 2 : 3);

	if (NT <= 2 && t > 2)
		launch_pair<A, NT, NT <= 2 ? 3 : 2>(dev, a, b, groups_a, groups_b);
	else if (NT <= 4 && t > 1)
		launch_pair<A, NT, NT <= 4 ? 2 : 1>(dev, a, b, groups_a, groups_b);
	else
		launch_pair<A, NT, 1>(dev, a, b, groups_a, groups_b);
}

/* A: of the large map's weights */
template <class A>
static int run_pair(struct td_dev *dev, struct td_tensor x, const struct td_linear *w0, struct td_tensor y0, const struct td_linear *w1, struct td_tensor y1)
{
	struct linear_use use = {};
	struct linear_args a = arguments(x, w0, y0, use), b = arguments(x, w1, y1, use);
	int groups_a = 1, groups_b = 1, slices_a = 1, slices_b = 1;

	cut<A>(dev, &a, &groups_a, &slices_a);
	cut<bf16_format>(dev, &b, &groups_b, &slices_b);
	if (slices_a > 1 || slices_b > 1 || a.rank_bits != b.rank_bits)
		return 0;
	if (x.rows <= 8)
		launch_pair_wide<A, 1>(dev, a, b, groups_a, groups_b);
	else if (x.rows <= 16)
		launch_pair_wide<A, 2>(dev, a, b, groups_a, groups_b);
	else if (x.rows <= 32 || linear_shared<A>(a, 8, 1) > dev->shared_max)
		launch_pair_wide<A, 4>(dev, a, b, groups_a, groups_b);
	else
		launch_pair_wide<A, 8>(dev, a, b, groups_a, groups_b);
	return 1;
}

int td__cuda_linear_pair(struct td_dev *dev, struct td_tensor x, const struct td_linear *w0, struct td_tensor y0, const struct td_linear *w1, struct td_tensor y1)
{
	if (w0->kind != TD_W_INT4 || parts_of(w0) != 1 || w1->kind != TD_W_BF16 || w1->in % 8 || (uintptr_t)w1->data % 16)
		return 0;
	return w0->act8 ? run_pair<int4_act8_format<1> >(dev, x, w0, y0, w1, y1) : run_pair<int4_format<1> >(dev, x, w0, y0, w1, y1);
}
