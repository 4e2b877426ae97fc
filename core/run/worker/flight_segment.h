#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/train/rank_page.h"
#include "kernels/base/segment.h"
#include "parallel/comm/flight_recorder.h"

// What a node's ranks do, and their latest communication, in memory that the agent reads whatever became of
// them.

namespace trainerd::core::run {

/// Operations of a rank that are kept: more than a pipeline has under way at once.
inline constexpr std::int64_t kFlightRecords = 256;

namespace flight {
inline constexpr std::int64_t kLine = 64;  // of a cache: ranks do not share one
inline constexpr std::int64_t kPageBytes =
    (static_cast<std::int64_t>(sizeof(train::RankPage)) + kLine - 1) / kLine * kLine;
inline constexpr std::int64_t kRankBytes =
    (kPageBytes + kFlightRecords * static_cast<std::int64_t>(sizeof(parallel::FlightRecord)) + kLine - 1) /
    kLine * kLine;
}  // namespace flight

inline base::Segment make_flight_segment(std::int64_t ranks) {
  return base::Segment::create("trainerd-flight", ranks * flight::kRankBytes);
}

/// Of the node's rank at `place`. A segment's zeros are a page in its initial state.
inline train::RankPage& rank_page(const base::Segment& segment, std::int64_t place) {
  return *reinterpret_cast<train::RankPage*>(segment.bytes().data() + place * flight::kRankBytes);
}
inline std::span<parallel::FlightRecord> flight_ring(const base::Segment& segment, std::int64_t place) {
  auto* records = reinterpret_cast<parallel::FlightRecord*>(segment.bytes().data() +
                                                            place * flight::kRankBytes + flight::kPageBytes);
  return {records, static_cast<std::size_t>(kFlightRecords)};
}

}  // namespace trainerd::core::run
