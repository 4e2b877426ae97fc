#pragma once

#include <stdexcept>

namespace trainerd::io {

/// Why a tokenizer cannot encode a text. Who knows the text's place adds it.
struct EncodeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace trainerd::io
