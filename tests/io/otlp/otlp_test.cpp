// Tests the OTLP exporter against a receiver in this process. tests/deploy/otlp_test.py decodes what it
// sends.

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "io/otlp/encode.h"
#include "io/otlp/exporter.h"
#include "io/otlp/protobuf.h"
#include "kernels/base/clock.h"

using namespace trainerd;

namespace {

/// Answers each request with the next of its replies and repeats the last one. "" closes the connection
/// without a reply, "hang" never answers.
class Receiver {
 public:
  explicit Receiver(std::deque<std::string> replies) : replies_(std::move(replies)) {
    listener_ = base::listen_at({"127.0.0.1", 0});
    port_ = base::local_port(listener_.get());
    thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
  }
  io::HttpUrl url() const {
    return *io::parse_http_url("http://127.0.0.1:" + std::to_string(port_) + "/v1/metrics");
  }
  std::vector<std::string> requests() const {
    const std::scoped_lock lock(mutex_);
    return requests_;
  }

 private:
  static bool whole(const std::string& request) {
    const std::size_t head = request.find("\r\n\r\n");
    if (head == std::string::npos) return false;
    const std::size_t length = request.find("Content-Length: ");
    return request.size() - head - 4 >= std::stoul(request.substr(length + 16));
  }
  void serve(const std::stop_token& stop) {
    std::vector<base::UniqueFd> hung;
    while (!stop.stop_requested()) {
      pollfd p{listener_.get(), POLLIN, 0};
      if (::poll(&p, 1, 10) <= 0) continue;
      base::UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      std::string request;
      std::array<char, 4096> part{};
      while (!whole(request)) {
        const ssize_t n = ::read(fd.get(), part.data(), part.size());
        if (n <= 0) break;
        request.append(part.data(), static_cast<std::size_t>(n));
      }
      std::string reply;
      {
        const std::scoped_lock lock(mutex_);
        requests_.push_back(request);
        reply = replies_.front();
        if (replies_.size() > 1) replies_.pop_front();
      }
      if (reply == "hang") hung.push_back(std::move(fd));
      else (void)base::write_all(fd.get(), std::as_bytes(std::span(reply)));
    }
  }
  base::UniqueFd listener_;
  std::uint16_t port_ = 0;
  mutable std::mutex mutex_;
  std::deque<std::string> replies_;
  std::vector<std::string> requests_;
  std::jthread thread_;
};

const std::string kTaken = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// Makes the payloads "1", "2", ...
std::function<std::string()> numbered() {
  return [n = 0]() mutable { return std::to_string(++n); };
}

std::string body_of(const std::string& request) { return request.substr(request.find("\r\n\r\n") + 4); }

bool comes_true(const std::function<bool()>& condition, double seconds = 60) {
  for (const double end = base::monotonic_seconds() + seconds; !condition();
       std::this_thread::sleep_for(std::chrono::milliseconds(5)))
    if (base::monotonic_seconds() > end) return false;
  return true;
}

}  // namespace

TEST_CASE("a URL has a scheme, a host and a port", "[otlp]") {
  const auto url = io::parse_http_url("http://[::1]:4318/otlp");
  REQUIRE(url);
  CHECK((url->to.host == "::1" && url->to.port == 4318 && url->path == "/otlp"));
  CHECK(url->text() == "http://[::1]:4318/otlp");
  for (const char* none : {"", "collector:4318", "https://collector:4318", "http://collector", "http://:4318",
                           "http://collector:0", "http://collector:x", "http://c:1/a b", "http://c:1/a?b"})
    CHECK_FALSE(io::parse_http_url(none));
}

TEST_CASE("payloads are posted one after the other", "[otlp]") {
  const Receiver receiver({kTaken});
  const io::OtlpExporter exporter({.url = receiver.url(), .every_seconds = 0.02}, numbered());
  REQUIRE(comes_true([&] { return receiver.requests().size() >= 3; }));
  const std::vector<std::string> requests = receiver.requests();
  for (std::size_t i = 0; i < 3; ++i) CHECK(body_of(requests[i]) == std::to_string(i + 1));
  CHECK(requests[0].starts_with("POST /v1/metrics HTTP/1.1\r\n"));
  CHECK(requests[0].find("\r\nContent-Type: application/x-protobuf\r\n") != std::string::npos);
  CHECK(exporter.outlet().error.empty());
  CHECK(exporter.outlet().failures == 0);
}

