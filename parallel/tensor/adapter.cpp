#include "parallel/tensor/adapter.h"

namespace trainerd::parallel {
namespace {

using namespace kernels;

/// scale x A^T, in scratch.
Tensor inner_fprop(Backend& backend, Stream& s, const Adapter& adapter, const Tensor& x_TC) {
  const Tensor inner =
      s.scratch().take(x_TC.dtype, {x_TC.size(0), adapter.a_RC.plain_NC.size(0)}, MemoryTerm::activations);
  backend.linear_fprop(s,
                       {.x_TC = x_TC, .weight = adapter.a_RC, .bias_N = {}, .addend_TN = {}, .y_TN = inner});
  if (adapter.scale != 1) backend.scale(s, {inner, adapter.scale, inner});
  return inner;
}

/// scale dy B, in scratch.
Tensor inner_dgrad(Backend& backend, Stream& s, const Adapter& adapter, const Tensor& dy_TN) {
  const Tensor inner =
      s.scratch().take(dy_TN.dtype, {dy_TN.size(0), adapter.b_NR.plain_NC.size(1)}, MemoryTerm::activations);
  backend.linear_dgrad(s,
                       {.dy_TN = dy_TN, .weight = adapter.b_NR, .dx_TC = inner, .mode = WriteMode::assign});
  if (adapter.scale != 1) backend.scale(s, {inner, adapter.scale, inner});
  return inner;
}

}  // namespace

void add_adapter(Backend& backend, Stream& s, const Adapter& adapter, const Tensor& x_TC,
                 const Tensor& y_TN) {
  const ArenaScope scope(s.scratch());
  backend.linear_fprop(s, {.x_TC = inner_fprop(backend, s, adapter, x_TC),
                           .weight = adapter.b_NR,
                           .bias_N = {},
                           .addend_TN = y_TN,
                           .y_TN = y_TN});
}

void add_adapter_dgrad(Backend& backend, Stream& s, const Adapter& adapter, const Tensor& dy_TN,
                       const Tensor& dx_TC) {
  const ArenaScope scope(s.scratch());
  backend.linear_dgrad(s, {.dy_TN = inner_dgrad(backend, s, adapter, dy_TN),
                           .weight = adapter.a_RC,
                           .dx_TC = dx_TC,
                           .mode = WriteMode::accumulate});
}

void adapter_wgrad(Backend& backend, Stream& s, const AdapterWgrad& a) {
  {
    const ArenaScope scope(s.scratch());
    backend.linear_wgrad(s, {.dy_TN = inner_dgrad(backend, s, a.adapter, a.dy_TN),
                             .x_TC = a.x_TC,
                             .dweight_NC = a.da_RC,
                             .dbias_N = {},
                             .mode = a.a_mode});
  }
  const ArenaScope scope(s.scratch());
  backend.linear_wgrad(s, {.dy_TN = a.dy_TN,
                           .x_TC = inner_fprop(backend, s, a.adapter, a.x_TC),
                           .dweight_NC = a.db_NR,
                           .dbias_N = {},
                           .mode = a.b_mode});
}

}  // namespace trainerd::parallel
