#include "core/run/worker/plan_check.h"

#include <algorithm>
#include <cmath>

namespace trainerd::core::run {
namespace {

/// With fewer steps there is no comparison.
constexpr std::int64_t kFewest = 3;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace

PlanCheck::PlanCheck(Planned planned, std::int64_t start_step, std::int64_t steps)
    : planned_(std::move(planned)),
      first_(start_step + kComparedSteps.first),
      last_(std::min(start_step + kComparedSteps.second, steps)) {}

void PlanCheck::add(const io::StepRecord& record) {
  if (record.step >= first_ && record.step <= last_) records_.push_back(record);
}

std::optional<io::PredictionRecord> PlanCheck::take() {
  if (taken_ || last_ - first_ + 1 < kFewest) return std::nullopt;
  if (records_.empty() || records_.back().step < last_ || used_.size() < planned_.bytes.size())
    return std::nullopt;
  taken_ = true;
  io::PredictionRecord record{first_, last_, {}};
  using Kind = io::PredictionTerm::Kind;
  const auto over = [](double measured, double predicted) {
    return predicted > 0 ? measured / predicted - 1 : 0;
  };
  std::erase_if(records_, [this](const io::StepRecord& r) { return r.samples != planned_.samples; });
  if (planned_.step_seconds && std::ssize(records_) >= kFewest) {
    std::vector<double> seconds;
    for (const io::StepRecord& r : records_) seconds.push_back(r.step_seconds);
    const double measured = median(seconds), step = *planned_.step_seconds;
    record.terms.push_back({Kind::step_seconds, "step_seconds", step, measured, over(measured, step)});
    for (const base::LedgerPartInfo& part : base::kLedgerParts) {
      std::vector<double> times;
      for (const io::StepRecord& r : records_) times.push_back(r.time[part.part]);
      const double took = median(times), expected = planned_.time[part.part];
      if (expected > 0 || took > 0.001 * step)
        record.terms.push_back({Kind::part_seconds, part.name, expected, took, (took - expected) / step});
    }
  }
  double planned = 0, used = 0;
  for (const auto& [rank, bytes] : planned_.bytes) planned += static_cast<double>(bytes);
  for (const auto& [rank, bytes] : used_) used += static_cast<double>(bytes);
  record.terms.push_back({Kind::memory_bytes, "memory_bytes", planned, used, over(used, planned)});
  return record;
}

}  // namespace trainerd::core::run
