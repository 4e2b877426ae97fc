// Real NCCL: ranks as threads, each with its own device. On a machine with one device the world has one rank.

#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/backend/cuda_plugin.h"
#include "kernels/base/error.h"
#include "parallel/comm/nccl/nccl_plugin.h"
#include "tests/parallel/comm_program.h"
#include "tests/parallel/nccl/nccl_ranks.h"

using namespace trainerd;
using namespace trainerd::parallel;
using namespace trainerd::test;

namespace {

/// A tensor on the device with small integers, whose sums are exact in any order.
class DeviceTensor {
 public:
  DeviceTensor(kernels::Backend& backend, kernels::Stream& stream, DType dtype, const Values& values)
      : backend_(backend),
        stream_(stream),
        host_(dtype, values),
        memory_(backend.allocate(kernels::MemoryKind::device, (*host_).bytes())),
        tensor_{memory_.data(), dtype, (*host_).shape} {
    backend.copy(stream, *host_, tensor_);
  }
  const Tensor& operator*() const { return tensor_; }
  Values values() {
    backend_.read_back(stream_, tensor_, {(*host_).data, static_cast<std::size_t>(tensor_.bytes())});
    return host_.values();
  }

 private:
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  HostTensor host_;
  kernels::Buffer memory_;
  Tensor tensor_;
};

double small(std::int64_t rank, std::int64_t i) { return static_cast<double>((rank * 7 + i * 3) % 13 - 6); }
Values numbers(std::int64_t rank, std::int64_t count) {
  Values values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(small(rank, i));
  return values;
}

/// Runs every operation of `comm` once; expected results are computed one element at a time.
void every_operation(Communicator& comm, kernels::Backend& backend, kernels::Stream& s, DType dtype,
                     std::int64_t part) {
  const std::int64_t n = comm.size(), me = comm.rank();
  const auto made = [&](std::int64_t count) { return DeviceTensor(backend, s, dtype, numbers(me, count)); };
  const auto expect_each = [&](DeviceTensor& x, const std::string& what, const auto& expected) {
    const Values values = x.values();
    for (std::size_t i = 0; i < values.size(); ++i)
      expect(values[i] == expected(static_cast<std::int64_t>(i)), what + " element " + std::to_string(i));
  };
  const auto sum = [&](std::int64_t i) {
    double total = 0;
    for (std::int64_t r = 0; r < n; ++r) total += small(r, i);
    return total;
  };
  DeviceTensor x = made(part);
  comm.all_reduce(s, *x, ReduceOp::sum, {.label = "sum"})->wait(s);
  expect_each(x, "all_reduce", sum);
  DeviceTensor y = made(part);
  comm.all_reduce(s, *y, ReduceOp::max, {.label = "max"})->wait(s);
  expect_each(y, "maximum", [&](std::int64_t i) {
    double most = small(0, i);
    for (std::int64_t r = 1; r < n; ++r) most = std::max(most, small(r, i));
    return most;
  });
  DeviceTensor a = made(part), all = made(part * n);
  comm.all_gather(s, *a, *all, {.label = "gather"})->wait(s);
  expect_each(all, "all_gather", [&](std::int64_t i) { return small(i / part, i % part); });
  DeviceTensor b = made(part * n);
  const Tensor mine = (*b).rows(me * part, part);  // in place
  comm.reduce_scatter(s, *b, mine, {.label = "scatter"})->wait(s);
  expect_each(b, "reduce_scatter", [&](std::int64_t i) { return i / part == me ? sum(i) : small(me, i); });
  DeviceTensor c = made(part * n), turned = made(part * n);
  comm.all_to_all(s, *c, *turned, {.label = "all_to_all"})->wait(s);
  expect_each(turned, "all_to_all", [&](std::int64_t i) { return small(i / part, me * part + i % part); });
  DeviceTensor d = made(part);
  comm.broadcast(s, *d, n - 1, {.label = "broadcast"})->wait(s);
  expect_each(d, "broadcast", [&](std::int64_t i) { return small(n - 1, i); });
  DeviceTensor out = made(part), in = made(part);
  const std::int64_t from = (me + n - 1) % n;
  const Transfer send{(me + 1) % n, *out}, receive{from, *in};
  comm.exchange(s, {&send, 1}, {&receive, 1}, {.label = "exchange"})->wait(s);
  expect_each(in, "exchange", [&](std::int64_t i) { return small(from, i); });
  comm.barrier(s, {.label = "barrier"})->wait_host(60);
}

}  // namespace

