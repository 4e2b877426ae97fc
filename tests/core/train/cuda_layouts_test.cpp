// Layouts of several ranks on the CUDA devices of this machine give one rank's losses. Ranks share devices,
// with `staged` communication. Without a device the test says so.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/backend/cuda_plugin.h"
#include "kernels/cpu/cpu_backend.h"
#include "parallel/comm/staged/staged_communicator.h"
#include "tests/core/train_support.h"
#include "tests/parallel/function_world.h"

using namespace trainerd;

namespace {

constexpr std::int64_t kSharedDeviceSteps = 8;

core::job::JobSpec cuda_layouts_job(const std::vector<std::string>& layout) {
  std::vector<std::string> overrides{"device=cuda", "cluster.communication=staged"};
  overrides.insert(overrides.end(), layout.begin(), layout.end());
  return core::spec::parse_job(
      "name: layouts\nseed: 5\n"
      "model: {layers: 4, hidden: 128, heads: 4, kv_heads: 2, ffn: 192, vocab: 500, seq_len: 64}\n"
      "batch: {global: 8, micro: 1}\nprecision: fp32\n"
      "optimizer: {name: adamw, lr: 2.0e-3, schedule: {kind: cosine, warmup: 3, min_lr: 1.0e-4}}\n"
      "steps: 8\ndata: {format: synthetic}\n",
      "layouts.yaml", overrides);
}

/// Losses of rank 0, after checking that every rank has the same.
std::vector<double> run_on_devices(const core::job::JobSpec& job) {
  const parallel::Topology topology = core::spec::job_topology(job);
  const parallel::Layout layout = core::rank::layout_of(job, topology);
  parallel::LocalWorld world(layout.grid.ranks());
  std::vector<std::vector<double>> losses(static_cast<std::size_t>(layout.grid.ranks()));
  world.run([&](std::int64_t rank) {
    base::ThreadPool pool(1);
    kernels::CpuBackend host(kernels::detect_cpu(1), pool);
    test::FunctionWorld others(
        [&](kernels::Backend& backend, const std::string& name, const std::vector<std::int64_t>& members) {
          return parallel::make_staged(world.communicator(rank, host, members, name), backend);
        });
    core::rank::DeviceRank gpu(job, layout, topology, rank, others);
    gpu.trainer().initialise();
    losses[static_cast<std::size_t>(rank)] = test::losses(gpu.trainer(), job, 1, kSharedDeviceSteps);
    test::require_as_planned(gpu);
  });
  for (const auto& mine : losses) CHECK(mine == losses[0]);
  return losses[0];
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]) / b[i]);
  return largest;
}

/// Checks that every layout gives the losses of one rank, for a job with these keys.
void check_cuda_layouts(const std::vector<std::string>& keys) {
  const auto with = [&](std::vector<std::string> layout) {
    layout.insert(layout.end(), keys.begin(), keys.end());
    return cuda_layouts_job(layout);
  };
  const std::vector<double> one = run_on_devices(with({}));
  CHECK(one.back() < one.front());
  // As in layouts_test.cpp: four times the deviation of one rank when only the order of its sums changes.
  double bound = 0;
  for (const std::string micro : {"batch.micro=2", "batch.micro=4", "batch.micro=8"})
    bound = std::max(bound, 4 * largest_difference(run_on_devices(with({micro})), one));
  CHECK(bound > 0);
  CHECK(bound < 1e-4);
  const std::vector<std::vector<std::string>> layouts{
      {"parallel.tp=2"},
      {"parallel.tp=2", "parallel.sequence_parallel=true"},
      {"parallel.tp=4"},
      {"parallel.dp=2", "parallel.zero=0"},
      {"parallel.dp=2", "parallel.zero=1"},
      {"parallel.dp=4", "parallel.zero=2"},
      {"parallel.dp=4", "parallel.zero=3"},
      {"parallel.dp=4", "parallel.zero=3", "parallel.zero_group=2"},
      {"parallel.pp=2"},
      {"parallel.pp=2", "parallel.schedule=zb-h1"},
      {"parallel.pp=2", "parallel.schedule=interleaved", "parallel.virtual_stages=2"},
      {"parallel.pp=4", "parallel.schedule=gpipe"},
      {"parallel.tp=2", "parallel.pp=2", "parallel.sequence_parallel=true", "parallel.schedule=zb-h1"},
      {"parallel.tp=2", "parallel.dp=2", "parallel.zero=3"},
      {"parallel.cp=2"},
      {"parallel.cp=2", "parallel.tp=2", "parallel.sequence_parallel=true"},
  };
  for (const auto& layout : layouts) {
    std::string name;
    for (const std::string& key : layout) name += key + " ";
    CAPTURE(name);
    CHECK(largest_difference(run_on_devices(with(layout)), one) <= bound);
  }
}

}  // namespace

