#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainerd::core::job {

/// What breaks. Without `agent` in its name it is of one rank's worker.
enum class FaultKind : std::uint8_t {
  kill,             ///< the worker ends by SIGKILL in the middle of the step
  crash,            ///< the worker ends by SIGSEGV there, as by a bug
  kill_agent,       ///< the agent of the rank's node does
  stop,             ///< the worker stops itself by SIGSTOP in the middle of the step
  hang,             ///< the worker computes for ever in the middle of the step
  slow,             ///< the worker's computing takes `factor` times as long, for `steps` steps
  flip_parameter,   ///< a bit of the master weights, before the step
  flip_gradient,    ///< a bit of the reduced gradients, before the update
  flip_checkpoint,  ///< a bit of the rank's file in the first checkpoint that is written from this step on
};

/// By kind.
inline constexpr std::array<std::string_view, 9> kFaultWords{
    "kill", "crash",          "kill_agent",    "stop",           "hang",
    "slow", "flip_parameter", "flip_gradient", "flip_checkpoint"};
inline std::string word_of(FaultKind kind) {
  return std::string(kFaultWords.at(static_cast<std::size_t>(kind)));
}
/// Whether it flips a bit that the rank's device holds.
inline bool flips_tensor(FaultKind kind) {
  return kind == FaultKind::flip_parameter || kind == FaultKind::flip_gradient;
}

/// A failure that the run makes on purpose, once.
struct Fault {
  FaultKind kind = FaultKind::kill;
  std::int64_t step = 0;
  std::int64_t rank = 0;
  std::int64_t steps = 1;  ///< slow only
  double factor = 2;       ///< slow only
  // Of flip_parameter and flip_gradient:
  std::string tensor = {};    ///< empty: one that the rank holds
  std::int64_t element = -1;  ///< of what the rank updates of it; -1: drawn
  std::int64_t bit = -1;      ///< of the element, from the lowest; -1: the highest of the mantissa
  std::int64_t times = 1;     ///< flip_gradient only: in so many computations of the step

  bool operator==(const Fault&) const = default;
};

/// Drawn for each step by its number alone, so that a run that is done again breaks alike.
struct RandomFaults {
  std::uint64_t seed = 0;
  double rate = 0;                            ///< of the steps have one, of some rank
  std::vector<std::string> kinds = {"kill"};  ///< their words

  bool operator==(const RandomFaults&) const = default;
};

struct FaultsOptions {
  bool allow = false;  ///< without it a job with faults is refused
  std::vector<Fault> inject = {};
  RandomFaults random = {};

  bool any() const { return !inject.empty() || random.rate > 0; }
  bool operator==(const FaultsOptions&) const = default;
};

}  // namespace trainerd::core::job
