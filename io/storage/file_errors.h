#pragma once

#include <functional>
#include <source_location>
#include <string>

#include "kernels/base/error.h"

// What an errno value says of a file. An error is not an absence: a file that cannot be looked at may well be
// there.

namespace trainerd::io {

/// The operating system failed an operation on a file; what the file holds stays unknown.
struct StorageError : base::CheckpointError {
  StorageError(const std::string& message, int error,
               std::source_location where = std::source_location::current())
      : base::CheckpointError(base::ErrorKind::checkpoint, message, where), error_number(error) {}
  int error_number;  ///< errno
};

/// The path or a part of it is not there.
bool is_absence(int error);
/// It may go away by itself: of a network file system, a disk, or a table that is full for a moment.
bool is_transient(int error);
/// There is no room on the disk, or by quota.
bool is_full_disk(int error);
/// What to do about an error: "; the disk is full: free some space". `write`: it came from a change, not from
/// a look.
std::string remedy_of(int error, bool write);
/// "path: cannot open: ...", of a file of the run's output.
base::SpecError output_error(const std::string& path, const char* doing, int error,
                             std::source_location where = std::source_location::current());

/// The same of a file that could not be opened (base::open_append, open_shared, open_regular): also where it
/// is none that is read or written.
base::SpecError open_error(const std::string& path, int error,
                           std::source_location where = std::source_location::current());

/// Calls `operation`, which returns 0 or an errno value, again while its error is transient, with growing
/// waits of about 2 s in all. Returns its last result.
int with_retries(const std::function<int()>& operation);

}  // namespace trainerd::io
