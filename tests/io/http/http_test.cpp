#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>
#include <thread>

#include "io/http/client.h"
#include "io/http/server.h"
#include "io/metrics/sinks.h"
#include "io/runs/status.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"
#include "tests/io/temp_dir.h"

namespace base = trainerd::base;
using namespace trainerd::io;
using namespace trainerd::test;

namespace {

/// Returns the complete reply to a request, as received.
std::string raw_reply(const std::string& address, const std::string& request) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const base::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0);
  REQUIRE(base::write_all(fd.get(), std::as_bytes(std::span(request))) == 0);
  std::string reply;
  std::array<char, 4096> part{};
  for (ssize_t n = 0; (n = ::read(fd.get(), part.data(), part.size())) > 0;)
    reply.append(part.data(), static_cast<std::size_t>(n));
  return reply;
}

std::string request_of(const std::string& method, const std::string& path, const std::string& body = "") {
  return method + " " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\nConnection: close\r\n\r\n" + body;
}

/// A server that sends these bytes on every connection and closes it.
class FixedServer {
 public:
  explicit FixedServer(std::string reply) : reply_(std::move(reply)), fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0);
    REQUIRE(::listen(fd_.get(), 4) == 0);
    socklen_t size = sizeof(at);
    ::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&at), &size);
    port_ = ntohs(at.sin_port);
    thread_ = std::thread([this] {
      const base::UniqueFd client(::accept(fd_.get(), nullptr, nullptr));
      std::array<char, 1024> request{};
      (void)!::read(client.get(), request.data(), request.size());
      (void)!::write(client.get(), reply_.data(), reply_.size());
    });
  }
  ~FixedServer() { thread_.join(); }
  FixedServer(const FixedServer&) = delete;
  FixedServer& operator=(const FixedServer&) = delete;
  HttpAddress address() const { return {"127.0.0.1", std::to_string(port_)}; }

 private:
  std::string reply_;
  base::UniqueFd fd_;
  int port_ = 0;
  std::thread thread_;
};

std::string get_error(const HttpAddress& address) {
  return message_of<base::CommError>([&] { http_get(address, "/", 0.5); });
}

}  // namespace

TEST_CASE("the server serves pages to GET and HEAD and refuses what could change anything") {
  HttpServer server("127.0.0.1:0");
  std::atomic<int> made = 0;
  server.serve("/page", [&] {
    ++made;
    return HttpReply{.type = "text/html", .body = "<p>hello</p>"};
  });
  server.serve("/broken", []() -> HttpReply { throw std::runtime_error("no figures"); });
  const std::string got = raw_reply(server.address(), request_of("GET", "/page?x=1"));
  CHECK(got.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(got.ends_with("\r\n\r\n<p>hello</p>"));
  CHECK(got.find("Content-Type: text/html\r\n") != std::string::npos);
  CHECK(got.find("Content-Security-Policy: default-src 'none'") != std::string::npos);
  CHECK(got.find("X-Content-Type-Options: nosniff") != std::string::npos);
  CHECK(got.find("Access-Control") == std::string::npos);
  const std::string head = raw_reply(server.address(), request_of("HEAD", "/page"));
  CHECK(head.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(head.find("Content-Length: 12\r\n") != std::string::npos);
  CHECK(head.ends_with("\r\n\r\n"));
  made = 0;
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "PATCH"}) {
    INFO(method);
    const std::string refused = raw_reply(server.address(), request_of(method, "/page", "x=1"));
    CHECK(refused.starts_with("HTTP/1.1 405 "));
    CHECK(refused.find("Allow: GET, HEAD\r\n") != std::string::npos);
  }
  CHECK(made == 0);
  for (const char* path : {"/", "/pag", "/page/", "/page/../page2", "/etc/passwd"}) {
    INFO(path);
    CHECK(raw_reply(server.address(), request_of("GET", path)).starts_with("HTTP/1.1 404 "));
  }
  CHECK(raw_reply(server.address(), request_of("GET", "/broken")).starts_with("HTTP/1.1 500 "));
}

