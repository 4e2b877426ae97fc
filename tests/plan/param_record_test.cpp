// Records of parameters alone against the records of whole steps.

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "core/rank/dry_run.h"
#include "core/rank/param_record.h"
#include "core/rank/record.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"

using namespace trainerd;

TEST_CASE("a record of parameters alone has the memory and collectives that they have in a step", "[plan]") {
  const std::string model =
      "layers: 4, hidden: 512, heads: 8, kv_heads: 4, ffn: 1024, vocab: 2000, seq_len: 128, positions: "
      "learned";
  for (const std::string layout :
       {"{tp: 2, dp: 16, zero: 0}", "{tp: 2, dp: 16, zero: 1}", "{dp: 16, zero: 2}", "{dp: 32, zero: 3}",
        "{pp: 2, dp: 16, zero: 2, zero_group: 2}", "{pp: 2, dp: 8, zero: 1, overlap_grad_reduce: false}"})
    for (const std::string optimizer : {"adamw", "muon"})
      for (const std::string tied : {"false", "true"}) {
        CAPTURE(layout, optimizer, tied);
        const core::job::JobSpec job = core::spec::parse_job(
            "model: {" + model + ", tie_embeddings: " + tied +
                "}\nsteps: 1\nprecision: bf16\ndata: {format: synthetic}\ncluster: {preset: dgx-h100}\n"
                "batch: {global: 96, micro: 1}\nparallel: " +
                layout + "\noptimizer: {name: " + optimizer + "}\n",
            "job.yaml");
        const parallel::Topology topology = core::spec::job_topology(job);
        const parallel::Layout laid = parallel::resolve_layout(
            job.parallel, topology, core::rank::model_costs(job.model), job.microbatches());
        const core::rank::RankRecord record =
            core::rank::record_rank(job, laid, 0, topology.device, core::train::count_slots(job, laid, 0));
        std::int64_t bytes = 0;
        for (const auto& region : record.memory.regions)
          for (const auto& [term, its_bytes] : region.terms)
            if (region.name == "persistent" && (term == "parameters" || term == "gradients" ||
                                                term == "master_weights" || term == "moments"))
              bytes += its_bytes;
        CHECK(bytes > 0);
        CHECK(core::rank::param_bytes(job, laid, 0, topology.device) == bytes);
        const auto calls = core::rank::param_collectives(job, laid, 0, topology.device);
        CHECK_FALSE(calls.empty());
        for (const core::rank::ParamCollective& call : calls) {
          CAPTURE(info(call.group).name, to_string(call.kind), call.bytes);
          CHECK(std::any_of(record.collectives.begin(), record.collectives.end(),
                            [&](const core::rank::RecordedCollective& c) {
                              return record.groups[static_cast<std::size_t>(c.group)] == call.group &&
                                     c.kind == call.kind && c.bytes == call.bytes;
                            }));
        }
      }
}
