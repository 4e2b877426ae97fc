#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/job/faults_options.h"

namespace trainerd::core::run {

/// A fault that is due.
struct DueFault {
  std::string id;  ///< the same in every attempt and every start of the run
  job::Fault fault;
};

/// Decides which faults a run makes and when. It is pure arithmetic, so agents and workers agree. Each fault
/// is made once; ids name the ones already made.
class FaultSchedule {
 public:
  FaultSchedule(const job::FaultsOptions& options, std::int64_t ranks,
                const std::vector<std::string>& done = {});

  void set_done(const std::string& id) { done_.insert(id); }
  /// The faults of `step`, at any rank, that were not made yet: those of `inject` in order, then a random
  /// one.
  std::vector<DueFault> due(std::int64_t step) const;
  /// All faults that the job's `inject` names.
  const std::vector<DueFault>& named() const { return named_; }

 private:
  std::vector<DueFault> named_;
  job::RandomFaults random_;
  std::vector<job::FaultKind> random_kinds_;
  std::int64_t ranks_;
  std::set<std::string> done_;
};

/// The bit of an element of `size` bytes (4: fp32, 2: bf16) to flip; -1 selects the highest mantissa bit.
std::int64_t bit_to_flip(std::int64_t bit, std::int64_t size);

}  // namespace trainerd::core::run
