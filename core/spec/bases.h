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
  std::string directory;  ///< its directory; empty: the job is a text and cannot extend files
};

struct Bases {
  bool whole = true;  ///< every file was read and is a map; otherwise a problem names the one that is not
  /// Values that a file above replaced or removed. They are not part of the job, but are checked too.
  std::vector<Node> replaced;
};

/// Merges the chain of files that `root` extends below it: maps key by key, any other value as a whole. A `~`
/// removes the value below it. Values keep their own places. `root` loses its `extends`.
Bases merge_bases(Node& root, const JobFile& file, const Environment& environment, Problems& problems);

}  // namespace trainerd::core::spec
