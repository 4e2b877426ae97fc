#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace trainerd::core::sweep {

enum class DrawKind : std::uint8_t { real, integer };
/// A double cannot represent all integers beyond this.
inline constexpr double kMaxDrawnInteger = 9007199254740992.0;

/// The range of a drawn number, both ends included. `log`: its logarithm is uniform, and `low` > 0.
struct DrawRange {
  DrawKind kind = DrawKind::real;
  double low = 0, high = 1;
  bool log = false;
};

/// A number in [0, 1) that depends only on the seed, the key and the index of the draw, so that other keys or
/// more draws do not change it.
double random_unit(std::uint64_t seed, const std::string& key, std::uint32_t index);
/// The same from the Sobol sequence. Every coordinate is XORed with bits of the seed and the key (a random
/// digital shift), which keeps the net property.
double sobol_unit(std::uint64_t seed, const std::string& key, std::uint32_t index, std::size_t dimension);

/// The number at position `unit` of the range, in the form of a job file: reals with six digits.
std::string drawn_text(const DrawRange& range, double unit);

}  // namespace trainerd::core::sweep
