#pragma once

#include <functional>
#include <utility>

#include "kernels/backend/backend.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::rank {

/// FLOP/s of a square GEMM of `size` in `dtype` on this backend, with a prepared weight where there is such a
/// form: the best of several repeats, until five agree within 1%, for a twentieth of a second at most. 0 when
/// the time could not be measured.
double gemm_rate(kernels::Backend& backend, kernels::DType dtype, std::int64_t size);

/// The best rate of square GEMMs, from one of size 512 to the first that takes half a millisecond: longer
/// ones are interrupted by other work on the machine, shorter ones do not fill it. It is the CPU's peak in
/// MFU: other work slows a repeat, nothing makes one faster than the hardware.
double measure_gemm_peak(kernels::Backend& backend, kernels::DType dtype);

/// The peak that MFU is of: a maker's figure, or a measured one. A figure that was measured while other
/// programs ran is too low; steps that exceed it show that, and it is measured again.
class PeakRate {
 public:
  /// `measure` is empty where the figure is the maker's.
  PeakRate(double flops_per_second, std::function<double()> measure)
      : peak_(flops_per_second), measure_(std::move(measure)) {}

  double flops_per_second() const { return peak_; }
  bool measured() const { return measure_ != nullptr; }
  /// Of a rank that reached `reached` FLOP/s in a step. Measures again where that is more than the peak, and
  /// then the peak is no less than what was reached. True when the peak has changed.
  bool raise_to(double reached);

 private:
  double peak_;
  std::function<double()> measure_;
};

/// Of a device that computes in `compute`: a GPU's peak is published; a CPU's is not, and is
/// measured, unless `measured` (FLOP/s) was already. `backend` outlives it.
PeakRate peak_of(const parallel::Topology& topology, kernels::Backend& backend, kernels::DType compute,
                 double measured = 0);

}  // namespace trainerd::core::rank
