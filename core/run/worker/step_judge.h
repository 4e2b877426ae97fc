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

/// What a rank's judge asks of its surroundings.
struct JudgeTies {
  std::function<std::vector<std::uint64_t>()> hash;  ///< of the gradients that were computed last
  std::vector<std::string> names;                    ///< of these
  /// Each value becomes the largest of all ranks.
  std::function<std::vector<float>(const std::vector<float>&)> most;
  std::function<void(const ResultsDiffer&)> report_differing;
  std::function<void(const SpikeActed&)> report_action;  ///< by rank 0, for all
  /// Throws when the ranks' communication has ended: what was read from the device may be any numbers then.
  std::function<void()> require_alive;
  /// The agent ends this rank; does not return.
  std::function<void()> await_end;
};

/// Judges steps between their gradients and their update, on one rank: all ranks come to the same verdict.
/// Steps that are to be verified are computed twice and compared, by a third computation if need be. Then a
/// step that is out of line gets the next action of the job's policy.
class StepJudge final : public train::Judge {
 public:
  /// `history`: of the run before this attempt.
  StepJudge(const job::SuperviseOptions& options, std::int64_t rank, std::int64_t ranks,
            const SpikeHistory& history, JudgeTies ties);

  bool judges(std::int64_t step) const override { return options_.spikes.on() || verifies(step); }
  /// Throws DivergedError, on the rank that knows the cause, when the policy is
  /// used up.
  train::StepVerdict judge(const train::StepOutcome& outcome) override;

 private:
  /// One computation's bits.
  struct Result {
    std::uint64_t loss = 0, grad_norm = 0, own_loss = 0;
    std::vector<std::uint64_t> hashes;
  };
  /// By rank, how two computations differ: 0 not at all, 1 in what all ranks share, 2 in the rank's own.
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
  // Of the step under way:
  std::int64_t step_ = 0;
  std::vector<Result> results_;     ///< of its computations, as far as they are compared
  bool verified_ = false;           ///< or not to be verified
  bool retried_ = false;            ///< the computation that comes is compared with the one before
  bool same_again_ = false;         ///< two computations in a row had the same bits
  std::vector<std::string> tried_;  ///< for the error, what did not help
};

}  // namespace trainerd::core::run
