#pragma once

#include <cstdint>
#include <string>

#include "io/text/interval.h"

namespace trainerd::io {

/// Copies of a run's checkpoints in a place that outlives its directory.
struct DurableOptions {
  std::string to = {};    ///< a path or s3://bucket/prefix; empty: none are made
  Interval every = {};    ///< never: of every checkpoint
  std::int64_t keep = 3;  ///< as of the run's directory
  std::int64_t keep_every = 0;
  double rate_bytes_per_second = 0;  ///< of each node; 0: no limit

  bool on() const { return !to.empty(); }
  bool operator==(const DurableOptions&) const = default;
};

struct CheckpointOptions {
  /// never: only at the end and when stopped; automatic: the optimum from what saves cost and how often the
  /// job fails.
  Interval every{.seconds = 600};
  double mtbf_seconds = 0;      ///< mean time between failures of the job, for `every`; 0: not given
  std::int64_t keep = 3;        ///< complete checkpoints kept, newest first
  std::int64_t keep_every = 0;  ///< and the first of every so many steps for good; 0: none
  std::int64_t good_after =
      100;                 ///< steps whose losses must stay in line for one to be tagged good; 0: none is
  bool read_back = false;  ///< every shard is read and compared after it was written
  bool async = true;       ///< training goes on while the agent writes
  Interval memory{};       ///< between snapshots that stay in memory; never: those of checkpoints alone
  bool partner = false;    ///< of several nodes: another one keeps a copy of a node's newest snapshot
  double partner_wait_seconds = 60;  ///< for a lost node to come back
  double give_up_seconds =
      3600;  ///< without a checkpoint that could be written, since the first failure: the run ends

  DurableOptions durable = {};

  bool operator==(const CheckpointOptions&) const = default;
};

}  // namespace trainerd::io
