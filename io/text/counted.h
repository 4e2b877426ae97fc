#pragma once

#include <cstdint>
#include <string>

namespace trainerd::io {

/// "1 shard", "2 shards"; `ending`: of the plural.
inline std::string counted(std::int64_t count, const std::string& word, const std::string& ending = "s") {
  return std::to_string(count) + " " + word + (count == 1 ? "" : ending);
}

}  // namespace trainerd::io
