#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace trainerd::core::sweep {

enum class DrawKind : std::uint8_t { real, integer };
/// Integers beyond are not all numbers of a double.
inline constexpr double kMaxDrawnInteger = 9007199254740992.0;

/// What a number is drawn from: both ends belong to it. `log`: its logarithm is uniform, and `low` > 0.
struct DrawRange {
  DrawKind kind = DrawKind::real;
  double low = 0, high = 1;
  bool log = false;
};

/// In [0, 1): a function of the seed, the key and the number of the draw alone, so that another key or more
/// draws change none.
double random_unit(std::uint64_t seed, const std::string& key, std::uint32_t index);
/// The same of the Sobol sequence. Every coordinate is XORed with bits of the seed and the key (a random
/// digital shift), which leaves a net a net.
double sobol_unit(std::uint64_t seed, const std::string& key, std::uint32_t index, std::size_t dimension);

/// The number at `unit` of the range as a job's file has it: reals with six digits.
std::string drawn_text(const DrawRange& range, double unit);

}  // namespace trainerd::core::sweep
