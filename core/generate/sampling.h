#pragma once

#include <cstdint>
#include <span>

namespace trainerd::core::generate {

/// How the next token is sampled from its logits.
struct Sampling {
  double temperature = 0;  ///< 0: the likeliest token; on ties the first
  std::int64_t top_k = 0;  ///< only the k likeliest tokens; 0: all
  double top_p = 1;        ///< only the fewest likeliest tokens with this total probability
  std::uint64_t seed = 0;
};

/// Returns a token id. With a temperature it depends only on (seed, place) and the logits. Logits that are
/// not finite are never chosen. Throws std::invalid_argument if none is finite.
std::int32_t choose(std::span<const float> logits, const Sampling& sampling, std::int64_t place);

}  // namespace trainerd::core::generate
