#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainerd::io {

enum class DataFormat : std::uint8_t { text, tokens, synthetic };

struct DataOptions {
  /// Files, directories (every regular file below, in sorted order) or glob patterns.
  std::vector<std::string> train;
  std::vector<std::string> valid;
  DataFormat format = DataFormat::text;
  std::string tokenizer = "bytes";  ///< for `text`: one token a byte

  bool operator==(const DataOptions&) const = default;
};

}  // namespace trainerd::io
