#include "core/run/worker/step_judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/base/error.h"

namespace trainerd::core::run {
namespace {

using job::SpikeAction;
using train::StepOutcome;
using train::StepVerdict;

constexpr std::size_t kShownTensors = 8;

bool none(const std::vector<float>& levels) {
  return std::all_of(levels.begin(), levels.end(), [](float level) { return level == 0; });
}

/// The ranks with the highest level: if some differ in their own results, the others' differences follow from
/// them.
std::vector<std::int64_t> most_different(const std::vector<float>& levels) {
  const float most = *std::max_element(levels.begin(), levels.end());
  std::vector<std::int64_t> ranks;
  for (std::size_t rank = 0; rank < levels.size(); ++rank)
    if (levels[rank] == most) ranks.push_back(static_cast<std::int64_t>(rank));
  return ranks;
}

std::int64_t budget_of(const job::SpikesOptions& options, SpikeAction action) {
  switch (action) {
    case SpikeAction::retry: return options.retries;
    case SpikeAction::skip: return options.skips;
    case SpikeAction::rollback: break;
  }
  return options.rollbacks;
}

}  // namespace

StepJudge::StepJudge(const job::SuperviseOptions& options, std::int64_t rank, std::int64_t ranks,
                     const SpikeHistory& history, JudgeTies ties)
    : options_(options), rank_(rank), ranks_(ranks), ties_(std::move(ties)), watch_(options.spikes, rank) {
  std::copy_n(history.used.begin(), std::min(history.used.size(), used_.size()), used_.begin());
  for (std::size_t i = 0; i < std::min(history.losses.size(), history.norms.size()); ++i)
    watch_.add({.loss = history.losses[i], .grad_norm = history.norms[i]});
}

StepJudge::Result StepJudge::result_of(const StepOutcome& o) const {
  const auto bits = [](double x) { return std::bit_cast<std::uint64_t>(x); };
  Result result{bits(o.loss), bits(o.grad_norm), bits(o.own_loss), ties_.hash()};
  ties_.require_alive();
  return result;
}

/// Collects the levels of all ranks.
StepJudge::Levels StepJudge::most(float own) const {
  Levels levels(static_cast<std::size_t>(ranks_), 0.0f);
  levels[static_cast<std::size_t>(rank_)] = own;
  levels = ties_.most(levels);
  ties_.require_alive();
  return levels;
}

float StepJudge::level(const Result& a, const Result& b) const {
  if (a.hashes != b.hashes || a.own_loss != b.own_loss) return 2;
  return a.loss != b.loss || a.grad_norm != b.grad_norm ? 1 : 0;
}

void StepJudge::report_differing(const Levels& levels, const Result& a, const Result& b,
                                 ResultsDiffer::Found found, const std::string& note) {
  ResultsDiffer m{.rank = rank_, .step = step_, .ranks = most_different(levels), .found = found};
  if (std::find(m.ranks.begin(), m.ranks.end(), rank_) == m.ranks.end()) return;
  std::size_t more = 0;
  const auto add = [&](const std::string& what) {
    if (std::find(m.tensors.begin(), m.tensors.end(), what) != m.tensors.end()) return;
    if (m.tensors.size() < kShownTensors) m.tensors.push_back(what);
    else ++more;
  };
  if (a.own_loss != b.own_loss) add("loss");
  for (std::size_t i = 0; i < a.hashes.size() && i < b.hashes.size(); ++i)
    if (a.hashes[i] != b.hashes[i]) add(ties_.names.at(i));
  if (m.tensors.empty()) add(a.loss != b.loss ? "loss over all ranks" : "gradient norm over all ranks");
  if (more > 0) m.tensors.push_back(fmt::format("{} more", more));
  if (!note.empty()) m.tensors.push_back(note);
  ties_.report_differing(m);
}

/// `levels`: first and second computation; `third`: first and third; `late`: second and third. Different
/// ranks may have been wrong in different computations, so all are named.
void StepJudge::report_no_two_alike(Levels levels, const Levels& third, const Levels& late) {
  for (std::size_t rank = 0; rank < levels.size(); ++rank)
    levels[rank] = std::max({levels[rank], third[rank], late[rank]});
  struct Pair {
    std::size_t a, b;
    const char* alone;  ///< text if these two agree
  };
  constexpr std::array<Pair, 3> kPairs{{{0, 1, "in its third computation"},
                                        {0, 2, "in its second computation"},
                                        {1, 2, "in its first computation"}}};
  const auto differs = [&](const Pair& pair) { return level(results_[pair.a], results_[pair.b]); };
  const Pair* worst = &kPairs[0];
  for (const Pair& pair : kPairs)
    if (differs(pair) > differs(*worst)) worst = &pair;
  std::string note;
  for (const Pair& pair : kPairs)
    if (differs(pair) < differs(*worst)) note = pair.alone;
  report_differing(levels, results_[worst->a], results_[worst->b], ResultsDiffer::Found::no_two_alike, note);
}

StepVerdict StepJudge::judge(const StepOutcome& outcome) {
  ties_.require_alive();
  // Its report ends the run.
  if (outcome.unusable) return StepVerdict::update;
  if (step_ != outcome.step) {
    step_ = outcome.step;
    results_.clear(), tried_.clear();
    verified_ = !verifies(step_);
    retried_ = same_again_ = false;
  }
  if (!verified_ && !verify(outcome)) return StepVerdict::again;
  if (std::exchange(retried_, false)) compare_retried(outcome);
  // Without a counted token nothing is updated, so there is nothing to judge.
  if (outcome.loss_weight == 0 && outcome.finite) return StepVerdict::update;
  if (outcome.overflow) return StepVerdict::update;
  const std::string cause = options_.spikes.on() ? watch_.judge(outcome) : std::string();
  if (!cause.empty()) return act(outcome, cause);
  if (outcome.finite) watch_.add(outcome);
  return StepVerdict::update;
}

/// True if the step has been computed often enough: twice, or three times if the first two differ.
bool StepJudge::verify(const StepOutcome& outcome) {
  results_.push_back(result_of(outcome));
  const auto levels_of = [&](const Result& a, const Result& b) { return most(level(a, b)); };
  if (results_.size() == 1) return false;
  const Levels first = levels_of(results_[0], results_[1]);
  if (results_.size() == 2 && !none(first)) return false;
  verified_ = same_again_ = true;
  if (results_.size() == 2) return true;
  // The gradients are the third computation's, so that one must agree with one of the others.
  const Levels third = levels_of(results_[0], results_[2]), late = levels_of(results_[1], results_[2]);
  if (none(third) || none(late)) {
    report_differing(first, results_[0], results_[1], ResultsDiffer::Found::one_of_three);
    return true;
  }
  report_no_two_alike(first, third, late);
  ties_.await_end();
  throw base::device_error("a rank whose results differ goes on");
}

/// A different result of the same computation is a hardware error, not a property of the data.
void StepJudge::compare_retried(const StepOutcome& outcome) {
  const Result now = result_of(outcome);
  const Levels levels = most(level(results_.back(), now));
  same_again_ = none(levels);
  if (!same_again_) report_differing(levels, results_.back(), now, ResultsDiffer::Found::after_spike);
  results_.back() = now;
}

StepVerdict StepJudge::act(const StepOutcome& outcome, const std::string& cause) {
  for (const std::string& word : options_.spikes.policy) {
    const auto at = std::find(job::kSpikeWords.begin(), job::kSpikeWords.end(), word);
    const auto action = static_cast<SpikeAction>(at - job::kSpikeWords.begin());
    std::int64_t& used = used_[static_cast<std::size_t>(action)];
    const std::int64_t budget = budget_of(options_.spikes, action);
    if (action == SpikeAction::retry && same_again_) {
      tried_.emplace_back("retry: computed again with the same result");
      continue;
    }
    if (used >= budget) {
      tried_.push_back(fmt::format("{}: {} of {} used", word, used, budget));
      continue;
    }
    ++used;
    const std::string known = same_again_ ? ", computed again with the same result" : "";
    const std::string count = fmt::format("({} {} of {})", word, used, budget);
    SpikeActed m{.step = step_, .action = action, .used = used};
    if (action == SpikeAction::retry) {
      m.message = fmt::format("spike in step {}: {}; it is computed again {}", step_, cause, count);
      if (rank_ == 0) ties_.report_action(m);
      if (results_.empty()) results_.push_back(result_of(outcome));
      else results_.back() = result_of(outcome);
      retried_ = true;
      return StepVerdict::again;
    }
    if (action == SpikeAction::skip) {
      m.message = fmt::format("spike in step {}{}: {}; nothing is updated {}", step_, known, cause, count);
      if (rank_ == 0) ties_.report_action(m);
      return StepVerdict::skip;
    }
    m.message = fmt::format("spike in step {}{}: {}; the run goes back {}", step_, known, cause, count);
    if (rank_ == 0) ties_.report_action(m);
    ties_.await_end();
  }
  end(outcome, cause);
}

void StepJudge::end(const StepOutcome& outcome, const std::string& cause) {
  const std::int64_t knows = outcome.finite ? 0 : outcome.nonfinite_rank;
  if (knows != rank_) ties_.await_end();
  std::string tried;
  for (const std::string& what : tried_) tried += (tried.empty() ? "" : "; ") + what;
  throw base::diverged_error(
      fmt::format("step {}: {}; the step updated nothing, and supervise.spikes has no action left: {}", step_,
                  cause, tried));
}

}  // namespace trainerd::core::run