TEST_CASE("NCCL's communicators give the right results, in the world and in groups split from it",
          "[nccl][gpu]") {
  const kernels::CudaPlugin cuda = kernels::open_cuda_plugin();
  const std::int64_t ranks = cuda.device_count();
  if (ranks == 1) WARN("one CUDA device: NCCL was run in a world of one rank alone");
  std::vector<NcclGroup> groups{{"all", all_ranks(ranks)}, {"again", all_ranks(ranks)}};
  if (ranks > 1)
    for (const ProgramGroup& g : program_groups(ranks))
      if (g.name != "all") groups.push_back({g.name, g.ranks});
  const NcclPlugin nccl = open_nccl_plugin();
  const std::string id = nccl.unique_id();
  End end;
  MapStore store;
  run_ranks(ranks, end, [&](std::int64_t rank) {
    const auto backend = cuda.make_backend(static_cast<int>(rank));
    const auto stream = backend->make_stream("test", nullptr);
    NcclOptions options = nccl_options(rank, ranks, id, end, &store);
    options.groups = groups;
    const auto world = nccl.make_world(options);
    for (const NcclGroup& group : groups) {
      if (std::find(group.ranks.begin(), group.ranks.end(), rank) == group.ranks.end() ||
          (group.ranks.size() == 1 && ranks > 1))
        continue;
      const auto comm = world->communicator(*backend, group.ranks, group.name);
      for (const DType dtype : {DType::f32, DType::bf16, DType::f64, DType::i32, DType::f16})
        for (const std::int64_t part : {1, 1000, 300'001})
          every_operation(*comm, *backend, *stream, dtype, part);
    }
    world->throw_if_ended();
  });
  CHECK(end.why().empty());
}

TEST_CASE("a deadline and an abort end the waits of NCCL's ranks", "[nccl][gpu]") {
  const kernels::CudaPlugin cuda = kernels::open_cuda_plugin();
  const std::int64_t ranks = cuda.device_count();
  if (ranks == 1) {
    WARN("one CUDA device: there is nobody whom NCCL could wait for");
    return;
  }
  const NcclPlugin nccl = open_nccl_plugin();
  const std::string id = nccl.unique_id();
  End end;
  MapStore store;
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  run_ranks(ranks, end, [&](std::int64_t rank) {
    const auto backend = cuda.make_backend(static_cast<int>(rank));
    const auto stream = backend->make_stream("test", nullptr);
    NcclOptions options = nccl_options(rank, ranks, id, end, &store);
    options.groups = {{"dp", all_ranks(ranks)}};
    options.deadline_seconds = 3;
    try {
      const auto world = nccl.make_world(options);
      const auto comm = world->communicator(*backend, all_ranks(ranks), "dp");
      DeviceTensor x(*backend, *stream, DType::f32, numbers(rank, 1000));
      comm->barrier(*stream, {.label = "start"})->wait_host(60);
      if (rank == 1)
        while (end.why().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      else comm->all_reduce(*stream, *x, ReduceOp::sum, {.label = "gradients"})->wait(*stream);
      x.values();  // the host's wait for the device ends
      world->throw_if_ended();
    } catch (const base::CommError& error) {
      texts[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  CHECK_THAT(texts[0], Catch::Contains("\"gradients\"") && Catch::Contains("rank 1"));
}
