#pragma once

#include <csignal>
#include <functional>
#include <optional>
#include <string>

namespace trainerd::core::run {

/// Why a run ends before its last step, after it has saved.
struct StopRequest {
  std::string reason;         ///< "SIGTERM", "the time limit"
  int exit_signal = SIGTERM;  ///< what the exit status is made of: 128 + this; 0: the status is 0
};

/// "SIGTERM".
std::string signal_name(int signal);

/// What the signals to an agent ask for. Every signal of a scheduler or a lost terminal asks for a stop after
/// saving; once more it is the same request, because schedulers send some twice within milliseconds. Two
/// signals end the run at once: SIGQUIT, and a SIGINT a second or more after the first one.
class StopSignals {
 public:
  enum class Meaning { stop, same_request, stop_at_once };
  /// `now` in monotonic seconds.
  Meaning on_signal(int signal, double now);

 private:
  bool asked_ = false;
  std::optional<double> first_interrupt_;
};

/// What a first `signal` asks for: exit status 130 for SIGINT and 143 for every other one.
StopRequest stop_request(int signal);

/// Ends the process; called on a thread that is not the main one, when there is nothing to save.
using LeaveProcess = std::function<void(const StopRequest&)>;

}  // namespace trainerd::core::run
