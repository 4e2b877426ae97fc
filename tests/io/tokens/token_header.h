#pragma once

#include <cstdint>
#include <cstring>
#include <string>

namespace trainerd::test {

/// Returns the header of trainerd's own token files, as described in io/README.md.
inline std::string token_file_header(std::int64_t token_bytes, std::int64_t tokens) {
  std::string header(64, '\0');
  const std::uint32_t version = 1, width = static_cast<std::uint32_t>(token_bytes);
  header.replace(0, 8, "\x89TRDTOK\n");
  std::memcpy(header.data() + 8, &version, 4);
  std::memcpy(header.data() + 12, &width, 4);
  std::memcpy(header.data() + 16, &tokens, 8);
  return header;
}

}  // namespace trainerd::test
