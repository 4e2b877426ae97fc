#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/spec/document.h"
#include "core/spec/problems.h"
#include "core/spec/surroundings.h"

namespace trainerd::core::spec {

/// A key's value from outside the job's files.
struct Setting {
  std::string path;  ///< "optimizer.lr"
  Node value;
  Place place = {};  ///< of the key
};

/// Check the whole job, or only each value by itself (missing keys may come from elsewhere).
enum class Checked : std::uint8_t { job, values };

/// Values to merge with a job's file, besides the files that it extends.
struct Layers {
  std::vector<std::string> overrides = {};  ///< "a.b=value" texts, over the file
  std::vector<Setting> over = {};           ///< over those
  std::vector<Setting> below = {};          ///< used if nothing else gives the key
  Checked checked = Checked::job;
};

/// The text of a job's file; `name` is for messages.
struct JobText {
  std::string text;
  std::string name;
};

/// Like `parse_job` (spec.h), with more layers. Problems go to `problems` instead of being thrown; if there
/// are any, the job must not be used. Places of settings refer to sources of `problems`.
job::JobSpec compose_job(const JobText& file, const Layers& layers, const Surroundings& around,
                         Problems& problems);

}  // namespace trainerd::core::spec
