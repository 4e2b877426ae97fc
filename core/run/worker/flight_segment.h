#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/segment.h"
#include "parallel/comm/flight_recorder.h"

// The latest communication of a node's ranks, in memory that the agent reads whatever became of them.

namespace trainerd::core::run {

/// Operations of a rank that are kept: more than a pipeline has under way at once.
inline constexpr std::int64_t kFlightRecords = 256;

inline base::Segment make_flight_segment(std::int64_t ranks) {
  return base::Segment::create(
      "trainerd-flight", ranks * kFlightRecords * static_cast<std::int64_t>(sizeof(parallel::FlightRecord)));
}

/// The ring of the node's rank at `place`.
inline std::span<parallel::FlightRecord> flight_ring(const base::Segment& segment, std::int64_t place) {
  auto* records = reinterpret_cast<parallel::FlightRecord*>(segment.bytes().data());
  return {records + place * kFlightRecords, static_cast<std::size_t>(kFlightRecords)};
}

}  // namespace trainerd::core::run
