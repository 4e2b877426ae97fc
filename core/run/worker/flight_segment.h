#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/train/rank_page.h"
#include "kernels/base/segment.h"
#include "parallel/comm/flight_recorder.h"

// The activity pages and latest communications of a node's ranks, in shared memory that the agent can read
// after a rank has ended.

namespace trainerd::core::run {

/// Size of a rank's ring: more operations than a pipeline has under way at once.
inline constexpr std::int64_t kFlightRecords = 256;

namespace flight {
inline constexpr std::int64_t kLine = 64;  // bytes of a cache line: ranks do not share one
inline constexpr std::int64_t kPageBytes =
    (static_cast<std::int64_t>(sizeof(train::RankPage)) + kLine - 1) / kLine * kLine;
inline constexpr std::int64_t kRankBytes =
    (kPageBytes + kFlightRecords * static_cast<std::int64_t>(sizeof(parallel::FlightRecord)) + kLine - 1) /
    kLine * kLine;
}  // namespace flight

inline base::Segment make_flight_segment(std::int64_t ranks) {
  return base::Segment::create("trainerd-flight", ranks * flight::kRankBytes);
}

/// The page and ring of the node's rank with index `place`. A new segment's zeros are a valid initial page.
inline train::RankPage& rank_page(const base::Segment& segment, std::int64_t place) {
  return *reinterpret_cast<train::RankPage*>(segment.bytes().data() + place * flight::kRankBytes);
}
inline std::span<parallel::FlightRecord> flight_ring(const base::Segment& segment, std::int64_t place) {
  auto* records = reinterpret_cast<parallel::FlightRecord*>(segment.bytes().data() +
                                                            place * flight::kRankBytes + flight::kPageBytes);
  return {records, static_cast<std::size_t>(kFlightRecords)};
}

}  // namespace trainerd::core::run
