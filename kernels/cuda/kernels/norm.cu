// Residual + norm. Floor = bytes / memory bandwidth, in elements of the activations' dtype. Forward: 4 T D
// (residual, delta -> sum, y), or 2 T D without delta. Backward: 4 T D (dy, dsum, sum -> dx), and 8 bytes of
// partial sums per column and part, which is 1.6% of it at T 32768.

#include "kernels/cuda/kernels/norm_rows.cuh"
#include "kernels/cuda/kernels/partials.cuh"

namespace trainerd::kernels::cuda {
namespace {

/// True if a row's vectors of N elements fit in the registers of a block.
template <int N>
bool fits_registers(std::int64_t columns) {
  return columns <= kNormVectors * N * kNormThreads;
}

template <class T>
void run_forward(const Launch& where, const AddNormForward& a) {
  const std::int64_t rows = a.residual_TD.size(0), d = a.residual_TD.size(1);
  const bool vectors = aligned(a.residual_TD, a.delta_TD, a.weight_D, a.bias_D, a.sum_TD, a.y_TD);
  const NormForward<T> args{.residual = at<T>(a.residual_TD),
                            .delta = at<T>(a.delta_TD),
                            .sum = at<T>(a.sum_TD),
                            .weight = at<T>(a.weight_D),
                            .bias = at<T>(a.bias_D),
                            .y = at<T>(a.y_TD),
                            .mean = at<float>(a.mean_T),
                            .rstd = at<float>(a.rstd_T),
                            .columns = d,
                            .inverse_d = 1.0f / static_cast<float>(d),
                            .eps = a.eps,
                            .weight_offset = a.weight_offset,
                            .layer = a.kind == NormKind::layer};
  constexpr int N = kVec<T>;
  if (vectors && d % N == 0 && fits_registers<N>(d))
    launch(where, {rows}, threads_for(ceil_div(d, kNormVectors * N), kNormThreads), "add_norm_forward",
           add_norm_forward_kernel<T, N>, args);
  else if (vectors && d % N == 0)
    launch(where, {rows}, kNormThreads, "add_norm_forward", add_norm_forward_long_kernel<T, N>, args);
  else
    launch(where, {rows}, threads_for(d, kNormThreads), "add_norm_forward",
           add_norm_forward_long_kernel<T, 1>, args);
}

template <class T>
void run_backward(const Launch& where, const AddNormBackward& a) {
  const std::int64_t rows = a.sum_TD.size(0), d = a.sum_TD.size(1);
  const bool vectors = aligned(a.dy_TD, a.dsum_TD, a.sum_TD, a.weight_D, a.dx_TD);
  const RowParts parts = row_parts(rows);
  auto* partial = reinterpret_cast<float*>(where.scratch);
  float* bias_partial = a.dbias_D.defined() ? partial + parts.count * partial_stride(d) : nullptr;
  const NormBackward<T> args{.dy = at<T>(a.dy_TD),
                             .dsum = at<T>(a.dsum_TD),
                             .sum = at<T>(a.sum_TD),
                             .weight = at<T>(a.weight_D),
                             .mean = at<float>(a.mean_T),
                             .rstd = at<float>(a.rstd_T),
                             .dx = at<T>(a.dx_TD),
                             .weight_partial = partial,
                             .bias_partial = bias_partial,
                             .rows = rows,
                             .columns = d,
                             .rows_of_part = parts.rows,
                             .stride = partial_stride(d),
                             .inverse_d = 1.0f / static_cast<float>(d),
                             .weight_offset = a.weight_offset,
                             .layer = a.kind == NormKind::layer};
  constexpr int N = kVec<T>;
  if (vectors && d % N == 0 && fits_registers<N>(d))
    launch(where, {parts.count}, threads_for(ceil_div(d, kNormVectors * N), kNormThreads),
           "add_norm_backward",
           bias_partial != nullptr ? add_norm_backward_kernel<T, N, true>
                                   : add_norm_backward_kernel<T, N, false>,
           args);
  else if (vectors && d % N == 0)
    launch(where, {parts.count}, kNormThreads, "add_norm_backward", add_norm_backward_long_kernel<T, N>,
           args);
  else
    launch(where, {parts.count}, threads_for(d, kNormThreads), "add_norm_backward",
           add_norm_backward_long_kernel<T, 1>, args);
  sum_partials(where, partial, parts.count, a.dweight_D, a.mode);
  if (bias_partial != nullptr) sum_partials(where, bias_partial, parts.count, a.dbias_D, a.mode);
}

}  // namespace

void add_norm_forward(const Launch& where, const AddNormForward& a) {
  const std::int64_t rows = a.residual_TD.size(0), d = a.residual_TD.size(1);
  const DType dtype = a.residual_TD.dtype;
  base::check(a.y_TD.numel() == rows * d && a.weight_D.numel() == d && a.y_TD.dtype == dtype &&
                  a.rstd_T.numel() == rows,
              "norm: shapes of input, output and weight");
  base::check(!a.delta_TD.defined() || (a.delta_TD.dtype == dtype && a.sum_TD.dtype == dtype &&
                                        a.delta_TD.numel() == rows * d && a.sum_TD.numel() == rows * d),
              "norm: delta and sum must be as the residual");
  base::check(!a.bias_D.defined() || (a.bias_D.dtype == a.weight_D.dtype && a.bias_D.numel() == d),
              "norm: weight and bias have one dtype and length");
  base::check(a.kind == NormKind::rms || a.mean_T.numel() == rows,
              "norm: a layer norm keeps a mean for each row");
  check_weights(dtype, a.weight_D.dtype);
  with_type(dtype, "norm: fp32, bf16 or fp16", [&](auto t) { run_forward<decltype(t)>(where, a); });
}

void add_norm_backward(const Launch& where, const AddNormBackward& a) {
  const std::int64_t rows = a.sum_TD.size(0), d = a.sum_TD.size(1);
  const DType dtype = a.sum_TD.dtype;
  base::check(a.dx_TD.numel() == rows * d && a.dy_TD.numel() == rows * d && a.dweight_D.numel() == d &&
                  (!a.dbias_D.defined() || a.dbias_D.numel() == d) && a.rstd_T.numel() == rows,
              "norm: shapes of the gradients");
  base::check(a.dx_TD.dtype == dtype && a.dy_TD.dtype == dtype &&
                  (!a.dsum_TD.defined() || (a.dsum_TD.dtype == dtype && a.dsum_TD.numel() == rows * d)),
              "norm: gradients must be as the sum");
  base::check(a.weight_D.numel() == d && (a.kind == NormKind::rms || a.mean_T.numel() == rows),
              "norm: a weight for each column, and for a layer norm a mean for each row");
  check_weights(dtype, a.weight_D.dtype);
  with_type(dtype, "norm: fp32, bf16 or fp16", [&](auto t) { run_backward<decltype(t)>(where, a); });
}

}  // namespace trainerd::kernels::cuda
