#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "kernels/memory/memory.h"
#include "kernels/tensor/tensor.h"

namespace trainerd::parallel {

/// Two arrays of the same size, one for what is sent and one for what arrives, or that one alone. An
/// operation takes the same run of both, and gives it back about in the order of taking. Which run it gets
/// depends on the calls alone, not on time.
class StagingRing {
 public:
  enum class Staged : std::uint8_t { both, received };
  struct Run {
    kernels::Tensor sent,
        received;  ///< flat, of the size asked for; `sent` is undefined where it is not staged
  };
  StagingRing(kernels::DType dtype, std::int64_t elements, Staged staged, kernels::Arena& persistent);

  /// Nothing while earlier runs are in its place.
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
