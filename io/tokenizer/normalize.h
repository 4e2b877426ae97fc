#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainerd::io {

/// Unicode's normalization form C (UAX #15), as Hugging Face's tokenizers compute it: their tables are of
/// Unicode 9, so a combining mark that was assigned later stays where it stands and composes with nothing.
class NfcNormalizer {
 public:
  NfcNormalizer();
  /// Puts the normal form of `text`, which is valid UTF-8, into `out`. False, and `out` is not changed: the
  /// text is in that form as it is.
  bool normalize(std::string_view text, std::string& out) const;

 private:
  enum class Quick : std::uint8_t { starter, check, opaque };
  Quick quick(std::uint32_t code_point) const;
  std::vector<Quick> quick_;  // by code point; those behind its end are starters
};

}  // namespace trainerd::io
