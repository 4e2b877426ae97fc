// The CUDA backend on real device memory, used as in training: asynchronous streams, copies through the
// pinned ring.

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "kernels/backend/cuda_plugin.h"
#include "kernels/base/error.h"
#include "kernels/scratch/scratch.h"
#include "tests/kernels/machine.h"

namespace trainerd::test {
namespace {

using kernels::MemoryKind;

/// A stream with scratch, and tensors in device memory.
class Device {
 public:
  explicit Device(std::int64_t scratch_bytes = std::int64_t{256} << 20)
      : backend_(kernels::open_cuda_plugin().make_backend(0)) {
    scratch_memory_ = backend_->allocate(MemoryKind::device, scratch_bytes);
    scratch_ = kernels::Arena("scratch", scratch_memory_.data(), scratch_bytes);
    stream_ = backend_->make_stream("compute", &scratch_);
  }
  kernels::Backend& backend() { return *backend_; }
  kernels::Stream& stream() { return *stream_; }
  Tensor empty(DType dtype, const Shape& shape) {
    memory_.push_back(backend_->allocate(MemoryKind::device, shape.numel() * kernels::size_of(dtype)));
    return {memory_.back().data(), dtype, shape};
  }
  std::vector<std::byte> read(const Tensor& x) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(x.bytes()), std::byte{9});
    backend_->read_back(*stream_, x, bytes);
    return bytes;
  }

 private:
  std::unique_ptr<kernels::Backend> backend_;
  kernels::Buffer scratch_memory_;
  kernels::Arena scratch_;
  std::unique_ptr<kernels::Stream> stream_;
  std::vector<kernels::Buffer> memory_;
};

std::vector<std::byte> pattern(std::int64_t n) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 256);
  return bytes;
}

Tensor upload(Device& d, const Values& values, DType dtype, const Shape& shape) {
  const Tensor t = d.empty(dtype, shape);
  std::vector<std::byte> bytes(static_cast<std::size_t>(t.bytes()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float value = static_cast<float>(values[i]);
    const kernels::Bf16 narrow = kernels::to_bf16(value);
    if (dtype == DType::bf16) std::memcpy(bytes.data() + 2 * i, &narrow, 2);
    else std::memcpy(bytes.data() + 4 * i, &value, 4);
  }
  d.backend().write(d.stream(), bytes, t);
  return t;
}

}  // namespace

TEST_CASE("device memory reads as zero, and an allocation beyond it is a capacity error", "[cuda]") {
  Device d;
  for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{4096}, (std::int64_t{9} << 20) + 64}) {
    const std::vector<std::byte> read = d.read(d.empty(DType::u8, {bytes}));
    CHECK(std::all_of(read.begin(), read.end(), [](std::byte b) { return b == std::byte{0}; }));
  }
  CHECK_THROWS_AS(d.backend().allocate(MemoryKind::device, std::int64_t{1} << 50), base::CapacityError);
  // The failure leaves no error state for the next call.
  const Tensor x = d.empty(DType::f32, {1000});
  CHECK_NOTHROW(d.backend().scale(d.stream(), {.x = x, .factor = 2.0f, .out = x}));
}

TEST_CASE("write, copy, fill and read back move every byte, also of tensors larger than the ring", "[cuda]") {
  Device d;
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{1000003}, std::int64_t{77000001}}) {
    const Tensor x = d.empty(DType::u8, {n}), y = d.empty(DType::u8, {n});
    std::vector<std::byte> bytes = pattern(n);
    const std::vector<std::byte> kept = bytes;
    d.backend().write(d.stream(), bytes, x);
    std::fill(bytes.begin(), bytes.end(), std::byte{0});  // the source may be reused
    d.backend().copy(d.stream(), x, y);
    CHECK(d.read(y) == kept);
    d.backend().fill_zero(d.stream(), y);
    CHECK(d.read(y) == std::vector<std::byte>(kept.size(), std::byte{0}));
    CHECK(d.read(x) == kept);
  }
}

TEST_CASE("many small writes keep their order and their bytes", "[cuda]") {
  Device d;
  const Tensor x = d.empty(DType::i32, {500});
  for (std::int32_t i = 0; i < 500; ++i) {
    const std::int32_t value = i * i;
    d.backend().write(d.stream(), std::as_bytes(std::span(&value, 1)), x.rows(i, 1));
  }
  const std::vector<std::byte> read = d.read(x);
  for (std::int32_t i = 0; i < 500; ++i) {
    std::int32_t value = 0;
    std::memcpy(&value, read.data() + i * 4, 4);
    CHECK(value == i * i);
  }
}

TEST_CASE("a stream waits for an event of another, and events measure the time between them", "[cuda]") {
  Device d;
  kernels::Backend& b = d.backend();
  kernels::Arena none;
  const auto other = b.make_stream("other", &none);
  const auto first = b.make_event(), second = b.make_event();
  CHECK_THROWS_AS(b.elapsed_seconds(*first, *second), std::logic_error);
  const std::int64_t n = std::int64_t{64} << 20;
  const Tensor x = d.empty(DType::f32, {n}), y = d.empty(DType::f32, {n});
  const float one = 1.0f;
  b.write(d.stream(), std::as_bytes(std::span(&one, 1)), x.rows(n - 1, 1));
  b.record(d.stream(), *first);
  for (int i = 0; i < 10; ++i) b.scale(d.stream(), {.x = x, .factor = 2.0f, .out = x});
  b.record(d.stream(), *second);
  b.wait(*other, *second);
  b.copy(*other, x, y);
  std::array<float, 1> last{};
  b.read_back(*other, y.rows(n - 1, 1), std::as_writable_bytes(std::span(last)));
  CHECK(last[0] == 1024.0f);
  CHECK(b.elapsed_seconds(*first, *second) > 1e-5);
  CHECK(b.elapsed_seconds(*second, *first) < -1e-5);
}

