#pragma once

#include <cstdlib>

namespace trainerd::test {

/// Whether long loops are run whole (`tests/run.sh full`), of which other runs take a part.
inline bool runs_full() { return std::getenv("TRAINERD_FULL_TESTS") != nullptr; }

}  // namespace trainerd::test
