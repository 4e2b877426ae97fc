// Cost of a job with many ranks for its leader: the start (planning, meeting the other nodes, collecting that
// all are ready) and completing a checkpoint.

#include <malloc.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <stop_token>
#include <thread>

#include "core/run/agent/checkpoint_parts.h"
#include "core/run/agent/planned_ranks.h"
#include "core/run/agent/ready_ranks.h"
#include "core/run/nodes/membership.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "core/train/rank_schedule.h"
#include "core/train/snapshot.h"
#include "core/train/trainer.h"
#include "core/version/version.h"
#include "io/checkpoint/folders.h"
#include "kernels/meta/meta_backend.h"
#include "tests/core/train_support.h"
#include "tests/full.h"
#include "tests/io/temp_dir.h"

using namespace trainerd;
using namespace trainerd::core;

namespace {

constexpr std::int64_t kNodes = 2048, kNodeRanks = 8;
constexpr const char* kData = "synthetic tokens";
/// Nodes of the checkpoint test: all in full tests, fewer otherwise, fewest under a sanitizer.
std::int64_t saving_nodes() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 64;
#else
  return test::runs_full() ? kNodes : kNodes / 4;
#endif
}

/// A memory value of /proc/self/status, in bytes.
std::int64_t memory_status(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) * 1024;
  FAIL("/proc/self/status has no " << key);
  return 0;
}
/// Peak memory since `forget_peak`, in bytes. `forget_peak` returns the current memory.
std::int64_t peak_bytes() { return memory_status("VmHWM"); }
std::int64_t forget_peak() {
  ::malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << 5;
  return memory_status("VmRSS");
}

/// CPU time of all threads of this process: other work on the machine does not count.
double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double processor_seconds(std::jthread& thread) {
  clockid_t clock{};
  timespec t{};
  if (::pthread_getcpuclockid(thread.native_handle(), &clock) != 0 || ::clock_gettime(clock, &t) != 0)
    FAIL("this thread has no clock");
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

job::JobSpec job_of_16384_ranks() {
  return spec::parse_job(
      "steps: 20\ndevice: cuda\nprecision: bf16\nmodel: {preset: llama-3-405b}\nbatch: {global: 2048, micro: "
      "1}\n"
      "data: {format: synthetic}\nparallel: {tp: 8, pp: 16, dp: 128, zero: 1, sequence_parallel: true}\n"
      "cluster: {preset: dgx-h100, nodes: 2048}\n",
      "job.yaml");
}

/// Raises this process's limit of open files; false if the system does not allow it.
bool allow_descriptors(rlim_t count) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= count) return true;
  limit.rlim_cur = std::min(count, limit.rlim_max);
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= count;
}

/// Slices in a rank's snapshots, from its trainer in the meta world, which computes nothing.
std::vector<io::TensorSlice> slices_of_rank(const job::JobSpec& job, const parallel::Topology& topology,
                                            std::int64_t rank) {
  const parallel::Layout layout = rank::layout_of(job, topology);
  kernels::MetaBackend backend(topology.device, [](const kernels::MetaCall&) {});
  parallel::MetaWorld world(rank, [](parallel::Group, const parallel::MetaCollective&) {});
  const train::RankGroups groups(layout, rank, job.model, world, backend);
  const auto stage = layout.grid.coordinate(rank)[static_cast<std::size_t>(parallel::Axis::pp)];
  train::StepMemory memory(train::count_all_slots(job, layout).at(static_cast<std::size_t>(stage)),
                           topology.device.alignment);
  train::Trainer trainer(job, layout, backend, groups, memory);
  trainer.initialise();
  return train::Snapshot(trainer.params()).slices();
}

/// Acts as the agents of all other nodes until the run ends.
void stand_for_others(const std::stop_token& stop, const run::MembershipOptions& options,
                      const std::string& yaml, const std::string& ready) {
  std::vector<run::Channel> channels;
  for (std::int64_t node = 1; node < kNodes; ++node) {
    std::string why;
    base::UniqueFd socket;
    const std::string hello = run::encode(run::Hello{
        node, kNodes, version::version(), "host" + std::to_string(node), yaml, kernels::Isa::portable});
    while (!socket) {
      if (stop.stop_requested()) return;
      socket = parallel::join_store(options.rendezvous, *options.token, hello, 1, why);
      if (!socket) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    channels.emplace_back(std::move(socket));
  }
  for (run::Channel& channel : channels) {
    while (const auto text = channel.receive())
      if (std::holds_alternative<run::Go>(run::decode_node_message(*text))) break;
    channel.send(ready);
  }
  for (run::Channel& channel : channels)
    while (channel.receive()) {}
}

}  // namespace

