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

/// One group of a world in shared memory. All members use the same name. Groups differ by name or ranks.
struct ShmGroup {
  std::string name;
  std::vector<std::int64_t> ranks;  ///< world ranks, in the group's order
  /// Size of each of a rank's two slots. Longer collectives take several steps.
  std::int64_t chunk_bytes = 1024 * 1024;
  /// Size of the ring from each rank to each other one; 0: the group does not exchange. Messages longer than
  /// a ring are possible but slower.
  std::int64_t ring_bytes = 0;
};

/// Contents of a world's segment. Agent and workers each derive it from the layout of the job.
struct ShmLayout {
  std::int64_t ranks = 1;
  std::vector<ShmGroup> groups;
};

/// Bytes of the segment: about 2 n chunk_bytes + n (n - 1) ring_bytes per group of n ranks.
std::int64_t shm_bytes(const ShmLayout& layout);
/// Throws CapacityError if the memory is not available.
base::Segment make_shm_segment(const ShmLayout& layout);
/// Ends the world from outside. The agent calls it when a worker has died. Every waiting rank throws
/// CommError at once.
void abort_shm(const base::Segment& segment, std::string_view why);

struct ShmOptions {
  double deadline_seconds = 300;
  /// Time to poll before sleeping. Only useful if each rank has a core: otherwise polling takes CPU time from
  /// the ranks it waits for.
  double spin_seconds = 0;
};

/// One rank's part of a world of processes on one node. Outlives its communicators.
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
  /// Why the world has ended; empty: it has not.
  std::string ended() const;

 private:
  base::Segment segment_;
  ShmLayout layout_;
  std::int64_t rank_;
  ShmOptions options_;
};

}  // namespace trainerd::parallel
