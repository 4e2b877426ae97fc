#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainerd::io {

/// Unicode normalization form C (UAX #15), compatible with Hugging Face's tokenizers. Their tables are of
/// Unicode 9, so combining marks of later versions are neither reordered nor composed.
class NfcNormalizer {
 public:
  NfcNormalizer();
  /// Writes the normal form of `text` (valid UTF-8) to `out`. Returns false and leaves `out` unchanged if the
  /// text is already in normal form.
  bool normalize(std::string_view text, std::string& out) const;

 private:
  enum class Quick : std::uint8_t { starter, check, opaque };
  Quick quick(std::uint32_t code_point) const;
  std::vector<Quick> quick_;  // per code point; larger ones are starters
};

}  // namespace trainerd::io
