#pragma once

#include <cstdint>
#include <string>

namespace trainerd::io {

/// Returns "1 shard" or "2 shards"; `ending` is the plural's ending.
inline std::string counted(std::int64_t count, const std::string& word, const std::string& ending = "s") {
  return std::to_string(count) + " " + word + (count == 1 ? "" : ending);
}

}  // namespace trainerd::io
