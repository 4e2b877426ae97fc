#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/run/faults/fault_schedule.h"
#include "core/run/wire/messages.h"
#include "core/train/trainer.h"

namespace trainerd::core::run {

/// Computes for `seconds` by the clock and never sleeps: a process that sleeps in a step counts as hung.
void compute_for(double seconds);

/// Makes the job's `faults` at its rank. It reports each fault to the agent first, so that the fault is not
/// made again after a restart.
class Injector {
 public:
  using Report = std::function<void(const FaultInjected&)>;
  using ResetLinks = std::function<void()>;
  /// `reset_links` closes the rank's connections to all others. Throws SpecError if a bit flip names a tensor
  /// that the rank does not update.
  Injector(const job::FaultsOptions& options, std::int64_t rank, std::int64_t ranks,
           const std::vector<std::string>& done, train::Trainer& trainer, Report report,
           ResetLinks reset_links);

  /// True if the step is slowed; it must then begin on an idle device.
  bool slows(std::int64_t step) const;
  /// Call it before the step is launched.
  void begin(std::int64_t step);
  /// Returns the function to run between backward and update, each time the step is computed: `before`, and
  /// then the step's gradient flips, if any.
  std::function<void()> before_update(std::function<void()> before);
  /// The device's compute time in a completed step, without waits.
  void measured(std::int64_t step, double compute_seconds);

 private:
  void in_pass(std::span<const parallel::Action> actions);
  void happen(const DueFault& due);
  void flip(const DueFault& due);
  void flip_gradients();
  void flip_message(const DueFault& due, kernels::Stream& stream, const parallel::GroupInfo& group,
                    const parallel::CommCall& call);
  void flip_bit(const DueFault& due, kernels::Stream& stream, const kernels::Tensor& element,
                const std::string& place);
  void report(const DueFault& due, const std::string& what);

  FaultSchedule plan_;
  std::int64_t rank_;
  train::Trainer& trainer_;
  Report report_;
  ResetLinks reset_links_;
  std::vector<DueFault> in_step_, gradients_, messages_;  ///< of the step being launched
  std::int64_t calls_ = 0;                                ///< calls of the pass's observer
  std::int64_t computations_ = 0;                         ///< computations of the step that have gradients
  std::int64_t step_ = 0;
  std::int64_t slow_until_ = 0;  ///< last slowed step
  double factor_ = 1;
  double compute_seconds_ = 0;  ///< of the latest step that was not slowed; 0: none yet
};

}  // namespace trainerd::core::run
