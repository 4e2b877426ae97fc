#include "core/job/layer_options.h"

#include <algorithm>

#include "core/job/model_options.h"

namespace trainerd::core::job {

LayerOptions layer_options(const ModelOptions& model, std::int64_t layer) {
  const AttentionOptions& a = model.attention;
  const ExpertOptions& e = model.experts;
  LayerOptions options;
  options.experts =
      e.on() && layer >= e.dense_layers && (layer + 1) % std::max<std::int64_t>(1, e.every) == 0;
  if (a.window == 0) return options;
  options.slides =
      a.pattern.empty() ||
      a.pattern[static_cast<std::size_t>(layer % static_cast<std::int64_t>(a.pattern.size()))] == kSliding;
  // A window as long as the sequence hides no key.
  options.window = options.slides && a.window < model.seq_len ? a.window : 0;
  return options;
}

std::vector<std::string> shortest_pattern(const std::vector<std::string>& pattern, std::int64_t layers) {
  const auto count = static_cast<std::size_t>(layers);
  if (pattern.empty() || layers < 1) return pattern;
  const auto same = [&](std::size_t period) {
    for (std::size_t i = period; i < count; ++i)
      if (pattern[i % pattern.size()] != pattern[i % period % pattern.size()]) return false;
    return true;
  };
  std::size_t period = 1;
  while (period < std::min(pattern.size(), count) && !same(period)) ++period;
  std::vector<std::string> shortest(pattern.begin(), pattern.begin() + static_cast<std::ptrdiff_t>(period));
  if (shortest == std::vector<std::string>{kSliding}) shortest.clear();
  return shortest;
}

}  // namespace trainerd::core::job
