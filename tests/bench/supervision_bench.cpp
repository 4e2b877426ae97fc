// What watching a rank costs its steps: the page that shows what it does, the ring of its operations, the
// agent's looks at both; or, with --hash-every, what hashes of the ranks' states cost. One process trains a
// small job, a thread per rank; short blocks of steps with and without all of that take turns in random
// order, so that whatever else the machine does meets both alike. A third of the pairs of blocks is without
// on both sides: what they show is the error of the method.
//
//   supervision_bench [--seconds N] [--block STEPS] [--hash-every N] [--set KEY=VALUE ...]
//
// The writes of the page cannot be left out of a step: blocks with them make as many once more. Blocks with
// hashes are steps of a second set of ranks, of a job with supervise.hash_every, and nobody watches either.
// The last line has no noise of other programs: the time of one write, operation and look, times their
// number.

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/rank/device_rank.h"
#include "core/run/agent/rank_watch.h"
#include "core/run/supervise/hang_limits.h"
#include "core/run/worker/flight_segment.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "io/text/text.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/tensor/rng.h"
#include "parallel/comm/local/local_world.h"
#include "parallel/group/world.h"

using namespace trainerd;

namespace {

constexpr std::int64_t kSettle =
    2;  // first steps of a block, not counted: they warm the caches with other buffers

constexpr double kLooksPerSecond = 10;  // of RankWatch

struct Args {
  double seconds = 240;
  std::int64_t block = 8, hash_every = 0;
  std::vector<std::string> settings;
};

Args parse(int argc, char** argv) {
  Args args;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--seconds") args.seconds = std::stod(value);
    else if (flag == "--block") args.block = std::stoll(value);
    else if (flag == "--hash-every") args.hash_every = std::stoll(value);
    else if (flag == "--set") args.settings.push_back(value);
    else throw base::spec_error("unknown option " + flag);
  }
  if (argc % 2 == 0) throw base::spec_error(std::string(argv[argc - 1]) + " has no value");
  if (args.block <= kSettle) throw base::spec_error("--block: at least 3 steps");
  return args;
}

/// configs/tiny.yaml on two ranks, with more communication per step than any other layout of two.
core::job::JobSpec bench_job(const Args& args, bool hashes = false) {
  std::vector<std::string> settings = args.settings;
  if (hashes) settings.push_back("supervise.hash_every=" + std::to_string(args.hash_every));
  return core::spec::parse_job(
      "name: bench\nseed: 1\ndevice: cpu\nthreads: 1\n"
      "model: {layers: 4, hidden: 64, heads: 4, kv_heads: 2, ffn: 176, vocab: 256, seq_len: 64}\n"
      "batch: {global: 16, micro: 2}\nparallel: {tp: 2}\nsteps: 1000000\n"
      "optimizer: {lr: 1.0e-3, schedule: {kind: constant}}\ndata: {format: synthetic}\n",
      "bench.yaml", settings);
}

/// Uses the recording communicator while `on` and the plain one otherwise.
class Switched final : public parallel::Communicator {
 public:
  using Ptr = std::unique_ptr<parallel::Communicator>;
  Switched(Ptr off, Ptr on, const bool& is_on) : inner_{std::move(off), std::move(on)}, is_on_(is_on) {}
  std::int64_t rank() const override { return now().rank(); }
  std::int64_t size() const override { return now().size(); }
  std::unique_ptr<parallel::Work> all_reduce(kernels::Stream& s, const kernels::Tensor& x,
                                             parallel::ReduceOp op, const parallel::CommOptions& o) override {
    return now().all_reduce(s, x, op, o);
  }
  std::unique_ptr<parallel::Work> all_gather(kernels::Stream& s, const kernels::Tensor& x,
                                             const kernels::Tensor& out,
                                             const parallel::CommOptions& o) override {
    return now().all_gather(s, x, out, o);
  }
  std::unique_ptr<parallel::Work> reduce_scatter(kernels::Stream& s, const kernels::Tensor& x,
                                                 const kernels::Tensor& out,
                                                 const parallel::CommOptions& o) override {
    return now().reduce_scatter(s, x, out, o);
  }
  std::unique_ptr<parallel::Work> all_to_all(kernels::Stream& s, const kernels::Tensor& x,
                                             const kernels::Tensor& out,
                                             const parallel::CommOptions& o) override {
    return now().all_to_all(s, x, out, o);
  }
  std::unique_ptr<parallel::Work> broadcast(kernels::Stream& s, const kernels::Tensor& x, std::int64_t root,
                                            const parallel::CommOptions& o) override {
    return now().broadcast(s, x, root, o);
  }
  std::unique_ptr<parallel::Work> barrier(kernels::Stream& s, const parallel::CommOptions& o) override {
    return now().barrier(s, o);
  }
  std::unique_ptr<parallel::Work> exchange(kernels::Stream& s, std::span<const parallel::Transfer> sends,
                                           std::span<const parallel::Transfer> receives,
                                           const parallel::CommOptions& o) override {
    return now().exchange(s, sends, receives, o);
  }
  void abort() override {
    for (const Ptr& inner : inner_) inner->abort();
  }

