#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/run/coordinator/coordinator.h"
#include "kernels/base/socket.h"

namespace trainerd::core::run {

struct EtcdOptions {
  std::vector<base::Endpoint> members;
  std::string run;           ///< a name of the run's, the same for all of its agents
  double every_seconds = 1;  ///< between two renewals of the lease
  double dead_seconds = 5;   ///< without one, after which the lead is over
};

/// The lead is the key /trainerd/RUN/leader, under a lease. etcd has leases of whole seconds, and of 2 at the
/// least: another agent may have to wait so much longer than `dead_seconds`.
std::unique_ptr<Coordinator> make_etcd_coordinator(const EtcdOptions& options);

}  // namespace trainerd::core::run
