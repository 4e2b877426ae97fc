#pragma once

#include <memory>

#include "parallel/comm/communicator.h"

namespace trainerd::parallel {

/// The group of one: every collective is a copy or nothing. Throws std::logic_error for a peer that is not
/// rank 0.
std::unique_ptr<Communicator> make_single_rank(kernels::Backend& backend);

}  // namespace trainerd::parallel
