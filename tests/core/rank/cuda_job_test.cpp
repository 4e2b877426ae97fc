// CUDA jobs on a machine without CUDA devices: plans from a preset, and the errors.

#include <catch2/catch.hpp>

#include "core/rank/device_rank.h"
#include "core/rank/dry_run.h"
#include "core/rank/gemm_algorithms.h"
#include "core/spec/machines.h"
#include "kernels/backend/cuda_plugin.h"
#include "kernels/base/error.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/scratch/scratch.h"
#include "parallel/layout/device_peaks.h"
#include "parallel/tensor/head.h"
#include "tests/core/train_support.h"

using namespace trainerd;

namespace {

core::job::JobSpec cuda_job(const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides{"device=cuda", "precision=bf16"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return core::spec::parse_job(
      "model: {layers: 2, hidden: 256, heads: 4, kv_heads: 2, ffn: 512, vocab: 512, seq_len: 256}\n"
      "batch: {global: 8, micro: 4}\n"
      "steps: 3\n"
      "data: {format: synthetic}\n",
      "job.yaml", overrides);
}

core::rank::DryRun plan_on_h200(const core::job::JobSpec& job) {
  const parallel::Topology topology = core::spec::job_topology(job);
  return core::rank::dry_run(job, core::rank::layout_of(job, topology), 0, topology.device);
}

}  // namespace

TEST_CASE("a job for CUDA on a machine without it fails with a one-line reason", "[cuda]") {
  const std::string why = kernels::why_no_cuda();
  if (why.empty()) {
    WARN("this machine has a CUDA device: its absence cannot be tested");
    return;
  }
  try {
    core::spec::job_topology(cuda_job());
    FAIL("a topology without a device");
  } catch (const base::DeviceError& error) {
    CHECK(error.what() == why);
    CHECK(why.find('\n') == std::string::npos);
    CHECK_THAT(why, Catch::Contains("CUDA") && Catch::Contains("device: cpu"));
  }
}

TEST_CASE("the job chooses the transport between ranks on CUDA devices", "[cuda][spec]") {
  const core::job::JobSpec by_default = cuda_job({"parallel.tp=2"});
  CHECK(core::job::uses_nccl(by_default));
  CHECK_FALSE(core::job::uses_staged(by_default));
  const core::job::JobSpec staged = cuda_job({"parallel.tp=2", "cluster.communication=staged"});
  CHECK(core::job::uses_staged(staged));
  CHECK_FALSE(core::job::uses_nccl(staged));
  CHECK(core::spec::parse_job(core::spec::to_yaml(staged), "resolved.yaml") == staged);
  CHECK_FALSE(core::job::uses_nccl(cuda_job({"device=cpu", "parallel.tp=2"})));
  CHECK_THROWS_WITH(cuda_job({"device=cpu", "cluster.communication=staged"}),
                    Catch::Contains("cluster.communication") && Catch::Contains("has no effect"));
  CHECK_THROWS_WITH(cuda_job({"cluster.communication=gloo"}),
                    Catch::Contains("cluster.communication: expected auto, nccl or staged"));
}

TEST_CASE("gradients that NCCL cannot sum in fp32 are refused", "[cuda][spec]") {
  const std::string recipe = "precision={compute: bf16, grads: bf16}";
  CHECK_THROWS_WITH(cuda_job({recipe, "parallel.dp=2"}), Catch::Contains("precision.grads") &&
                                                             Catch::Contains("staged") &&
                                                             Catch::Contains("set precision.reduce to bf16"));
  CHECK_NOTHROW(cuda_job({recipe}));
  CHECK_NOTHROW(cuda_job({"precision={compute: bf16, grads: bf16, reduce: bf16}", "parallel.dp=2"}));
  CHECK_NOTHROW(cuda_job({recipe, "parallel.dp=2", "cluster.communication=staged"}));
  // One data-parallel rank, of which two tensor-parallel ones have each whole expert.
  const std::vector<std::string> whole{recipe, "model.experts={count: 4, per_token: 2}", "parallel.tp=2",
                                       "parallel.sequence_parallel=true", "parallel.etp=1"};
  CHECK_THROWS_WITH(cuda_job(whole), Catch::Contains("precision.grads"));
  std::vector<std::string> apart = whole;
  apart.push_back("parallel.ep=2");
  CHECK_NOTHROW(cuda_job(apart));
}

TEST_CASE("gradients in bf16 between ranks of CUDA devices are planned with their staging", "[cuda][spec]") {
  for (const std::string communication : {"auto", "staged"})
    for (const std::string grads : {"fp32", "bf16"}) {
      CAPTURE(communication, grads);
      const auto gradients = [&](const std::string& reduce) {
        const core::rank::DryRun plan =
            plan_on_h200(cuda_job({"precision={compute: bf16, grads: " + grads + ", reduce: " + reduce + "}",
                                   "parallel={dp: 8, zero: 1}", "batch={global: 8, micro: 1}",
                                   "cluster.preset=dgx-h200", "cluster.communication=" + communication}));
        for (const auto& region : plan.memory.regions)
          if (region.name == "persistent") return region.terms.at("gradients");
        return std::int64_t{0};
      };
      // Elements of the largest unit of gradients, a layer's matrices: qkv, projection, gate and up, down.
      constexpr std::int64_t kUnit = 256 * (256 + 2 * 128) + 256 * 256 + 3 * 256 * 512;
      const std::int64_t staged = gradients("bf16") - gradients("fp32");
      CHECK(staged == (grads == "fp32" ? 4 : 2) * kUnit);
    }
}

TEST_CASE("FP8 is planned on Hopper, and refused where a device or a size does not serve it", "[cuda][fp8]") {
  const auto plan = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"precision=fp8", "cluster.preset=dgx-h200"});
    return plan_on_h200(cuda_job(more));
  };
  const auto scratch = [](const core::rank::DryRun& dry) {
    for (const auto& region : dry.memory.regions)
      if (region.name == "scratch") return region.bytes;
    return std::int64_t{0};
  };
  CHECK(scratch(plan({})) > scratch(plan({"precision=bf16"})));
  // The operands in FP8 in scratch, with a scale for 128 elements: x [1024, 256] and dy [1024, 512].
  const kernels::Target h200 = core::spec::job_topology(cuda_job({"cluster.preset=dgx-h200"})).device;
  kernels::LinearWgrad wgrad{.dy_TN = {nullptr, kernels::DType::bf16, {1024, 512}},
                             .x_TC = {nullptr, kernels::DType::bf16, {1024, 256}},
                             .dweight_NC = {nullptr, kernels::DType::f32, {512, 256}},
                             .dbias_N = {}};
  const std::int64_t in_bf16 = kernels::scratch_bytes(wgrad, h200);
  wgrad.format = kernels::GemmFormat::fp8;
  CHECK(kernels::scratch_bytes(wgrad, h200) - in_bf16 == 1024 * (256 + 512) + 4 * (1024 / 128) * (256 + 512));
  CHECK_THROWS_WITH(plan({"cluster.preset=dgx-a100"}),
                    Catch::Contains("compute capability 9.0 (Hopper)") && Catch::Contains("A100") &&
                        Catch::Contains("has 8.0") && Catch::Contains("set precision to bf16"));
  CHECK_THROWS_WITH(plan({"model.ffn=520"}),
                    Catch::Contains("multiples of 16") && Catch::Contains("with sums of 520"));
  // Experts' own kernels: widths of 128 alone, and any number of rows.
  const std::string experts = "model.experts={count: 4, per_token: 2}";
  CHECK_NOTHROW(plan({experts, "model.ffn=384"}));
  CHECK_THROWS_WITH(plan({experts, "model.ffn=416"}), Catch::Contains("widths of an expert's weights") &&
                                                          Catch::Contains("multiples of 128") &&
                                                          Catch::Contains("has one of"));
  const kernels::ExpertWgrad expert{.dy_RN = {nullptr, kernels::DType::bf16, {1000, 512}},
                                    .x_RC = {nullptr, kernels::DType::bf16, {1000, 256}},
                                    .first_E = {nullptr, kernels::DType::i32, {5}},
                                    .dweight_NC = {nullptr, kernels::DType::f32, {4 * 512, 256}},
                                    .format = kernels::GemmFormat::fp8};
  // 7 whole blocks of rows at most, and one begun by each expert.
  CHECK(kernels::scratch_bytes(expert, h200) == (128 + 4) * 11 * (256 + 512));
  // On a CPU every size is.
  CHECK_NOTHROW(core::spec::parse_job(
      core::spec::to_yaml(cuda_job({"precision=fp8", "device=cpu", "model.ffn=520"})), "job.yaml"));
}

