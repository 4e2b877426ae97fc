#pragma once

#include <functional>
#include <memory>
#include <string>

namespace trainerd::io {

struct HttpReply {
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

/// Serves read-only pages: GET and HEAD; other methods get status 405. Every reply forbids what our pages do
/// not need (Content-Security-Policy, no frames, no sniffing, no caching).
class HttpServer {
 public:
  /// Makes the page for a request. Called from several server threads at once; an exception gives status 500.
  using Page = std::function<HttpReply()>;

  /// `listen` is "host:port". If the port is taken, the next free one is used; port 0 means any. Throws
  /// SpecError naming the key metrics.listen for an invalid address or one that is not this machine's.
  explicit HttpServer(const std::string& listen);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Serves `page` at `path` ("/metrics"); replaces an earlier page.
  void serve(const std::string& path, Page page);
  /// The bound address: "127.0.0.1:40123".
  std::string address() const;
  /// True if the requested port is taken and another one was bound.
  bool moved() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::io
