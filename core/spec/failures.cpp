#include "core/spec/failures.h"

namespace trainerd::core::spec {
namespace {

constexpr double kMaxNodes = 1 << 20;
constexpr double kMaxCadence = 1e9;

}  // namespace

void add_failure_fields(std::vector<Field>& fields, const std::string& prefix, FailureSpec& f) {
  const auto add = [&](const std::string& key, Storage storage, const char* meaning) -> Field& {
    return fields.emplace_back(Field{prefix + key, std::move(storage), meaning});
  };
  add("gpu_per_1000_device_days", &f.gpu, "interruptions by a GPU").at_least(0);
  add("gpu_memory_per_1000_device_days", &f.gpu_memory, "interruptions by a GPU's memory").at_least(0);
  add("host_per_1000_node_days", &f.host, "interruptions by the rest of a node").at_least(0);
  add("network_per_1000_node_days", &f.network, "interruptions by cards, cables and switches").at_least(0);
  add("software_per_1000_node_days", &f.software, "interruptions that leave the node whole").at_least(0);
  add("planned_per_1000_node_days", &f.planned, "interruptions by plan, after a save").at_least(0);
  add("planned_seconds", &f.planned_seconds, "standstill of one, before the restart").at_least(0);
  add("detection_seconds", &f.detection_seconds, "until a failure is acted on").at_least(0);
  add("restart_seconds", &f.restart_seconds, "processes and communicators, up to the restore").at_least(0);
  add("spares", &f.spares, "nodes that stand by").between(0, kMaxNodes);
  add("replace_hours", &f.replace_hours, "until a lost node is back; 0: another is always there").at_least(0);
  add("elastic", &f.elastic, "go on with fewer replicas instead of waiting for a node").heads_section();
  add("min_replicas", &f.min_replicas, "below which an elastic job waits").between(1, kMaxNodes);
  add("elastic.replan", &f.replan, "with any layout of the devices left, taken to be as fast per device");
  const auto add_memory = [&](const std::string& name, FailureSpec::Memory& m) {
    add(name + ".save_seconds", &m.save_seconds, "checkpoint stall of a save; given: there is such a copy")
        .at_least(0);
    add(name + ".write_seconds", &m.write_seconds, "until the copy counts").at_least(0);
    add(name + ".restore_seconds", &m.restore_seconds, "from that copy").at_least(0);
    add(name + ".every_steps", &m.every_steps, "cadence; 0: the optimum").between(0, kMaxCadence);
  };
  add_memory("memory", f.memory);
  add_memory("partner", f.partner);
  add("storage.gb_per_second", &f.storage_gb_per_second, "of all ranks together").at_least(0);
  add("storage.restore_seconds", &f.storage_restore_seconds, "in place of bytes over bandwidth").at_least(0);
}

}  // namespace trainerd::core::spec
