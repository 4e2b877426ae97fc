#pragma once

#include <optional>
#include <string>
#include <vector>

namespace trainerd::core {

struct ProgramOutcome {
  int status = 0;  ///< exit status; 128 + signal of a program that a signal ended
  std::string output, error;
};
/// Runs a program of the PATH to its end, with nothing to read. None when there is no such program. Throws
/// DeviceError when it cannot be started for another reason.
std::optional<ProgramOutcome> run_program(const std::vector<std::string>& words);

}  // namespace trainerd::core
