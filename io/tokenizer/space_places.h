#pragma once

#include <cstddef>
#include <string_view>

#include "io/tokenizer/sentencepiece_normalizer.h"

namespace trainerd::io {

/// Maps positions in a converted text to positions in the original. The conversion adds a prefix and replaces
/// each space and each U+2581 by `space`.
class SpacePlaces {
 public:
  SpacePlaces(std::string_view text, std::size_t prefix_bytes, std::string_view space)
      : text_(text), made_(0), prefix_(prefix_bytes), space_(space) {}

  /// Returns the end in the original text of what the first `made` converted bytes stand for. `made` must not
  /// decrease between calls.
  std::size_t at(std::size_t made) {
    if (made <= prefix_) return 0;
    while (made_ < made - prefix_ && place_ < text_.size()) {
      const std::string_view rest = text_.substr(place_);
      const std::size_t taken = rest.starts_with(' ')           ? 1
                                : rest.starts_with(kPieceSpace) ? kPieceSpace.size()
                                                                : 0;
      place_ += taken > 0 ? taken : 1;
      made_ += taken > 0 ? space_.size() : 1;
    }
    return place_;
  }

 private:
  std::string_view text_;
  std::size_t made_, place_ = 0, prefix_;
  std::string_view space_;
};

}  // namespace trainerd::io