TEST_CASE("ranks share devices evenly if the job says so, and have one device each otherwise", "[cuda]") {
  using parallel::Devices, parallel::ranks_per_device;
  CHECK(ranks_per_device(4, 8, Devices::own) == 1);
  CHECK(ranks_per_device(4, 4, Devices::shared) == 1);
  CHECK(ranks_per_device(4, 1, Devices::shared) == 4);
  CHECK(ranks_per_device(5, 2, Devices::shared) == 3);
  CHECK_THROWS_WITH(ranks_per_device(4, 1, Devices::own),
                    Catch::Contains("4 ranks") && Catch::Contains("1 CUDA device:") &&
                        Catch::Contains("cluster.communication to staged"));
  parallel::Topology two_nodes;
  two_nodes.devices_per_node = 4;
  two_nodes.ranks_per_device = 2;
  std::vector<int> devices;
  for (std::int64_t rank = 0; rank < 8; ++rank) devices.push_back(two_nodes.device_of(rank));
  CHECK(devices == std::vector<int>{0, 0, 1, 1, 0, 0, 1, 1});
}

TEST_CASE("staged communication is counted on the host, and NCCL's reserve on the device", "[cuda]") {
  const std::vector<std::string> shape{"cluster.preset=dgx-h200", "parallel.tp=2", "parallel.dp=2"};
  std::vector<std::string> with_staged = shape;
  with_staged.push_back("cluster.communication=staged");
  const core::rank::DryRun nccl = plan_on_h200(cuda_job(shape)), staged = plan_on_h200(cuda_job(with_staged));
  // The groups tp, dp and world.
  constexpr std::int64_t kSnapshots = std::int64_t{16} << 20;
  CHECK(nccl.staging_bytes == kSnapshots);
  CHECK(nccl.overhead_bytes == core::rank::kDeviceOverheadBytes + 3 * core::rank::kNcclOverheadBytes);
  CHECK(staged.staging_bytes == kSnapshots + 3 * (std::int64_t{8} << 20));
  CHECK(staged.overhead_bytes == core::rank::kDeviceOverheadBytes);
  CHECK(staged.memory.total_bytes() == nccl.memory.total_bytes());

  parallel::Topology topology = core::spec::job_topology(cuda_job(shape));
  topology.ranks_per_device = 4;
  topology.device_memory_bytes = staged.memory.total_bytes() + staged.overhead_bytes;
  topology.node_memory_bytes = staged.snapshot_bytes + staged.staging_bytes;
  const core::job::JobSpec job = cuda_job(with_staged);
  CHECK_NOTHROW(core::rank::require_fits({&staged, 1}, job, topology, 1));
  topology.node_memory_bytes -= 1;
  CHECK_THROWS_WITH(core::rank::require_fits({&staged, 1}, job, topology, 1),
                    Catch::Contains("staging of snapshots and communication, on the host: 0.04 GiB"));
  topology.node_memory_bytes += 1;
  topology.device_memory_bytes -= 1;
  CHECK_THROWS_WITH(core::rank::require_fits({&staged, 1}, job, topology, 1),
                    Catch::Contains("its part of the device, which 4 ranks share, has"));
}

