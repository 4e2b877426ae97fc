#include "core/plan/calibrate/calibrate_links.h"

#include <unistd.h>

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/plan/calibrate/operator_samples.h"
#include "kernels/base/clock.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu_backend.h"
#include "parallel/comm/shm/shm_world.h"

namespace trainerd::core::plan {
namespace {

using namespace parallel;
using kernels::DType;
using kernels::Tensor;

constexpr std::array kOperations = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                    "broadcast",  "barrier",    "message"};
constexpr std::array<std::int64_t, 7> kBytes{64, 4096, 65536, 1 << 18, 1 << 20, 1 << 22, 1 << 24};
constexpr int kRounds = 25, kFewestRounds = 3;

/// `x` is the whole tensor, `part` is this rank's part, and `other` has the size of `x`.
void once(const std::string& operation, Communicator& comm, kernels::Stream& stream, const Tensor& x,
          const Tensor& part, const Tensor& other) {
  const CommOptions options{.label = "calibrate"};
  if (operation == "all_reduce") return comm.all_reduce(stream, x, ReduceOp::sum, options)->wait(stream);
  if (operation == "all_gather") return comm.all_gather(stream, part, x, options)->wait(stream);
  if (operation == "reduce_scatter") return comm.reduce_scatter(stream, x, part, options)->wait(stream);
  if (operation == "all_to_all") return comm.all_to_all(stream, x, other, options)->wait(stream);
  if (operation == "broadcast") return comm.broadcast(stream, x, 0, options)->wait(stream);
  if (operation == "barrier") return comm.barrier(stream, options)->wait(stream);
  // "message": even and odd neighbours form a pair, and each sends to the other in turn.
  const std::int64_t peer = comm.rank() ^ 1;
  if (peer >= comm.size()) return;
  const Transfer transfer{peer, x};
  if (comm.rank() < peer) {
    comm.exchange(stream, {&transfer, 1}, {}, options)->wait(stream);
    comm.exchange(stream, {}, {&transfer, 1}, options)->wait(stream);
  } else {
    comm.exchange(stream, {}, {&transfer, 1}, options)->wait(stream);
    comm.exchange(stream, {&transfer, 1}, {}, options)->wait(stream);
  }
}

MeasuredRates::Operators measure_rank(const ShmWorld& world, const std::vector<std::int64_t>& ranks,
                                      std::int64_t rank, int threads, double late) {
  base::ThreadPool pool(threads);
  kernels::CpuBackend backend(kernels::detect_cpu(threads), pool);
  const auto stream = backend.make_stream("calibrate", nullptr);
  const auto comm = world.communicator(backend, ranks, "all");
  const kernels::Buffer memory = backend.allocate(kernels::MemoryKind::device, 2 * kBytes.back());
  std::map<std::pair<std::string, std::int64_t>, std::vector<double>> seconds;
  const std::int64_t size = static_cast<std::int64_t>(ranks.size());
  for (int round = -2; round < kRounds; ++round) {
    // All ranks use the clock of rank 0.
    std::int32_t over = round >= kFewestRounds && base::monotonic_seconds() > late ? 1 : 0;
    const Tensor word{reinterpret_cast<std::byte*>(&over), DType::i32, {1}};
    comm->broadcast(*stream, word, 0, {.label = "calibrate"})->wait(*stream);
    if (over != 0) break;
    for (const std::int64_t bytes : kBytes)
      for (const char* operation : kOperations) {
        if (operation == std::string("barrier") && bytes != kBytes.front()) continue;
        const std::int64_t count = bytes / 4 / size * size;
        const Tensor x{memory.data(), DType::f32, {count}},
            other{memory.data() + kBytes.back(), DType::f32, {count}};
        comm->barrier(*stream, {.label = "ready"})->wait(*stream);
        const double begin = base::monotonic_seconds();
        once(operation, *comm, *stream, x, x.rows(rank * (count / size), count / size), other);
        const double took = base::monotonic_seconds() - begin;
        if (round >= 0)
          seconds[{operation, bytes}].push_back(operation == std::string("message") ? took / 2 : took);
      }
  }
  MeasuredRates::Operators curves;
  for (const auto& [what, took] : seconds) {
    curves[what.first].push_back(static_cast<double>(what.second));
    curves[what.first].push_back(median(took));
  }
  return curves;
}

}  // namespace

MeasuredRates::Operators measure_collectives(const Topology& node, double late) {
  constexpr double kSpinSeconds = 100e-6;  // as for workers that have their own cores
  std::vector<std::int64_t> ranks;
  for (std::int64_t rank = 0; rank < node.devices_per_node; ++rank) ranks.push_back(rank);
  const ShmLayout layout{.ranks = node.devices_per_node,
                         .groups = {{.name = "all", .ranks = ranks, .ring_bytes = 8 << 20}}};
  const base::Segment segment = make_shm_segment(layout);
  MeasuredRates::Operators curves;
  std::exception_ptr failed;
  std::mutex mutex;
  {
    std::vector<std::jthread> threads;
    for (const std::int64_t rank : ranks)
      threads.emplace_back([&, rank] {
        try {
          const ShmWorld world(base::Segment::attach(base::UniqueFd(::dup(segment.fd()))), layout, rank,
                               {.deadline_seconds = 60, .spin_seconds = kSpinSeconds});
          MeasuredRates::Operators mine = measure_rank(world, ranks, rank, node.device.threads, late);
          if (rank == 0) curves = std::move(mine);
        } catch (const std::exception& e) {
          const std::lock_guard lock(mutex);
          if (!failed) failed = std::current_exception();
          abort_shm(segment, e.what());
        }
      });
  }
  if (failed) std::rethrow_exception(failed);
  return curves;
}

}  // namespace trainerd::core::plan