TEST_CASE("the leader of 16,384 ranks plans them in less than 2 s and 500 MB", "[start]") {
  const std::int64_t before = forget_peak();
  const double begin = processor_seconds();
  const job::JobSpec job = job_of_16384_ranks();
  const parallel::Topology topology = spec::job_topology(job, spec::Absent::assumed);
  const parallel::Layout layout = rank::layout_of(job, topology);
  const run::PlannedRanks plans =
      run::plan_ranks(job, layout, topology, run::node_ranks(layout, topology, 0), true);
  const double seconds = processor_seconds() - begin;
  CAPTURE(seconds, peak_bytes() - before);
  CHECK(plans.here.size() == 8);
  std::int64_t ranks = 0;
  for (const plan::RankClass& known : plans.known) ranks += known.ranks;
  CHECK(ranks == 16384);
  CHECK(seconds < 2);
  CHECK(peak_bytes() - before < 500'000'000);
}

TEST_CASE("the leader's record of other nodes' ranks equals the plan of each of them", "[start]") {
  job::JobSpec job = test::small_job();
  job.model.layers = 4;
  for (const auto& [tp, pp, dp, zero] : {std::tuple{2, 2, 2, 1}, {1, 4, 2, 3}, {2, 1, 4, 0}}) {
    CAPTURE(tp, pp, dp, zero);
    job.parallel.tp = tp, job.parallel.pp = pp, job.parallel.dp = dp, job.parallel.zero = zero;
    job.batch.global = 16;
    const std::int64_t layout_ranks = tp * pp * dp;
    parallel::Topology topology = test::cpu_topology(1);
    topology.nodes = layout_ranks / 2, topology.devices_per_node = 2;
    const parallel::Layout layout = rank::layout_of(job, topology);
    const run::PlannedRanks plans = run::plan_ranks(job, layout, topology, {.first = 2, .count = 2}, true);
    std::int64_t ranks = 0, bytes = 0, each = 0;
    for (const plan::RankClass& known : plans.known) {
      ranks += known.ranks;
      bytes += known.ranks * known.plan.memory.total_bytes();
    }
    for (std::int64_t rank = 0; rank < layout.grid.ranks(); ++rank) {
      const rank::DryRun plan = rank::dry_run(job, layout, rank, topology.device);
      each += plan.memory.total_bytes();
      if (rank == 2 || rank == 3)
        CHECK(plans.here[static_cast<std::size_t>(rank - 2)].snapshot_bytes == plan.snapshot_bytes);
    }
    CHECK(ranks == layout.grid.ranks());
    CHECK(static_cast<double>(bytes) == Approx(static_cast<double>(each)).epsilon(0.01));
  }
}

