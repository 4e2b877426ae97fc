#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/run/worker/resume_check.h"
#include "io/tracking/tracking.h"

namespace trainerd::core::run {

/// How this process was called, of which only its program knows.
struct Invocation {
  std::vector<std::string> arguments = {};  ///< the program's name first
  std::string job_file = {};
  /// What may be recorded of its environment.
  std::map<std::string, std::string> environment = {};
  io::TrackerCredentials credentials = {};
};

/// Whether a variable of the environment is recorded: those of schedulers, devices, libraries and threads, by
/// their names. Never one whose name says that it is a secret.
bool may_record(const std::string& variable);

/// What is known when a run's process starts.
struct StartRecord {
  const Invocation& invocation;
  std::string version, commit;
  std::int64_t step = 0;  ///< done before
  std::string layout;
  std::string device;
  std::vector<std::string> hosts;  ///< of nodes 0, 1, ...
  const DataSeen& data;
};
/// The same for trackers.
struct StartTags {
  std::vector<std::pair<std::string, std::string>> tags;
  std::string problem;  ///< why the file could not be written; else empty
};
/// Appends one JSON object to `starts.jsonl`. Asks git for the state of the job's file first, for 2 s at
/// most.
StartTags write_start(const std::string& path, const StartRecord& record);

}  // namespace trainerd::core::run
