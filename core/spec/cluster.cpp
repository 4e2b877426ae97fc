#include "core/spec/cluster.h"

#include <algorithm>
#include <set>

#include "core/spec/cluster_measured.h"
#include "core/spec/compose.h"
#include "core/spec/fields.h"
#include "core/spec/read.h"

namespace trainerd::core::spec {
namespace {

constexpr double kMaxDevices = 4096;
constexpr double kMaxMemory = 1 << 30;  // in MiB or GiB
constexpr const char* kFailures = "cluster.failures.";

/// A cluster file's values, in the units of its keys.
struct ClusterFile {
  kernels::DeviceKind kind = kernels::DeviceKind::cuda;
  std::string device;
  // CPU only.
  std::int64_t threads = 1;
  kernels::Isa isa = kernels::Isa::portable;
  bool bf16_gemm = false, amx = false;
  std::string gemm_library;
  // GPU only, except devices_per_node.
  std::int64_t sm_version = 0, sm_count = 0;
  std::int64_t devices_per_node = 1, nvlink_domain = 0, rails = 0;
  std::int64_t device_memory_mib = 0, node_memory_gib = 0;
  double device_memory_gb_per_second = 0;
  parallel::PeakRates peak_tflops;
  parallel::OperatorRates rates;
  double launch_microseconds = 0;
  std::int64_t device_overhead_mib = 0;
  double host_gb_per_second = 0;
  struct Link {
    double gb_per_second = 0, microseconds = 0, efficiency = 1, start_microseconds = 0;
  } nvlink, rail, network;
  parallel::MeasuredRates measured;
  FailureSpec failures;
};

// Keys that only a GPU has, and keys that only a CPU has.
const std::set<std::string> kOfGpus = {
    "nvlink_domain", "rails",    "device_memory_mib",   "device_memory_gb_per_second",
    "sm_version",    "sm_count", "device_overhead_mib", "host_gb_per_second"};
const std::set<std::string> kOfProcessors = {"threads", "isa", "bf16_gemm", "amx", "gemm_library"};

std::vector<Field> cluster_fields(ClusterFile& f) {
  std::vector<Field> fields;
  const auto add = [&](const std::string& key, Storage storage, const char* meaning) -> Field& {
    return fields.emplace_back(Field{"cluster." + key, std::move(storage), meaning});
  };
  add("kind", Choice(f.kind, {{"cpu", kernels::DeviceKind::cpu}, {"cuda", kernels::DeviceKind::cuda}}),
      "of the devices")
      .or_else("cuda");
  add("device", &f.device, "name of the GPU or processor").needed();
  add("threads", &f.threads, "of a device that is cores of a processor").between(1, kMaxDevices);
  add("isa",
      Choice(f.isa, {{"portable", kernels::Isa::portable},
                     {"avx2", kernels::Isa::avx2},
                     {"avx512", kernels::Isa::avx512},
                     {"avx512_bf16", kernels::Isa::avx512_bf16}}),
      "its vector kernels");
  add("bf16_gemm", &f.bf16_gemm, "bf16 products run on its own instructions");
  add("amx", &f.amx, "those instructions are AMX's");
  add("gemm_library", &f.gemm_library, "name and version");
  add("sm_version", &f.sm_version, "its compute capability, 90 for 9.0").between(80, 999);
  add("sm_count", &f.sm_count, "its streaming multiprocessors").between(1, kMaxDevices);
  add("devices_per_node", &f.devices_per_node, "GPUs of a node").between(1, kMaxDevices).needed();
  add("nvlink_domain", &f.nvlink_domain, "GPUs that NVLink joins, 0 for none")
      .between(0, kMaxDevices)
      .needed();
  add("rails", &f.rails, "network cards of a node for its GPUs").between(0, kMaxDevices).needed();
  add("device_memory_mib", &f.device_memory_mib, "memory of a GPU").between(1, kMaxMemory).needed();
  add("device_memory_gb_per_second", &f.device_memory_gb_per_second, "its bandwidth").above(0).needed();
  add("node_memory_gib", &f.node_memory_gib, "host memory of a node").between(1, kMaxMemory).needed();
  add("peak_tflops.fp32", &f.peak_tflops.fp32, "dense peak").at_least(0);
  add("peak_tflops.tf32", &f.peak_tflops.tf32, "dense peak").at_least(0);
  add("peak_tflops.bf16", &f.peak_tflops.bf16, "dense peak").above(0).needed();
  add("peak_tflops.fp8", &f.peak_tflops.fp8, "dense peak").at_least(0);
  add("peak_tflops.fp4", &f.peak_tflops.fp4, "dense peak").at_least(0);
  const auto link = [&](const std::string& name, ClusterFile::Link& l) {
    add(name + ".gb_per_second", &l.gb_per_second, "of one GPU in one direction").at_least(0);
    add(name + ".microseconds", &l.microseconds, "latency of a hop").at_least(0);
    add(name + ".efficiency", &l.efficiency, "part of it that a large collective reaches").between(0.01, 1);
    add(name + ".start_microseconds", &l.start_microseconds, "of any operation").at_least(0);
  };
  parallel::OperatorRates& r = f.rates;
  add("gemm.efficiency", &r.gemm.efficiency, "part of the peak that large products reach").between(0, 1);
  add("gemm.tile_rows", &r.gemm.tile_rows, "of the output").at_least(1);
  add("gemm.tile_columns", &r.gemm.tile_columns, "of the output").at_least(1);
  add("gemm.start_depth", &r.gemm.start_depth, "summands in whose time a tile starts and ends").at_least(0);
  add("attention.forward", &r.attention.forward, "part of the peak for long sequences").between(0, 1);
  add("attention.backward", &r.attention.backward, "part of the peak for long sequences").between(0, 1);
  add("attention.forward_start", &r.attention.forward_start, "length at which half of it is reached")
      .at_least(0);
  add("attention.backward_start", &r.attention.backward_start, "length at which half of it is reached")
      .at_least(0);
  add("attention.score_bytes", &r.attention.score_bytes, "memory traffic of a score").at_least(0);
  add("memory_efficiency", &r.memory_efficiency, "part of the memory's bandwidth that is reached")
      .between(0, 1);
  add("launch_microseconds", &f.launch_microseconds,
      "of the host to issue an operator: the device waits where it is faster")
      .at_least(0);
  add("device_overhead_mib", &f.device_overhead_mib, "taken by driver and libraries").between(0, kMaxMemory);
  add("host_gb_per_second", &f.host_gb_per_second, "between a GPU and its host").at_least(0);
  link("nvlink", f.nvlink);
  link("rail", f.rail);
  link("network", f.network);
  add_measured_fields(fields, "cluster.measured.", f.measured);
  add_failure_fields(fields, kFailures, f.failures);
  return fields;
}

parallel::LinkSpeed speed(const ClusterFile::Link& link) {
  return {link.gb_per_second * 1e9, link.microseconds * 1e-6, link.efficiency,
          link.start_microseconds * 1e-6};
}

parallel::Topology topology_of(const ClusterFile& f, const std::string& name) {
  parallel::Topology t;
  t.name = name;
  t.devices_per_node = f.devices_per_node;
  t.nvlink_domain = f.nvlink_domain;
  t.rails = f.rails;
  // The cluster's builds may have CUDA even if this one has not.
  if (f.kind == kernels::DeviceKind::cuda) t.device = kernels::cuda_target();
  t.device.name = f.device;
  t.device.sm_version = static_cast<int>(f.sm_version);
  t.device.sm_count = static_cast<int>(f.sm_count);
  if (f.kind == kernels::DeviceKind::cpu) {
    t.device.threads = static_cast<int>(f.threads);
    t.device.isa = f.isa;
    t.device.bf16_gemm = f.bf16_gemm;
    t.device.amx = f.amx;
    t.device.gemm_library = f.gemm_library;
  } else {
    t.device.gemm_library = "cuBLASLt";
    t.device.attention_library = "cuDNN";
  }
  t.device_memory_bytes = f.device_memory_mib << 20;
  t.device.memory_bytes = f.device_memory_mib << 20;
  t.memory_bytes_per_second = f.device_memory_gb_per_second * 1e9;
  t.node_memory_bytes = f.node_memory_gib << 30;
  t.peak = {f.peak_tflops.fp32 * 1e12, f.peak_tflops.tf32 * 1e12, f.peak_tflops.bf16 * 1e12,
            f.peak_tflops.fp8 * 1e12, f.peak_tflops.fp4 * 1e12};
  t.rates = f.rates;
  t.measured = f.measured;
  t.measured.devices = f.devices_per_node;
  t.rates.launch_seconds = f.launch_microseconds * 1e-6;
  t.device_overhead_bytes = f.device_overhead_mib << 20;
  t.host_bytes_per_second = f.host_gb_per_second * 1e9;
  const FailureSpec& fail = f.failures;
  t.failures_per_node_day = ((fail.gpu + fail.gpu_memory) * static_cast<double>(f.devices_per_node) +
                             fail.host + fail.network + fail.software) /
                            1000;
  t.nvlink = speed(f.nvlink);
  t.rail = speed(f.rail);
  t.network = speed(f.network);
  return t;
}

/// Reads a cluster's keys below `cluster`, with overrides over them.
std::optional<ClusterFile> read_file(const std::string& preset, const Place& place,
                                     const std::vector<std::string>& overrides, Problems& problems) {
  const auto found = find_preset({"cluster.preset", "configs/clusters/", cluster_preset_texts(), {"local"}},
                                 preset, place, problems);
  if (!found) return std::nullopt;
  const int source = problems.add_source(found->name, Problems::SourceKind::file);
  Node root;
  root.kind = Node::Kind::map;
  try {
    root.entries.push_back(
        {"cluster", {source, 1, 1}, parse_document(found->text, source, "cluster", problems)});
  } catch (const Stop&) {
    return std::nullopt;
  }
  if (root.entries[0].value.kind != Node::Kind::map) {
    problems.add({source, 1, 1}, "cluster.preset",
                 "a cluster is a map of keys, got " + describe(root.entries[0].value));
    return std::nullopt;
  }
  for (const std::string& o : overrides) apply_override(root, o, problems);
  ClusterFile file;
  std::vector<Field> fields = cluster_fields(file);
  const Places places = read_fields(root, fields, problems);
  drop_empty_curves(file.measured);
  bool whole = true;
  const bool processor = file.kind == kernels::DeviceKind::cpu;
  for (const Field& field : fields) {
    const std::string key = field.path.substr(std::string("cluster.").size());
    if (places.contains(field.path) && (processor ? kOfGpus : kOfProcessors).contains(key)) {
      problems.add(places.at(field.path), field.path,
                   processor ? "is of GPUs, and kind is cpu: leave it out"
                             : "is of processors, and kind is cuda: leave it out");
      whole = false;
    }
    // Measured operators replace this bandwidth.
    const bool replaced = file.measured.known() && key == "device_memory_gb_per_second";
    if (field.required && !replaced && !(processor && kOfGpus.contains(key)) &&
        !places.contains(field.path) && !problems.bad(section_of(field.path)))
      problems.add({source, 1, 1}, field.path, "is required: " + field.meaning);
    whole = whole && !problems.bad(field.path) && !problems.bad(section_of(field.path));
  }
  if (const std::string wrong = curve_problem(file.measured); whole && !wrong.empty()) {
    problems.add(places.at("cluster.measured"), "cluster.measured", wrong);
    whole = false;
  }
  const std::int64_t domain = file.nvlink_domain, devices = file.devices_per_node;
  if (whole && domain > 0 && domain % devices != 0 && devices % domain != 0) {
    problems.add(places.at("cluster.nvlink_domain"), "cluster.nvlink_domain",
                 std::to_string(domain) + " is neither a part of the " + std::to_string(devices) +
                     " devices of a node nor several nodes");
    whole = false;
  }
  if (!whole) return std::nullopt;
  return file;
}

}  // namespace

std::vector<std::string> cluster_preset_names() { return names_of(cluster_preset_texts()); }

std::optional<parallel::Topology> read_cluster(const std::string& preset, const Place& place,
                                               Problems& problems) {
  const auto file = read_file(preset, place, {}, problems);
  return file ? std::optional(topology_of(*file, preset)) : std::nullopt;
}

std::optional<FailureSpec> read_cluster_failures(const std::string& preset, const Place& place,
                                                 const std::vector<std::string>& overrides,
                                                 Problems& problems) {
  if (preset != "local") {
    const auto file = read_file(preset, place, overrides, problems);
    return file ? std::optional(file->failures) : std::nullopt;
  }
  Node root;
  root.kind = Node::Kind::map;
  for (const std::string& o : overrides) apply_override(root, o, problems);
  FailureSpec spec;
  std::vector<Field> fields;
  add_failure_fields(fields, kFailures, spec);
  read_fields(root, fields, problems);
  return spec;
}

}  // namespace trainerd::core::spec
