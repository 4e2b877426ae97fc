#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/run/supervise/spike_watch.h"
#include "core/run/wire/messages.h"
#include "core/train/step_outcome.h"

namespace trainerd::core::run {

/// Functions that a rank's judge needs from its surroundings.
struct JudgeTies {
  std::function<std::vector<std::uint64_t>()> hash;  ///< hashes of the gradients computed last
  std::vector<std::string> names;                    ///< tensor names of these hashes
  /// Elementwise maximum over all ranks.
  std::function<std::vector<float>(const std::vector<float>&)> most;
  std::function<void(const ResultsDiffer&)> report_differing;
  std::function<void(const SpikeActed&)> report_action;  ///< called by rank 0 only, for all
  /// Throws if communication was aborted: values read from the device may then be arbitrary.
  std::function<void()> require_alive;
  /// Waits until the agent ends this rank; does not return.
  std::function<void()> await_end;
};

/// Judges steps between backward and update, on one rank; all ranks reach the same verdict. A step to be
/// verified is computed twice and compared, and a third time if the two differ. A step with a spike then gets
/// the next action of the job's policy.
class StepJudge final : public train::Judge {
 public:
  /// `history`: from earlier attempts of the run.
  StepJudge(const job::SuperviseOptions& options, std::int64_t rank, std::int64_t ranks,
            const SpikeHistory& history, JudgeTies ties);

  bool judges(std::int64_t step) const override { return options_.spikes.on() || verifies(step); }
  /// Throws DivergedError, on the rank that knows the cause, when the policy has no action left.
  train::StepVerdict judge(const train::StepOutcome& outcome) override;

 private:
  /// The bits of one computation's results.
  struct Result {
    std::uint64_t loss = 0, grad_norm = 0, own_loss = 0;
    std::vector<std::uint64_t> hashes;
  };
  /// By rank, how two computations differ: 0 not, 1 in results shared by all ranks, 2 in the rank's own.
  using Levels = std::vector<float>;

  bool verifies(std::int64_t step) const {
    return options_.verify_every > 0 && step % options_.verify_every == 0;
  }
  Result result_of(const train::StepOutcome& outcome) const;
  float level(const Result& a, const Result& b) const;
  Levels most(float own) const;
  void report_differing(const Levels& levels, const Result& a, const Result& b, ResultsDiffer::Found found,
                        const std::string& note = "");
  void report_no_two_alike(Levels levels, const Levels& third, const Levels& late);
  bool verify(const train::StepOutcome& outcome);
  void compare_retried(const train::StepOutcome& outcome);
  train::StepVerdict act(const train::StepOutcome& outcome, const std::string& cause);
  [[noreturn]] void end(const train::StepOutcome& outcome, const std::string& cause);

  job::SuperviseOptions options_;
  std::int64_t rank_, ranks_;
  JudgeTies ties_;
  SpikeWatch watch_;
  std::array<std::int64_t, 3> used_{};  ///< by action
  // For the current step:
  std::int64_t step_ = 0;
  std::vector<Result> results_;     ///< its computations that are compared
  bool verified_ = false;           ///< verified, or not to be verified
  bool retried_ = false;            ///< the next computation is compared with the last one
  bool same_again_ = false;         ///< two computations in a row had equal bits
  std::vector<std::string> tried_;  ///< actions that did not help, for the error
};

}  // namespace trainerd::core::run
