// Time of collectives and messages among processes of one machine over shared memory, with and without
// polling before a sleep. Medians over rank 0's calls; the kinds are timed in turn, round after round.
//
//   comm_bench [rounds]

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu_backend.h"
#include "parallel/comm/gloo/gloo_world.h"
#include "parallel/comm/shm/shm_world.h"

namespace trainerd::bench {
namespace {

using namespace parallel;
using kernels::DType;
using kernels::Tensor;

enum class Kind : std::uint8_t { all_reduce, all_gather, reduce_scatter, ping_pong };
constexpr std::array kKinds{
    std::pair{Kind::all_reduce, "all_reduce"}, std::pair{Kind::all_gather, "all_gather"},
    std::pair{Kind::reduce_scatter, "reduce_scatter"}, std::pair{Kind::ping_pong, "ping-pong"}};
constexpr std::int64_t kMiB = 1024 * 1024;
constexpr std::array<std::int64_t, 3> kSizes{4096, kMiB, 64 * kMiB};

// `x` is the whole tensor of a collective, `part` this rank's part of it.
void once(Kind kind, Communicator& comm, kernels::Stream& stream, const Tensor& x, const Tensor& part) {
  const CommOptions options{.label = "bench"};
  switch (kind) {
    case Kind::all_reduce: comm.all_reduce(stream, x, ReduceOp::sum, options)->wait(stream); return;
    case Kind::all_gather: comm.all_gather(stream, part, x, options)->wait(stream); return;
    case Kind::reduce_scatter: comm.reduce_scatter(stream, x, part, options)->wait(stream); return;
    case Kind::ping_pong: break;
  }
  if (comm.rank() > 1) return;
  const Transfer t{1 - comm.rank(), x};
  if (comm.rank() == 0) comm.exchange(stream, {&t, 1}, {}, options)->wait(stream);
  comm.exchange(stream, {}, {&t, 1}, options)->wait(stream);
  if (comm.rank() == 1) comm.exchange(stream, {&t, 1}, {}, options)->wait(stream);
}

using Make =
    std::function<std::unique_ptr<Communicator>(kernels::Backend&, const std::vector<std::int64_t>&)>;

void work(const std::string& world, std::int64_t rank, std::int64_t size, int rounds, const Make& make) {
  std::vector<std::int64_t> ranks;
  for (std::int64_t r = 0; r < size; ++r) ranks.push_back(r);
  base::ThreadPool pool(1);
  kernels::CpuBackend backend(kernels::detect_cpu(1), pool);
  const auto stream = backend.make_stream("comm", nullptr);
  const auto comm = make(backend, ranks);
  const kernels::Buffer memory = backend.allocate(kernels::MemoryKind::device, kSizes.back());
  for (const std::int64_t bytes : kSizes) {
    std::array<std::vector<double>, kKinds.size()> seconds;
    const Tensor x{memory.data(), DType::f32, {bytes / 4}};
    const Tensor part = x.rows(rank * (bytes / 4 / size), bytes / 4 / size);
    // Large tensors have little noise: some tens of rounds are enough.
    const int now = bytes > 16 * kMiB ? std::max(5, rounds / 20) : rounds;
    for (int round = -3; round < now; ++round)
      for (std::size_t k = 0; k < kKinds.size(); ++k) {
        comm->barrier(*stream, {.label = "ready"})->wait(*stream);
        const double begin = base::monotonic_seconds();
        once(kKinds[k].first, *comm, *stream, x, part);
        if (round >= 0) seconds[k].push_back(base::monotonic_seconds() - begin);
      }
    if (rank != 0) continue;
    for (std::size_t k = 0; k < kKinds.size(); ++k) {
      std::sort(seconds[k].begin(), seconds[k].end());
      std::printf("| %-14s | %5lld | %6lld KiB | %-15s | %10.1f us |\n", kKinds[k].second,
                  static_cast<long long>(size), static_cast<long long>(bytes / 1024), world.c_str(),
                  1e6 * seconds[k][seconds[k].size() / 2]);
    }
    std::fflush(stdout);
  }
}

void fork_ranks(std::int64_t size, const std::function<void(std::int64_t)>& body) {
  std::vector<pid_t> workers;
  for (std::int64_t rank = 0; rank < size; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      body(rank);
      ::_exit(0);
    }
    workers.push_back(pid);
  }
  for (const pid_t worker : workers) ::waitpid(worker, nullptr, 0);
}

void run_shm(std::int64_t size, int rounds, double spin_seconds) {
  std::vector<std::int64_t> ranks;
  for (std::int64_t rank = 0; rank < size; ++rank) ranks.push_back(rank);
  const ShmLayout layout{.ranks = size, .groups = {{.name = "all", .ranks = ranks, .ring_bytes = 2 * kMiB}}};
  const base::Segment segment = make_shm_segment(layout);
  const std::string name = spin_seconds > 0 ? "shm, polls first" : "shm";
  fork_ranks(size, [&](std::int64_t rank) {
    const ShmWorld world(base::Segment::attach(base::UniqueFd(::dup(segment.fd()))), layout, rank,
                         {.deadline_seconds = 60, .spin_seconds = spin_seconds});
    work(name, rank, size, rounds, [&](kernels::Backend& backend, const std::vector<std::int64_t>& group) {
      return world.communicator(backend, group, "all");
    });
  });
}

void run_gloo(std::int64_t size, int rounds) {
  std::string directory = (std::filesystem::temp_directory_path() / "trainerd-comm-bench-XXXXXX").string();
  if (::mkdtemp(directory.data()) == nullptr) return;
  fork_ranks(size, [&](std::int64_t rank) {
    ::signal(SIGPIPE, SIG_IGN);
    FileStore store(directory);
    GlooWorld world(store, rank, {});
    work("gloo", rank, size, rounds, [&](kernels::Backend& backend, const std::vector<std::int64_t>& group) {
      return world.communicator(backend, group, "all");
    });
  });
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace trainerd::bench

int main(int argc, char** argv) {
  using namespace trainerd::bench;
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 500;
  std::printf("| operation | ranks | tensor | world | median |\n|---|---|---|---|---|\n");
  std::fflush(stdout);
  for (const std::int64_t size : {2, 4}) {
    run_shm(size, rounds, 0);
    run_shm(size, rounds, 2e-5);
    run_gloo(size, rounds);
  }
}
