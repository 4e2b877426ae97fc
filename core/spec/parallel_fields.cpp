#include "core/spec/field_table.h"
#include "parallel/layout/grid.h"

// Keys of the axes of parallelism, and of how they run.

namespace trainerd::core::spec {
namespace {

constexpr double kMostRanks = parallel::kMaxRanks;
constexpr double kMaxStages = 1 << 10;
constexpr double kMaxOverlapChunks = 64;
constexpr double kMaxBucketBytes = 0x1p40;

}  // namespace

void add_parallel(FieldTable& t, job::JobSpec& job) {
  parallel::ParallelOptions& p = job.parallel;
  const auto axis = [&](const char* key, std::int64_t& size, const char* meaning) -> Field& {
    return t.add(std::string("parallel.") + key, &size, meaning).between(1, kMostRanks);
  };
  axis("tp", p.tp, "tensor-parallel ranks");
  axis("pp", p.pp, "pipeline stages");
  t.add("parallel.dp", IntegerOrAuto{&p.dp},
        "data-parallel ranks; auto: as many as there are devices for (CUDA devices that the process may use, "
        "or on CPUs cores / `threads`, on "
        "each node), the largest that divides `global` / `micro` and whose ranks `batch.ramp` reaches; a run "
        "with a checkpoint keeps that one's")
      .between(1, kMostRanks);
  axis("cp", p.cp, "context-parallel ranks: they share each sequence, so that longer ones fit");
  t.choice("parallel.cp_comm", p.cp_comm,
           {{"auto", parallel::ContextComm::automatic},
            {"all_gather", parallel::ContextComm::all_gather},
            {"all_to_all", parallel::ContextComm::all_to_all}},
           "how context-parallel ranks bring attention's inputs together: gather all keys and values, or "
           "exchange "
           "tokens for heads; auto: all_to_all if the heads of a tensor-parallel rank divide over `cp`")
      .idle_if(p.cp == 1, "there is nothing to exchange with cp 1");
  axis("ep", p.ep,
       "expert-parallel ranks, out of the `cp` x `dp` ones: they share each layer's experts, so it divides "
       "their `count`; with `etp: 1` out of the `tp` x `cp` x `dp` ones")
      .not_with("parallel.zero_group", "is not for hybrid sharding yet: leave one of them out");
  t.add(
       "parallel.etp", &p.etp,
       "tensor-parallel ranks that share each expert: `tp`, or 1: experts are whole, and each rank sends its "
       "own part of the tokens to them, so `ep` may be a multiple of `tp`; needs `sequence_parallel`; 0: "
       "`tp`")
      .between(0, kMostRanks)
      .not_with("parallel.zero_group", "is not for hybrid sharding yet: leave one of them out");
  t.add("parallel.ep_capacity", &p.ep_capacity,
        "how many rows of a rank's experts there is memory for, as a multiple of the mean number; a step "
        "that needs "
        "more updates nothing and ends the run; 0: as many as any choice of the router can need")
      .at_least(0)
      .idle_if(p.ep == 1, "without expert parallelism every choice has its memory");
  t.choice(
       "parallel.ep_comm", p.ep_comm,
       {{"all_gather", parallel::ExpertComm::all_gather}, {"all_to_all", parallel::ExpertComm::all_to_all}},
       "how tokens reach the ranks of their experts; all_gather: every rank gathers all, and those of a "
       "node once; all_to_all: each token is sent to those ranks alone, which have slots for the mean "
       "number times `ep_capacity` from each rank: fewer bytes inside NVLink where tokens choose fewer "
       "ranks than there are")
      .idle_if(p.ep == 1, "there is nothing to exchange with ep 1");
  t.add("parallel.sequence_parallel", &p.sequence_parallel,
        "split norms and residuals along the sequence over the tensor-parallel ranks");
  t.add("parallel.tp_overlap_chunks", &p.tp_overlap_chunks,
        "row chunks in which tensor-parallel gathers and sums run behind the matrix products they belong to; "
        "1: "
        "not behind")
      .between(1, kMaxOverlapChunks)
      .idle_if(p.tp == 1, "there is nothing to overlap with tp 1");
  t.add("parallel.overlap_tp_backward", &p.overlap_tp_backward,
        "in backward, gather and sum the flows of tensor parallelism behind the matrix products beside them")
      .idle_if(p.tp == 1 || (parallel::splits_backward(p.schedule) && !p.sequence_parallel),
               p.tp == 1
                   ? "there is nothing to overlap with tp 1"
                   : "zb-h1, zb-v, v-half and v-min make the products that it would overlap apart from each "
                     "other, and without sequence_parallel their weight gradients gather nothing");
  t.add("parallel.zero", &p.zero,
        "what is sharded over data-parallel (and context-parallel) ranks: 0 nothing, 1 optimizer state, 2 "
        "also gradients, 3 also "
        "parameters")
      .between(0, 3);
  t.add("parallel.zero_group", &p.zero_group,
        "hybrid sharding: neighbouring data-parallel (and context-parallel) ranks that `zero` shards over, "
        "with replicas across; divides `cp` x `dp`; 0: all of them")
      .between(0, kMostRanks)
      .idle_if(p.zero == 0, "zero: 0 shards nothing");
  const bool on_cpus = job.device != job::DeviceChoice::cuda && job.cluster.preset == "local";
  t.add(
       "parallel.offload_params", &p.offload_params,
       "keep sharded parameters (zero 3) in pinned host memory: a GPU copies each layer over its link before "
       "it is used")
      .idle_if(on_cpus, "on CPUs they are in host memory anyway");
  t.add("parallel.offload_grads", &p.offload_grads,
        "keep sharded gradients (zero 2 and 3) in pinned host memory: a GPU adds each layer's to them over "
        "its link during backward")
      .idle_if(on_cpus, "on CPUs they are in host memory anyway");
  t.add("parallel.offload_activations", &p.offload_activations,
        "with recompute: {kind: full}, which keeps the inputs of layers alone: keep them in pinned host "
        "memory from forward to backward")
      .idle_if(on_cpus, "on CPUs they are in host memory anyway");
  t.add("parallel.bucket_bytes", &p.bucket_bytes,
        "gradients that are reduced at once, at most; 0: 8 MiB for each of the `cp` x `dp` ranks, at least "
        "25 MiB")
      .between(0, kMaxBucketBytes);
  t.add("parallel.overlap_grad_reduce", &p.overlap_grad_reduce,
        "reduce gradients in the background during backward");
  t.add("parallel.overlap_ep", &p.overlap_ep,
        "send tokens to the ranks of their experts, and results back, in the background beside matrix "
        "products: "
        "in backward nearly all of it, in forward beside the shared MLP, with schedule: dualpipe-v beside "
        "another "
        "microbatch's backward")
      .idle_if(p.ep == 1, "without expert parallelism (ep) no tokens are sent");
  t.add("parallel.overlap_p2p", &p.overlap_p2p,
        "await a message of the pipeline where it is used, not where it is posted")
      .idle_if(p.pp == 1, "pp: 1 has no messages");
  t.add("parallel.overlap_param_gather", &p.overlap_param_gather,
        "gather sharded parameters in the background, a layer ahead of their use");
  t.choice("parallel.schedule", p.schedule,
           {{"gpipe", parallel::ScheduleKind::gpipe},
            {"1f1b", parallel::ScheduleKind::one_f_one_b},
            {"interleaved", parallel::ScheduleKind::interleaved},
            {"zb-h1", parallel::ScheduleKind::zb_h1},
            {"zb-v", parallel::ScheduleKind::zb_v},
            {"v-half", parallel::ScheduleKind::v_half},
            {"v-min", parallel::ScheduleKind::v_min},
            {"dualpipe-v", parallel::ScheduleKind::dualpipe_v}},
           "pipeline schedule");
  t.add("parallel.virtual_stages", &p.virtual_stages,
        "chunks of layers on each pipeline stage: with zb-v, v-half, v-min and dualpipe-v 2, with gpipe, "
        "1f1b and "
        "zb-h1 1; 1 with pp 1")
      .between(1, kMaxStages);
  t.add("parallel.order", &p.order,
        "which axis changes fastest with the rank, leftmost first; axes of one rank may be left out");
  t.add("parallel.allow_tp_across_nodes", &p.allow_tp_across_nodes,
        "let a tensor-parallel group leave its NVLink domain (its node, where there is no NVLink)");
}

}  // namespace trainerd::core::spec
