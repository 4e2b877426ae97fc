#pragma once

#include <cstdint>
#include <memory>

#include "parallel/comm/communicator.h"

namespace trainerd::parallel {

struct StagedOptions {
  std::int64_t slot_bytes = std::int64_t{4} << 20;  ///< size of each of the two host buffers
};

/// Pinned host memory of one staged communicator of `size` ranks, for the host's memory plan. It uses no
/// device memory.
std::int64_t staged_bytes(std::int64_t size, const StagedOptions& options = {});

/// Makes the group of `inner`, which takes host tensors, usable for tensors on the device of `backend`. Data
/// is copied to the host in pieces, passes through `inner` and is copied back, so that ranks may share a
/// device. Pieces are the same on all ranks, and `inner` makes the sums.
///
/// A thread of the communicator runs its operations in order; CommOptions::progress has no effect.
/// Work::wait(stream) blocks the host until the copies back to the device are enqueued, and `stream` until
/// they are done. Sends never block. Messages are received when they are waited for; a Work destroyed without
/// a wait gives up its receives. `inner` must copy sent data before it returns (shared memory and Gloo do).
std::unique_ptr<Communicator> make_staged(std::unique_ptr<Communicator> inner, kernels::Backend& backend,
                                          const StagedOptions& options = {});

}  // namespace trainerd::parallel
