#include "io/http/listen_address.h"

#include <catch2/catch.hpp>

using trainerd::io::parse_listen_address;

TEST_CASE("numeric addresses with a port are where a server can listen") {
  CHECK(parse_listen_address("127.0.0.1:9464")->text() == "127.0.0.1:9464");
  CHECK(parse_listen_address("0.0.0.0:0")->port == "0");
  CHECK(parse_listen_address("[::1]:65535")->host == "[::1]");
  CHECK(parse_listen_address("localhost:80")->host == "127.0.0.1");
}

TEST_CASE("everything else is no listen address") {
  for (const std::string text : {"",
                                 ":",
                                 "9464",
                                 ":9464",
                                 "127.0.0.1:",
                                 "127.0.0.1:65536",
                                 "127.0.0.1:-1",
                                 "127.0.0.1:+1",
                                 "127.0.0.1:80s",
                                 "127.0.0.1:80,127.0.0.1:81",
                                 "myhost:80",
                                 "1.2.3:80",
                                 "1.2.3.4.5:80",
                                 "300.0.0.1:80",
                                 "::1:80",
                                 "[::1]",
                                 "[]:80",
                                 "[::1:80",
                                 "[127.0.0.1]:80",
                                 "[fe80::1%eth0]:80",
                                 " 127.0.0.1:80",
                                 "127.0.0.1 :80"}) {
    INFO(text);
    CHECK_FALSE(parse_listen_address(text).has_value());
  }
}
