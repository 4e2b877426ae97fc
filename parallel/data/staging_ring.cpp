#include "parallel/data/staging_ring.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace trainerd::parallel {

using namespace kernels;

StagingRing::StagingRing(DType dtype, std::int64_t elements, Staged staged, Arena& persistent)
    : sent_(staged == Staged::both ? persistent.take(dtype, {elements}, MemoryTerm::gradients) : Tensor{}),
      received_(persistent.take(dtype, {elements}, MemoryTerm::gradients)) {}

std::optional<StagingRing::Run> StagingRing::take(std::int64_t elements) {
  const std::int64_t size = received_.numel();
  base::check(elements <= size, "a run of a staging ring is no longer than the ring");
  // Free space starts behind the latest run and ends at the end of the ring or at the oldest run. If it is
  // too short, use the space before the oldest run.
  std::int64_t begin = 0;
  if (!taken_.empty()) {
    const std::int64_t oldest = taken_.front().begin, latest = taken_.back().end;
    const bool wrapped = taken_.back().begin < oldest;
    begin = latest;
    if (!wrapped && size - latest < elements) begin = 0;
    if ((wrapped || begin == 0) && oldest - begin < elements) return std::nullopt;
  }
  taken_.push_back({begin, begin + elements});
  return Run{sent_.defined() ? sent_.rows(begin, elements) : Tensor{}, received_.rows(begin, elements)};
}

void StagingRing::give_back(const Run& run) {
  const std::int64_t begin = (run.received.data - received_.data) / size_of(received_.dtype);
  const auto it = std::find_if(taken_.begin(), taken_.end(),
                               [&](const Taken& t) { return t.begin == begin && !t.given_back; });
  base::check(it != taken_.end(), "a run is given back to the ring that it was taken from, once");
  it->given_back = true;
  while (!taken_.empty() && taken_.front().given_back) taken_.pop_front();
}

}  // namespace trainerd::parallel
