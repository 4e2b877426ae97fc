#include "core/spec/field_table.h"

namespace trainerd::core::spec {
namespace {

constexpr double kMaxCheckpointSteps = 1e12;
constexpr double kMaxRate = 1e15;  // bytes per second

void add_durable(FieldTable& t, io::DurableOptions& d) {
  const std::string none = "checkpoint.durable.to names no place";
  t.add(
       "checkpoint.durable.to", &d.to,
       "a directory or s3://bucket/prefix of this run alone, which gets a copy of complete checkpoints while "
       "training continues; a run whose output is gone continues from there. Credentials of s3:// come from "
       "the environment, AWS's files or the instance's role")
      .or_else("none");
  t.add("checkpoint.durable.every", StepsOrDuration{&d.every},
        "time or steps between the checkpoints that are copied, and the last one of a run; 0: all are")
      .between(0, kMaxCheckpointSteps)
      .idle_if(!d.on(), none);
  t.add("checkpoint.durable.keep", &d.keep, "complete copies kept, newest first")
      .between(1, kMaxCheckpointSteps)
      .idle_if(!d.on(), none);
  t.add("checkpoint.durable.keep_every", &d.keep_every,
        "beside them the first copy of every so many steps is kept for good; 0: none is")
      .between(0, kMaxCheckpointSteps)
      .idle_if(!d.on(), none);
  t.add("checkpoint.durable.rate", &d.rate_bytes_per_second,
        "bytes per second that each node sends there at most; 0: no limit")
      .between(0, kMaxRate)
      .idle_if(!d.on(), none);
}

}  // namespace

void add_checkpoint(FieldTable& t, job::JobSpec& job) {
  io::CheckpointOptions& c = job.checkpoint;
  t.add("checkpoint.every", StepsOrDuration{&c.every, true},
        "time (`30s`, `10m`, `2h`) or steps (a plain integer) between checkpoints; 0: only at the end and "
        "when stopped; auto: the optimum from what saves were measured to cost and `mtbf`")
      .between(0, kMaxCheckpointSteps);
  t.add("checkpoint.mtbf", Duration{&c.mtbf_seconds},
        "for `every: auto`: the job's mean time between failures; 0: the cluster's "
        "(`failures` of its preset), else learned from the run's own history")
      .idle_if(!c.every.automatic, "checkpoint.every is not auto")
      .at_least(0);
  t.add("checkpoint.keep", &c.keep, "complete checkpoints kept, newest first")
      .between(1, kMaxCheckpointSteps);
  t.add("checkpoint.keep_every", &c.keep_every,
        "and for good the first checkpoint of every so many steps; 0: none")
      .between(0, kMaxCheckpointSteps);
  t.add(
       "checkpoint.good_after", &c.good_after,
       "a checkpoint is tagged good when the losses of so many steps after it were in line with those before "
       "(robust z-score below 8); the newest one that is tagged is never removed; 0: none is tagged")
      .between(0, kMaxCheckpointSteps);
  t.add("checkpoint.read_back", &c.read_back,
        "read every shard back after it was written and compare its checksum; what differs counts as a write "
        "that failed, and is tried again");
  t.add("checkpoint.async", &c.async, "write checkpoints while training continues");
  t.add("checkpoint.give_up", Duration{&c.give_up_seconds},
        "how long to retry checkpoints that cannot be written (a full disk) before the run ends; training "
        "continues meanwhile")
      .at_least(0);
  add_memory_tiers(t, job);
  add_durable(t, c.durable);
}

}  // namespace trainerd::core::spec
