#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/target/target.h"
#include "parallel/layout/measured_rates.h"

namespace trainerd::parallel {

/// Speed of a link, per device and direction.
struct LinkSpeed {
  double bytes_per_second = 0;  ///< 0: unknown
  double latency_seconds = 0;   ///< per hop of a ring or tree
  double efficiency = 1;        ///< fraction of the bandwidth that a large collective reaches
  double start_seconds = 0;     ///< fixed cost of an operation on it, whatever its size and group

  bool operator==(const LinkSpeed&) const = default;
};

/// Peak of dense matrix products (no sparsity), FLOP/s of one device; 0: unknown or not supported.
struct PeakRates {
  double fp32 = 0;
  double tf32 = 0;
  double bf16 = 0;
  double fp8 = 0;
  double fp4 = 0;

  bool operator==(const PeakRates&) const = default;
};

/// Speeds that operators reach: one curve per class. `gemm.efficiency` 0: unknown, and no time is predicted.
struct OperatorRates {
  struct {
    double efficiency = 0;                   ///< fraction of the dense peak that a very large product reaches
    double tile_rows = 0, tile_columns = 0;  ///< output tile that one multiprocessor computes at a time
    double start_depth = 0;                  ///< time to start and end a tile, as a number of summands
  } gemm;
  struct {
    /// fraction of the dense peak for long sequences, unmasked scores only
    double forward = 0, backward = 0;
    double forward_start = 0, backward_start = 0;  ///< sequence length at which half of that is reached
    double score_bytes = 0;  ///< memory traffic per unmasked score in forward; 0: scores stay on chip
  } attention;
  double memory_efficiency = 0;  ///< fraction of the memory bandwidth
  double launch_seconds = 0;     ///< host time to issue an operator, while the device works on earlier ones

  bool known() const { return gemm.efficiency > 0; }
};

/// The machines to place ranks on: `nodes` identical nodes of `devices_per_node` identical devices. Detected,
/// or a preset of configs/clusters/.
struct Topology {
  std::string name = "local";
  std::int64_t nodes = 1;
  std::int64_t devices_per_node = 1;
  std::int64_t ranks_per_device = 1;  ///< above 1, a "device" of this topology is that fraction of a real one
  /// consecutive devices joined by NVLink: part of a node, or several nodes; 0: no NVLink
  std::int64_t nvlink_domain = 0;
  /// network cards per node, device d uses card d rails / devices_per_node; 0: one network
  std::int64_t rails = 0;
  kernels::Target device;
  std::int64_t device_memory_bytes = 0;  ///< 0 on a CPU: its devices share the node's memory
  double memory_bytes_per_second = 0;    ///< bandwidth of one device's own memory
  PeakRates peak;
  OperatorRates rates;
  MeasuredRates measured;                  ///< takes precedence over `rates` and the links, if known
  std::int64_t device_overhead_bytes = 0;  ///< memory used by driver and libraries, in addition to the job's
  double host_bytes_per_second = 0;        ///< between one device and its host, for snapshots; 0: unknown
  double failures_per_node_day = 0;        ///< rate of failures that stop the job; 0: unknown
  LinkSpeed nvlink;
  LinkSpeed rail;     ///< between nodes, on the same card number
  LinkSpeed network;  ///< between nodes, across cards
  std::int64_t node_memory_bytes = 0;

  std::int64_t devices() const { return nodes * devices_per_node; }
  /// Index, within its node, of the real device that a rank computes on.
  int device_of(std::int64_t rank) const {
    return static_cast<int>(rank % devices_per_node / ranks_per_device);
  }
};

/// Describes this machine as `devices` devices. Each has `threads` threads (0: the cores this process may
/// use, divided evenly, at least one), and kernels up to the instruction set `most`.
Topology detect_topology(int threads, std::int64_t devices = 1,
                         kernels::Isa most = kernels::Isa::avx512_bf16);

/// `own`: each rank needs a device of its own. `shared`: ranks share devices evenly if there are more ranks
/// than devices.
enum class Devices : std::uint8_t { own, shared };

/// The first CUDA devices of this machine, for `ranks` ranks. Throws DeviceError, one line with the remedy,
/// if there is no CUDA. Throws CapacityError if each rank needs its own device and there are too few.
Topology detect_cuda_topology(std::int64_t ranks = 1, Devices devices = Devices::own);
/// Maximum ranks per device, of `count` devices. Throws CapacityError as above.
std::int64_t ranks_per_device(std::int64_t ranks, std::int64_t count, Devices devices);

/// The nodes of a job, and which of them this process is on. Schedulers pass it in the environment, which
/// apps/ reads.
struct NodeSet {
  std::int64_t nodes = 1;
  std::int64_t node = 0;           ///< of this process, from 0
  std::vector<std::string> hosts;  ///< by node; empty if there is only one node
};

}  // namespace trainerd::parallel
