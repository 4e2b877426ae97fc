#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainerd::core::job {

/// What is done about a step whose loss or gradient norm is not finite or a spike.
enum class SpikeAction : std::uint8_t {
  retry,     ///< the step is computed again
  skip,      ///< nothing is updated, and the next step follows
  rollback,  ///< the run goes on from the last good checkpoint
};
/// By action.
inline constexpr std::array<std::string_view, 3> kSpikeWords{"retry", "skip", "rollback"};

/// The data of steps that were taken back.
enum class RollbackData : std::uint8_t {
  again,  ///< are read again
  skip,   ///< are passed over
};

/// Which steps are spikes, and what is done about them.
struct SpikesOptions {
  double score = 0;          ///< robust z-score from which on a finite value is a spike; 0: none is
  std::int64_t window = 64;  ///< steps that a value is compared with
  /// Words of SpikeAction, tried in this order; empty: a value that is not finite ends the run.
  std::vector<std::string> policy = {};
  // How often each is done in a run:
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
  double heartbeat_seconds = 1;   ///< between two beats
  double dead_after_seconds = 5;  ///< without one, after which a node counts as lost
  /// Where the agents find the leader's address: "etcd://host:port[,host:port...]"; empty: node 0's agent,
  /// and the run ends with it.
  std::string coordinator = {};
  /// A rank is hung when it makes no progress for so many times what its own record says that it takes; 0:
  /// nothing is judged.
  double hang_factor = 3;
  double hang_minimum_seconds = 5;  ///< it is never judged sooner
  /// Whether devices, storage and clocks are looked at before the first step.
  bool preflight = true;
  DevicePolicy devices = DevicePolicy::log;
  // What should be the same on several ranks, compared.
  std::int64_t hash_every = 0;  ///< steps; 0: never
  // What a step computes, judged before its update.
  std::int64_t verify_every = 0;  ///< steps between two that are computed twice and compared; 0: none is
  SpikesOptions spikes = {};

  /// Whether some step's update waits for a judgement.
  bool judges_steps() const { return verify_every > 0 || spikes.on(); }

  bool operator==(const SuperviseOptions&) const = default;
};

}  // namespace trainerd::core::job
