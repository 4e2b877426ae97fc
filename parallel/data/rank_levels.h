#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend/backend.h"
#include "parallel/comm/communicator.h"

namespace trainerd::parallel {

/// Ranks of several groups seen as one: rank k of it has place i in the first group, j in the second, ...,
/// with k = (i * size of the second + j) * ...
class RankLevels {
 public:
  /// Groups of one rank are left out.
  explicit RankLevels(const std::vector<Communicator*>& groups);
  std::int64_t size() const { return size_; }
  std::int64_t rank() const { return rank_; }
  /// `x` and `other` hold one part of equal size for each rank. Part k of `x` goes to rank k, in one hop for
  /// each group; returns the one of the two that then holds the part from each rank, once `stream` is there.
  /// The other one's content is lost.
  kernels::Tensor all_to_all(kernels::Stream& stream, kernels::Tensor x, kernels::Tensor other,
                             const CommOptions& options) const;

 private:
  std::vector<Communicator*> groups_;
  std::int64_t size_ = 1, rank_ = 0;
};

}  // namespace trainerd::parallel