TEST_CASE(
    "the leader of 16,384 ranks plans them, meets their nodes and hears that all are ready in less than "
    "2 s and 500 MB",
    "[start]") {
  if (!allow_descriptors(2 * kNodes + 256)) {
    WARN("skipped: this system allows too few open files for " << kNodes << " nodes");
    return;
  }
  // Messages of the workers on the leader's own node.
  const job::JobSpec job = job_of_16384_ranks();
  const parallel::Topology topology = spec::job_topology(job, spec::Absent::assumed);
  std::vector<std::string> workers;
  const run::Membership any;
  run::ReadyRanks of_a_node({.first = 0, .count = kNodeRanks}, any);
  for (std::int64_t rank = 0; rank < kNodeRanks; ++rank) {
    run::Ready ready;
    ready.threads = 8;
    ready.slices = slices_of_rank(job, topology, rank);
    ready.data_fingerprint = kData;
    workers.push_back(run::encode(run::WorkerMessage{ready}));
    of_a_node.add(rank, std::move(ready));
  }
  const std::string node_ready = run::encode(run::NodeMessage{of_a_node.summary(1)});
  run::MembershipOptions options;
  options.nodes.nodes = kNodes;
  options.rendezvous = {"127.0.0.1", base::local_port(base::listen_at({"127.0.0.1", 0}).get())};
  options.timeout_seconds = 60;
  options.token = parallel::JobToken::random();
  const std::string yaml = run::shared_job(job);
  const base::UniqueFd no_signal(::eventfd(0, EFD_CLOEXEC));

  const std::int64_t before = forget_peak();
  const double begin = processor_seconds();
  std::jthread others([&](const std::stop_token& stop) {
    try {
      stand_for_others(stop, options, yaml, node_ready);
    } catch (const base::CommError&) {  // the leader has ended, and its test has failed
    }
  });
  const parallel::Layout layout = rank::layout_of(job, topology);
  const run::NodeRanks here = run::node_ranks(layout, topology, 0);
  const run::PlannedRanks plans = run::plan_ranks(job, layout, topology, here, true);
  const double planned = processor_seconds();
  run::Membership membership(options, job, no_signal.get());
  membership.begin({.last_good = "none"});
  const double met = processor_seconds();
  run::ReadyRanks ready(here, membership);
  std::int64_t own_slices = 0;  // slices stay on the node
  for (std::int64_t rank = 0; rank < here.count; ++rank) {
    run::Ready own =
        std::get<run::Ready>(run::decode_worker_message(workers[static_cast<std::size_t>(rank)]));
    own_slices += static_cast<std::int64_t>(std::exchange(own.slices, {}).size());
    ready.add(rank, std::move(own));
  }
  CHECK(ready.all_here());
  std::int64_t lost = 0;
  while (!ready.all() && lost == 0) {
    std::vector<pollfd> fds;
    membership.watch(fds);
    if (::poll(fds.data(), fds.size(), 30'000) <= 0) FAIL("no node says anything");
    for (const run::Membership::Event& event : membership.take(fds)) {
      if (!event.message) ++lost;
      else ready.add_node(event.node, std::get<run::NodeReady>(*event.message));
    }
  }
  ready.require_data(kData);
  const double all_ready = processor_seconds(), others_seconds = processor_seconds(others);
  membership.finish({});
  others.join();
  CHECK(lost == 0);
  CHECK(ready.threads() == 8 * 16384);
  CHECK(own_slices > 100);
  // The stand-ins' time does not count for the leader. It is part of the last two intervals.
  const double seconds = all_ready - begin - others_seconds;
  const std::int64_t bytes = peak_bytes() - before;
  INFO("planned in " << planned - begin << " s, met in " << met - planned << " s, all ready in "
                     << all_ready - met << " s, of which the stand-ins took " << others_seconds << " s; "
                     << bytes << " bytes");
  CHECK(seconds < 2);
  CHECK(bytes < 500'000'000);
}

TEST_CASE("ranks of a node are ready when all are, and one with other data is named", "[start]") {
  const run::Membership alone;
  run::ReadyRanks ready({.first = 0, .count = 2}, alone);
  run::Ready rank;
  rank.data_fingerprint = "a.txt";
  rank.threads = 3;
  ready.add(0, rank);
  CHECK_FALSE(ready.all_here());
  ready.add(1, rank);
  CHECK(ready.all());
  CHECK_NOTHROW(ready.require_data("a.txt"));
  CHECK(ready.summary(4).threads == 6);
  CHECK((ready.summary(4).attempt == 4 && ready.summary(4).data_fingerprint == "a.txt"));
  rank.data_fingerprint = "b.txt";
  ready.add(1, rank);
  CHECK_THROWS_WITH(ready.require_data("a.txt"),
                    Catch::StartsWith("rank 1 sees other data than node 0") &&
                        Catch::EndsWith(": a file changed while the run started"));
}

TEST_CASE("a rank's node reports the data of its evaluations", "[start]") {
  const run::Membership alone;
  run::ReadyRanks ready({.first = 0, .count = 1}, alone);
  ready.add(0, {});
  const run::ReadyRanks::Evaluated evaluated{{"data.valid", "a"}, {"evaluate.choices: facts", "b"}};
  CHECK(ready.summary(1, evaluated).evaluated == evaluated);
  CHECK_NOTHROW(ready.require_data("", evaluated));
  ready.add_node(1, ready.summary(1, evaluated));
  CHECK_NOTHROW(ready.require_data("", evaluated));
  ready.add_node(1, ready.summary(1, {{"data.valid", "a"}, {"evaluate.choices: facts", "c"}}));
  CHECK_THROWS_WITH(ready.require_data("", evaluated),
                    Catch::Contains("has other files for evaluate.choices: facts than"));
  ready.add_node(1, ready.summary(1, {{"evaluate.choices: facts", "b"}}));
  CHECK_THROWS_WITH(ready.require_data("", evaluated),
                    Catch::Contains("has other files for data.valid than"));
}

TEST_CASE("the leader of thousands of ranks completes their checkpoint in bounded time and memory",
          "[start][save]") {
  if (!test::in_slice(0, 3)) return;
  constexpr std::int64_t kStep = 10;
  const std::int64_t nodes = saving_nodes();
  const job::JobSpec job = job_of_16384_ranks();
  const parallel::Topology topology = spec::job_topology(job, spec::Absent::assumed);
  const parallel::Layout layout = rank::layout_of(job, topology);
  // The slices of a stage's first rank stand for those of its other ranks, which have other boxes, but about
  // as many.
  std::map<std::int64_t, std::vector<io::TensorSlice>> slices;
  for (std::int64_t node = 0; node < nodes; ++node) {
    const std::int64_t rank = node * kNodeRanks;
    const auto at = layout.grid.coordinate(rank);
    const std::int64_t pp = at[static_cast<std::size_t>(parallel::Axis::pp)];
    if (!slices.contains(pp)) slices[pp] = slices_of_rank(job, topology, rank);
  }
  // Files in memory: disk time does not count for the leader.
  const test::TempDir dir(std::filesystem::exists("/dev/shm") ? "/dev/shm"
                                                              : std::filesystem::temp_directory_path());
  const io::CheckpointStore store(dir / "checkpoints", 2);
  const std::string folder = dir / "checkpoints/" + io::folder_name(kStep) + "/";
  std::vector<std::string> messages;
  std::int64_t saved_slices = 0;
  for (std::int64_t node = 0; node < nodes; ++node) {
    run::ShardsSaved saved{.step = kStep, .first_rank = node * kNodeRanks, .shards = {}};
    const auto at = layout.grid.coordinate(saved.first_rank);
    for (std::int64_t rank = saved.first_rank; rank < saved.first_rank + kNodeRanks; ++rank) {
      char file[64];
      std::snprintf(file, sizeof(file), "shard-%05d.safetensors", static_cast<int>(rank));
      test::write_file(folder + file, "a shard");
      saved.shards.push_back(
          {{file, 7, std::string(32, 'a')}, slices.at(at[static_cast<std::size_t>(parallel::Axis::pp)])});
      saved_slices += static_cast<std::int64_t>(saved.shards.back().slices.size());
    }
    messages.push_back(run::encode(run::NodeMessage{saved}));
  }
  const io::TensorSlice last = slices.rbegin()->second.back();
  slices.clear();
  const std::int64_t before = forget_peak();
  const double begin = processor_seconds();
  run::CheckpointParts parts(nodes * kNodeRanks);
  io::TrainingState state;
  state.step = kStep;
  parts.begin(state, 1);
  std::optional<run::CheckpointWriter::Job> completion;
  for (std::string& message : messages) {
    run::NodeMessage decoded = run::decode_node_message(std::exchange(message, {}));
    auto& saved = std::get<run::ShardsSaved>(decoded);
    completion = parts.add(saved.step, saved.first_rank, std::move(saved.shards), 0, 0);
  }
  REQUIRE(completion);
  const double heard = processor_seconds();
  const io::StoredCheckpoint stored =
      store.complete(completion->state, completion->folder, completion->written);
  const double done = processor_seconds();
  const std::int64_t bytes = peak_bytes() - before;
  const auto manifest_bytes = std::filesystem::file_size(stored.path + "/manifest.json");
  completion.reset();
  const double read_begin = processor_seconds();
  const std::int64_t read_before = forget_peak();
  const io::CheckpointReader reader(stored.path);
  INFO(saved_slices << " slices, a manifest of " << manifest_bytes << " bytes; heard of in " << heard - begin
                    << " s, completed in " << done - heard << " s, with " << bytes << " bytes; read in "
                    << processor_seconds() - read_begin << " s, with " << peak_bytes() - read_before
                    << " bytes");
  CHECK(done - begin < (nodes == kNodes ? 30.0 : 7.5));
  CHECK(bytes < (nodes == kNodes ? 1'000'000'000 : 250'000'000));
  const io::Manifest& manifest = reader.manifest();
  REQUIRE(std::cmp_equal(manifest.shards.size(), nodes * kNodeRanks));
  CHECK(manifest.shards[500].file == "shard-00500.safetensors");
  REQUIRE(std::cmp_equal(manifest.slices.size(), saved_slices));
  const auto& [shard, slice] = manifest.slices.back();
  CHECK((shard == nodes * kNodeRanks - 1 && slice.name == last.name && slice.stored == last.stored));
  CHECK((slice.begin == last.begin && slice.shape == last.shape && slice.dtype == last.dtype));
}
