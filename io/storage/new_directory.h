#pragma once

#include <string>

#include "kernels/base/fd.h"

namespace trainerd::io {

/// A directory that appears whole or not at all: it is filled under another name beside its own, which no
/// other process uses, and renamed. What a kill leaves behind is removed by the next of the same name: a lock
/// on a file in it says that a process works there still.
class NewDirectory {
 public:
  /// Throws CheckpointError when `path` exists and is not an empty directory, or cannot be made.
  explicit NewDirectory(const std::string& path);
  /// Removes what was made, unless it was completed.
  ~NewDirectory();
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  /// Where its files are written meanwhile.
  const std::string& partial() const { return partial_; }
  /// Gives it its name. Its files have been flushed.
  void complete();

 private:
  bool make();
  void remove_leftovers() const;

  std::string path_, partial_;
  base::UniqueFd lock_;
  bool completed_ = false;
};

}  // namespace trainerd::io
