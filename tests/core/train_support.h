#pragma once

// Small jobs that run on the CPU world in the test's process.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/rank/device_rank.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "parallel/comm/local/local_world.h"
#include "parallel/comm/staged/staged_communicator.h"
#include "parallel/layout/topology.h"
#include "tests/parallel/function_world.h"

namespace trainerd::test {

/// A Llama-style job of two layers on synthetic tokens: 4 sequences of 24 tokens in two microbatches.
inline core::job::JobSpec small_job(const std::string& precision = "fp32") {
  return core::spec::parse_job(
      "name: small\n"
      "seed: 11\n"
      "device: cpu\n"
      "model: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 48, vocab: 96, seq_len: 24}\n"
      "batch: {global: 4, micro: 2}\n"
      "precision: " +
          precision +
          "\n"
          "optimizer: {name: adamw, lr: 5.0e-3, schedule: {kind: cosine, warmup: 3, min_lr: 1.0e-4}}\n"
          "steps: 12\n"
          "data: {format: synthetic}\n",
      "small.yaml");
}

/// The machine's CPU as a device of `threads` threads.
inline parallel::Topology cpu_topology(int threads) { return parallel::detect_topology(threads); }

/// Tokens of one step that depend on (step, position) alone, with a skew that a model can learn.
inline std::vector<std::int32_t> skewed_samples(const core::job::JobSpec& job, std::int64_t step) {
  std::vector<std::int32_t> samples(static_cast<std::size_t>(job.batch.global * (job.model.seq_len + 1)));
  std::uint64_t state = static_cast<std::uint64_t>(step) * 0x9E3779B97F4A7C15ull + 1;
  for (std::int32_t& token : samples) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const std::uint64_t r = state >> 33;
    token = static_cast<std::int32_t>((r % 3 == 0 ? r / 3 : r / 3 % 7) %
                                      static_cast<std::uint64_t>(job.model.vocab));
  }
  return samples;
}

/// The microbatches of one step, from a vector of its samples.
inline std::unique_ptr<core::train::BatchSource> batches(const core::train::Trainer& trainer,
                                                         const std::vector<std::int32_t>& samples) {
  return std::make_unique<core::train::SampleBatches>(
      trainer.batch_shape(), [&samples](std::int64_t sample, core::train::HostSample& to) {
        const auto count = static_cast<std::ptrdiff_t>(to.tokens_S1.size());
        std::copy_n(samples.begin() + sample * count, count, to.tokens_S1.begin());
      });
}

inline core::train::StepReport step_on(core::train::Trainer& trainer, const core::job::JobSpec& job,
                                       std::int64_t step, const core::train::StepVote& vote = {}) {
  const std::vector<std::int32_t> samples = skewed_samples(job, step);
  return trainer.step(step, *batches(trainer, samples), vote);
}

/// The bytes of all state that a step updates.
inline std::vector<std::byte> state_of(core::train::Trainer& trainer) {
  std::vector<std::byte> bytes;
  const auto add = [&](const kernels::Tensor& t) { bytes.insert(bytes.end(), t.data, t.data + t.bytes()); };
  for (std::size_t v = 0; v < trainer.params().views(); ++v)
    for (const core::model::StatePart& part : trainer.params().view(v).state_parts()) {
      add(part.master);
      for (const kernels::Tensor& state : part.states) add(state);
      add(part.params);
    }
  return bytes;
}

/// Losses of `steps` steps from `first` on.
inline std::vector<double> losses(core::train::Trainer& trainer, const core::job::JobSpec& job,
                                  std::int64_t first, std::int64_t steps) {
  std::vector<double> out;
  for (std::int64_t s = first; s < first + steps; ++s) out.push_back(step_on(trainer, job, s).loss);
  return out;
}

/// Throws unless the peak of every region of a rank's memory equals its planned size.
inline void require_as_planned(core::rank::DeviceRank& rank) {
  const kernels::MemoryBudget measured = rank.memory().budget();
  for (const auto& region : rank.plan().memory.regions)
    if (measured.bytes_of(region.name) != region.bytes)
      throw std::logic_error("rank " + std::to_string(rank.groups().rank()) + ": region " + region.name +
                             " was planned as " + std::to_string(region.bytes) + " bytes and took " +
                             std::to_string(measured.bytes_of(region.name)));
}

/// Transport between the ranks of one process.
enum class Through { memory, staged };

/// Calls `body(rank, DeviceRank&)` for every rank of a job's layout, each initialised on its own thread.
template <class Body>
void on_ranks_of(const parallel::Topology& topology, const core::job::JobSpec& job, const Body& body,
                 Through through = Through::memory) {
  const parallel::Layout layout = core::rank::layout_of(job, topology);
  parallel::LocalWorld world(layout.grid.ranks());
  world.run([&](std::int64_t rank) {
    FunctionWorld others(
        [&](kernels::Backend& backend, const std::string& name, const std::vector<std::int64_t>& members) {
          auto direct = world.communicator(rank, backend, members, name);
          // Small slots: parameters of a few kilobytes need several.
          return through == Through::memory
                     ? std::move(direct)
                     : parallel::make_staged(std::move(direct), backend, {.slot_bytes = 4096});
        });
    core::rank::DeviceRank cpu(job, layout, topology, rank, others);
    cpu.trainer().initialise();
    body(rank, cpu);
  });
}

/// The same on this machine's CPU with one thread per rank.
template <class Body>
void on_every_rank(const core::job::JobSpec& job, const Body& body, std::int64_t devices_per_node = 64,
                   Through through = Through::memory) {
  parallel::Topology topology = cpu_topology(1);
  topology.devices_per_node = devices_per_node;
  topology.nodes = 64;
  on_ranks_of(topology, job, body, through);
}

/// Ranks of a job.
inline std::size_t ranks_of(const core::job::JobSpec& job) {
  return static_cast<std::size_t>(job.parallel.ranks());
}

}  // namespace trainerd::test
