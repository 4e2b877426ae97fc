#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/simd/vector_kernels.h"

namespace trainerd::kernels {

void CpuBackend::step_control(Stream&, const StepControl& a) {
  const double total = *a.square_sum.as<double>();
  StepControlValues values;
  values.nonfinite = *a.nonfinite.as<std::int32_t>();
  values.grad_norm = std::sqrt(total);
  values.skip = std::isfinite(total) && std::isfinite(*a.loss.as<double>()) ? 0 : 1;
  if (values.skip == 0)
    values.grad_factor = a.clip_norm > 0 && values.grad_norm > a.clip_norm
                             ? static_cast<float>(a.clip_norm / values.grad_norm)
                             : 1.0f;
  base::check(a.values.bytes() == sizeof(values), "step control: the output is one StepControlValues");
  std::memcpy(a.values.data, &values, sizeof(values));
}

void CpuBackend::adamw_update(Stream&, const AdamwUpdate& a) {
  StepControlValues control;
  base::check(a.control.bytes() == sizeof(control), "adamw: the control is one StepControlValues");
  std::memcpy(&control, a.control.data, sizeof(control));
  if (control.skip != 0) return;

  check_ranges(a);

  AdamwRun run;
  run.grad_dtype = a.grads.dtype;
  run.grad_factor = control.grad_factor;
  run.lr = a.lr;
  run.beta1 = a.beta1;
  run.beta2 = a.beta2;
  run.eps = a.eps;
  run.correction1 =
      static_cast<float>(1.0 / (1.0 - std::pow(static_cast<double>(a.beta1), static_cast<double>(a.step))));
  run.correction2 =
      static_cast<float>(1.0 / (1.0 - std::pow(static_cast<double>(a.beta2), static_cast<double>(a.step))));
  if (a.params.defined()) run.param_dtype = a.params.dtype;
  for_each_block(pool_, a.master.numel(), kBlockElements, [&](std::int64_t begin, std::int64_t end) {
    // The first range that ends after `begin`: ranges rise, so their ends do too.
    auto range =
        std::upper_bound(a.ranges.begin(), a.ranges.end(), begin,
                         [](std::int64_t at, const UpdateRange& r) { return at < r.begin + r.count; });
    for (; range != a.ranges.end() && range->begin < end; ++range) {
      const std::int64_t from = std::max(begin, range->begin),
                         to = std::min(end, range->begin + range->count);
      AdamwRun part = run;
      part.grads = a.grads.data + from * size_of(a.grads.dtype);
      part.master = a.master.as<float>() + from;
      part.moment1 = a.moment1.as<float>() + from;
      part.moment2 = a.moment2.as<float>() + from;
      if (a.params.defined()) part.params = a.params.data + from * size_of(a.params.dtype);
      part.count = to - from;
      part.weight_decay = range->weight_decay;
      vector_.adamw(part);
    }
  });
}

}  // namespace trainerd::kernels
