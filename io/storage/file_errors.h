#pragma once

#include <functional>
#include <source_location>
#include <string>

#include "kernels/base/error.h"

// Classifies errno values of file operations. An error does not mean absence: a file that cannot be accessed
// may exist.

namespace trainerd::io {

/// The operating system failed a file operation. The file's content is unknown.
struct StorageError : base::CheckpointError {
  StorageError(const std::string& message, int error,
               std::source_location where = std::source_location::current())
      : base::CheckpointError(base::ErrorKind::checkpoint, message, where), error_number(error) {}
  int error_number;  ///< errno
};

/// The path or a part of it does not exist.
bool is_absence(int error);
/// The error may go away without action: a network file system, a disk, or a table that is full for a moment.
bool is_transient(int error);
/// The disk or a quota is full.
bool is_full_disk(int error);
/// Returns advice about an error: "; the disk is full: free some space". `write`: the failed operation was a
/// change, not a read.
std::string remedy_of(int error, bool write);
/// Error for a file of the run's output: "path: cannot open: ...".
base::SpecError output_error(const std::string& path, const char* doing, int error,
                             std::source_location where = std::source_location::current());

/// The same for a file that could not be opened (base::open_append, open_shared, open_regular), also when it
/// is not a file that can be read or written.
base::SpecError open_error(const std::string& path, int error,
                           std::source_location where = std::source_location::current());

/// Repeats `operation`, which returns 0 or an errno value, while its error is transient. The waits grow and
/// take about 2 s in all. Returns the last result.
int with_retries(const std::function<int()>& operation);

}  // namespace trainerd::io
