#pragma once

#include <optional>
#include <string>

#include "parallel/comm/rendezvous/job_token.h"

namespace trainerd::core::run {

/// The job's token, in a file of mode 0600 in the shared output directory, where all nodes find it. Removed
/// with this object.
class TokenFile {
 public:
  /// Writes the file in `output`, which is created if needed, and replaces an earlier run's. Throws SpecError
  /// if it cannot be written or protected from other users; CheckpointError if the disk is full.
  TokenFile(std::string output, const parallel::JobToken& token);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  /// The token that node 0 has left in `output`; none if there is none yet. Throws SpecError if other users
  /// may read it.
  static std::optional<parallel::JobToken> read(const std::string& output);
  static std::string path(const std::string& output);

 private:
  std::string output_, text_;
  bool made_output_ = false;
};

}  // namespace trainerd::core::run
