#pragma once

#include <csignal>
#include <cstdint>
#include <map>
#include <string>

namespace trainerd::core::run {

/// Whether a process sends it to itself by what it computes: what crashed so will do so again at the same
/// place. SIGKILL and the like come from outside.
inline bool is_crash(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE || signal == SIGILL || signal == SIGABRT ||
         signal == SIGTRAP || signal == SIGSYS;
}

/// Crashes and hangs of a run's workers: the same rank by the same signal, or the same ranks by the same kind
/// of hang, in the same step, and no more restarts are worth it.
class RepeatedCrash {
 public:
  /// `place`: what and whose; `step`: under way. Whether that failure was there before.
  bool add(const std::string& place, std::int64_t step) {
    const auto [at, is_new] = last_.try_emplace(place, step);
    const bool again = !is_new && at->second == step;
    at->second = step;
    return again;
  }

 private:
  std::map<std::string, std::int64_t> last_;  ///< step by place
};

}  // namespace trainerd::core::run