TEST_CASE("GEMMs of a model's size match float64 at sampled places, and repeat bit for bit", "[cuda][gemm]") {
  Device d;
  kernels::Backend& b = d.backend();
  const std::int64_t T = 1000, N = 1536, C = 2048;
  for (const DType dtype : kActivationDtypes) {
    const Values x = normal_values(T * C, 1, dtype), w = normal_values(N * C, 2, dtype),
                 dy = normal_values(T * N, 3, dtype);
    const Tensor tx = upload(d, x, dtype, {T, C}), tw = upload(d, w, dtype, {N, C}),
                 tdy = upload(d, dy, dtype, {T, N});
    const Tensor y = d.empty(DType::f32, {T, N}), dx = d.empty(dtype, {T, C}),
                 dw = d.empty(DType::f32, {N, C});
    std::array<std::vector<std::byte>, 3> first;
    for (const int turn : {0, 1}) {
      b.linear_fprop(d.stream(), {.x_TC = tx, .weight = {tw, {}}, .bias_N = {}, .addend_TN = {}, .y_TN = y});
      b.linear_dgrad(d.stream(), {.dy_TN = tdy, .weight = {tw, {}}, .dx_TC = dx});
      b.linear_wgrad(
          d.stream(),
          {.dy_TN = tdy, .x_TC = tx, .dweight_NC = dw, .dbias_N = {}, .mode = kernels::WriteMode::assign});
      const std::array<std::vector<std::byte>, 3> now{d.read(y), d.read(dx), d.read(dw)};
      if (turn == 0) first = now;
      CHECK(now == first);
    }
    const auto f32 = [](const std::vector<std::byte>& bytes, std::int64_t i) {
      float value = 0;
      std::memcpy(&value, bytes.data() + 4 * i, 4);
      return static_cast<double>(value);
    };
    Values got_y, want_y, got_dw, want_dw;
    for (std::int64_t s = 0; s < 300; ++s) {
      const std::int64_t t = s * 7919 % T, n = s * 104729 % N, c = s * 1299709 % C;
      double sum_y = 0, sum_dw = 0;
      for (std::int64_t k = 0; k < C; ++k)
        sum_y += x[static_cast<std::size_t>(t * C + k)] * w[static_cast<std::size_t>(n * C + k)];
      for (std::int64_t k = 0; k < T; ++k)
        sum_dw += dy[static_cast<std::size_t>(k * N + n)] * x[static_cast<std::size_t>(k * C + c)];
      got_y.push_back(f32(first[0], t * N + n));
      want_y.push_back(sum_y);
      got_dw.push_back(f32(first[2], n * C + c));
      want_dw.push_back(sum_dw);
    }
    INFO(kernels::name_of(dtype));
    CHECK(scaled_error(got_y, want_y) <= tolerance(DType::f32, C));
    CHECK(scaled_error(got_dw, want_dw) <= tolerance(DType::f32, T));
  }
}

TEST_CASE("the device's target has its properties", "[cuda]") {
  const kernels::CudaPlugin cuda = kernels::open_cuda_plugin();
  const kernels::Target target = cuda.describe(0);
  CHECK(target.kind == kernels::DeviceKind::cuda);
  CHECK(target.sm_version >= 80);
  CHECK(target.sm_count > 0);
  CHECK(!target.name.empty());
  CHECK(cuda.memory_bytes(0) > (std::int64_t{1} << 30));
  CHECK(Device().backend().target().name == target.name);
}

TEST_CASE("timed GEMM algorithms give the right product, and the same bits wherever they are used",
          "[cuda]") {
  constexpr std::int64_t T = 512, N = 384, C = 256;
  const kernels::OpClass gemm =
      kernels::gemm_class(kernels::GemmRole::fprop, DType::bf16, DType::bf16, T, N, C);
  const Values x = normal_values(T * C, 1, DType::bf16), w = normal_values(N * C, 2, DType::bf16, 0.05);
  std::string choices;
  std::vector<std::byte> first;
  for (int run = 0; run < 2; ++run) {
    Device d;
    if (run == 0) choices = d.backend().time_gemms(std::span(&gemm, 1));
    d.backend().use_gemms(choices);
    const Tensor x_TC = upload(d, x, DType::bf16, {T, C}), w_NC = upload(d, w, DType::bf16, {N, C}),
                 y_TN = d.empty(DType::bf16, {T, N});
    d.backend().linear_fprop(d.stream(), {.x_TC = x_TC,
                                          .weight = {.plain_NC = w_NC, .prepared = {}},
                                          .bias_N = {},
                                          .addend_TN = {},
                                          .y_TN = y_TN});
    const std::vector<std::byte> y = d.read(y_TN);
    if (run == 0) first = y;
    CHECK(y == first);
    for (const std::int64_t t : {std::int64_t{0}, T - 1})
      for (const std::int64_t n : {std::int64_t{0}, N - 1}) {
        double sum = 0;
        for (std::int64_t c = 0; c < C; ++c)
          sum += x[static_cast<std::size_t>(t * C + c)] * w[static_cast<std::size_t>(n * C + c)];
        kernels::Bf16 got;
        std::memcpy(&got, y.data() + 2 * (t * N + n), 2);
        CHECK(static_cast<double>(kernels::to_float(got)) ==
              Approx(sum).epsilon(std::ldexp(1.0, -8)).margin(1e-4));
      }
  }
  CHECK_THROWS_AS(Device().backend().use_gemms("another text"), base::DeviceError);
}

}  // namespace trainerd::test
