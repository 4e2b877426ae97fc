#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

// Signs requests with AWS Signature Version 4
// (https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html).

namespace trainerd::io {

/// The key pair that signs a request.
struct SigningKey {
  std::string access_key, secret_key;
};

struct RequestToSign {
  std::string method;  ///< "GET"
  std::string path;    ///< as sent: encoded, from the first slash on
  /// Names and values, not encoded, in any order.
  std::vector<std::pair<std::string, std::string>> query = {};
  /// All signed headers, names in lower case, including `host` and `x-amz-date` ("20150830T123600Z").
  std::map<std::string, std::string> headers = {};
  std::string payload_hash = {};  ///< sha256_hex of the body
  std::string region = {};        ///< "us-east-1"
  std::string service = "s3";
};

/// Returns 64 hex digits.
std::string sha256_hex(std::span<const std::byte> bytes);
/// Returns the query as sent and signed, sorted and encoded: "a=1&b=%20".
std::string canonical_query(const std::vector<std::pair<std::string, std::string>>& query);
/// Encodes a key for use as a path; slashes are kept.
std::string encoded_path(const std::string& path);

/// Returns the text whose hash is signed.
std::string canonical_request(const RequestToSign& request);
/// Returns the value of the Authorization header.
std::string authorization(const RequestToSign& request, const SigningKey& key);

}  // namespace trainerd::io
