// Operands of a GPU's GEMMs have the alignment of the timed operands, so that timed choices apply.

#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/rank/dry_run.h"
#include "core/rank/gemm_algorithms.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "core/train/batch_source.h"
#include "core/train/trainer.h"
#include "kernels/backend/observed_backend.h"
#include "kernels/cuda/launch/gemm_choices.h"
#include "kernels/meta/meta_backend.h"
#include "parallel/group/world.h"

using namespace trainerd;
using kernels::Tensor;
using kernels::cuda::GemmProblem;

namespace {

/// The meta world. It records each GEMM's class and the addresses of its operands.
class SeenGemms final : public kernels::ObservedBackend {
 public:
  using Stream = kernels::Stream;
  explicit SeenGemms(kernels::Backend& inner) : ObservedBackend(inner, [](const kernels::ObservedCall&) {}) {}

  void linear_fprop(Stream& s, const kernels::LinearFprop& a) override {
    see(a, {a.x_TC, a.weight.plain_NC, a.bias_N, a.addend_TN, a.y_TN});
    ObservedBackend::linear_fprop(s, a);
  }
  void linear_dgrad(Stream& s, const kernels::LinearDgrad& a) override {
    see(a, {a.dy_TN, a.weight.plain_NC, a.dx_TC});
    ObservedBackend::linear_dgrad(s, a);
  }
  void linear_wgrad(Stream& s, const kernels::LinearWgrad& a) override {
    see(a, {a.dy_TN, a.x_TC, a.dweight_NC});
    ObservedBackend::linear_wgrad(s, a);
  }
  void linear_swiglu(Stream& s, const kernels::LinearSwiglu& a) override {
    see(a, {a.x_TC, a.weight.plain_NC, a.gate_up_T2F});
    ObservedBackend::linear_swiglu(s, a);
  }
  void linear_dgrad_swiglu(Stream& s, const kernels::LinearDgradSwiglu& a) override {
    see(a, {a.dy_TD, a.weight.plain_NC});
    ObservedBackend::linear_dgrad_swiglu(s, a);
  }

  std::set<GemmProblem> problems;
  std::int64_t operands = 0, unaligned = 0;

 private:
  template <class Args>
  void see(const Args& a, const std::vector<Tensor>& tensors) {
    problems.insert(kernels::cuda::problem_of(op_class(a)));
    for (const Tensor& t : tensors) {
      if (!t.defined()) continue;
      ++operands;
      unaligned += reinterpret_cast<std::uintptr_t>(t.data) % 256 != 0;
    }
  }
};

}  // namespace

TEST_CASE("every matrix product of a GPU's step has operands as aligned as those that are timed",
          "[gemm_alignment]") {
  struct Case {
    std::string model, rest;
  };
  const std::string small = "layers: 2, hidden: 512, heads: 8, kv_heads: 4, ffn: 1408, seq_len: 256";
  for (const Case& c : std::vector<Case>{
           {small + ", vocab: 50257", "parallel: {dp: 8, zero: 1}\n"},
           {small + ", vocab: 50257, qkv_bias: true, qk_norm: true", "parallel: {dp: 8, zero: 3}\n"},
           {small + ", vocab: 50257, tie_embeddings: true, bias: true, mlp: gelu, norm: layer",
            "parallel: {tp: 2, dp: 4, zero: 0}\n"},
           {small + ", vocab: 1001", "parallel: {tp: 4, dp: 2, zero: 2, sequence_parallel: true}\n"},
           {small + ", vocab: 1001", "parallel: {pp: 2, dp: 4, zero: 1}\nrecompute: {kind: full}\n"},
           {small + ", vocab: 50257", "parallel: {dp: 8, zero: 2}\noptimizer: {name: muon}\n"}})
    for (const std::string precision : {"bf16", "fp32"}) {
      CAPTURE(c.model, c.rest, precision);
      const core::job::JobSpec job = core::spec::parse_job(
          "model: {" + c.model + "}\nsteps: 1\nprecision: " + precision +
              "\ndata: {format: synthetic}\ncluster: {preset: dgx-h100}\nbatch: {global: 16, micro: 1}\n" +
              c.rest,
          "job.yaml");
      const parallel::Topology topology = core::spec::job_topology(job);
      const parallel::Layout layout = parallel::resolve_layout(
          job.parallel, topology, core::rank::model_costs(job.model), job.microbatches());
      std::set<GemmProblem> timed;
      for (const kernels::OpClass& gemm : core::rank::gemms_of_all_ranks(job, layout, topology.device))
        timed.insert(kernels::cuda::problem_of(gemm));
      for (const std::int64_t rank : {std::int64_t{0}, layout.grid.ranks() - 1}) {
        kernels::MetaBackend meta(topology.device);
        SeenGemms backend(meta);
        parallel::MetaWorld world(rank);
        const core::train::RankGroups groups(layout, rank, job.model, world, backend);
        const std::int64_t stage = layout.grid.coordinate(rank)[static_cast<std::size_t>(parallel::Axis::pp)];
        core::train::StepMemory memory(core::train::count_slots(job, layout, stage),
                                       topology.device.alignment);
        core::train::Trainer trainer(job, layout, backend, groups, memory);
        trainer.initialise();
        core::train::SampleBatches batches(trainer.batch_shape(), nullptr);
        trainer.step(1, batches, {});
        CHECK(backend.operands > 50);
        CHECK(backend.unaligned == 0);
        for (const GemmProblem& problem : backend.problems) {
          CAPTURE(kernels::cuda::describe(problem));
          CHECK(timed.contains(problem));
        }
      }
    }
}
