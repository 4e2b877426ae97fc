#pragma once

#include <cstddef>
#include <cstdlib>
#include <string>

namespace trainerd::test {

/// True if long loops run completely (`tests/run.sh full`); other runs do a part of them.
inline bool runs_full() { return std::getenv("TRAINERD_FULL_TESTS") != nullptr; }

/// True if this run does part `part` of something that runs of CI do in `parts` parts (tests/slices.py).
inline bool in_slice(std::size_t part, std::size_t parts) {
  const char* const slice = std::getenv("TRAINERD_TEST_SLICE");
  return runs_full() || slice == nullptr || part % parts == std::stoul(slice) % parts;
}

}  // namespace trainerd::test
