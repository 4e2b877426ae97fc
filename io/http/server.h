#pragma once

#include <functional>
#include <memory>
#include <string>

namespace trainerd::io {

struct HttpReply {
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

/// Serves pages that are only read: GET and HEAD, any other method gets status 405. Every reply forbids what
/// a page of ours does not need (Content-Security-Policy, no frames, no sniffing, no caching).
class HttpServer {
 public:
  /// Makes the page at a request. Called by the server's threads, several at once; one that throws is status
  /// 500.
  using Page = std::function<HttpReply()>;

  /// `listen` is "host:port": where that port is taken, the next free one is bound, and port 0 is any. Throws
  /// SpecError, which names the key metrics.listen, for an address that is none or is not this machine's.
  explicit HttpServer(const std::string& listen);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Serves `page` at `path` ("/metrics"), in place of one that was there.
  void serve(const std::string& path, Page page);
  /// "127.0.0.1:40123": what was bound.
  std::string address() const;
  /// Whether that is another port than the one asked for, which is taken.
  bool moved() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::io
