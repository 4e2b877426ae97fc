#pragma once

#include <functional>
#include <memory>
#include <string>

#include "io/otlp/http_post.h"
#include "io/records/records.h"

namespace trainerd::io {

/// Sends payloads to an OTLP receiver by HTTP on its own thread. While the receiver does not answer, payloads
/// are queued (at most `most`, then the oldest is dropped) and retried after 1, 2, 4 ... up to 60 s. A
/// payload that the receiver rejects permanently is dropped.
class OtlpExporter {
 public:
  struct Options {
    HttpUrl url;
    double every_seconds = 10;    ///< between two payloads
    double timeout_seconds = 10;  ///< per request
    std::size_t most = 60;        ///< most payloads in the queue
  };
  /// `make` returns a payload; empty: nothing to send yet. It runs on that thread, which may outlive this
  /// object.
  OtlpExporter(Options options, std::function<std::string()> make);
  /// Waits at most a moment for a request in progress.
  ~OtlpExporter();

  /// Makes another payload and sends all in the queue, until it is empty, an attempt fails, or `seconds` have
  /// passed.
  void flush(double seconds);
  /// State of the queue; its lines are payloads.
  OutletRecord outlet() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< shared with the thread
};

}  // namespace trainerd::io
