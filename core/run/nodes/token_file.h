#pragma once

#include <optional>
#include <string>

#include "parallel/comm/rendezvous/job_token.h"

namespace trainerd::core::run {

/// The job's token where all nodes of the job find it: a file of mode 0600 in the output directory that they
/// share. It is there as long as this object.
class TokenFile {
 public:
  /// In `output`, which is made where it is not there; a file of an earlier run is replaced. Throws SpecError
  /// when it cannot be written, or not for its owner alone; CheckpointError when the disk is full.
  TokenFile(std::string output, const parallel::JobToken& token);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  /// What node 0 has left in `output`; none: nothing yet. Throws SpecError when others than its owner may
  /// read it.
  static std::optional<parallel::JobToken> read(const std::string& output);
  static std::string path(const std::string& output);

 private:
  std::string output_, text_;
  bool made_output_ = false;
};

}  // namespace trainerd::core::run
