#include "core/run/faults/fault_schedule.h"

#include <algorithm>

#include "kernels/tensor/rng.h"

namespace trainerd::core::run {
namespace {

// From the content, not the position: a fault added before another must not change the other's id.
std::string id_of(const job::Fault& f) {
  std::string id =
      job::word_of(f.kind) + " step " + std::to_string(f.step) + " rank " + std::to_string(f.rank);
  if (f.kind == job::FaultKind::slow) id += " steps " + std::to_string(f.steps);
  if (job::lasts_seconds(f.kind) && f.seconds != job::Fault{}.seconds)
    id += " seconds " + std::to_string(f.seconds);
  if (f.kind == job::FaultKind::device_error) id += " xid " + std::to_string(f.xid);
  if (!f.tensor.empty()) id += " tensor " + f.tensor;
  if (f.element >= 0) id += " element " + std::to_string(f.element);
  if (f.bit >= 0) id += " bit " + std::to_string(f.bit);
  if (f.times > 1) id += " times " + std::to_string(f.times);
  return id;
}

}  // namespace

FaultSchedule::FaultSchedule(const job::FaultsOptions& options, std::int64_t ranks,
                             const std::vector<std::string>& done)
    : random_(options.random), ranks_(ranks), done_(done.begin(), done.end()) {
  std::set<std::string> names;
  for (const job::Fault& fault : options.inject) {
    std::string id = id_of(fault);
    for (int copy = 2; !names.insert(id).second; ++copy) id = id_of(fault) + " #" + std::to_string(copy);
    named_.push_back({id, fault});
  }
  for (const std::string& word : random_.kinds) random_kinds_.push_back(job::fault_kind_of(word).value());
}

std::vector<DueFault> FaultSchedule::due(std::int64_t step) const {
  std::vector<DueFault> due;
  for (const DueFault& named : named_)
    if (named.fault.step == step && !done_.contains(named.id)) due.push_back(named);
  if (random_.rate <= 0) return due;
  const auto bits =
      kernels::philox(kernels::hash_name("faults", random_.seed), static_cast<std::uint64_t>(step), 0);
  if (static_cast<double>(kernels::unit_float(bits[0])) > random_.rate) return due;
  DueFault drawn;
  drawn.fault.kind = random_kinds_.at(bits[1] % random_kinds_.size());
  drawn.fault.step = step;
  drawn.fault.rank = static_cast<std::int64_t>(bits[2] % static_cast<std::uint64_t>(ranks_));
  // The rank is not part of the id: at another size of the job the same draw gives another rank, and a step
  // that is done again must not have a second fault.
  drawn.id = "random step " + std::to_string(step);
  if (!done_.contains(drawn.id)) due.push_back(std::move(drawn));
  return due;
}

std::int64_t bit_to_flip(std::int64_t bit, std::int64_t size) {
  constexpr std::int64_t kFloatMantissa = 23, kShortMantissa = 7;
  if (bit < 0) return (size == 4 ? kFloatMantissa : kShortMantissa) - 1;
  return std::min(bit, 8 * size - 1);
}

}  // namespace trainerd::core::run
