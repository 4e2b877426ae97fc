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
  drop_link,        ///< for `seconds` nothing reaches the agent of the rank's node, or comes from it
  fill_disk,        ///< for `seconds` that agent's writes of checkpoints fail: no space left
  fail_store,       ///< for `seconds` all that it does in the durable tier fails
  device_error,     ///< the agent of the rank's node takes it that the driver reports `xid` of the rank's GPU
};

/// By kind.
inline constexpr std::array<std::string_view, 15> kFaultWords{
    "kill",           "crash",         "kill_agent",      "stop",         "hang",       "slow",
    "flip_parameter", "flip_gradient", "flip_checkpoint", "flip_message", "reset_link", "drop_link",
    "fill_disk",      "fail_store",    "device_error"};
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
/// Whether it is of the agent of the rank's node.
inline bool breaks_agent(FaultKind kind) {
  return kind == FaultKind::kill_agent || kind == FaultKind::device_error || lasts_seconds(kind);
}

/// A failure that the run injects once.
struct Fault {
  FaultKind kind = FaultKind::kill;
  std::int64_t step = 0;
  std::int64_t rank = 0;
  std::int64_t steps = 1;  ///< slow only
  double factor = 2;       ///< slow only
  double seconds = 10;     ///< drop_link, fill_disk and fail_store only
  std::int64_t xid = 79;   ///< device_error only: NVIDIA's number of the error
  // Of flip_parameter and flip_gradient:
  std::string tensor = {};    ///< empty: one that the rank holds
  std::int64_t element = -1;  ///< of what the rank updates of it; -1: drawn
  std::int64_t bit = -1;      ///< of the element, from the lowest; -1: the highest of the mantissa
  std::int64_t times = 1;     ///< flip_gradient only: in so many computations of the step

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
