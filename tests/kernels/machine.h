#pragma once

// Shared parts of operator tests: a backend of the test binary's world (world.h), tensors with values, and
// float64 references by finite differences.

#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/cost/cost.h"
#include "kernels/scratch/scratch.h"
#include "tests/full.h"
#include "tests/kernels/tolerance.h"
#include "tests/kernels/world.h"

namespace trainerd::test {

using kernels::DType;
using kernels::Shape;
using kernels::Tensor;
using Values = std::vector<double>;

/// Values as a tensor of `dtype` would hold them.
inline Values rounded(Values values, DType dtype) {
  for (double& v : values) {
    const float f = static_cast<float>(v);
    if (dtype == DType::bf16) v = kernels::to_float(kernels::to_bf16(f));
    if (dtype == DType::f16) v = kernels::to_float(kernels::to_fp16(f));
    if (dtype == DType::f32) v = f;
  }
  return values;
}

/// n normal values, already rounded to `dtype`.
inline Values normal_values(std::int64_t n, unsigned seed, DType dtype, double stddev = 1.0,
                            double mean = 0.0) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal(mean, stddev);
  Values values(static_cast<std::size_t>(n));
  for (double& v : values) v = normal(generator);
  return rounded(std::move(values), dtype);
}

/// A backend with its threads, scratch and one stream. It owns the memory of its tensors.
class Machine {
 public:
  using Maker = std::unique_ptr<kernels::Backend> (*)(const kernels::Target&, base::ThreadPool&);

  Machine(kernels::Isa isa, int threads, bool bf16_gemm = kernels::detect_cpu(1).bf16_gemm,
          Maker make = make_backend)
      : pool_(threads),
        backend_holder_(make(target_of(isa, threads, bf16_gemm), pool_)),
        backend_(*backend_holder_) {
    // The scratch includes a GEMM library's workspace.
    const bool cuda = backend_.target().kind == kernels::DeviceKind::cuda;
    const std::int64_t bytes = cuda ? std::int64_t{64} << 20 : std::int64_t{12} << 20;
    scratch_memory_ = backend_.allocate(kernels::MemoryKind::device, bytes);
    scratch_ = kernels::Arena("scratch", scratch_memory_.data(), bytes);
    stream_ = backend_.make_stream("compute", &scratch_);
  }

  kernels::Backend& backend() { return backend_; }
  kernels::Stream& stream() { return *stream_; }
  kernels::Arena& scratch() { return scratch_; }
  /// Fills the scratch with NaNs, so that reads of unwritten scratch become visible.
  void spoil_scratch() {
    const std::int64_t bytes = scratch_memory_.bytes();
    write_bytes(std::vector<std::byte>(static_cast<std::size_t>(bytes), std::byte{0xff}),
                {scratch_.base(), DType::u8, {bytes}});
  }

  /// Memory of `shape`, which ends at a guard page. All bytes are 0xff, a NaN in fp32, bf16 and fp16, so that
  /// unwritten outputs and reads of them become visible.
  Tensor empty(DType dtype, const Shape& shape) {
    const std::int64_t bytes = shape.numel() * kernels::size_of(dtype);
    memory_.push_back(backend_.allocate(kernels::MemoryKind::device, bytes));
    const Tensor x{memory_.back().data(), dtype, shape};
    write_bytes(std::vector<std::byte>(static_cast<std::size_t>(bytes), std::byte{0xff}), x);
    return x;
  }
  Tensor tensor(DType dtype, const Shape& shape, const Values& values) {
    const Tensor x = empty(dtype, shape);
    REQUIRE(static_cast<std::int64_t>(values.size()) == x.numel());
    std::vector<std::byte> bytes(static_cast<std::size_t>(x.bytes()));
    for (std::size_t i = 0; i < values.size(); ++i) set({bytes.data(), dtype, shape}, i, values[i]);
    write_bytes(bytes, x);
    return x;
  }
  Tensor ids(const std::vector<std::int32_t>& values) {
    return tensor(DType::i32, {static_cast<std::int64_t>(values.size())},
                  Values(values.begin(), values.end()));
  }

  static Values read(const Tensor& x) {
    Values values(static_cast<std::size_t>(x.numel()));
    std::vector<std::byte> bytes = read_bytes(x);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = get({bytes.data(), x.dtype, x.shape}, i);
    return values;
  }