TEST_CASE("an address of a run's metrics is read with and without a path") {
  CHECK(parse_http_address("http://127.0.0.1:9464").text() == "http://127.0.0.1:9464");
  CHECK(parse_http_address("http://node17:80/metrics").text() == "http://node17:80");
  CHECK(parse_http_address("node17:1234").text() == "http://node17:1234");
  CHECK(parse_http_address("http://node17/").text() == "http://node17:9464");
  CHECK(parse_http_address("http://[::1]:70").host == "::1");
  CHECK(parse_http_address("http://[::1]:70").text() == "http://[::1]:70");
  for (const char* url :
       {"https://a:1", "http://", "http://a:0", "http://a:x", "http://a:70000", "http://u@a:1"}) {
    INFO(url);
    CHECK(message_of<base::SpecError>([&] { parse_http_address(url); }).find(url) != std::string::npos);
  }
}

TEST_CASE("the client says what is wrong with an answer") {
  HttpServer server("127.0.0.1:0");
  server.serve("/x", [] { return HttpReply{.body = std::string(100000, 'x')}; });
  const HttpAddress address = parse_http_address(server.address());
  CHECK(http_get(address, "/x", 5) == std::string(100000, 'x'));
  CHECK(message_of<base::CommError>([&] { http_get(address, "/none", 5); }).find("status 404") !=
        std::string::npos);
  CHECK(get_error({"127.0.0.1", "1"}).find("nothing answers: Connection refused") != std::string::npos);
  CHECK(get_error({"no.such.host.invalid", "1"}).find("host is not found") != std::string::npos);
  CHECK(get_error(FixedServer("SSH-2.0-OpenSSH\r\n").address()).find("no web server") != std::string::npos);
  CHECK(get_error(FixedServer("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort").address())
            .find("was cut") != std::string::npos);
  // A server that accepts the request and does not answer.
  const base::UniqueFd silent(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(silent.get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0);
  REQUIRE(::listen(silent.get(), 4) == 0);
  socklen_t size = sizeof(at);
  ::getsockname(silent.get(), reinterpret_cast<sockaddr*>(&at), &size);
  const double begin = base::monotonic_seconds();
  CHECK(get_error({"127.0.0.1", std::to_string(ntohs(at.sin_port))}).find("no answer in time") !=
        std::string::npos);
  CHECK(base::monotonic_seconds() - begin < 30);
}

TEST_CASE("the live page and the status are beside the metrics") {
  PrometheusSink metrics({.listen = "127.0.0.1:0"});
  LiveSink live(metrics.server());
  const HttpAddress address = parse_http_address(metrics.address());
  const auto status = [&] { return parse_run_status(http_get(address, "/status.json", 5)); };
  CHECK(status().state == RunState::starting);
  RunInfo info;
  info.name = "lively";
  info.steps = 10;
  live.on_start(info);
  live.on_rank_state({.first = 0, .count = 4, .node = 0, .state = RankState::training});
  live.on_notice({.kind = NoticeKind::start, .step = 0, .message = "begins", .details = {}, .wall_time = 5});
  live.on_step({.step = 1, .loss = 3.5, .mfu = {}, .time = {}});
  const double end = base::monotonic_seconds() + 60;
  while (status().step != 1)
    REQUIRE(base::monotonic_seconds() < end);  // the status is made at most twice per second
  CHECK(status().info.name == "lively");
  CHECK(status().ranks.size() == 4);
  CHECK(status().last->loss == 3.5);
  const std::string page = http_get(address, "/", 5);
  CHECK(page.find("live.js") != std::string::npos);
  // The server's policy does not allow inline scripts.
  CHECK(page.find("<script>") == std::string::npos);
  CHECK(page.find("style=\"") == std::string::npos);
  CHECK(http_get(address, "/live.js", 5).find("status.json") != std::string::npos);
  CHECK(http_get(address, "/live.css", 5).find("prefers-color-scheme: dark") != std::string::npos);
  CHECK(http_get(address, "/metrics", 5).find("trainerd_step") != std::string::npos);
}
