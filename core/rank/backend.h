#pragma once

#include <cstdint>
#include <memory>

#include "kernels/backend/backend.h"
#include "kernels/base/thread_pool.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::rank {

/// The backend of a rank's device: the CPU's, which computes on `pool`, or that of a GPU. The pool outlives
/// it.
std::unique_ptr<kernels::Backend> make_backend(const parallel::Topology& topology, base::ThreadPool& pool,
                                               std::int64_t rank);

}  // namespace trainerd::core::rank
