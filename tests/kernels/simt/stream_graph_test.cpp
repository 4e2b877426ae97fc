// CUDA graphs of our own kernels, on a simulated runtime with capture (simt.h).

#include "kernels/cuda/runtime/stream_graph.h"

#include "kernels/cuda/kernels/kernels.h"
#include "tests/kernels/machine.h"
#include "tests/kernels/simt/device_memory.h"

namespace trainerd::test {
namespace {

using kernels::cuda::Launch;
using kernels::cuda::StreamGraph;

/// A valid stream handle.
cudaStream_t some_stream() {
  static char stream;
  return &stream;
}

struct Tensors {
  explicit Tensors(Machine& m)
      : x(m.tensor(DType::f32, {64}, normal_values(64, 1, DType::f32))),
        y(m.empty(DType::f32, {64})),
        sum(m.empty(DType::f64, {1})),
        scratch(m.empty(DType::u8, {1 << 16})) {}
  Tensor x, y, sum, scratch;
};

/// y = x + 2 x, then its sum: at least four kernels, each of which reads the result of the one before.
void put(const Launch& launch, const Tensors& t) {
  kernels::cuda::scale(launch, {.x = t.x, .factor = 2, .out = t.y});
  kernels::cuda::add(launch, {.a = t.x, .b = t.y, .out = t.y});
  kernels::cuda::check(cudaMemsetAsync(t.sum.data, 0, 8, launch.stream), "memset");
  kernels::cuda::ordered_sum(launch, {.x = t.y, .out = t.sum, .mode = kernels::WriteMode::accumulate});
}

}  // namespace

TEST_CASE("a captured stream runs nothing, and its graph runs the captured work on the memory at launch",
          "[stream_graph]") {
  Machine m(kernels::Isa::portable, 1), other(kernels::Isa::portable, 1);
  const Tensors direct(m), captured(other);
  const auto launch = [](Machine& on, const Tensors& t, cudaStream_t stream) {
    return Launch{.stream = stream, .target = on.backend().target(), .scratch = t.scratch.data};
  };
  const std::vector<std::byte> before = read_bytes(captured.y);
  const StreamGraph graph(some_stream(), [&] { put(launch(other, captured, some_stream()), captured); });
  CHECK(read_bytes(captured.y) == before);
  for (const double factor : {1.0, -3.0}) {
    Values values = normal_values(64, 2, DType::f32);
    std::vector<float> x;
    for (const double v : values) x.push_back(static_cast<float>(factor * v));
    write_bytes(std::as_bytes(std::span(x)), direct.x);
    write_bytes(std::as_bytes(std::span(x)), captured.x);
    put(launch(m, direct, nullptr), direct);
    graph.launch(nullptr);
    CHECK(read_bytes(captured.y) == read_bytes(direct.y));
    CHECK(read_bytes(captured.sum) == read_bytes(direct.sum));
    CHECK(read_bytes(captured.y) != before);
  }
}

TEST_CASE("work that cannot be captured is an error, and the stream stays usable", "[stream_graph]") {
  Machine m(kernels::Isa::portable, 1);
  const Tensors t(m);
  const Launch launch{.stream = some_stream(), .target = m.backend().target(), .scratch = t.scratch.data};
  const auto capture = [&](const std::function<void()>& last) {
    const StreamGraph graph(some_stream(), [&] { put(launch, t), last(); });
  };
  CHECK_THROWS_AS(capture([&] { kernels::cuda::check(cudaStreamSynchronize(some_stream()), "waiting"); }),
                  base::DeviceError);
  // Detected at the end of the capture.
  CHECK_THROWS_WITH(capture([&] { cudaStreamSynchronize(some_stream()); }),
                    Catch::Contains("ending a capture") && Catch::Contains("Invalidated"));
  CHECK_THROWS_AS(capture([] { throw std::logic_error("of an operator"); }), std::logic_error);
  CHECK_NOTHROW(capture([] {}));
  const std::vector<std::byte> before = read_bytes(t.y);
  put(launch, t);
  CHECK(read_bytes(t.y) != before);
}

}  // namespace trainerd::test