TEST_CASE("what a receiver may take later is sent again, in order; what it refuses is dropped", "[otlp]") {
  const Receiver receiver({"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "",
                           "HTTP/1.1 400 Bad Request\r\nContent-Length: 3\r\n\r\nwhy", kTaken});
  const io::OtlpExporter exporter({.url = receiver.url(), .every_seconds = 0.02, .most = 100'000},
                                  numbered());
  // Retries come 1 and 2 s after the failures. Meanwhile payloads are queued.
  REQUIRE(comes_true([&] { return exporter.outlet().failures >= 1; }));
  REQUIRE(comes_true([&] { return receiver.requests().size() >= 5; }));
  const std::vector<std::string> requests = receiver.requests();
  CHECK(body_of(requests[0]) == "1");
  CHECK(body_of(requests[1]) == "1");
  CHECK(body_of(requests[2]) == "1");
  CHECK(body_of(requests[3]) == "2");
  CHECK(body_of(requests[4]) == "3");
  REQUIRE(comes_true([&] { return exporter.outlet().error.empty(); }));
  const io::OutletRecord outlet = exporter.outlet();
  CHECK(outlet.failures == 3);
  CHECK(outlet.dropped == 1);
}

TEST_CASE("a receiver that is down costs memory for so many payloads and no time at the end", "[otlp]") {
  const base::UniqueFd taken = base::listen_at({"127.0.0.1", 0});  // nobody accepts; the port is closed below
  const std::string url = "http://127.0.0.1:" + std::to_string(base::local_port(taken.get()));
  io::HttpUrl nobody = *io::parse_http_url(url);
  ::shutdown(taken.get(), SHUT_RDWR);
  const double begin = base::monotonic_seconds();
  {
    io::OtlpExporter exporter({.url = nobody, .every_seconds = 0.005, .most = 4}, numbered());
    REQUIRE(comes_true([&] { return exporter.outlet().dropped >= 3; }));
    const io::OutletRecord outlet = exporter.outlet();
    CHECK(outlet.name == "otlp");
    CHECK(outlet.waiting == 4);
    CHECK(outlet.failures >= 1);
    CHECK(outlet.failures <= 3);  // the pauses grow
    CHECK(outlet.error.find(url + ": ") == 0);
    exporter.flush(5);
  }
  CHECK(base::monotonic_seconds() - begin < 30);
}

TEST_CASE("a receiver that never answers holds up neither the end nor later payloads", "[otlp]") {
  const Receiver receiver({"hang", kTaken});
  double begin = 0;
  {
    io::OtlpExporter exporter(
        {.url = receiver.url(), .every_seconds = 0.02, .timeout_seconds = 0.2, .most = 100'000}, numbered());
    REQUIRE(comes_true([&] { return exporter.outlet().failures == 1; }));
    CHECK(exporter.outlet().error.find("no reply in time") != std::string::npos);
    REQUIRE(comes_true([&] { return receiver.requests().size() >= 3; }));
    CHECK(body_of(receiver.requests()[1]) == "1");
  }
  const Receiver silent({"hang"});
  {
    io::OtlpExporter exporter({.url = silent.url(), .every_seconds = 0.02, .timeout_seconds = 100},
                              numbered());
    REQUIRE(comes_true([&] { return !silent.requests().empty(); }));
    begin = base::monotonic_seconds();
    exporter.flush(0.1);
  }
  CHECK(base::monotonic_seconds() - begin < 30);
}

TEST_CASE("the end of a run sends one payload more at once", "[otlp]") {
  const Receiver receiver({kTaken});
  io::OtlpExporter exporter({.url = receiver.url(), .every_seconds = 3600}, numbered());
  exporter.flush(20);
  REQUIRE(receiver.requests().size() == 1);
  CHECK(body_of(receiver.requests()[0]) == "1");
}

TEST_CASE("a receiver that takes a part says how much it left", "[otlp]") {
  io::ProtobufWriter partial, response;
  partial.add_varint(1, 300);
  partial.add_bytes(2, "too old");
  response.add_message(1, partial);
  CHECK(io::otlp_rejection(response.text()) == "300 data points were rejected: too old");
  io::ProtobufWriter advice, advised;
  advice.add_bytes(2, "use TLS");
  advised.add_message(1, advice);
  CHECK(io::otlp_rejection(advised.text()).empty());
  CHECK(io::otlp_rejection("").empty());
  CHECK(io::otlp_rejection("{\"partialSuccess\":{}}").empty());  // not a message; read as far as possible
  const Receiver receiver({"HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(response.text().size()) +
                           "\r\n\r\n" + response.text()});
  io::OtlpExporter exporter({.url = receiver.url(), .every_seconds = 3600}, numbered());
  exporter.flush(20);
  CHECK(exporter.outlet().error.find("300 data points were rejected: too old") != std::string::npos);
  CHECK(exporter.outlet().dropped == 0);
}

TEST_CASE("numbers of a message are read as they were written", "[otlp]") {
  io::ProtobufWriter writer;
  for (const std::uint64_t value :
       {std::uint64_t{0}, std::uint64_t{127}, std::uint64_t{128}, ~std::uint64_t{0}})
    writer.add_varint(16, value);
  writer.add_double(2, 1.5);
  writer.add_bytes(3, "abc");
  // By the encoding's specification, field 16 as a varint has the tag 0x80 0x01.
  CHECK(writer.text().substr(0, 6) == std::string("\x80\x01\x00\x80\x01\x7f", 6));
  io::ProtobufReader reader(writer.text());
  for (const std::uint64_t value :
       {std::uint64_t{0}, std::uint64_t{127}, std::uint64_t{128}, ~std::uint64_t{0}}) {
    const auto field = reader.next();
    REQUIRE(field);
    CHECK((field->number == 16 && field->value == value));
  }
  CHECK(reader.next()->bytes == std::string("\0\0\0\0\0\0\xf8\x3f", 8));
  CHECK(reader.next()->bytes == "abc");
  CHECK_FALSE(reader.next());
  CHECK_FALSE(io::ProtobufReader(std::string_view("\x0a\x7f", 2)).next());  // truncated
}
