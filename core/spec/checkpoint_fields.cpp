#include "core/spec/field_table.h"

namespace trainerd::core::spec {
namespace {

// Steps.
constexpr double kMaxInterval = 1e12;

}  // namespace

void add_checkpoint(FieldTable& t, io::CheckpointOptions& c) {
  t.add("checkpoint.every", StepsOrDuration{&c.every, true},
        "time (`30s`, `10m`, `2h`) or steps (a plain integer) between checkpoints; 0: only at the end and "
        "when stopped; auto: the optimum from what saves were measured to cost and `mtbf`")
      .between(0, kMaxInterval);
  t.add("checkpoint.mtbf", Duration{&c.mtbf_seconds},
        "for `every: auto`: the job's mean time between failures; 0: the cluster's "
        "(`failures` of its preset), else learned from the run's own history")
      .idle_if(!c.every.automatic, "checkpoint.every is not auto")
      .at_least(0);
  t.add("checkpoint.keep", &c.keep, "complete checkpoints kept, newest first").between(1, kMaxInterval);
  t.add("checkpoint.keep_every", &c.keep_every,
        "and for good the first checkpoint of every so many steps; 0: none")
      .between(0, kMaxInterval);
  t.add(
       "checkpoint.good_after", &c.good_after,
       "a checkpoint is tagged good when the losses of so many steps after it were in line with those before "
       "(robust z-score below 8); the newest one that is tagged is never removed; 0: none is tagged")
      .between(0, kMaxInterval);
  t.add("checkpoint.async", &c.async, "write checkpoints while training continues");
  t.add("checkpoint.give_up", Duration{&c.give_up_seconds},
        "how long to retry checkpoints that cannot be written (a full disk) before the run ends; training "
        "continues meanwhile")
      .at_least(0);
  const std::string meaning =
      "time or steps between snapshots that stay in memory, for a restart after a worker's death; 0: only "
      "those on their way to the disk; takes a third snapshot's memory on the host";
  t.add("checkpoint.memory", StepsOrDuration{&c.memory}, meaning + "; or a map with the key `every`")
      .between(0, kMaxInterval)
      .heads_section();
  t.add("checkpoint.memory.every", StepsOrDuration{&c.memory}, "the same as `checkpoint.memory: N`")
      .between(0, kMaxInterval)
      .written_if(false);
}

}  // namespace trainerd::core::spec
