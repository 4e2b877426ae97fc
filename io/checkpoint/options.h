#pragma once

#include <cstdint>
#include <string>

#include "io/text/interval.h"

namespace trainerd::io {

/// Copies of a run's checkpoints at a place that outlives its directory.
struct DurableOptions {
  std::string to = {};    ///< a path or s3://bucket/prefix; empty: no copies
  Interval every = {};    ///< never: every checkpoint is copied
  std::int64_t keep = 3;  ///< as for the run's directory
  std::int64_t keep_every = 0;
  double rate_bytes_per_second = 0;  ///< per node; 0: no limit

  bool on() const { return !to.empty(); }
  bool operator==(const DurableOptions&) const = default;
};

struct CheckpointOptions {
  /// never: only at the end and when stopped; automatic: the optimum for the measured cost of a save and the
  /// failure rate of the job.
  Interval every{.seconds = 600};
  double mtbf_seconds = 0;      ///< mean time between failures of the job, for `every`; 0: not given
  std::int64_t keep = 3;        ///< number of complete checkpoints kept, newest first
  std::int64_t keep_every = 0;  ///< also keeps the first of every so many steps for good; 0: none
  std::int64_t good_after =
      100;                 ///< steps with normal losses after which a checkpoint is tagged good; 0: never
  bool read_back = false;  ///< every shard is read and compared after it was written
  bool async = true;       ///< training continues while the agent writes
  Interval memory{};       ///< interval of snapshots that stay in memory; never: only those of checkpoints
  bool partner = false;    ///< with several nodes: a partner node keeps a copy of each node's newest snapshot
  double partner_wait_seconds = 60;  ///< how long to wait for a lost node to come back
  double give_up_seconds =
      3600;  ///< the run ends after that long without a successful save since the first failure

  DurableOptions durable = {};

  bool operator==(const CheckpointOptions&) const = default;
};

}  // namespace trainerd::io
