#pragma once

#include <cstdint>

#include "io/s3/client.h"
#include "io/storage/storage.h"

namespace trainerd::io {

/// Puts a file in the place of an object, whole or in parts. An object with the same bytes stays, and parts
/// of an upload that was not ended. The bytes that were sent. Throws S3Error.
std::int64_t upload_file(S3Client& client, const S3Path& path, const StoredFile& from, const Pace& pace);

}  // namespace trainerd::io
