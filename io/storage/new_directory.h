#pragma once

#include <string>

#include "kernels/base/fd.h"

namespace trainerd::io {

/// Creates a directory atomically. It is filled under a unique temporary name beside its own and then
/// renamed. After a kill, the next NewDirectory of the same name removes the leftovers. A lock on a file in
/// the directory shows that a process still uses it.
class NewDirectory {
 public:
  /// Throws CheckpointError if `path` cannot be made, or exists and is not an empty directory.
  explicit NewDirectory(const std::string& path);
  /// Removes the directory unless it was completed.
  ~NewDirectory();
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  /// Temporary directory to write the files into.
  const std::string& partial() const { return partial_; }
  /// Renames the directory to its final name. Its files must have been flushed.
  void complete();

 private:
  bool make();
  void remove_leftovers() const;

  std::string path_, partial_;
  base::UniqueFd lock_;
  bool completed_ = false;
};

}  // namespace trainerd::io
