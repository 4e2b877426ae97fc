#pragma once

#include <string>

namespace trainerd::io {

struct MetricsOptions {
  /// host:port; port 0 takes any free one and prints it.
  std::string listen = "127.0.0.1:9464";

  bool operator==(const MetricsOptions&) const = default;
};

}  // namespace trainerd::io
