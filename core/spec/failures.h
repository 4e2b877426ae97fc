#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/spec/fields.h"

namespace trainerd::core::spec {

/// The `failures` section of a cluster file, in the units of its keys. Negative: not given.
struct FailureSpec {
  double gpu = 0, gpu_memory = 0;                           ///< per 1000 device-days
  double host = 0, network = 0, software = 0, planned = 0;  ///< per 1000 node-days
  double detection_seconds = -1, restart_seconds = -1, planned_seconds = 0;
  std::int64_t spares = 0;
  double replace_hours = 0;
  bool elastic = false, replan = false;
  std::int64_t min_replicas = 1;
  /// Copies in host memory: on the rank's own node, and on another node.
  struct Memory {
    double save_seconds = -1, write_seconds = 0, restore_seconds = -1;
    std::int64_t every_steps = 0;
  } memory, partner;
  double storage_gb_per_second = 0, storage_restore_seconds = -1;
};

/// Adds the section's keys below `prefix` ("cluster.failures."), bound to `spec`.
void add_failure_fields(std::vector<Field>& fields, const std::string& prefix, FailureSpec& spec);

}  // namespace trainerd::core::spec
