#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/run/nodes/held_state.h"
#include "kernels/base/socket.h"
#include "parallel/comm/rendezvous/job_token.h"

namespace trainerd::core::run {

/// Snapshots in the memory of the agents of a run, for agents whose ranks begin from them in whatever
/// layout. Each agent gives what it has on threads of its own; connections prove the job's token.
class StateExchange {
 public:
  struct Options {
    std::int64_t node = 0;  ///< this one
    base::Endpoint store;   ///< where agents write the address at which they listen
    std::string address;    ///< of this node, by which others reach it
    parallel::JobToken token;
  };
  /// Throws CommError.
  explicit StateExchange(Options options);
  ~StateExchange();
  StateExchange(const StateExchange&) = delete;
  StateExchange& operator=(const StateExchange&) = delete;

  /// Leaves word of where this agent listens, for an attempt of the run. Throws CommError.
  void begin(std::int64_t attempt);
  /// What this agent gives from now on. Its bytes must not change while it is offered.
  void offer(std::vector<HeldState> states);
  /// Those ranks of a held state of another agent that `wanted` is true for, by their slices; their bytes
  /// have their checksums. Throws CommError.
  NodeCopy fetch(const StateCut& cut, const StateSource& source,
                 const std::function<bool(const std::vector<io::TensorSlice>&)>& wanted);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::core::run