 private:
  parallel::Communicator& now() const { return *inner_[is_on_ ? 1 : 0]; }
  std::array<Ptr, 2> inner_;
  const bool& is_on_;  ///< written by the rank's own thread
};

class SwitchedWorld final : public parallel::World {
 public:
  SwitchedWorld(parallel::LocalWorld& world, std::int64_t rank, parallel::FlightRecorder& recorder,
                const bool& is_on)
      : world_(world), rank_(rank), recorder_(recorder), is_on_(is_on) {}
  std::unique_ptr<parallel::Communicator> communicator(kernels::Backend& backend,
                                                       const parallel::GroupMembers& group) override {
    const std::string name = info(group.group).name;
    const std::vector<std::int64_t> ranks = group.ranks.list();
    auto off = world_.communicator(rank_, backend, ranks, name);
    auto on = world_.communicator(rank_, backend, ranks, name + ", recorded", &recorder_);
    return std::make_unique<Switched>(std::move(off), std::move(on), is_on_);
  }

 private:
  parallel::LocalWorld& world_;
  std::int64_t rank_;
  parallel::FlightRecorder& recorder_;
  const bool& is_on_;
};

/// Which blocks of a pair are supervised, in the order of execution.
struct Pair {
  bool first = false, second = false;
};
Pair pair_of(std::int64_t number) {
  if (number % 3 == 2) return {};
  const bool on_first = kernels::philox(7, static_cast<std::uint64_t>(number), 0)[0] % 2 == 0;
  return {on_first, !on_first};
}

/// The median's 95% interval, by order statistics.
std::pair<double, double> interval(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const double n = static_cast<double>(values.size()), half = 0.98 * std::sqrt(n);
  const auto at = [&](double rank) {
    return values[static_cast<std::size_t>(std::clamp(std::floor(rank), 0.0, n - 1))];
  };
  return {at(n / 2 - half), at(n / 2 + half)};
}

void print_ratio(const char* what, const std::vector<double>& ratios) {
  const auto [low, high] = interval(ratios);
  std::printf("| %s | %zu | %+.3f%% | %+.3f to %+.3f |\n", what, ratios.size(),
              100 * (io::median(ratios) - 1), 100 * (low - 1), 100 * (high - 1));
}

/// Reads the pages of the ranks as an agent does, while supervision is on. Returns the median seconds of a
/// look.
double look(const base::Segment& flights, std::int64_t ranks, const std::atomic<bool>& on,
            const std::atomic<bool>& over) {
  core::run::RankWatch watch(flights, {0, ranks}, 0);
  const core::run::HangLimits limits{.threads = 1};
  const std::vector<pid_t> pids(static_cast<std::size_t>(ranks), ::getpid());
  std::vector<double> took;
  while (!over) {
    pollfd due{watch.event_fd(), POLLIN, 0};
    if (::poll(&due, 1, 300) <= 0) continue;
    std::uint64_t times = 0;
    if (!on) {
      if (::read(watch.event_fd(), &times, sizeof(times)) < 0) continue;
    } else {
      const double begin = base::monotonic_seconds();
      watch.look(pids);
      for (const core::run::RankSight& page : watch.pages())
        if (limits.suspicious(page))
          std::fprintf(stderr, "rank %lld is suspected\n", static_cast<long long>(page.rank));
      took.push_back(base::monotonic_seconds() - begin);
    }
  }
  return took.empty() ? 0 : io::median(took);
}

}  // namespace

