#pragma once

#include "kernels/base/fd.h"

namespace trainerd::apps {

/// The signals that ask for a stop as a descriptor: blocked here, before any thread is made, so that every
/// thread blocks them. Writing to a reader that has gone, or beyond a file-size limit, is an error from here
/// on, and ends nothing.
base::UniqueFd open_stop_signals();

}  // namespace trainerd::apps
