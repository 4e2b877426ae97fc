#pragma once

#include <cstdint>
#include <memory>

#include "parallel/comm/communicator.h"

namespace trainerd::parallel {

struct StagedOptions {
  std::int64_t slot_bytes = std::int64_t{4}
                            << 20;  ///< of each of the two host buffers that data passes through
};

/// Pinned host memory that one staged communicator of `size` ranks holds, for the host's plan; it takes none
/// of the device's.
std::int64_t staged_bytes(std::int64_t size, const StagedOptions& options = {});

/// The group of `inner`, whose tensors lie on the host, for tensors on the device of `backend`: data comes to
/// the host in pieces, passes through `inner` and goes back, so that ranks may share a device. Pieces are cut
/// alike on all ranks and sums are those of `inner`.
///
/// A thread of the communicator runs its operations in order, whatever CommOptions::progress says.
/// Work::wait(stream) blocks the host until the data is on its way back to the device, and `stream` until it
/// is there. Sends never block. A message arrives when it is waited for; a Work destroyed unwaited gives up
/// its receives. `inner` copies what is sent before it returns (as those of shared memory and Gloo do).
std::unique_ptr<Communicator> make_staged(std::unique_ptr<Communicator> inner, kernels::Backend& backend,
                                          const StagedOptions& options = {});

}  // namespace trainerd::parallel
