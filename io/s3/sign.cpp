#include "io/s3/sign.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "io/http/http_client.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

constexpr std::size_t kHashBytes = 32;
constexpr const char* kAlgorithm = "AWS4-HMAC-SHA256";

std::string hex(std::string_view bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

std::string hmac(const std::string& key, const std::string& text) {
  std::string out(kHashBytes, '\0');
  unsigned int size = 0;
  base::check(::HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                     reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                     reinterpret_cast<unsigned char*>(out.data()), &size) != nullptr &&
                  size == kHashBytes,
              "libcrypto has HMAC-SHA256");
  return out;
}

// Removes spaces at both ends and collapses repeated spaces.
std::string trimmed(const std::string& value) {
  std::string out;
  for (const char c : value)
    if (c != ' ' || (!out.empty() && out.back() != ' ')) out += c;
  if (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

std::string signed_names(const RequestToSign& request) {
  std::string names;
  for (const auto& [name, value] : request.headers) names += (names.empty() ? "" : ";") + name;
  return names;
}

}  // namespace

std::string sha256_hex(std::span<const std::byte> bytes) {
  std::string out(kHashBytes, '\0');
  unsigned int size = 0;
  base::check(::EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(out.data()), &size,
                           EVP_sha256(), nullptr) == 1 &&
                  size == kHashBytes,
              "libcrypto has SHA-256");
  return hex(out);
}

std::string canonical_query(const std::vector<std::pair<std::string, std::string>>& query) {
  std::vector<std::pair<std::string, std::string>> encoded;
  for (const auto& [name, value] : query) encoded.emplace_back(url_encoded(name), url_encoded(value));
  std::sort(encoded.begin(), encoded.end());
  std::string text;
  for (const auto& [name, value] : encoded) {
    text += (text.empty() ? "" : "&") + name;
    text += '=';
    text += value;
  }
  return text;
}

std::string encoded_path(const std::string& path) {
  std::string out;
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t slash = std::min(path.find('/', at), path.size());
    out += url_encoded(path.substr(at, slash - at));
    if (slash < path.size()) out += '/';
    at = slash + 1;
  }
  return out;
}

std::string canonical_request(const RequestToSign& request) {
  std::string text = request.method + "\n" + request.path + "\n" + canonical_query(request.query) + "\n";
  for (const auto& [name, value] : request.headers) {
    text += name;
    text += ':';
    text += trimmed(value) + "\n";
  }
  return text + "\n" + signed_names(request) + "\n" + request.payload_hash;
}

std::string authorization(const RequestToSign& request, const SigningKey& key) {
  const std::string& time = request.headers.at("x-amz-date");
  const std::string date = time.substr(0, 8);
  const std::string scope = date + "/" + request.region + "/" + request.service + "/aws4_request";
  const std::string canonical = canonical_request(request);
  const std::string to_sign = std::string(kAlgorithm) + "\n" + time + "\n" + scope + "\n" +
                              sha256_hex(std::as_bytes(std::span(canonical)));
  const std::string of_date = hmac("AWS4" + key.secret_key, date);
  const std::string signing = hmac(hmac(hmac(of_date, request.region), request.service), "aws4_request");
  return std::string(kAlgorithm) + " Credential=" + key.access_key + "/" + scope +
         ", SignedHeaders=" + signed_names(request) + ", Signature=" + hex(hmac(signing, to_sign));
}

}  // namespace trainerd::io
