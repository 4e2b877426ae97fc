#pragma once

#include <optional>
#include <string>
#include <vector>

namespace trainerd::core::run {

/// The git state of the directory that holds the job file.
struct GitState {
  std::string commit;                ///< empty before the first commit
  std::string branch;                ///< "(detached)" if HEAD is detached
  std::vector<std::string> changed;  ///< lines of `git status --short`: tracked files below the directory
                                     ///< that differ from HEAD, and the job file even if it is untracked
  std::string error;                 ///< why the state is unknown; empty if it is known
};

/// None if the file is in no working tree. Runs git, for at most `seconds` in total.
std::optional<GitState> git_state_of(const std::string& job_file, double seconds);

}  // namespace trainerd::core::run
