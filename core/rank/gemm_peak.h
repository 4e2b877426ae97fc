#pragma once

#include <functional>
#include <utility>

#include "kernels/backend/backend.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::rank {

/// FLOP/s of a square GEMM of `size` in `dtype` on this backend, with a prepared weight if the backend has
/// that form. Uses the best of at least four repeats, until three agree within 1%, for 25 ms at most. 0 if
/// the time could not be measured.
double gemm_rate(kernels::Backend& backend, kernels::DType dtype, std::int64_t size);

/// The best rate of square GEMMs, from size 512 to the first that takes half a millisecond. Longer ones are
/// interrupted by other work on the machine; shorter ones do not use it fully. It is the CPU's peak for MFU:
/// other work only slows repeats down.
double measure_gemm_peak(kernels::Backend& backend, kernels::DType dtype);

/// The peak for MFU: a published or a measured figure. A figure measured while other programs ran is too low.
/// A step that exceeds it shows this, and it is measured again.
class PeakRate {
 public:
  /// `measure` is empty for a published figure.
  PeakRate(double flops_per_second, std::function<double()> measure)
      : peak_(flops_per_second), measure_(std::move(measure)) {}

  double flops_per_second() const { return peak_; }
  bool measured() const { return measure_ != nullptr; }
  /// Reports that the rank reached `reached` FLOP/s in a step. If that exceeds the peak, measures again and
  /// sets the peak to at least `reached`. Returns true if the peak changed.
  bool raise_to(double reached);
  /// True at first, then only if the peak is at least a quarter above that of the last time: on a busy
  /// machine it rises often.
  bool worth_telling();

 private:
  double peak_, told_ = 0;
  std::function<double()> measure_;
};

/// The peak of a device that computes in `compute`. A GPU's peak is published. A CPU's is measured, unless
/// `measured` (FLOP/s) is already known. `backend` must outlive it.
PeakRate peak_of(const parallel::Topology& topology, kernels::Backend& backend, kernels::DType compute,
                 double measured = 0);

}  // namespace trainerd::core::rank
