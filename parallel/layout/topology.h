#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/target/target.h"
#include "parallel/layout/measured_rates.h"

namespace trainerd::parallel {

/// One direction, of one device.
struct LinkSpeed {
  double bytes_per_second = 0;  ///< 0: unknown
  double latency_seconds = 0;   ///< of one hop of a ring or tree
  double efficiency = 1;        ///< part of the bandwidth that a large collective reaches
  double start_seconds = 0;     ///< of any operation on it, whatever its size and group

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

/// What operators reach of a device's peaks: one curve for each class. `gemm.efficiency` 0: not known, and no
/// time is predicted.
struct OperatorRates {
  struct {
    double efficiency = 0;  ///< of the dense peak, by a product large enough for all else not to matter
    double tile_rows = 0, tile_columns = 0;  ///< of the output, made by one multiprocessor at a time
    double start_depth = 0;                  ///< summands in whose time a tile starts and ends
  } gemm;
  struct {
    double forward = 0,
           backward = 0;  ///< of the dense peak, for long sequences, counting what the mask leaves
    double forward_start = 0, backward_start = 0;  ///< sequence length at which half of that is reached
    double score_bytes = 0;  ///< memory traffic of an unmasked score in forward; 0: scores stay on the chip
  } attention;
  double memory_efficiency = 0;  ///< of the memory's bandwidth
  double launch_seconds = 0;     ///< of the host to issue an operator, while the device works on those before

  bool known() const { return gemm.efficiency > 0; }
};

/// What there is to place ranks on: `nodes` alike, each with `devices_per_node` alike. Detected, or a preset
/// of configs/clusters/.
struct Topology {
  std::string name = "local";
  std::int64_t nodes = 1;
  std::int64_t devices_per_node = 1;
  std::int64_t ranks_per_device =
      1;  ///< more than 1: a "device" of this topology is such a part of a real one
  std::int64_t nvlink_domain =
      0;  ///< consecutive devices that NVLink joins: a part of a node, or several; 0: no NVLink
  std::int64_t rails =
      0;  ///< network cards of a node, device d on card d rails / devices_per_node; 0: one network
  kernels::Target device;
  std::int64_t device_memory_bytes = 0;  ///< 0 on a CPU: its devices share the node's
  double memory_bytes_per_second = 0;    ///< of one device's own memory
  PeakRates peak;
  OperatorRates rates;
  MeasuredRates measured;                  ///< goes before `rates` and the links where it is known
  std::int64_t device_overhead_bytes = 0;  ///< what driver and libraries take outside the job's own memory
  double host_bytes_per_second = 0;        ///< between one device and its host, for snapshots; 0: unknown
  double failures_per_node_day = 0;        ///< that stop the job; 0: unknown
  LinkSpeed nvlink;
  LinkSpeed rail;     ///< between nodes, on the same card number
  LinkSpeed network;  ///< between nodes, across cards
  std::int64_t node_memory_bytes = 0;

  std::int64_t devices() const { return nodes * devices_per_node; }
  /// The real device of its node that a rank computes on.
  int device_of(std::int64_t rank) const {
    return static_cast<int>(rank % devices_per_node / ranks_per_device);
  }
};

/// The machine this process runs on as `devices` devices: shares of its cores, of `threads` threads each (0:
/// the cores it may use, divided evenly, at least one), with kernels of at most the instruction set `most`.
Topology detect_topology(int threads, std::int64_t devices = 1,
                         kernels::Isa most = kernels::Isa::avx512_bf16);

/// Whether each rank has a device of its own, or ranks share them evenly where there are more ranks than
/// devices.
enum class Devices : std::uint8_t { own, shared };

/// The first CUDA devices of this machine for `ranks` ranks. Throws DeviceError, in one line with what to do,
/// when there is no CUDA here, and CapacityError when each rank is to have its own device and there are
/// fewer.
Topology detect_cuda_topology(std::int64_t ranks = 1, Devices devices = Devices::own);
/// How many ranks compute on each of `count` devices at most, as above.
std::int64_t ranks_per_device(std::int64_t ranks, std::int64_t count, Devices devices);

/// Where this process stands among the nodes of a job. A scheduler sets it in the environment, which apps/
/// reads.
struct NodeSet {
  std::int64_t nodes = 1;
  std::int64_t node = 0;           ///< of this process, from 0
  std::vector<std::string> hosts;  ///< by node; empty when there is only this one
};

}  // namespace trainerd::parallel
