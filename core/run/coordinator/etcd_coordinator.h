#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/run/coordinator/coordinator.h"
#include "kernels/base/socket.h"

namespace trainerd::core::run {

struct EtcdOptions {
  std::vector<base::Endpoint> members;
  std::string run;           ///< a name of the run, the same for all its agents
  double every_seconds = 1;  ///< interval between renewals of the lease
  double dead_seconds = 5;   ///< time without renewal after which the lead is lost
};

/// The lead is the key /trainerd/RUN/leader, under a lease. etcd leases are whole seconds and at least 2 s,
/// so another agent may have to wait that much longer than `dead_seconds`.
std::unique_ptr<Coordinator> make_etcd_coordinator(const EtcdOptions& options);

}  // namespace trainerd::core::run
