#pragma once

#include <string>

#include "io/s3/settings.h"

namespace trainerd::io {

/// URL parts of a bucket's objects.
struct Address {
  std::string scheme, host, path;  ///< "https://", "bucket.s3.us-east-1.amazonaws.com", "" or "/bucket"
};

Address address_of(const S3Settings& settings, const std::string& bucket);

}  // namespace trainerd::io
