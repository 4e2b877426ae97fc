#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/run/worker/resume_check.h"
#include "io/tracking/tracking.h"

namespace trainerd::core::run {

/// How this process was called; filled in by the program's main function.
struct Invocation {
  std::vector<std::string> arguments = {};  ///< argv, with the program's name first
  std::string job_file = {};
  /// The environment variables that may be recorded (may_record).
  std::map<std::string, std::string> environment = {};
  io::TrackerCredentials credentials = {};
};

/// True if an environment variable may be recorded: those of schedulers, devices, libraries and threads, by
/// name. Never one whose name suggests a secret.
bool may_record(const std::string& variable);

/// The record of one start of a run.
struct StartRecord {
  const Invocation& invocation;
  std::string version, commit;
  std::int64_t step = 0;  ///< steps done before
  std::string layout;
  std::string device;
  std::vector<std::string> hosts;  ///< host names of nodes 0, 1, ...
  const DataSeen& data;
};
/// The same facts as tags for experiment trackers.
struct StartTags {
  std::vector<std::pair<std::string, std::string>> tags;
  std::string problem;  ///< why the file could not be written; empty if it was
};
/// Appends one JSON object to `starts.jsonl`. First asks git for the state of the job file, for at most 2 s.
StartTags write_start(const std::string& path, const StartRecord& record);

}  // namespace trainerd::core::run