TEST_CASE("fast attention needs a GPU", "[cuda][spec]") {
  CHECK(cuda_job({"attention=fast"}).attention.backward == kernels::Determinism::fast);
  CHECK_THROWS_WITH(cuda_job({"attention=fast", "device=cpu"}),
                    Catch::Contains("attention") && Catch::Contains("has no effect"));
  CHECK(core::spec::parse_job(core::spec::to_yaml(cuda_job({"attention=fast"})), "resolved.yaml")
            .attention.backward == kernels::Determinism::fast);
}

TEST_CASE("the choice of GEMM algorithms needs a GPU", "[cuda][spec]") {
  CHECK(cuda_job({"gemm_algorithms=timed"}).gemm_algorithms == core::job::GemmAlgorithms::timed);
  CHECK_THROWS_WITH(cuda_job({"gemm_algorithms=timed", "device=cpu"}),
                    Catch::Contains("gemm_algorithms") && Catch::Contains("has no effect"));
  base::ThreadPool pool(1);
  kernels::CpuBackend cpu(kernels::detect_cpu(1), pool);
  CHECK_THROWS_AS(cpu.time_gemms({}), base::DeviceError);
  CHECK_THROWS_AS(cpu.use_gemms("x"), base::DeviceError);
}

TEST_CASE("CUDA graphs are on by default or off; a CPU accepts both", "[cuda][spec]") {
  using core::job::CudaGraphs;
  CHECK(cuda_job({}).cuda_graphs == CudaGraphs::automatic);
  CHECK(cuda_job({"cuda_graphs=off"}).cuda_graphs == CudaGraphs::off);
  CHECK(cuda_job({"cuda_graphs=off", "device=cpu"}).cuda_graphs == CudaGraphs::off);
  CHECK_THROWS_WITH(cuda_job({"cuda_graphs=on"}), Catch::Contains("cuda_graphs") && Catch::Contains("off"));
  CHECK(core::spec::parse_job(core::spec::to_yaml(cuda_job({"cuda_graphs=off"})), "resolved.yaml")
            .cuda_graphs == CudaGraphs::off);
}

