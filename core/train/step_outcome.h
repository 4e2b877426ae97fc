#pragma once

#include <cstdint>
#include <string>

namespace trainerd::core::train {

/// What one computation of a step came to, before its update.
struct StepOutcome {
  std::int64_t step = 0;
  // The same on every rank:
  double loss = 0;                  ///< as of a StepReport
  double loss_weight = 0;           ///< 0: no token counts, and nothing is updated
  double grad_norm = 0;             ///< before clipping
  bool finite = true;               ///< loss and gradients
  std::int64_t nonfinite_rank = 0;  ///< as of a StepReport
  bool outside = false;             ///< some device has token ids outside the vocabulary: nothing is updated
  // This rank's own:
  std::string nonfinite = {};  ///< as of a StepReport
  double own_loss = 0;         ///< the sum of losses that this rank adds; 0 on ranks that add none
};

/// What becomes of a step whose gradients are made. All ranks decide alike.
enum class StepVerdict : std::uint8_t {
  update,  ///< the parameters are updated; nothing is where a value is not finite
  again,   ///< the step is computed again from the same state, batch and random numbers
  skip,    ///< nothing is updated: parameters and the optimizer's states stay
};

/// Says what becomes of steps.
class Judge {
 public:
  virtual ~Judge() = default;
  /// Whether the update of this step waits for `judge`.
  virtual bool judges(std::int64_t step) const = 0;
  /// Of one computation of the step; of one that is computed again each time.
  virtual StepVerdict judge(const StepOutcome& outcome) = 0;
};

}  // namespace trainerd::core::train
