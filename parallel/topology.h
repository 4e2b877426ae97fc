#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/target.h"

namespace trainerd::parallel {

/// One direction, of one device.
struct LinkSpeed {
  double bytes_per_second = 0;  ///< 0: unknown
  double latency_seconds = 0;

  bool operator==(const LinkSpeed&) const = default;
};

/// Dense matrix products (no sparsity), FLOP/s of one device; 0: unknown or not there.
struct PeakRates {
  double fp32 = 0;
  double tf32 = 0;
  double bf16 = 0;
  double fp8 = 0;
  double fp4 = 0;

  bool operator==(const PeakRates&) const = default;
};

/// What there is to place ranks on: `nodes` alike, each with `devices_per_node` alike. Detected, or a preset
/// of configs/clusters/.
struct Topology {
  std::string name = "local";
  std::int64_t nodes = 1;
  std::int64_t devices_per_node = 1;
  std::int64_t nvlink_domain =
      0;  ///< consecutive devices that NVLink joins: a part of a node, or several; 0: no NVLink
  std::int64_t rails =
      0;  ///< network cards of a node, device d on card d rails / devices_per_node; 0: one network
  kernels::Target device;
  std::int64_t device_memory_bytes = 0;  ///< 0 on a CPU: its devices share the node's
  double memory_bytes_per_second = 0;    ///< of one device's own memory
  PeakRates peak;
  LinkSpeed nvlink;
  LinkSpeed rail;     ///< between nodes, on the same card number
  LinkSpeed network;  ///< between nodes, across cards
  std::int64_t node_memory_bytes = 0;

  std::int64_t devices() const { return nodes * devices_per_node; }
};

/// The machine this process runs on as `devices` devices: shares of its cores, of `threads` threads each (0:
/// the cores it may use, divided evenly, at least one).
Topology detect_topology(int threads, std::int64_t devices = 1);

/// The first `devices` CUDA devices of this machine, a rank on each. Throws DeviceError, in one line with what to do, when there is
/// no CUDA here, and CapacityError when there are fewer devices.
Topology detect_cuda_topology(std::int64_t devices = 1);

/// Where this process stands among the nodes of a job. A scheduler tells in the environment, which apps/
/// reads.
struct NodeSet {
  std::int64_t nodes = 1;
  std::int64_t node = 0;           ///< of this process, from 0
  std::vector<std::string> hosts;  ///< by node; empty when there is only this one
};

}  // namespace trainerd::parallel
