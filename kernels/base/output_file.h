#pragma once

#include <string>

#include "kernels/base/fd.h"

// Files below an output directory. Others may be able to write there: no symbolic link is followed, so that a
// planted one cannot lead a write to another file. Links in the path above the file are followed: an output
// directory may be one.

namespace trainerd::base {

/// Opens a log for appending, and makes it where it is not there. An empty UniqueFd and errno set on failure:
/// ELOOP for a symbolic link, EINVAL for what is neither a regular file nor a character device.
UniqueFd open_append(const std::string& path);
/// Opens a regular file for reading and writing, and makes it where it is not there. Failures as above.
UniqueFd open_shared(const std::string& path);
/// Opens a regular file for reading; links are followed. EINVAL for what is none: a FIFO would be waited for
/// without end.
UniqueFd open_regular(const std::string& path);

}  // namespace trainerd::base
