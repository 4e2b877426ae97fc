#include "core/generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/tensor/rng.h"

namespace trainerd::core::generate {
namespace {

// Double precision, because probabilities of a large vocabulary are summed.
double uniform(std::uint64_t seed, std::int64_t place) {
  const auto bits =
      kernels::philox(kernels::hash_name("generate", seed), static_cast<std::uint64_t>(place), 0);
  return (static_cast<double>(bits[0]) * 0x1p32 + static_cast<double>(bits[1])) * 0x1p-64;
}

}  // namespace

std::int32_t choose(std::span<const float> logits, const Sampling& sampling, std::int64_t place) {
  std::vector<std::int32_t> ids;
  for (std::size_t id = 0; id < logits.size(); ++id)
    if (std::isfinite(logits[id])) ids.push_back(static_cast<std::int32_t>(id));
  if (ids.empty()) throw std::invalid_argument("no score is finite");
  const auto score = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    return score(a) != score(b) ? score(a) > score(b) : a < b;
  };
  if (sampling.temperature == 0) return *std::min_element(ids.begin(), ids.end(), likelier);
  std::sort(ids.begin(), ids.end(), likelier);
  if (sampling.top_k > 0 && std::cmp_less(sampling.top_k, ids.size()))
    ids.resize(static_cast<std::size_t>(sampling.top_k));
  std::vector<double> shares;
  double sum = 0;
  for (const std::int32_t id : ids)
    sum += shares.emplace_back(
        std::exp((static_cast<double>(score(id)) - score(ids.front())) / sampling.temperature));
  double kept = 0;
  std::size_t count = 0;
  while (count < ids.size() && (count == 0 || kept < sampling.top_p * sum)) kept += shares[count++];
  double left = uniform(sampling.seed, place) * kept;
  for (std::size_t i = 0; i + 1 < count; ++i) {
    if (left < shares[i]) return ids[i];
    left -= shares[i];
  }
  return ids[count - 1];
}

}  // namespace trainerd::core::generate
