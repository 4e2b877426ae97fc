#pragma once

#include <csignal>
#include <functional>
#include <optional>
#include <string>

namespace trainerd::core::run {

/// Why a run ends, after a save, before its last step.
struct StopRequest {
  std::string reason;         ///< "SIGTERM", "the time limit"
  int exit_signal = SIGTERM;  ///< the exit status is 128 + this; 0: exit status 0
};

/// "SIGTERM".
std::string signal_name(int signal);

/// The meaning of signals to an agent. Every signal of a scheduler or a closed terminal requests a stop after
/// a save. A repeated signal is the same request, because schedulers send some twice within milliseconds.
/// SIGQUIT, and a SIGINT at least a second after the first one, end the run at once.
class StopSignals {
 public:
  enum class Meaning { stop, same_request, stop_at_once };
  /// `now` in monotonic seconds.
  Meaning on_signal(int signal, double now);

 private:
  bool asked_ = false;
  std::optional<double> first_interrupt_;
};

/// The request of a first `signal`: exit status 130 for SIGINT, 131 for SIGQUIT, and 143 for every other
/// signal.
StopRequest stop_request(int signal);

/// Ends the process when there is nothing to save. Not called on the main thread.
using LeaveProcess = std::function<void(const StopRequest&)>;

}  // namespace trainerd::core::run
