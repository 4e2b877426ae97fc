#pragma once

#include <functional>
#include <memory>
#include <string>

#include "io/otlp/http_post.h"
#include "io/records/records.h"

namespace trainerd::io {

/// Sends payloads to an OTLP receiver by HTTP, on a thread of its own. While the receiver does not answer,
/// payloads wait, the oldest is dropped where `most` do, and tries come 1, 2, 4 ... up to 60 s after each
/// other. What the receiver refuses for good is dropped.
class OtlpExporter {
 public:
  struct Options {
    HttpUrl url;
    double every_seconds = 10;    ///< between two payloads
    double timeout_seconds = 10;  ///< of one request
    std::size_t most = 60;        ///< payloads that wait
  };
  /// `make` gives a payload, on that thread, which may outlive this; empty: there is nothing to send yet.
  OtlpExporter(Options options, std::function<std::string()> make);
  /// Waits a moment for a request under way, and no longer.
  ~OtlpExporter();

  /// Makes one payload more and sends all that wait: until they are gone, one try fails, or `seconds` are
  /// over.
  void flush(double seconds);
  /// Its lines are payloads.
  OutletRecord outlet() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< the thread's too
};

}  // namespace trainerd::io
