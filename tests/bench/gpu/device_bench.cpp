// Rates of a device and its libraries without a training step: paths of the loaded libraries, copies inside
// the device and over its link to the host, and a large GEMM repeated for seconds, while clocks and power
// settle. Prints one JSON line per measurement.
//
//   device_bench [--device cuda | cpu] [--seconds S] [--size N]
//
// --size: rows and columns of the square GEMM, in bf16 (8192). Values are random: zeros draw less power.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/rank/backend.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "kernels/base/clock.h"
#include "kernels/cost/cost.h"
#include "kernels/scratch/scratch.h"
#include "tests/bench/gpu/device_rates.h"

using namespace trainerd;
using namespace trainerd::kernels;
using Json = nlohmann::ordered_json;

namespace {

struct Args {
  std::string device = "cuda";
  double seconds = 10;
  std::int64_t size = 8192;
};

Args parse(int argc, char** argv) {
  Args args;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc) throw std::invalid_argument(flag + " needs a value");
    const std::string value = argv[i + 1];
    if (flag == "--device" && (value == "cuda" || value == "cpu")) args.device = value;
    else if (flag == "--seconds") args.seconds = std::stod(value);
    else if (flag == "--size") args.size = std::stoll(value);
    else throw std::invalid_argument("usage: device_bench [--device cuda | cpu] [--seconds S] [--size N]");
  }
  if (!(args.seconds > 0) || args.size < 1)
    throw std::invalid_argument("--seconds and --size need more than 0");
  return args;
}

void print(const Json& line) {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

/// Paths of the CUDA libraries that this process has mapped. A machine may have several versions.
std::set<std::string> cuda_libraries() {
  std::set<std::string> paths;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t at = line.find('/');
    if (at == std::string::npos) continue;
    const std::string path = line.substr(at), name = path.substr(path.rfind('/') + 1);
    for (const char* prefix : {"libcu", "libnccl", "libnv", "libtrainerd_cuda"})
      if (name.starts_with(prefix)) paths.insert(path);
  }
  return paths;
}

double host_rate(Backend& backend, std::int64_t bytes, MemoryKind from_kind, MemoryKind to_kind) {
  constexpr int kCopies = 5;
  const Buffer from = backend.allocate(from_kind, bytes), to = backend.allocate(to_kind, bytes);
  const auto stream = backend.make_stream("host copy", nullptr);
  const auto begin = backend.make_event(), end = backend.make_event();
  double best = 0;
  for (int i = 0; i < kCopies; ++i) {
    backend.record(*stream, *begin);
    backend.transfer(*stream, {from.data(), DType::u8, {bytes}}, {to.data(), DType::u8, {bytes}});
    backend.record(*stream, *end);
    backend.wait_host(*end);
    best = std::max(best, static_cast<double>(bytes) / backend.elapsed_seconds(*begin, *end));
  }
  return best;
}

/// Prints the FLOP/s of each interval of about one second.
void sustained_gemm(Backend& backend, const Args& args) {
  const std::int64_t n = args.size;
  const Tensor shape{nullptr, DType::bf16, {n, n}};
  LinearFprop gemm{.x_TC = shape, .weight = {shape, {}}, .bias_N = {}, .addend_TN = {}, .y_TN = shape};
  const std::int64_t scratch = align_up(scratch_bytes(gemm, backend.target()));
  const Buffer buffer = backend.allocate(MemoryKind::device, 3 * align_up(shape.bytes()) + scratch);
  Arena arena("gemm", buffer.data(), buffer.bytes());
  const auto stream = backend.make_stream("gemm", &arena);
  const auto normal = [&](std::uint64_t key) {
    const Tensor x = arena.take(DType::bf16, {n, n}, MemoryTerm::workspace);
    backend.init_normal(
        *stream,
        {.x = x, .key = key, .stddev = 1, .rows = n, .columns = n, .logical_rows = n, .logical_columns = n});
    return x;
  };
  const Tensor x = normal(1), w = normal(2);
  gemm = {.x_TC = x,
          .weight = {w, {}},
          .bias_N = {},
          .addend_TN = {},
          .y_TN = arena.take(DType::bf16, {n, n}, MemoryTerm::workspace)};
  const double flops = cost(gemm, backend.target()).flops;
  const auto begin = backend.make_event(), end = backend.make_event();
  const auto batch = [&](std::int64_t products) {
    backend.record(*stream, *begin);
    for (std::int64_t i = 0; i < products; ++i) backend.linear_fprop(*stream, gemm);
    backend.record(*stream, *end);
    backend.wait_host(*end);
    return backend.elapsed_seconds(*begin, *end);
  };
  batch(1);  // loads the kernel
  const double once = std::max(batch(1), 1e-6);
  const auto products =
      static_cast<std::int64_t>(std::clamp(std::min(1.0, args.seconds / 4) / once, 1.0, 1e5));
  std::vector<double> rates;
  for (const double start = base::monotonic_seconds();
       base::monotonic_seconds() - start < args.seconds || rates.empty();)
    rates.push_back(flops * static_cast<double>(products) / batch(products));
  std::vector<double> sorted = rates;
  std::sort(sorted.begin(), sorted.end());
  print({{"kind", "sustained gemm"},
         {"size", n},
         {"dtype", "bf16"},
         {"seconds", args.seconds},
         {"first_flops_per_second", rates.front()},
         {"last_flops_per_second", rates.back()},
         {"median_flops_per_second", sorted[sorted.size() / 2]}});
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Args args = parse(argc, argv);
    const core::job::JobSpec job = core::spec::parse_job(
        "model: {layers: 1, hidden: 64, heads: 1, ffn: 64, vocab: 64, seq_len: 64}\n"
        "batch: {global: 1, micro: 1}\nsteps: 1\ndata: {format: synthetic}\n",
        "device_bench", {"device=" + args.device});
    const parallel::Topology topology = core::spec::job_topology(job);
    base::ThreadPool pool(topology.device.threads);
    const auto backend = core::rank::make_backend(topology, pool, 0);
    const Target& target = backend->target();
    print({{"kind", "device"},
           {"device", target.name},
           {"sm_version", target.sm_version},
           {"sm_count", target.sm_count},
           {"gemm_library", target.gemm_library},
           {"attention_library", target.attention_library},
           {"peak_flops", topology.peak.bf16},
           {"memory_bytes_per_second", topology.memory_bytes_per_second},
           {"libraries", cuda_libraries()}});
    for (const std::int64_t bytes : {bench::copy_bytes(target) / 16, bench::copy_bytes(target)})
      print({{"kind", "device copy"},
             {"bytes", bytes},
             {"bytes_per_second", bench::copy_rate(*backend, bytes)}});
    const std::int64_t bytes = std::int64_t{64} << 20;
    print(
        {{"kind", "host copy"},
         {"to_device_bytes_per_second", host_rate(*backend, bytes, MemoryKind::host, MemoryKind::device)},
         {"from_device_bytes_per_second", host_rate(*backend, bytes, MemoryKind::device, MemoryKind::host)}});
    sustained_gemm(*backend, args);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "device_bench: %s\n", error.what());
    return 1;
  }
}
