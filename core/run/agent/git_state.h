#pragma once

#include <optional>
#include <string>
#include <vector>

namespace trainerd::core::run {

/// What git says of the directory in which a job's file lies.
struct GitState {
  std::string commit;  ///< empty: there is none yet
  std::string branch;  ///< "(detached)" on none
  std::vector<std::string>
      changed;        ///< files below the directory that differ from the commit, the job's file
                      ///< also where git does not know it; as `git status --short` shows them
  std::string error;  ///< why nothing of this is known; else empty
};

/// None where the file lies in no working tree. Runs git, for `seconds` at most in all.
std::optional<GitState> git_state_of(const std::string& job_file, double seconds);

}  // namespace trainerd::core::run
