#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/plan/blocks.h"
#include "kernels/cpu/simd/vector_kernels.h"
#include "kernels/tensor/rng.h"

namespace trainerd::kernels {
namespace {

// Elements whose random bits lie on the stack at a time; a multiple of a vector.
constexpr std::int64_t kRandomElements = 1024;

/// `part` in pieces, each with the bits that round it. `from` is the part's first element, counted from its
/// range's.
void adamw_rounded(const VectorKernels& vector, AdamwRun part, const UpdateRange& range, std::int64_t from,
                   std::int64_t step) {
  std::array<std::uint32_t, kRandomElements> random;
  const std::int64_t count = part.count;
  const auto advance = [](auto*& p, DType dtype) {
    if (p != nullptr) p += kRandomElements * size_of(dtype);
  };
  for (std::int64_t done = 0; done < count; done += kRandomElements) {
    part.count = std::min(kRandomElements, count - done);
    // As `rounding_bits`; four neighbours share a call.
    std::array<std::uint32_t, 4> words{};
    std::uint64_t quad = ~std::uint64_t{0};
    for (std::int64_t i = 0; i < part.count; ++i) {
      const auto index = static_cast<std::uint64_t>(range.logical_index(from + done + i));
      if (index >> 2 != quad) words = philox(range.key, quad = index >> 2, static_cast<std::uint64_t>(step));
      random[static_cast<std::size_t>(i)] = words[index & 3u];
    }
    std::fill(random.begin() + part.count, random.end(), 0u);
    part.random = random.data();
    vector.adamw(part);
    advance(part.grads, part.grad_dtype);
    advance(part.master, part.master_dtype);
    advance(part.moment1, part.moment_dtype);
    advance(part.moment2, part.moment_dtype);
    advance(part.params, part.param_dtype);
  }
}

}  // namespace

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
  run.master_dtype = a.master.dtype;
  run.moment_dtype = a.moment1.dtype;
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
      part.master = a.master.data + from * size_of(a.master.dtype);
      part.moment1 = a.moment1.data + from * size_of(a.moment1.dtype);
      part.moment2 = a.moment2.data + from * size_of(a.moment2.dtype);
      if (a.params.defined()) part.params = a.params.data + from * size_of(a.params.dtype);
      part.count = to - from;
      part.weight_decay = range->weight_decay;
      if (a.rounding == Rounding::stochastic)
        adamw_rounded(vector_, part, *range, from - range->begin, a.step);
      else vector_.adamw(part);
    }
  });
}

}  // namespace trainerd::kernels
