#include "core/spec/field_table.h"

namespace trainerd::core::spec {
namespace {

// Steps.
constexpr double kMaxInterval = 1e12;

}  // namespace

void add_memory_tiers(FieldTable& t, io::CheckpointOptions& c) {
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
