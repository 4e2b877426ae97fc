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
  /// This rank's network interface ("ib0"), or a name or address of it. Peers connect to it.
  std::string host = "127.0.0.1";
  double deadline_seconds = 300;  ///< longest time for an operation
  double rendezvous_seconds = 60;
  /// Bytes of a reduction received from each peer at a time; longer reductions take several steps.
  std::int64_t chunk_bytes = 4 * 1024 * 1024;
};

/// One rank's part of a world of processes over TCP. Gloo provides connections and point-to-point messages.
/// The collectives are our own, with the same order of summands as in shared memory. Outlives its
/// communicators.
class GlooWorld {
 public:
  /// `store` is used to make communicators, and must be new for each world. Throws CommError. Throws
  /// std::logic_error unless the process ignores SIGPIPE: Gloo writes to connections that a dead peer has
  /// closed.
  GlooWorld(Store& store, std::int64_t rank, const GlooOptions& options);
  ~GlooWorld();
  GlooWorld(const GlooWorld&) = delete;
  GlooWorld& operator=(const GlooWorld&) = delete;

  /// All members make it at the same time. Throws CommError that names the ranks that did not join.
  std::unique_ptr<Communicator> communicator(kernels::Backend& backend,
                                             const std::vector<std::int64_t>& group_ranks,
                                             const std::string& name, FlightRecorder* recorder = nullptr);
  /// Closes every connection. Peers that wait for this rank detect it at once, and close theirs.
  void abort(std::string_view why);

  class Links;  ///< the connections of this rank's groups, and whether the world has ended

 private:
  Store& store_;
  std::int64_t rank_;
  GlooOptions options_;
  std::unique_ptr<Links> links_;
};

}  // namespace trainerd::parallel
