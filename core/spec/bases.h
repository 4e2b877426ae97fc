#pragma once

#include <string>
#include <vector>

#include "core/spec/document.h"
#include "core/spec/problems.h"
#include "core/spec/surroundings.h"

namespace trainerd::core::spec {

/// The file that a job was read from.
struct JobFile {
  std::string name;       ///< for messages
  std::string directory;  ///< it is in; empty: the job is a text, and can extend no file
};

struct Bases {
  bool whole = true;  ///< every file was read and is a map; otherwise a problem says which is not
  /// Values that a file above replaced or took away: no part of the job, but to be checked like it.
  std::vector<Node> replaced;
};

/// Puts the files that `root` extends, one by the other, below it: maps key by key, any other value as a
/// whole. A `~` takes away what is below it. Places stay those of the values. `root` loses its `extends`.
Bases merge_bases(Node& root, const JobFile& file, const Environment& environment, Problems& problems);

}  // namespace trainerd::core::spec
