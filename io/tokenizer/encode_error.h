#pragma once

#include <stdexcept>

namespace trainerd::io {

/// Reason why a tokenizer cannot encode a text. The caller adds the position of the text.
struct EncodeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace trainerd::io
