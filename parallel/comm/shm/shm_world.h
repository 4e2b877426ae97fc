#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/segment.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/flight_recorder.h"
#include "parallel/comm/shm/region.h"

namespace trainerd::parallel {

/// One group of a world in shared memory. Its members name it alike; groups differ by name or ranks.
struct ShmGroup {
  std::string name;
  std::vector<std::int64_t> ranks;  ///< of the world, in the group's order
  /// Of each of a rank's two slots: longer collectives take several steps.
  std::int64_t chunk_bytes = 1024 * 1024;
  /// From each rank to each other; 0: the group does not exchange. A message longer than its ring is sent,
  /// but slower.
  std::int64_t ring_bytes = 0;
};

/// What a world's segment holds. Agent and workers work it out alike, from the layout of the job.
struct ShmLayout {
  std::int64_t ranks = 1;
  std::vector<ShmGroup> groups;
};

/// Bytes of the segment: for each group of n ranks about 2 n chunk_bytes + n (n - 1) ring_bytes.
std::int64_t shm_bytes(const ShmLayout& layout);
/// Throws CapacityError when the memory is not there.
base::Segment make_shm_segment(const ShmLayout& layout);
/// Ends the world from outside it: the agent's, when a worker has died. Every waiting rank throws CommError
/// at once.
void abort_shm(const base::Segment& segment, std::string_view why);

struct ShmOptions {
  double deadline_seconds = 300;
  /// Polling before a sleep. For ranks with a core each: with more ranks than cores it takes time from those
  /// awaited.
  double spin_seconds = 0;
};

/// One rank's part of a world of processes of one node. Outlives its communicators.
class ShmWorld {
 public:
  /// Throws CommError when the segment was made for another layout.
  ShmWorld(base::Segment segment, ShmLayout layout, std::int64_t rank, const ShmOptions& options = {});

  /// Throws std::logic_error for a group that is not in the layout or does not have this rank.
  std::unique_ptr<Communicator> communicator(kernels::Backend& backend,
                                             const std::vector<std::int64_t>& group_ranks,
                                             const std::string& name,
                                             FlightRecorder* recorder = nullptr) const;
  void abort(std::string_view why) const;
  /// Why the world has ended; empty: it goes on.
  std::string ended() const;

 private:
  base::Segment segment_;
  ShmLayout layout_;
  std::int64_t rank_;
  ShmOptions options_;
};

}  // namespace trainerd::parallel
