#include "core/spec/field_table.h"
#include "core/spec/fields.h"

namespace trainerd::core::spec {
namespace {

// Steps.
constexpr double kMaxInterval = 1e12;

}  // namespace

void add_memory_tiers(FieldTable& t, job::JobSpec& job) {
  io::CheckpointOptions& c = job.checkpoint;
  const std::string meaning =
      "time or steps between snapshots that stay in memory, for a restart after a worker's death; 0: only "
      "those on their way to the disk; takes a third snapshot's memory on the host";
  t.add("checkpoint.memory", StepsOrDuration{&c.memory}, meaning + "; or a map with the key `every`")
      .between(0, kMaxInterval)
      .heads_section();
  const std::string one_node = "cluster.nodes is 1: there is no other node";
  t.add(
       "checkpoint.partner", &c.partner,
       "keep a copy of each node's newest snapshot in the memory of another node; when an agent is lost, the "
       "others wait for it to be started again, and all go on from there; or a map with the key `wait`")
      .heads_section()
      .written_if(!c.partner)
      .idle_if(job.cluster.nodes == 1, one_node);
  t.add("checkpoint.memory.every", StepsOrDuration{&c.memory}, "the same as `checkpoint.memory: N`")
      .between(0, kMaxInterval)
      .written_if(false);
  t.add("checkpoint.partner.wait", Duration{&c.partner_wait_seconds},
        "how long a lost node has to come back before the run ends; a map with it means `partner: true`")
      .above(0)
      .idle_if(!c.partner || job.cluster.nodes == 1, c.partner ? one_node : "there is no checkpoint.partner");
}

}  // namespace trainerd::core::spec
