#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/job/faults_options.h"

namespace trainerd::core::run {

/// A fault whose step has come.
struct DueFault {
  std::string id;  ///< the same in every attempt and every start of the run
  job::Fault fault;
};

/// Which faults a run makes, and when: pure arithmetic, the same in the agents and the workers. Each is made
/// once; what was made is named by its id.
class FaultSchedule {
 public:
  FaultSchedule(const job::FaultsOptions& options, std::int64_t ranks,
                const std::vector<std::string>& done = {});

  void set_done(const std::string& id) { done_.insert(id); }
  /// Those of `step` at any rank that were not made yet: those of `inject` in their order, then a random one.
  std::vector<DueFault> due(std::int64_t step) const;
  /// All that the job names.
  const std::vector<DueFault>& named() const { return named_; }

 private:
  std::vector<DueFault> named_;
  job::RandomFaults random_;
  std::vector<job::FaultKind> random_kinds_;
  std::int64_t ranks_;
  std::set<std::string> done_;
};

/// Flips bit `bit` of an element of `size` bytes (4: fp32, 2: bf16); -1: the highest of the mantissa.
std::int64_t bit_to_flip(std::int64_t bit, std::int64_t size);

}  // namespace trainerd::core::run
