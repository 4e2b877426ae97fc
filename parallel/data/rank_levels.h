#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend/backend.h"
#include "parallel/comm/communicator.h"

namespace trainerd::parallel {

/// The ranks of several groups numbered as one group: rank k has place i in the first group, j in the second,
/// ..., with k = (i * size of the second + j) * ...
class RankLevels {
 public:
  /// Groups of one rank are left out.
  explicit RankLevels(const std::vector<Communicator*>& groups);
  std::int64_t size() const { return size_; }
  std::int64_t rank() const { return rank_; }
  /// `x` and `other` hold one part of equal size per rank. Part k of `x` goes to rank k, in one all-to-all
  /// per group. Returns the tensor of the two that holds the received parts, after work on `stream`. The
  /// contents of the other one are lost.
  kernels::Tensor all_to_all(kernels::Stream& stream, kernels::Tensor x, kernels::Tensor other,
                             const CommOptions& options) const;

 private:
  std::vector<Communicator*> groups_;
  std::int64_t size_ = 1, rank_ = 0;
};

}  // namespace trainerd::parallel
