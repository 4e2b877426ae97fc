#pragma once

#include <optional>
#include <string>
#include <vector>

namespace trainerd::core::slurm {

struct ProgramOutcome {
  int status = 0;  ///< exit status; 128 + signal for a program ended by a signal
  std::string output, error;
};
/// Runs a program from the PATH to its end, without input. Nothing if there is no such program. Throws
/// DeviceError if it cannot be started for another reason.
std::optional<ProgramOutcome> run_program(const std::vector<std::string>& words);

}  // namespace trainerd::core::slurm
