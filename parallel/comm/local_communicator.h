#pragma once

#include <memory>

#include "parallel/comm/communicator.h"

namespace trainerd::parallel {

/// A group of one rank: every collective is a copy or nothing. An exchange must be empty, and the root of a
/// broadcast must be 0; throws std::logic_error otherwise.
std::unique_ptr<Communicator> make_single_rank(kernels::Backend& backend);

}  // namespace trainerd::parallel
