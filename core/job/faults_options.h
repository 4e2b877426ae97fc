#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainerd::core::job {

/// What fails: one rank's worker, or the agent of its node.
enum class FaultKind : std::uint8_t {
  kill,             ///< the worker ends by SIGKILL in the middle of the step
  crash,            ///< the worker ends by SIGSEGV in the middle of the step, as by a bug
  kill_agent,       ///< the agent of the rank's node ends by SIGKILL
  stop,             ///< the worker stops itself by SIGSTOP in the middle of the step
  hang,             ///< the worker computes without end in the middle of the step
  slow,             ///< the worker's computing takes `factor` times as long, for `steps` steps
  flip_parameter,   ///< flips a bit of the master weights, before the step
  flip_gradient,    ///< flips a bit of the reduced gradients, before the update
  flip_checkpoint,  ///< flips a bit of the rank's file in the first checkpoint written from this step on
  flip_message,     ///< flips a bit of the rank's first message in the step
  reset_link,       ///< the rank's connections to all others close in the middle of the step
  drop_link,        ///< for `seconds` nothing reaches or leaves the agent of the rank's node
  fill_disk,        ///< for `seconds` that agent's checkpoint writes fail: no space left
  fail_store,       ///< for `seconds` all its operations in the durable tier fail
};

/// Words in a job file, by kind.
inline constexpr std::array<std::string_view, 14> kFaultWords{
    "kill",           "crash",         "kill_agent",      "stop",         "hang",       "slow",
    "flip_parameter", "flip_gradient", "flip_checkpoint", "flip_message", "reset_link", "drop_link",
    "fill_disk",      "fail_store"};
inline std::string word_of(FaultKind kind) {
  return std::string(kFaultWords.at(static_cast<std::size_t>(kind)));
}
inline std::optional<FaultKind> fault_kind_of(std::string_view word) {
  for (std::size_t i = 0; i < kFaultWords.size(); ++i)
    if (kFaultWords[i] == word) return static_cast<FaultKind>(i);
  return std::nullopt;
}
/// True if it flips a bit in device memory.
inline bool flips_tensor(FaultKind kind) {
  return kind == FaultKind::flip_parameter || kind == FaultKind::flip_gradient;
}
/// True if an agent fails at some operation for `Fault::seconds`.
inline bool lasts_seconds(FaultKind kind) {
  return kind == FaultKind::drop_link || kind == FaultKind::fill_disk || kind == FaultKind::fail_store;
}
/// True if the agent of the rank's node fails, not a worker.
inline bool breaks_agent(FaultKind kind) { return kind == FaultKind::kill_agent || lasts_seconds(kind); }

/// A failure that the run injects once.
struct Fault {
  FaultKind kind = FaultKind::kill;
  std::int64_t step = 0;
  std::int64_t rank = 0;
  std::int64_t steps = 1;  ///< slow only
  double factor = 2;       ///< slow only
  double seconds = 10;     ///< drop_link, fill_disk and fail_store only
  // Only for flip_parameter and flip_gradient:
  std::string tensor = {};    ///< empty: a tensor that the rank holds
  std::int64_t element = -1;  ///< index in the part that the rank updates; -1: random
  std::int64_t bit = -1;      ///< index in the element, from the lowest bit; -1: the highest of the mantissa
  std::int64_t times = 1;     ///< flip_gradient only: number of the step's computations with the fault

  bool operator==(const Fault&) const = default;
};

/// Drawn for each step from its number alone, so that a repeated run fails in the same way.
struct RandomFaults {
  std::uint64_t seed = 0;
  double rate = 0;                            ///< fraction of steps with a fault on some rank
  std::vector<std::string> kinds = {"kill"};  ///< words from kFaultWords

  bool operator==(const RandomFaults&) const = default;
};

struct FaultsOptions {
  bool allow = false;  ///< false: a job with faults is refused
  std::vector<Fault> inject = {};
  RandomFaults random = {};

  bool any() const { return !inject.empty() || random.rate > 0; }
  bool operator==(const FaultsOptions&) const = default;
};

}  // namespace trainerd::core::job
