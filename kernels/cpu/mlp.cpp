#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/simd/vector_kernels.h"
#include "kernels/cpu/tiling/blocks.h"

namespace trainerd::kernels {
namespace {

/// The rows in use.
std::int64_t used(const Tensor& used_rows, std::int64_t rows) {
  return used_rows.defined() ? std::min<std::int64_t>(rows, *used_rows.as<std::int32_t>()) : rows;
}

}  // namespace

void CpuBackend::glu_forward(Stream&, const GluForward& a) {
  const std::int64_t rows = a.act_TF.size(0), ffn = a.act_TF.size(1), size = size_of(a.act_TF.dtype);
  base::check(a.gate_up_T2F.numel() == 2 * rows * ffn, "glu: gate_up must be [T, 2F]");
  for_each_block(pool_, used(a.used_rows, rows), rows_per_block(3 * ffn),
                 [&](std::int64_t begin, std::int64_t end) {
                   vector_.glu_forward(a.act_TF.dtype, a.gate, a.gate_up_T2F.data + begin * 2 * ffn * size,
                                       a.act_TF.data + begin * ffn * size, end - begin, ffn);
                 });
}

void CpuBackend::glu_backward(Stream&, const GluBackward& a) {
  const std::int64_t rows = a.dact_TF.size(0), ffn = a.dact_TF.size(1), size = size_of(a.dact_TF.dtype);
  base::check(a.gate_up_T2F.numel() == 2 * rows * ffn, "glu: gate_up must be [T, 2F]");
  for_each_block(pool_, used(a.used_rows, rows), rows_per_block(5 * ffn),
                 [&](std::int64_t begin, std::int64_t end) {
                   std::byte* act = a.act_TF.defined() ? a.act_TF.data + begin * ffn * size : nullptr;
                   vector_.glu_backward(a.dact_TF.dtype, a.gate, a.dact_TF.data + begin * ffn * size,
                                        a.gate_up_T2F.data + begin * 2 * ffn * size,
                                        a.dgate_up_T2F.data + begin * 2 * ffn * size, act, end - begin, ffn);
                 });
}

void CpuBackend::gelu_forward(Stream&, const GeluForward& a) {
  const std::int64_t size = size_of(a.x_TF.dtype);
  base::check(a.act_TF.dtype == a.x_TF.dtype && a.act_TF.numel() == a.x_TF.numel(), "gelu: act must be as x");
  for_each_block(pool_, a.x_TF.numel(), kBlockElements, [&](std::int64_t begin, std::int64_t end) {
    vector_.gelu_forward(a.x_TF.dtype, a.x_TF.data + begin * size, a.act_TF.data + begin * size, end - begin);
  });
}

void CpuBackend::gelu_backward(Stream&, const GeluBackward& a) {
  const std::int64_t size = size_of(a.x_TF.dtype);
  base::check(a.dx_TF.dtype == a.x_TF.dtype && a.dx_TF.numel() == a.x_TF.numel(), "gelu: dx must be as x");
  for_each_block(pool_, a.x_TF.numel(), kBlockElements, [&](std::int64_t begin, std::int64_t end) {
    vector_.gelu_backward(a.x_TF.dtype, a.dact_TF.data + begin * size, a.x_TF.data + begin * size,
                          a.dx_TF.data + begin * size, end - begin);
  });
}

}  // namespace trainerd::kernels