TEST_CASE("rank 0 times the GEMMs of every stage, and all ranks get its text", "[cuda]") {
  core::job::JobSpec job =
      cuda_job({"cluster.preset=dgx-h200", "parallel.pp=2", "parallel.tp=2", "batch.micro=2"});
  const parallel::Topology topology = core::spec::job_topology(job);
  const std::vector<kernels::OpClass> gemms =
      core::rank::gemms_of_all_ranks(job, core::rank::layout_of(job, topology), topology.device);
  const auto has = [&](kernels::GemmRole role, std::int64_t m, std::int64_t n, std::int64_t k) {
    return std::any_of(gemms.begin(), gemms.end(), [&](const kernels::OpClass& g) {
      return g.role == role && g.m == m && g.n == n && g.k == k;
    });
  };
  const std::int64_t tokens = 2 * 256;
  CHECK(has(kernels::GemmRole::fprop, tokens, 512, 256));  // gate and up, of 2 x 512 / tp rows
  CHECK(has(kernels::GemmRole::wgrad, 256, 256, tokens));  // qkv: (4 + 2 + 2) heads of 64 / tp
  CHECK(has(kernels::GemmRole::dgrad, tokens, 256,
            256));  // the head, on the last stage: 512 / tp rows of the vocabulary
  for (const kernels::OpClass& g : gemms) CHECK(g.dtype == kernels::DType::bf16);

  const std::string text = "chosen by rank 0\n";
  parallel::LocalWorld world(3);
  world.run([&](std::int64_t rank) {
    base::ThreadPool pool(1);
    kernels::CpuBackend backend(kernels::detect_cpu(1), pool);
    const auto group = world.communicator(rank, backend, {0, 1, 2}, "world");
    for (const std::string& sent : {text, std::string()})
      if (core::rank::share_text(rank == 0 ? sent : "mine", backend, *group) != sent)
        throw std::logic_error("another text");
  });
}

TEST_CASE("a CUDA run is planned without CUDA, with the scratch of its kernels", "[cuda]") {
  const core::job::JobSpec job = cuda_job({"cluster.preset=dgx-h200"});
  const core::rank::DryRun plan = plan_on_h200(job);
  // A GEMM's workspace is 256 MiB; nothing else in a model of this size comes near it.
  CHECK(plan.memory.bytes_of("scratch") > (std::int64_t{256} << 20));
  CHECK(plan.memory.bytes_of("scratch") < (std::int64_t{288} << 20));
  // Parameters, optimizer state and tensors between segments do not depend on the device.
  core::job::JobSpec on_cpu = job;
  on_cpu.cluster = {};
  const parallel::Topology cpu = test::cpu_topology(1);
  const core::rank::DryRun planned_cpu =
      core::rank::dry_run(on_cpu, core::rank::layout_of(on_cpu, cpu), 0, cpu.device);
  CHECK(plan.memory.bytes_of("forward_to_backward") == planned_cpu.memory.bytes_of("forward_to_backward"));
  CHECK(plan.snapshot_bytes == planned_cpu.snapshot_bytes);
}

TEST_CASE("deterministic attention over long sequences needs more memory, which the plan includes",
          "[cuda]") {
  const std::vector<std::string> sizes{"cluster.preset=dgx-h200", "model.seq_len=8192", "batch.micro=1",
                                       "model.head_dim=128"};
  std::vector<std::string> fast = sizes;
  fast.push_back("attention=fast");
  const std::int64_t deterministic_bytes = plan_on_h200(cuda_job(sizes)).memory.bytes_of("scratch");
  const std::int64_t fast_bytes = plan_on_h200(cuda_job(fast)).memory.bytes_of("scratch");
  // 2 b h s^2 bytes in place of 4 b h s d, which a GEMM's workspace of 256 MiB exceeds.
  CHECK(deterministic_bytes > std::int64_t{2} * 4 * 8192 * 8192);
  CHECK(fast_bytes < (std::int64_t{300} << 20));
}

