#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trainerd::io {

inline constexpr std::size_t kMaxHttpReply = std::size_t{16} << 20;

struct HttpRequest {
  std::string url;                         ///< http:// or https://
  std::optional<std::string> body = {};    ///< posted; none: GET
  std::vector<std::string> headers = {};   ///< "Content-Type: application/json"
  double seconds = 10;                     ///< for the whole exchange, including the DNS lookup
  std::string method = {};                 ///< "HEAD", "DELETE", "PUT"; empty: GET, or POST with a body
  std::span<const std::byte> upload = {};  ///< body of a PUT; the caller keeps it alive
  double stall_seconds = 0;                ///< fails after that long without a byte; 0: never
  std::size_t max_reply = kMaxHttpReply;   ///< most bytes of the reply's body
};
struct HttpResponse {
  int status = 0;
  std::string body;
  std::map<std::string, std::string> headers = {};  ///< names in lower case
};

/// HTTP requests by libcurl, which is loaded at run time, with its certificates and proxies (`https_proxy`,
/// `no_proxy`). Redirects are not followed, because headers may hold credentials. For one thread, except
/// `abort`.
class HttpClient {
 public:
  /// Throws SpecError if libcurl.so.4 is missing.
  HttpClient();
  ~HttpClient();

  /// Returns none and sets `why` unless a complete reply of at most `max_reply` bytes arrives in time.
  std::optional<HttpResponse> send(const HttpRequest& request, std::string& why);
  /// True if the latest reply had more than `max_reply` bytes.
  bool reply_was_too_long() const;
  /// Thread-safe. Ends the current request within about a second; later ones fail.
  void abort();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Encodes a part of a URL: everything except letters, digits and "-._~" becomes %XX.
std::string url_encoded(const std::string& text);

}  // namespace trainerd::io
