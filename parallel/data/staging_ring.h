#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "kernels/memory/memory.h"
#include "kernels/tensor/tensor.h"

namespace trainerd::parallel {

/// Two arrays of the same size, one for sent and one for received data, or only the second. An operation
/// takes the same range of both and returns it roughly in the order of taking. The range depends only on the
/// sequence of calls, not on timing.
class StagingRing {
 public:
  enum class Staged : std::uint8_t { both, received };
  struct Run {
    /// flat, of the size asked for; `sent` is undefined if only `received` is staged
    kernels::Tensor sent, received;
  };
  StagingRing(kernels::DType dtype, std::int64_t elements, Staged staged, kernels::Arena& persistent);

  /// Reserves a run; none while earlier runs occupy its place.
  std::optional<Run> take(std::int64_t elements);
  void give_back(const Run& run);

 private:
  struct Taken {
    std::int64_t begin = 0, end = 0;
    bool given_back = false;
  };
  kernels::Tensor sent_, received_;
  std::deque<Taken> taken_;  ///< the oldest first
};

}  // namespace trainerd::parallel
