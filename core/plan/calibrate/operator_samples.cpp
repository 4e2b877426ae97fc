#include "core/plan/calibrate/operator_samples.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "core/plan/cost/measured_cost.h"

namespace trainerd::core::plan {
namespace {

using Sample = OperatorSamples::Sample;
using Terms = std::array<double, kShapeTerms>;

/// Least squares on relative errors with non-negative coefficients, by coordinate descent.
std::vector<double> fit_terms(const std::vector<const Sample*>& samples) {
  Terms scale{};
  std::vector<Terms> rows;
  for (const Sample* s : samples) {
    rows.push_back(shape_terms(s->op.what, s->op.cost));
    for (std::size_t i = 0; i < kShapeTerms; ++i) scale[i] = std::max(scale[i], rows.back()[i] /= s->seconds);
  }
  std::array<Terms, kShapeTerms> normal{};
  Terms right{};
  for (Terms& row : rows)
    for (std::size_t i = 0; i < kShapeTerms; ++i) {
      row[i] = scale[i] > 0 ? row[i] / scale[i] : 0;
      right[i] += row[i];
      for (std::size_t j = 0; j <= i; ++j) normal[j][i] = normal[i][j] += row[i] * row[j];
    }
  constexpr int kSweeps = 20000;
  Terms x{};
  for (int sweep = 0; sweep < kSweeps; ++sweep)
    for (std::size_t i = 0; i < kShapeTerms; ++i) {
      if (normal[i][i] == 0) continue;
      double rest = right[i];
      for (std::size_t j = 0; j < kShapeTerms; ++j) rest -= j == i ? 0 : normal[i][j] * x[j];
      x[i] = std::max(0.0, rest / normal[i][i]);
    }
  std::vector<double> terms(x.begin(), x.end());
  for (std::size_t i = 0; i < kShapeTerms; ++i) terms[i] = scale[i] > 0 ? terms[i] / scale[i] : 0;
  return terms;
}

/// One point per power of two of the bytes: the geometric means of the bytes and seconds of its samples.
std::vector<double> fit_points(const std::vector<const Sample*>& samples) {
  struct Bin {
    double bytes = 0, seconds = 0, count = 0;
  };
  std::map<int, Bin> bins;
  for (const Sample* s : samples) {
    if (s->op.cost.bytes <= 0) continue;
    Bin& bin = bins[static_cast<int>(std::floor(std::log2(s->op.cost.bytes)))];
    bin.bytes += std::log(s->op.cost.bytes), bin.seconds += std::log(s->seconds), ++bin.count;
  }
  std::vector<double> points;
  for (const auto& [power, bin] : bins) {
    points.push_back(std::exp(bin.bytes / bin.count));
    points.push_back(std::exp(bin.seconds / bin.count));
  }
  return points;
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

void OperatorSamples::add(const kernels::ObservedCall& call) {
  now_[{call.op, call.what, call.cost.flops, call.cost.bytes}].push_back(call.seconds);
}

void OperatorSamples::end_step(double seconds) {
  double inside = 0;
  operators_ = 0;
  for (const auto& [key, taken] : now_) {
    const double sum = std::accumulate(taken.begin(), taken.end(), 0.0),
                 count = static_cast<double>(taken.size());
    means_[key].push_back(sum / count);
    calls_[key] += count;
    inside += sum;
    operators_ += count;
  }
  host_.push_back(std::max(0.0, seconds - inside));
  steps_.push_back(seconds);
  now_.clear();
}

void OperatorSamples::drop_step() { now_.clear(); }

std::vector<Sample> OperatorSamples::samples() const {
  std::vector<Sample> samples;
  for (const auto& [key, seconds] : means_)
    samples.push_back(
        {{key.op, key.what, {key.flops, key.bytes}}, median(seconds), calls_.at(key) / steps_done()});
  return samples;
}

double OperatorSamples::host_seconds() const { return median(host_); }
double OperatorSamples::step_seconds() const { return median(steps_); }

FittedCurves fit_curves(const std::vector<Sample>& samples) {
  std::map<std::string, std::vector<const Sample*>> by_curve;
  for (const Sample& s : samples) {
    if (s.seconds <= 0) continue;
    by_curve[curve_of(s.op.op, s.op.what)].push_back(&s);
    if (!has_shape(s.op.what)) by_curve[other_curve(s.op.what.dtype)].push_back(&s);
  }
  FittedCurves fitted;
  for (const auto& [name, mine] : by_curve)
    if (std::vector<double> numbers = has_shape(mine.front()->op.what) ? fit_terms(mine) : fit_points(mine);
        !numbers.empty())
      fitted.curves[name] = std::move(numbers);
  parallel::MeasuredRates rates;
  rates.alone = fitted.curves;
  double off = 0, all = 0;
  for (const Sample& s : samples) {
    off += s.calls * std::abs(measured_seconds(s.op, rates) - s.seconds);
    all += s.calls * s.seconds;
  }
  fitted.error = all > 0 ? off / all : 0;
  return fitted;
}

}  // namespace trainerd::core::plan
