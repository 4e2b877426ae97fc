#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainerd::core::job {

/// Action on a step whose loss or gradient norm is a spike or not finite.
enum class SpikeAction : std::uint8_t {
  retry,     ///< the step is computed again
  skip,      ///< nothing is updated, and the next step follows
  rollback,  ///< the run continues from the last good checkpoint
};
/// Words in a job file, by action.
inline constexpr std::array<std::string_view, 3> kSpikeWords{"retry", "skip", "rollback"};

/// Data of rolled-back steps.
enum class RollbackData : std::uint8_t {
  again,  ///< it is read again
  skip,   ///< it is skipped
};

/// Which steps are spikes, and the actions on them.
struct SpikesOptions {
  double score = 0;          ///< minimum robust z-score of a spike; 0: finite values are no spikes
  std::int64_t window = 64;  ///< number of earlier steps to compare with
  /// Words of SpikeAction, tried in this order; empty: a value that is not finite ends the run.
  std::vector<std::string> policy = {};
  // Limits per run:
  std::int64_t retries = 3;
  std::int64_t skips = 5;
  std::int64_t rollbacks = 2;
  RollbackData data = RollbackData::again;

  bool on() const { return !policy.empty(); }
  bool operator==(const SpikesOptions&) const = default;
};

/// What is done about an error of a rank's GPU (core/run/supervise/device_judge.h).
enum class DevicePolicy : std::uint8_t {
  log,    ///< it is an event
  drain,  ///< the run stops with its next checkpoint, as by SIGTERM
  stop,   ///< the run ends at once
};

/// How a run watches its ranks and nodes.
struct SuperviseOptions {
  // Between the agents of several nodes:
  double heartbeat_seconds = 1;   ///< between two heartbeats
  double dead_after_seconds = 5;  ///< time without a heartbeat after which a node counts as lost
  /// Where agents find the leader's address: "etcd://host:port[,host:port...]". Empty: node 0's agent leads,
  /// and the run ends with it.
  std::string coordinator = {};
  /// A rank counts as hung if it makes no progress for this multiple of the time that its own record
  /// predicts; 0: off.
  double hang_factor = 3;
  double hang_minimum_seconds = 5;  ///< minimum time before a rank counts as hung
  /// Check devices, storage and clocks before the first step.
  bool preflight = true;
  DevicePolicy devices = DevicePolicy::log;
  // What should be the same on several ranks, compared.
  std::int64_t hash_every = 0;  ///< steps; 0: never
  // Checks on a step before its update.
  std::int64_t verify_every = 0;  ///< every so many steps one is computed twice and compared; 0: none
  SpikesOptions spikes = {};

  /// True if some step's update waits for a check.
  bool judges_steps() const { return verify_every > 0 || spikes.on(); }

  bool operator==(const SuperviseOptions&) const = default;
};

}  // namespace trainerd::core::job
