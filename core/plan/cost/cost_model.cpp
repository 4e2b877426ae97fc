#include "core/plan/cost/cost_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "core/plan/cost/measured_cost.h"
#include "kernels/base/error.h"

namespace trainerd::core::plan {
namespace {

using kernels::AttentionKernel;
using kernels::DType;
using kernels::OpClass;
using parallel::Link;
using parallel::LinkSpeed;
using parallel::Topology;

/// Seconds of an m x n output over k summands, in tiles of rows x columns, with k cut into `splits` parts, at
/// `rate` FLOP/s.
double tiled_seconds(const OpClass& g, double rows, double columns, double splits, const Topology& t,
                     double rate) {
  const double sms = real(std::max(1, t.device.sm_count));
  const double tiles = std::ceil(real(g.m) / rows) * std::ceil(real(g.n) / columns) * splits;
  const double depth = real(g.k) / splits + t.rates.gemm.start_depth;
  return std::ceil(tiles / sms) * 2 * rows * columns * depth * sms / rate;
}

/// Seconds of a separate kernel that adds up the fp32 partial sums of a split product: it reads them, and C
/// if the product adds to it, and writes the output. Infinity if the partial sums exceed the workspace.
double split_seconds(const OpClass& g, double splits, const Topology& t) {
  if (splits <= 1) return 0;
  const double elements = real(g.m) * real(g.n), parts = 4 * splits * elements;
  if (parts > real(t.device.tuning.gemm_workspace_bytes)) return std::numeric_limits<double>::infinity();
  const double bytes = parts + (g.adds ? 2.0 : 1.0) * elements * real(kernels::size_of(g.out));
  return bytes / (t.memory_bytes_per_second * t.rates.memory_efficiency);
}

/// The fastest of the library's tiles: the large one, its transpose and half of it, each also with k split if
/// tiles are few and the workspace holds the partial sums.
double gemm_seconds(const OpClass& g, const Topology& t) {
  const bool fp8 = g.format == kernels::GemmFormat::fp8;
  const double rate = (fp8 ? t.peak.fp8 : peak_flops(t, g.dtype)) * t.rates.gemm.efficiency,
               rows = t.rates.gemm.tile_rows, columns = t.rates.gemm.tile_columns;
  // A smaller tile reads its operands more often per output.
  constexpr double kHalfTileCost = 1.08;
  const double half = std::min(rows, columns);
  double best = std::numeric_limits<double>::infinity();
  for (const double splits : {1.0, 2.0, 3.0, 4.0, 6.0, 8.0}) {
    const double product = std::min({tiled_seconds(g, rows, columns, splits, t, rate),
                                     tiled_seconds(g, columns, rows, splits, t, rate),
                                     kHalfTileCost * tiled_seconds(g, half, half, splits, t, rate)});
    best = std::min(best, product + split_seconds(g, splits, t));
  }
  return best;
}

double rounding_seconds(const OpClass& g, const Topology& t) {
  return rounding_bytes(g) / (t.memory_bytes_per_second * t.rates.memory_efficiency);
}

/// Rate of our own attention on tensor cores relative to a library's. From Hopper on a library uses wgmma or
/// tcgen05 instructions, which are faster than our mma.sync: there FlashAttention-3 is 1.5 to 2.0 times as
/// fast as FlashAttention-2 forward, 1.5 to 1.75 backward (arXiv 2407.08608, section 4.1). We use the slower
/// end of each range. On sm_80, sm_89 and sm_120 libraries use mma.sync too.
double own_rate(const Topology& t, bool forward) {
  const int sm = t.device.sm_version;
  if (sm < 90 || sm >= 120) return 1;
  return 1 / (forward ? 2.0 : 1.75);
}

/// The same of our products of experts. In bf16 on Hopper they use wgmma and copy while they multiply, but
/// not by Hopper's copy engine. On an H100 a kernel that copies and multiplies in turn reaches 0.61 of
/// cuBLAS, one that does both at once 0.80, both with that engine (github.com/pranjalssh/fast.cu, kernels 2
/// and 4, 8192^3). In FP8 ours waits for its copies.
double experts_rate(const OpClass& g, const Topology& t) {
  constexpr double kByGroups = 0.7;
  const bool by_groups = t.device.sm_version == 90 && g.format == kernels::GemmFormat::plain;
  return by_groups ? kByGroups : own_rate(t, true);
}

/// Upper bound on FLOP/s of our own kernels without tensor cores: a multiply-add reads two words of shared
/// memory. A multiprocessor reads 32 words and has 128 multiply-adds (64 on sm_80) per clock.
double plain_rate(const Topology& t) {
  const double fp32 = t.peak.fp32 > 0 ? t.peak.fp32 : t.peak.bf16 / 16;
  return fp32 / (t.device.sm_version == 80 ? 4 : 8);
}

/// Multiply-adds per score of these products.
double product_elements(const OpClass& a, const kernels::AttentionProducts& products) {
  return products.keys * real(a.head_size) + products.values * real(a.value_size);
}

/// The call as a library would run it.
rank::RecordedOp by_library(rank::RecordedOp op) {
  const bool own =
      op.what.kernel == AttentionKernel::tensor_cores || op.what.kernel == AttentionKernel::plain;
  if (own && op.what.kind == OpClass::Kind::attention_backward)
    op.cost.flops *= product_elements(op.what, kernels::kBackwardProducts) /
                     product_elements(op.what, kernels::kOwnBackwardProducts);
  if (own) op.what.kernel = AttentionKernel::library;
  return op;
}

double attention_seconds(const rank::RecordedOp& recorded, const Topology& t) {
  // Only other software writes its scores to memory, so this is always a library's attention.
  const rank::RecordedOp op = t.rates.attention.score_bytes > 0 ? by_library(recorded) : recorded;
  const OpClass& a = op.what;
  const bool forward = a.kind == OpClass::Kind::attention_forward;
  if (a.kernel == AttentionKernel::plain) return op.cost.flops / plain_rate(t);
  const auto& rates = t.rates.attention;
  const double start = forward ? rates.forward_start : rates.backward_start;
  const double own = a.kernel == AttentionKernel::tensor_cores ? own_rate(t, forward) : 1;
  const double reached =
      own * (forward ? rates.forward : rates.backward) * real(a.length) / (real(a.length) + start);
  const double scores = real(a.sequences) * real(a.heads) * real(a.length) * real(a.key_length);
  // Backward reads and writes scores and their gradients.
  const double traffic = scores * rates.score_bytes * (forward ? 1 : 2);
  return op.cost.flops / (peak_flops(t, a.dtype) * reached) +
         traffic / (t.memory_bytes_per_second * t.rates.memory_efficiency);
}

const LinkSpeed& speed_of(Link link, const Topology& t) {
  base::check(link != Link::none && link != Link::shared_memory,
              "a collective on a cluster has a link with a speed");
  if (link == Link::nvlink) return t.nvlink;
  return link == Link::rail ? t.rail : t.network;
}

double reached(const LinkSpeed& link) { return link.bytes_per_second * link.efficiency; }

std::array<double, kPorts> share(Port port, double part) {
  std::array<double, kPorts> shares{};
  shares[static_cast<std::size_t>(port)] = part;
  return shares;
}

/// From measurements: the time with no bytes is the latency.
TransferCost by_host(const char* op, std::int64_t bytes, std::int64_t size, const Topology& t) {
  const double all = measured_collective(op, bytes, size, t.measured),
               latency = std::min(all, measured_collective(op, 0, size, t.measured));
  return {latency, all - latency, share(Port::host, 1)};
}

}  // namespace

double rounding_bytes(const OpClass& g) { return 3 * real(g.rounded); }

double peak_flops(const Topology& t, DType dtype) {
  // CPUs compute fp16 in fp32.
  if (dtype == DType::bf16 || (dtype == DType::f16 && t.device.kind == kernels::DeviceKind::cuda))
    return t.peak.bf16;
  return t.peak.tf32 > 0 ? t.peak.tf32 : t.peak.fp32;
}

std::string how_to_get_rates(const parallel::Topology& t, const job::JobSpec& job) {
  if (t.measured.known() && job.precision.compute == DType::f16)
    return "calibrations measure fp32 and bf16, and the job computes in fp16";
  if (t.name != "local")
    return "give gemm.efficiency and the others in its YAML file, or name a cluster that has them (--cluster "
           "dgx-h100)";
  return "run `trainerd calibrate --out here.yaml` once and add --cluster here.yaml, or add --calibrate (10 "
         "s)";
}

bool has_rates(const parallel::Topology& t, const job::JobSpec& job) {
  if (t.measured.known() && job.precision.compute == DType::f16) return false;
  const bool known = (t.rates.known() || t.measured.known()) && peak_flops(t, job.precision.compute) > 0;
  if (!known || t.device.kind == kernels::DeviceKind::cpu) return known;
  const bool fp8 = job.precision.gemm == kernels::GemmFormat::fp8;
  return (!fp8 || (t.peak.fp8 > 0 && !t.measured.known())) &&
         (!(job.optimizer.offload || job.parallel.offloads()) || t.host_bytes_per_second > 0);
}

double op_seconds(const rank::RecordedOp& op, const Topology& t) {
  // has_rates: with bytes in host memory there is a rate.
  const double linked = op.cost.host_bytes > 0 ? op.cost.host_bytes / t.host_bytes_per_second : 0;
  if (t.measured.known()) return std::max(measured_seconds(op, t.measured), linked);
  const double moved =
      (op.cost.bytes - op.cost.host_bytes) / (t.memory_bytes_per_second * t.rates.memory_efficiency);
  double made = 0;
  switch (op.what.kind) {
    case OpClass::Kind::memory: break;
    case OpClass::Kind::gemm: made = gemm_seconds(op.what, t) + rounding_seconds(op.what, t); break;
    case OpClass::Kind::experts:
      made = gemm_seconds(op.what, t) / experts_rate(op.what, t) + rounding_seconds(op.what, t);
      break;
    case OpClass::Kind::attention_forward:
    case OpClass::Kind::attention_backward: made = attention_seconds(op, t); break;
  }
  return std::max({made, moved, linked});
}

rank::RecordedOp unlimited(const rank::RecordedOp& op) { return op.what.limited ? by_library(op) : op; }

GroupPlace place_of(const parallel::PlacedGrid& placed, std::span<const std::int64_t> ranks) {
  GroupPlace place{static_cast<std::int64_t>(ranks.size()), 1, Link::none};
  if (place.size == 1) return place;
  place.link = placed.link(ranks, parallel::Axis::dp);  // on every axis but pp all ranks talk to all
  const Topology& t = placed.topology;
  std::map<std::int64_t, std::int64_t> members;
  auto last = members.end();  // consecutive ranks are mostly in one domain
  for (const std::int64_t rank : ranks) {
    const parallel::DeviceLocation& location = placed.placement[rank];
    const std::int64_t device = location.node * t.devices_per_node + location.device;
    const std::int64_t domain =
        device / std::max<std::int64_t>(1, t.nvlink_domain > 0 ? t.nvlink_domain : t.devices_per_node);
    if (last == members.end() || last->first != domain) last = members.try_emplace(domain, 0).first;
    ++last->second;
  }
  place.per_domain = std::min_element(members.begin(), members.end(), [](const auto& a, const auto& b) {
                       return a.second < b.second;
                     })->second;
  return place;
}

TransferCost collective_cost(parallel::OpKind kind, std::int64_t bytes, const GroupPlace& g,
                             const Topology& t) {
  if (g.size == 1) return {};
  if (g.link == Link::shared_memory) return by_host(to_string(kind), bytes, g.size, t);
  const LinkSpeed& link = speed_of(g.link, t);
  const bool inside = g.link == Link::nvlink;
  const double n = real(g.size), domains = inside ? 1 : std::ceil(n / real(g.per_domain));
  const double cards = t.rails > 0 ? std::max(1.0, std::min(real(g.per_domain), real(t.rails))) : 1;
  const bool joined = !inside && t.nvlink.bytes_per_second > 0;
  const double out =
      joined ? std::min(reached(link) * cards, std::max(reached(t.nvlink), reached(link))) : reached(link);
  const double hops = inside
                          ? (n - 1) * link.latency_seconds
                          : (domains - 1) * link.latency_seconds + (n - domains) * t.nvlink.latency_seconds;
  TransferCost cost{.latency = link.start_seconds + hops, .bandwidth = (n - 1) / n * real(bytes) / out};
  if (inside) {
    cost.shares = share(Port::nvlink, 1);
  } else {
    cost.shares = share(Port::network, joined ? out / (reached(link) * cards) : 1);
    // Of the rings through a domain, each member passes one to the network and the others to its neighbours.
    if (joined)
      cost.shares[static_cast<std::size_t>(Port::nvlink)] =
          std::min(1.0, out * (1 - 1 / real(g.per_domain)) / reached(t.nvlink));
  }
  if (kind == parallel::OpKind::all_reduce) {
    // A tree between domains and a chain inside. Its bandwidth is that of the ring.
    const double depth = std::ceil(std::log2(std::max(domains, 1.0))) * link.latency_seconds +
                         (std::ceil(n / domains) - 1) * (inside ? link : t.nvlink).latency_seconds;
    cost.latency = link.start_seconds + 2 * (domains > 1 ? std::min(hops, depth) : hops);
    cost.bandwidth *= 2;
  } else if (kind == parallel::OpKind::all_to_all && !inside && g.per_domain > 1) {
    // Each member sends its parts for other domains itself; in a ring one stream serves all members.
    const double members = real(g.per_domain);
    const double network = (n - members) / n * real(bytes) * members / (reached(link) * cards);
    const double neighbours = joined ? (members - 1) / n * real(bytes) / reached(t.nvlink) : 0;
    cost.bandwidth = std::max(network, neighbours);
    cost.shares[static_cast<std::size_t>(Port::network)] = network / cost.bandwidth;
    cost.shares[static_cast<std::size_t>(Port::nvlink)] = neighbours / cost.bandwidth;
  } else if (kind == parallel::OpKind::barrier) {
    cost.latency = link.start_seconds + 2 * hops;
    cost.bandwidth = 0;
  }
  return cost;
}

TransferCost host_cost(std::int64_t bytes, const Topology& t) {
  return {
      .latency = t.rates.launch_seconds, .bandwidth = real(bytes) / t.host_bytes_per_second, .shares = {}};
}

TransferCost message_cost(std::int64_t bytes, Link link, const Topology& t) {
  if (link == Link::shared_memory) return by_host("message", bytes, 2, t);
  const LinkSpeed& speed = speed_of(link, t);
  return {speed.start_seconds + speed.latency_seconds, real(bytes) / reached(speed),
          share(link == Link::nvlink ? Port::nvlink : Port::network, 1)};
}

}  // namespace trainerd::core::plan
