#include "core/run/wire/channel.h"

#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <thread>

#include "kernels/base/error.h"

using namespace trainerd;

namespace {

/// A channel that receives, and the other end of its socket for raw bytes.
struct Raw {
  Raw() : Raw(core::run::Channel::make_pair()) {}
  explicit Raw(std::pair<base::UniqueFd, base::UniqueFd> ends)
      : channel(std::move(ends.first)), other(std::move(ends.second)) {}
  void send(const std::string& bytes) const {
    REQUIRE(base::write_all(other.get(), std::as_bytes(std::span(bytes))) == 0);
  }
  void close() { other.reset(); }

  core::run::Channel channel;
  base::UniqueFd other;
};

std::string length_field(std::uint32_t length) {
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes;
}

}  // namespace

TEST_CASE("messages arrive complete and in order, also if larger than the socket's buffer", "[channel]") {
  auto [a, b] = core::run::Channel::make_pair();
  core::run::Channel from(std::move(a)), to(std::move(b));
  const std::vector<std::string> sent{"", "one", std::string(5 << 20, 'x'), std::string("a\0b", 3)};
  std::thread sender([&] {
    for (const std::string& message : sent) from.send(message);
  });
  for (const std::string& message : sent) CHECK(to.receive() == message);
  sender.join();
  CHECK_FALSE(to.ready());
}

TEST_CASE("a frame that ends early is an end, not a message", "[channel]") {
  for (const std::string& bytes :
       {std::string(), std::string("\x05\0", 2), length_field(5), length_field(5) + "four"}) {
    Raw raw;
    raw.send(bytes);
    raw.close();
    CHECK(raw.channel.receive() == std::nullopt);
  }
}

TEST_CASE("a frame of an absurd length is refused without waiting for it or holding memory for it",
          "[channel]") {
  Raw raw;
  raw.send(length_field(0xffffffffu) + "some");  // the other end stays open: a wait would never end
  CHECK(raw.channel.receive() == std::nullopt);
}

TEST_CASE("a message that the other end would refuse is not sent", "[channel]") {
  auto [left, right] = core::run::Channel::make_pair();
  core::run::Channel sender(std::move(left)), receiver(std::move(right));
  CHECK_THROWS_WITH(sender.send(std::string((64u << 20) + 1, 'x')), Catch::Contains("longer than"));
  sender.send("short");
  CHECK(receiver.receive() == "short");
}

TEST_CASE("sending to a closed peer is a communication error", "[channel]") {
  Raw raw;
  raw.close();
  CHECK_THROWS_WITH(raw.channel.send("hello"),
                    Catch::StartsWith("the peer on the control channel is gone: "));
  CHECK_THROWS_AS(raw.channel.send("hello"), base::CommError);
}
