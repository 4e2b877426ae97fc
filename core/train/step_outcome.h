#pragma once

#include <cstdint>
#include <string>

namespace trainerd::core::train {

/// The result of one computation of a step, before its update.
struct StepOutcome {
  std::int64_t step = 0;
  // Equal on all ranks:
  double loss = 0;                  ///< as in StepReport
  double loss_weight = 0;           ///< 0: no token counts, and nothing is updated
  double grad_norm = 0;             ///< before clipping
  bool finite = true;               ///< loss and gradients are finite
  std::int64_t nonfinite_rank = 0;  ///< as in StepReport
  bool overflow = false;  ///< gradients overflowed; nothing is updated, and the loss scale goes down
  bool unusable = false;  ///< token ids outside the vocabulary, or crowded experts: nothing is updated
  // This rank's own:
  std::string nonfinite = {};  ///< as in StepReport
  double own_loss = 0;         ///< sum of the losses that this rank adds; 0 if it adds none
};

/// What to do with a step whose gradients are computed. All ranks decide alike.
enum class StepVerdict : std::uint8_t {
  update,  ///< update the parameters, unless a value is not finite
  again,   ///< compute the step again from the same state, batch and random numbers
  skip,    ///< update nothing: parameters and optimizer states stay
};

/// Decides what to do with steps.
class Judge {
 public:
  virtual ~Judge() = default;
  /// True if the update of this step must wait for `judge`.
  virtual bool judges(std::int64_t step) const = 0;
  /// Called once per computation of the step.
  virtual StepVerdict judge(const StepOutcome& outcome) = 0;
};

}  // namespace trainerd::core::train