TEST_CASE("gradients in bf16 between ranks that share CUDA devices have the same sums at ZeRO 0 and 1",
          "[gpu]") {
  if (const std::string why = kernels::why_no_cuda(); !why.empty()) {
    WARN("no GPU: layouts on CUDA devices were not run (" << why << ")");
    return;
  }
  const std::vector<double> wide = run_on_devices(cuda_layouts_job({"parallel.dp=2", "parallel.zero=1"}));
  for (const std::string precision :
       {"precision={reduce: bf16}", "precision={compute: bf16, grads: bf16, reduce: bf16}"}) {
    CAPTURE(precision);
    const std::vector<double> whole =
        run_on_devices(cuda_layouts_job({precision, "parallel.dp=2", "parallel.zero=0"}));
    CHECK(whole == run_on_devices(cuda_layouts_job({precision, "parallel.dp=2", "parallel.zero=1"})));
    CHECK(whole.back() < whole.front());
    CHECK(largest_difference(whole, wide) > 0);
    CHECK(largest_difference(whole, wide) <
          0.01);  // as tests/core/train/rounded_reduction_test.cpp bounds bf16
  }
}

TEST_CASE("an optimizer's state in host memory gives the bits of one on the device", "[gpu]") {
  if (const std::string why = kernels::why_no_cuda(); !why.empty()) {
    WARN("no GPU: layouts on CUDA devices were not run (" << why << ")");
    return;
  }
  for (const std::string precision : {"precision=fp32", "precision=bf16"}) {
    CAPTURE(precision);
    CHECK(run_on_devices(cuda_layouts_job({precision, "parallel.dp=2", "optimizer.offload=true"})) ==
          run_on_devices(cuda_layouts_job({precision, "parallel.dp=2"})));
  }
}

TEST_CASE("parameters, gradients and inputs of layers in host memory give the bits of those on the device",
          "[gpu]") {
  if (const std::string why = kernels::why_no_cuda(); !why.empty()) {
    WARN("no GPU: layouts on CUDA devices were not run (" << why << ")");
    return;
  }
  for (const std::string precision : {"precision=fp32", "precision=bf16"}) {
    CAPTURE(precision);
    const std::vector<std::string> job{precision, "parallel.dp=2", "parallel.zero=3", "recompute.kind=full"};
    std::vector<std::string> offloaded = job;
    for (const char* key : {"parallel.offload_params=true", "parallel.offload_grads=true",
                            "parallel.offload_activations=true", "optimizer.offload=true"})
      offloaded.emplace_back(key);
    CHECK(run_on_devices(cuda_layouts_job(offloaded)) == run_on_devices(cuda_layouts_job(job)));
  }
}

TEST_CASE("FP8 on a CUDA device gives the losses of the CPU's", "[gpu][fp8]") {
  if (const std::string why = kernels::why_no_cuda(); !why.empty()) {
    WARN("no GPU: FP8 was not run (" << why << ")");
    return;
  }
  if (core::spec::job_topology(cuda_layouts_job({})).device.sm_version != 90) {
    WARN("FP8 was not run: it needs a device of compute capability 9.0");
    return;
  }
  for (const std::vector<std::string>& experts :
       {std::vector<std::string>{},
        {"model.experts={count: 4, per_token: 2}", "model.hidden=128", "model.ffn=384"}}) {
    CAPTURE(experts.size());
    std::vector<std::string> keys{"precision=fp8"};
    keys.insert(keys.end(), experts.begin(), experts.end());
    core::job::JobSpec on_cpu = cuda_layouts_job(keys);
    on_cpu.device = core::job::DeviceChoice::cpu;
    core::rank::DeviceRank cpu(on_cpu, test::cpu_topology(1));
    cpu.trainer().initialise();
    // Rounding to bf16 differs between the devices, and FP8 amplifies it: layouts on a CPU are 1e-3 apart.
    CHECK(largest_difference(run_on_devices(cuda_layouts_job(keys)),
                             test::losses(cpu.trainer(), on_cpu, 1, kSharedDeviceSteps)) < 5e-3);
  }
}

TEST_CASE("layouts of ranks that share CUDA devices give one rank's losses", "[gpu]") {
  if (const std::string why = kernels::why_no_cuda(); !why.empty()) {
    WARN("no GPU: layouts on CUDA devices were not run (" << why << ")");
    return;
  }
  check_cuda_layouts({});
  check_cuda_layouts({"model.from=base", "lora.rank=4", "optimizer.lr=2.0e-2"});
}