 private:
  static kernels::Target target_of(kernels::Isa isa, int threads, bool bf16_gemm) {
    kernels::Target target;
    target.isa = isa;
    target.threads = threads;
    target.bf16_gemm = bf16_gemm;
    target.amx = bf16_gemm && kernels::detect_cpu(1).amx;
    return target;
  }
  static void set(const Tensor& x, std::size_t i, double value) {
    switch (x.dtype) {
      case DType::f32: reinterpret_cast<float*>(x.data)[i] = static_cast<float>(value); break;
      case DType::bf16:
        reinterpret_cast<kernels::Bf16*>(x.data)[i] = kernels::to_bf16(static_cast<float>(value));
        break;
      case DType::f16:
        reinterpret_cast<kernels::Fp16*>(x.data)[i] = kernels::to_fp16(static_cast<float>(value));
        break;
      case DType::i32: reinterpret_cast<std::int32_t*>(x.data)[i] = static_cast<std::int32_t>(value); break;
      case DType::f64: reinterpret_cast<double*>(x.data)[i] = value; break;
      case DType::u8: x.data[i] = static_cast<std::byte>(static_cast<int>(value)); break;
    }
  }
  static double get(const Tensor& x, std::size_t i) {
    switch (x.dtype) {
      case DType::f32: return reinterpret_cast<const float*>(x.data)[i];
      case DType::bf16: return kernels::to_float(reinterpret_cast<const kernels::Bf16*>(x.data)[i]);
      case DType::f16: return kernels::to_float(reinterpret_cast<const kernels::Fp16*>(x.data)[i]);
      case DType::i32: return reinterpret_cast<const std::int32_t*>(x.data)[i];
      case DType::f64: return reinterpret_cast<const double*>(x.data)[i];
      case DType::u8: return static_cast<double>(x.data[i]);
    }
    return 0;
  }

  base::ThreadPool pool_;
  std::unique_ptr<kernels::Backend> backend_holder_;
  kernels::Backend& backend_;
  kernels::Buffer scratch_memory_;
  kernels::Arena scratch_;
  std::unique_ptr<kernels::Stream> stream_;
  std::vector<kernels::Buffer> memory_;
};

/// False, with a warning, on a CUDA device that does not multiply in FP8.
inline bool multiplies_fp8() {
  Machine m(kernels::Isa::portable, 1);
  const kernels::Target& target = m.backend().target();
  const bool can = target.kind != kernels::DeviceKind::cuda || target.sm_version == 90;
  if (!can) WARN("FP8 was not run: it needs a device of compute capability 9.0");
  return can;
}

/// One output of an operator: its value, its reference, and the length of the sums in it.
struct Output {
  std::string name;
  Tensor actual;
  Values reference;
  std::int64_t length = 1;
};

/// Runs `op` on every instruction set with 1, 2 and 3 threads and asserts that each output is within
/// tolerance of its reference, that the bits do not depend on the number of threads, and that the scratch is
/// free again.
inline void check_operator(const std::function<std::vector<Output>(Machine&)>& op) {
  for (const kernels::Isa isa : instruction_sets()) {
    std::vector<std::vector<std::byte>> first;
    for (const int threads : {1, 2, 3}) {
      Machine machine(isa, threads);
      const std::vector<Output> outputs = op(machine);
      REQUIRE(machine.scratch().top() == 0);
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        const Output& output = outputs[i];
        INFO(output.name << " in " << kernels::name_of(output.actual.dtype) << " on "
                         << kernels::to_string(isa) << " with " << threads << " threads");
        CHECK(scaled_error(Machine::read(output.actual), output.reference) <=
              tolerance(output.actual.dtype, output.length));
        std::vector<std::byte> bits = read_bytes(output.actual);
        if (threads == 1) first.push_back(std::move(bits));
        else CHECK((bits == first[i]));
      }
    }
  }
}

/// Gradient of `loss` at `x` by central differences in float64: with values of about 1 and steps of 1e-4 the
/// error is about 1e-8, far below any tolerance here.
inline Values numeric_gradient(const std::function<double(const Values&)>& loss, Values x) {
  constexpr double kStep = 1e-4;
  Values gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + kStep;
    const double above = loss(x);
    x[i] = at - kStep;
    const double below = loss(x);
    x[i] = at;
    gradient[i] = (above - below) / (2 * kStep);
  }
  return gradient;
}

inline double dot(const Values& a, const Values& b) {
  double total = 0;
  for (std::size_t i = 0; i < a.size(); ++i) total += a[i] * b[i];
  return total;
}

inline Values sum(const Values& a, const Values& b) {
  Values c(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) c[i] = a[i] + b[i];
  return c;
}

constexpr DType kActivationDtypes[] = {DType::f32, DType::bf16, DType::f16};
/// Of gradients of parameters and of optimizer states.
constexpr DType kStateDtypes[] = {DType::f32, DType::bf16};

/// True for bf16 and fp16, for which there are no kernels.
constexpr bool mixed(DType a, DType b) { return a != b && kernels::size_of(a) == kernels::size_of(b); }

/// Thread counts of a case: 1 and alternately 2 or 3; all three in full runs.
inline std::vector<int> thread_counts(std::int64_t turn) {
  if (runs_full()) return {1, 2, 3};
  return {1, turn % 2 == 0 ? 2 : 3};
}

/// A StepControlValues tensor, as an update reads it.
inline Tensor control_tensor(Machine& m, float factor, int skip) {
  kernels::StepControlValues control;
  control.grad_factor = factor;
  control.skip = skip;
  const Tensor values = m.empty(DType::u8, {static_cast<std::int64_t>(sizeof(control))});
  write_bytes(std::as_bytes(std::span(&control, 1)), values);
  return values;
}

}  // namespace trainerd::test
