#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/flight_recorder.h"
#include "parallel/comm/rendezvous/store.h"

namespace trainerd::parallel {

struct GlooOptions {
  /// This rank's network interface ("ib0"), or a name or address of it: peers connect to it.
  std::string host = "127.0.0.1";
  double deadline_seconds = 300;  ///< longest time an operation takes
  double rendezvous_seconds = 60;
  /// Of a reduction, from each peer: longer ones take several steps.
  std::int64_t chunk_bytes = 4 * 1024 * 1024;
};

/// One rank's part of a world of processes over TCP. Connections and point-to-point messages are Gloo's, the
/// collectives our own, with the same order of summands as in shared memory. Outlives its communicators.
class GlooWorld {
 public:
  /// `store` is used while communicators are made, and is fresh for each world. Throws CommError. The process
  /// ignores SIGPIPE, else std::logic_error: Gloo writes to connections that a dead peer has closed.
  GlooWorld(Store& store, std::int64_t rank, const GlooOptions& options);
  ~GlooWorld();
  GlooWorld(const GlooWorld&) = delete;
  GlooWorld& operator=(const GlooWorld&) = delete;

  /// Made by all members at a time. Throws CommError naming the ranks that did not join.
  std::unique_ptr<Communicator> communicator(kernels::Backend& backend,
                                             const std::vector<std::int64_t>& group_ranks,
                                             const std::string& name, FlightRecorder* recorder = nullptr);
  /// Closes every connection: peers that wait on this rank see it at once, and close theirs.
  void abort(std::string_view why);

  class Links;  ///< the connections of this rank's groups, and whether the world has ended

 private:
  Store& store_;
  std::int64_t rank_;
  GlooOptions options_;
  std::unique_ptr<Links> links_;
};

}  // namespace trainerd::parallel
