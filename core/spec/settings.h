#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/spec/document.h"
#include "core/spec/problems.h"
#include "core/spec/surroundings.h"

namespace trainerd::core::spec {

/// A key's value that does not come from the job's own files.
struct Setting {
  std::string path;  ///< "optimizer.lr"
  Node value;
  Place place = {};  ///< of the key
};

/// Whether all of a job is checked, or each value alone: what is missing may come from elsewhere.
enum class Checked : std::uint8_t { job, values };

/// What is merged with a job's file, beside the files that it extends.
struct Layers {
  std::vector<std::string> overrides = {};  ///< "a.b=value" texts, over the file
  std::vector<Setting> over = {};           ///< over those
  std::vector<Setting> below = {};          ///< where nothing else gives the key
  Checked checked = Checked::job;
};

/// The text of a job's file; `name` is for messages.
struct JobText {
  std::string text;
  std::string name;
};

/// As `parse_job` (spec.h), with more layers; adds the problems to `problems` in place of throwing. The job
/// means nothing where there are some. Places of settings are of sources that `problems` knows.
job::JobSpec compose_job(const JobText& file, const Layers& layers, const Surroundings& around,
                         Problems& problems);

}  // namespace trainerd::core::spec
