#pragma once

#include <cstdint>
#include <memory>

#include "kernels/backend/backend.h"
#include "kernels/base/thread_pool.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::rank {

/// Makes the backend of a rank's device. A CPU backend runs on `pool`, which must outlive it.
std::unique_ptr<kernels::Backend> make_backend(const parallel::Topology& topology, base::ThreadPool& pool,
                                               std::int64_t rank);

}  // namespace trainerd::core::rank
