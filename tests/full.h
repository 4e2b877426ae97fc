#pragma once

#include <cstdlib>

namespace trainerd::test {

/// True if long loops run completely (`tests/run.sh full`); other runs do a part of them.
inline bool runs_full() { return std::getenv("TRAINERD_FULL_TESTS") != nullptr; }

}  // namespace trainerd::test
