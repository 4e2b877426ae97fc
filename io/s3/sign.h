#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

// Requests signed by AWS Signature Version 4
// (https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html).

namespace trainerd::io {

/// What a request is signed by.
struct SigningKey {
  std::string access_key, secret_key;
};

struct RequestToSign {
  std::string method;  ///< "GET"
  std::string path;    ///< as it is sent: encoded, from the first slash on
  /// Names and values, not encoded, in any order.
  std::vector<std::pair<std::string, std::string>> query = {};
  /// All that is signed, names in lower case; `host` and `x-amz-date` ("20150830T123600Z") are there.
  std::map<std::string, std::string> headers = {};
  std::string payload_hash = {};  ///< sha256_hex of the body
  std::string region = {};        ///< "us-east-1"
  std::string service = "s3";
};

/// 64 hex digits.
std::string sha256_hex(std::span<const std::byte> bytes);
/// "a=1&b=%20": sorted and encoded, as it is sent and signed.
std::string canonical_query(const std::vector<std::pair<std::string, std::string>>& query);
/// A key as a path: all but slashes and what needs none is encoded.
std::string encoded_path(const std::string& path);

/// The text whose hash is signed.
std::string canonical_request(const RequestToSign& request);
/// The value of the header Authorization.
std::string authorization(const RequestToSign& request, const SigningKey& key);

}  // namespace trainerd::io