TEST_CASE("the head takes thousands of tokens at a time on a GPU, in bounded memory", "[cuda]") {
  using kernels::DType;
  using parallel::head_chunk_tokens;
  const kernels::Target cpu;
  kernels::Target cuda;
  cuda.kind = kernels::DeviceKind::cuda;
  // Qwen 2.5's vocabulary in bf16: 303,872 bytes a token.
  const parallel::HeadShape head{151936, 1536, DType::bf16};
  CHECK(head_chunk_tokens(32768, head, cpu) == 128);
  CHECK(head_chunk_tokens(32768, head, cuda) == 3456);
  CHECK(head_chunk_tokens(1000, head, cuda) == 1000);
  // The input gradient has 6 tiles of 256 columns per 128 rows. 3456 tokens have 27 x 6 tiles: 2 waves of 132
  // multiprocessors with 102 idle in the second. 2816 tokens have 22 x 6 tiles: one whole wave.
  cuda.sm_count = 132;
  CHECK(head_chunk_tokens(32768, head, cuda) == 2816);
  // 14 tiles per 128 rows: 27 x 14 = 378 tiles of 3 x 132 places. No smaller chunk fills its waves better.
  CHECK(head_chunk_tokens(16384, {152064, 3584, DType::bf16}, cuda) == 3456);
  CHECK(head_chunk_tokens(1000, head, cuda) == 1000);
  cuda.tuning.head_chunk_tokens = 8192;
  CHECK(head_chunk_tokens(32768, head, cuda) == 8192);
  CHECK(head_chunk_tokens(1000, head, cuda) == 1000);
}

TEST_CASE("a larger workspace of GEMMs and chunk of the head are planned with their memory", "[cuda]") {
  const core::job::JobSpec job =
      cuda_job({"cluster.preset=dgx-h200", "model.vocab=128256", "model.seq_len=2048"});
  parallel::Topology topology = core::spec::job_topology(job);
  const auto scratch = [&](const kernels::Tuning& tuning) {
    topology.device.tuning = tuning;
    return core::rank::dry_run(job, core::rank::layout_of(job, topology), 0, topology.device)
        .memory.bytes_of("scratch");
  };
  // A microbatch has 8192 tokens. The chunks are 4096 and 8192 tokens: bf16 logits plus a GEMM's workspace.
  const std::int64_t half = scratch({.head_chunk_tokens = 4096}), all = scratch({.head_chunk_tokens = 8192});
  CHECK(all - half >= 4096 * std::int64_t{128256} * 2);
  CHECK(all - half <= 4096 * (std::int64_t{128256} * 2 + 64));
  constexpr std::int64_t kMore = std::int64_t{224} << 20;
  CHECK(all - scratch({.gemm_workspace_bytes = std::int64_t{32} << 20, .head_chunk_tokens = 8192}) == kMore);
}

TEST_CASE("a job that does not fit a device is refused with the device's memory", "[cuda]") {
  const core::job::JobSpec job = cuda_job({"cluster.preset=dgx-h200"});
  parallel::Topology topology = core::spec::job_topology(job);
  const core::rank::DryRun plan = plan_on_h200(job);
  topology.device_memory_bytes = plan.memory.total_bytes() + core::rank::kDeviceOverheadBytes;
  topology.node_memory_bytes = 2 * plan.snapshot_bytes + plan.staging_bytes;
  CHECK_NOTHROW(core::rank::require_fits({&plan, 1}, job, topology, 2));
  topology.device_memory_bytes -= 1;
  CHECK_THROWS_WITH(core::rank::require_fits({&plan, 1}, job, topology, 2),
                    Catch::Contains("the device has") && Catch::Contains("try"));
  topology.device_memory_bytes += 1;
  topology.node_memory_bytes -= 1;
  CHECK_THROWS_WITH(core::rank::require_fits({&plan, 1}, job, topology, 2), Catch::Contains("the node has"));
}

TEST_CASE("published peaks are those of the presets, and unknown devices have none", "[cuda]") {
  for (const std::string preset : {"dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200"}) {
    const parallel::Topology topology = core::spec::job_topology(cuda_job({"cluster.preset=" + preset}));
    CHECK(parallel::published_peaks(topology.device.name) == topology.peak);
  }
  CHECK(parallel::published_peaks("NVIDIA H100 PCIe").bf16 == 756e12);
  CHECK(parallel::published_peaks("NVIDIA GB200").bf16 == 2500e12);
  CHECK(parallel::published_peaks("NVIDIA B300 SXM6 AC").bf16 == 2250e12);
  CHECK(parallel::published_peaks("NVIDIA GB300").bf16 == 2500e12);
  CHECK(parallel::published_peaks("Some other device").bf16 == 0);
}
