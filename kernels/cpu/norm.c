/*
 * norm.c: RMS norm and SwiGLU: what happens to a row by itself.
 */
#include "kernels/cpu/cpu.h"

struct job {
	struct td_tensor x, y;
	const float *w;
	float eps;
	int zero_centred;
};

/* qwen35 3.1 (zero-centred: 1 + w), dflash 1.2 (w) */
TD__INLINE void norm_row_body(const struct job *j, int r)
{
	const float *x = td__row(&j->x, r), *w = j->w, one = j->zero_centred ? 1.0f : 0.0f;
	float *y = td__row(&j->y, r), scale;
	int n = j->x.cols;

	scale = 1.0f / sqrtf(td__dot(x, x, n) / (float)n + j->eps);
	for (int i = 0; i < n; i++)
		y[i] = x[i] * scale * (one + w[i]);
}
TD__DISPATCH(norm_row, (const struct job *j, int r), (j, r))

static void norm_item(void *job, int r, int thread)
{
	(void)thread;
	norm_row(job, r);
}

void td__rms_norm(struct td_dev *dev, struct td_tensor x, const float *w, float eps, int zero_centred, struct td_tensor y)
{
	struct job job = { x, y, w, eps, zero_centred };

	if (x.dtype != TD_F32 || y.dtype != TD_F32 || x.cols != y.cols || x.rows != y.rows) {
		td__fail(dev, TD_E_INTERNAL, "rms_norm: x (%d, %d) and y (%d, %d) do not fit", x.rows, x.cols, y.rows, y.cols);
		return;
	}
	td__parallel(dev, x.rows, 16, norm_item, &job);
}

/* qwen35 3.3 */
TD__INLINE void swiglu_row_body(const struct job *j, int r)
{
	const int n = j->y.cols;
	const float *gate = td__row(&j->x, r), *up = gate + n;
	float *y = td__row(&j->y, r);

	for (int i = 0; i < n; i++)
		y[i] = gate[i] * td__sigmoid(gate[i]) * up[i];
}
TD__DISPATCH(swiglu_row, (const struct job *j, int r), (j, r))

static void swiglu_item(void *job, int r, int thread)
{
	(void)thread;
	swiglu_row(job, r);
}

void td__swiglu(struct td_dev *dev, struct td_tensor x, struct td_tensor y)
{
	struct job job = { .x = x, .y = y };

	if (x.dtype != TD_F32 || y.dtype != TD_F32 || x.cols != 2 * y.cols || x.rows != y.rows) {
		td__fail(dev, TD_E_INTERNAL, "swiglu: x (%d, %d) and y (%d, %d) do not fit", x.rows, x.cols, y.rows, y.cols);
		return;
	}
	td__parallel(dev, x.rows, 8, swiglu_item, &job);
}
