#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/run/faults/fault_schedule.h"
#include "core/run/wire/messages.h"
#include "core/train/trainer.h"

namespace trainerd::core::run {

/// Computes for so long, by the clock, and never sleeps: a process that sleeps in a step is taken for one
/// that hangs.
void compute_for(double seconds);

/// Breaks its rank where the job's `faults` say so. It reports each fault to the agent first, which
/// keeps it from being done again.
class Injector {
 public:
  using Report = std::function<void(const FaultInjected&)>;
  using ResetLinks = std::function<void()>;
  /// `reset_links` closes the rank's connections to all others. Throws SpecError when the rank holds nothing
  /// of a tensor in which it is to flip a bit.
  Injector(const job::FaultsOptions& options, std::int64_t rank, std::int64_t ranks,
           const std::vector<std::string>& done, train::Trainer& trainer, Report report,
           ResetLinks reset_links);

  /// Whether the step is slowed: it begins on a device that has nothing left to do.
  bool slows(std::int64_t step) const;
  /// Before the step is put on the device.
  void begin(std::int64_t step);
  /// What is done between backward and update, each time that the step is computed: `before`, and then what
  /// flips gradients, if this step has such a fault.
  std::function<void()> before_update(std::function<void()> before);
  /// What the device computed in a step that is over, without waiting.
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
  std::vector<DueFault> in_step_, gradients_, messages_;  ///< of the step that is put on the device
  std::int64_t calls_ = 0;                                ///< of the pass's observer
  std::int64_t computations_ = 0;                         ///< of the step, whose gradients were made
  std::int64_t step_ = 0;
  std::int64_t slow_until_ = 0;  ///< the last step that is slowed
  double factor_ = 1;
  double compute_seconds_ = 0;  ///< of the last step that was not slowed; 0: none was yet
};

}  // namespace trainerd::core::run
