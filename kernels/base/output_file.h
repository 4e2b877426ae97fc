#pragma once

#include <string>

#include "kernels/base/fd.h"

// Files below an output directory. Other users may be able to write there, so symbolic links are not
// followed: a planted link could redirect a write to another file. Links in the path above the file are
// followed, because the output directory may be one.

namespace trainerd::base {

/// Opens a log for appending and creates it if needed. On failure returns an empty UniqueFd and sets errno:
/// ELOOP for a symbolic link, EINVAL if it is neither a regular file nor a character device.
UniqueFd open_append(const std::string& path);
/// Opens a regular file for reading and writing and creates it if needed. Failures as above.
UniqueFd open_shared(const std::string& path);
/// Opens a regular file for reading; follows links. EINVAL for other files: reading a FIFO could block
/// forever.
UniqueFd open_regular(const std::string& path);

}  // namespace trainerd::base
