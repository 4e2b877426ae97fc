#include "core/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trainerd::core::model {
namespace {

std::vector<double> plain(double theta, std::int64_t rotated) {
  // The base is rounded to fp32, as in earlier runs.
  const auto base = static_cast<double>(static_cast<float>(theta));
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < rotated / 2; ++i)
    frequencies.push_back(std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(rotated)));
  return frequencies;
}

void scale_llama3(const job::RopeScaling& s, std::vector<double>& frequencies) {
  const auto original = static_cast<double>(s.original_max_position);
  for (double& f : frequencies) {
    const double wavelength = 2 * std::numbers::pi / f;
    if (wavelength < original / s.high_freq_factor) continue;
    if (wavelength > original / s.low_freq_factor) {
      f /= s.factor;
      continue;
    }
    const double kept =
        (original / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
    f = (1 - kept) * f / s.factor + kept * f;
  }
}

void scale_yarn(const job::RopeScaling& s, double theta, std::vector<double>& frequencies) {
  const auto width = static_cast<double>(2 * frequencies.size());
  // The pair that makes this number of turns over the original length.
  const auto pair_of = [&](double turns) {
    return width * std::log(static_cast<double>(s.original_max_position) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  double low = pair_of(s.beta_fast), high = pair_of(s.beta_slow);
  if (s.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, width - 1);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double scaled = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / s.factor * scaled + frequencies[i] * (1 - scaled);
  }
}

}  // namespace

RopeFrequencies rope_frequencies(const job::ModelOptions& model) {
  const job::RopeScaling& s = model.rope_scaling;
  RopeFrequencies r{plain(model.rope_theta, job::rotated_elements(model))};
  switch (s.kind) {
    case job::RopeScalingKind::none: break;
    case job::RopeScalingKind::linear:
      for (double& f : r.of_pair) f /= s.factor;
      break;
    case job::RopeScalingKind::llama3: scale_llama3(s, r.of_pair); break;
    case job::RopeScalingKind::yarn:
      scale_yarn(s, model.rope_theta, r.of_pair);
      r.factor = s.attention_factor > 0 ? s.attention_factor
                 : s.factor > 1         ? 0.1 * std::log(s.factor) + 1
                                        : 1.0;
      break;
  }
  return r;
}

RopeFrequencies sliding_rope_frequencies(const job::ModelOptions& model) {
  return {plain(model.attention.sliding_theta, job::rotated_elements(model))};
}

RopeTables take_rope_tables(const job::ModelOptions& model, kernels::Arena& arena) {
  if (model.positions != job::Positions::rope) return {};
  const auto table = [&] {
    return arena.take(kernels::DType::f32, {model.seq_len, job::rotated_elements(model)},
                      kernels::MemoryTerm::parameters);
  };
  RopeTables tables;
  tables.full_SR = table();
  tables.sliding_SR = model.attention.sliding_theta > 0 ? table() : tables.full_SR;
  return tables;
}

void fill_rope_tables(const job::ModelOptions& model, const RopeTables& tables, kernels::Backend& backend,
                      kernels::Stream& stream) {
  const auto fill = [&](const RopeFrequencies& rope, const kernels::Tensor& table_SR) {
    backend.rope_table(stream, {.frequencies = rope.of_pair, .factor = rope.factor, .table_SR = table_SR});
  };
  if (tables.full_SR.defined()) fill(rope_frequencies(model), tables.full_SR);
  if (tables.sliding_SR.data != tables.full_SR.data) fill(sliding_rope_frequencies(model), tables.sliding_SR);
}

}  // namespace trainerd::core::model
