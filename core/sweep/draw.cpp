#include "core/sweep/draw.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "core/spec/write.h"
#include "core/sweep/sobol.h"
#include "kernels/tensor/rng.h"

namespace trainerd::core::sweep {
namespace {

// Separates the two kinds of draws with the same seed.
constexpr std::uint64_t kShiftStream = 1;

double rounded(double x) {
  std::array<char, 32> digits{};
  const auto end =
      std::to_chars(digits.data(), digits.data() + digits.size(), x, std::chars_format::general, 6).ptr;
  double value = x;
  std::from_chars(digits.data(), end, value);
  return value;
}

}  // namespace

double random_unit(std::uint64_t seed, const std::string& key, std::uint32_t index) {
  const auto bits = kernels::philox(kernels::hash_name(key, seed), index, 0);
  return static_cast<double>((std::uint64_t{bits[1]} << 32 | bits[0]) >> 11) * 0x1p-53;
}

double sobol_unit(std::uint64_t seed, const std::string& key, std::uint32_t index, std::size_t dimension) {
  const std::uint32_t shift = kernels::philox(kernels::hash_name(key, seed), 0, kShiftStream)[0];
  return static_cast<double>(sobol_bits(index, dimension) ^ shift) * 0x1p-32;
}

std::string drawn_text(const DrawRange& range, double unit) {
  const bool integer = range.kind == DrawKind::integer;
  // An integer represents the numbers from it up to the next.
  const double low = range.low, high = integer ? range.high + 1 : range.high;
  const double x = range.log ? std::exp(std::log(low) + unit * (std::log(high) - std::log(low)))
                             : low + unit * (high - low);
  if (integer)
    return std::to_string(static_cast<std::int64_t>(std::clamp(std::floor(x), range.low, range.high)));
  return spec::number_text(std::clamp(rounded(x), range.low, range.high));
}

}  // namespace trainerd::core::sweep