int main(int argc, char** argv) try {
  const Args args = parse(argc, argv);
  const core::job::JobSpec job = bench_job(args);
  parallel::Topology topology = core::spec::job_topology(job);
  const parallel::Layout layout = core::rank::layout_of(job, topology);
  const std::int64_t ranks = layout.grid.ranks();
  const base::Segment flights = core::run::make_flight_segment(ranks);
  parallel::LocalWorld world(ranks), hashed_world(ranks);
  const bool hashes = args.hash_every > 0;
  std::barrier together(ranks);
  std::atomic<bool> over{false}, watched{false}, looks_end{false};
  std::vector<double> ratios, control, steps;
  std::uint64_t beats = 0, operations = 0;
  double write_seconds = 0, record_seconds = 0, look_seconds = 0;
  std::thread looks([&] { look_seconds = look(flights, ranks, watched, looks_end); });
  world.run([&](std::int64_t number) {
    bool on = false;
    parallel::FlightRecorder recorder(core::run::flight_ring(flights, number));
    SwitchedWorld others(world, number, recorder, on);
    core::rank::DeviceRank rank(job, layout, topology, number, others);
    core::train::Trainer& trainer = rank.trainer();
    trainer.initialise();
    SwitchedWorld hashed_others(hashed_world, number, recorder, on);
    std::optional<core::rank::DeviceRank> hashed_rank;
    if (hashes) {
      hashed_rank.emplace(bench_job(args, true), layout, topology, number, hashed_others);
      hashed_rank->trainer().initialise();
      hashed_rank->trainer().begin_state_check();
    }
    std::int64_t hashed_step = 0;
    core::train::RankPage own;
    core::train::RankPage& shown = core::run::rank_page(flights, number);
    core::train::SampleBatches batches(
        trainer.batch_shape(), [&](std::int64_t sample, core::train::HostSample& to) {
          for (std::size_t i = 0; i < to.tokens_S1.size(); ++i)
            to.tokens_S1[i] =
                static_cast<std::int32_t>(kernels::philox(3, i, static_cast<std::uint64_t>(sample))[0] %
                                          static_cast<std::uint32_t>(job.model.vocab));
        });
    std::int64_t step = 0;
    std::uint64_t beats_of_step = 0;
    const auto step_with_hashes = [&] {
      const double begin = base::monotonic_seconds();
      hashed_rank->trainer().hash_copies(++hashed_step % args.hash_every == 0);
      hashed_rank->trainer().step(hashed_step, batches, {});
      return base::monotonic_seconds() - begin;
    };
    const auto one_step = [&] {
      const double begin = base::monotonic_seconds();
      ++step;
      (on ? shown : own).begin_step(step);
      trainer.step(step, batches, {});
      if (on)
        for (std::uint64_t i = 0; i < beats_of_step; ++i) shown.enter(core::train::Activity::forward, 0, 1);
      const double seconds = base::monotonic_seconds() - begin;
      (on ? shown : own).end_step(seconds);
      return seconds;
    };
    const auto block = [&](bool with) {
      together.arrive_and_wait();
      on = with && !hashes;
      trainer.show_on(on ? shown : own);
      if (number == 0) watched = on;
      std::vector<double> seconds;
      for (std::int64_t i = 0; i < args.block; ++i)
        if (const double took = with && hashes ? step_with_hashes() : one_step(); i >= kSettle)
          seconds.push_back(took);
      if (number == 0) watched = false;
      return io::median(seconds);
    };
    trainer.show_on(own);
    for (int i = 0; i < 10; ++i) one_step();
    const std::uint64_t before = own.beats();
    one_step();
    beats_of_step = own.beats() - before;
    block(true);
    const double begin = base::monotonic_seconds();
    for (std::int64_t pair = 0;; ++pair) {
      if (number == 0) over = base::monotonic_seconds() - begin > args.seconds;
      together.arrive_and_wait();
      if (over) break;
      const Pair sides = pair_of(pair);
      const double first = block(sides.first), second = block(sides.second);
      if (number != 0) continue;
      steps.push_back(sides.first ? second : first);
      if (sides.first == sides.second) control.push_back(second / first);
      else ratios.push_back(sides.first ? first / second : second / first);
    }
    if (number == 0) {
      beats = beats_of_step;
      constexpr int kWrites = 1'000'000;
      const double start = base::monotonic_seconds();
      for (int i = 0; i < kWrites; ++i) shown.enter(core::train::Activity::forward, 0, i % 8);
      write_seconds = (base::monotonic_seconds() - start) / kWrites;
    }
    on = true;
    const std::uint64_t order = recorder.enqueued({});
    one_step();
    const std::uint64_t count = recorder.enqueued({}) - order - 1;
    if (number != 0) return;
    operations = count;
    constexpr int kRecords = 100'000;
    const double start = base::monotonic_seconds();
    for (int i = 0; i < kRecords; ++i) {
      const std::uint64_t recorded = recorder.enqueued({});
      recorder.started(recorded);
      recorder.done(recorded);
    }
    record_seconds = (base::monotonic_seconds() - start) / kRecords;
  });
  looks_end = true;
  looks.join();
  if (control.empty()) throw base::spec_error("--seconds: too few for a pair of each kind");
  const double usual = io::median(steps);
  std::printf("%lld ranks as threads, %lld steps per block of which %lld count, a step takes %.2f ms\n",
              static_cast<long long>(ranks), static_cast<long long>(args.block),
              static_cast<long long>(args.block - kSettle), 1e3 * usual);
  std::printf("| blocks | pairs | difference of a step | 95%% interval |\n|---|---:|---:|---:|\n");
  print_ratio(hashes ? "with hashes over without" : "watched over not watched", ratios);
  print_ratio(hashes ? "without over without" : "not watched over not watched", control);
  const double page = static_cast<double>(beats) * write_seconds / usual,
               ring = static_cast<double>(operations) * record_seconds / usual,
               agent = kLooksPerSecond * look_seconds;
  std::printf(
      "page: %llu writes of %.0f ns per step, %.4f%%; ring: %llu operations of %.0f ns per step, %.4f%%; "
      "agent: %.0f looks of %.0f us per second, %.4f%% of one core; together %.4f%%\n",
      static_cast<unsigned long long>(beats), 1e9 * write_seconds, 100 * page,
      static_cast<unsigned long long>(operations), 1e9 * record_seconds, 100 * ring, kLooksPerSecond,
      1e6 * look_seconds, 100 * agent, 100 * (page + ring + agent));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "supervision_bench: %s\n", error.what());
  return 1;
}
