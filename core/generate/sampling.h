#pragma once

#include <cstdint>
#include <span>

namespace trainerd::core::generate {

/// How the next token is chosen of its scores.
struct Sampling {
  double temperature = 0;  ///< 0: the likeliest, of equal ones the first
  std::int64_t top_k = 0;  ///< of the k likeliest alone; 0: of all
  double top_p = 1;        ///< of the fewest likeliest that have this share together
  std::uint64_t seed = 0;
};

/// The id: with a temperature a function of (seed, place) and the scores alone. Scores that are not finite
/// are never chosen; throws std::invalid_argument where none is finite.
std::int32_t choose(std::span<const float> logits, const Sampling& sampling, std::int64_t place);

}  // namespace trainerd::core::generate
