#include "kernels/cuda/backend/cuda_backend.h"
#include "kernels/cuda/gemm/gemm_library.h"
#include "kernels/cuda/launch/gemm_problem.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::kernels::cuda {
namespace {

/// Rounds the operands A [m, k] and B [n, k] of a product to FP8 in scratch, and sets both up for it.
void round_operands(const Launch& launch, std::byte* scratch, GemmProblem& problem, GemmArguments& args,
                    const Tensor& a, RoundToFp8::Blocks a_blocks, const Tensor& b,
                    RoundToFp8::Blocks b_blocks) {
  const bool weight = a_blocks != RoundToFp8::Blocks::columns_transposed;
  const Fp8Scratch place(problem.m, problem.n, problem.k, weight);
  const auto round = [&](const Tensor& x, RoundToFp8::Blocks blocks, std::int64_t out, std::int64_t scales) {
    auto* const factors = reinterpret_cast<float*>(scratch + scales);
    round_to_fp8(launch, {.x_RC = x,
                          .out = reinterpret_cast<std::uint8_t*>(scratch + out),
                          .scales = factors,
                          .blocks = blocks});
    return factors;
  };
  args.a_scales = round(a, a_blocks, place.a, place.a_scales);
  args.b_scales = round(b, b_blocks, place.b, place.b_scales);
  args.a = scratch + place.a, args.b = scratch + place.b;
  problem.format = GemmFormat::fp8, problem.weight = weight;
  problem.transpose_a = true, problem.transpose_b = false;
}

/// out[T, n] = in[T, k] w or w^T (+ addend) (+ bias).
struct LinearCall {
  Tensor in;
  Weight weight;
  bool transposed = false;
  Tensor out;
  Tensor addend = {};
  const std::byte* bias = nullptr;
  std::byte* fp8 = nullptr;  ///< scratch of FP8 operands
};

void run_linear(GemmLibrary& library, const Launch& launch, const LinearCall& c) {
  using Blocks = RoundToFp8::Blocks;
  const Tensor& w = c.weight.plain_NC;
  const std::int64_t T = c.in.size(0), k = w.size(c.transposed ? 1 : 0), n = w.size(c.transposed ? 0 : 1);
  base::check(c.in.shape == Shape{T, k} && c.out.shape == Shape{T, n}, "linear: shapes disagree");
  base::check(w.dtype == c.in.dtype, "linear: activation and weight are of one dtype");
  base::check(c.out.dtype == c.in.dtype || c.out.dtype == DType::f32,
              "linear: the output is in the operands' dtype or fp32");
  base::check(!c.addend.defined() || (c.addend.shape == c.out.shape && c.addend.dtype == c.out.dtype),
              "linear: the addend is like the output");
  if (T == 0) return;
  GemmProblem problem{
      .m = n, .n = T, .k = k, .transpose_a = c.transposed, .in = c.in.dtype, .out = c.out.dtype};
  GemmArguments args{.a = w.data,
                     .b = c.in.data,
                     .c = c.addend.defined() ? c.addend.data : nullptr,
                     .d = c.out.data,
                     .bias = c.bias,
                     .scratch = launch.scratch};
  if (c.weight.format == GemmFormat::fp8) {
    round_operands(launch, c.fp8, problem, args, w,
                   c.transposed ? Blocks::squares : Blocks::squares_transposed, c.in, Blocks::rows);
  }
  library.run(launch.stream, problem, args);
}

}  // namespace

// cuBLASLt reads plain weights; there is no prepared form.
std::int64_t CudaBackend::prepared_bytes(const PrepareWeight& args) const {
  return kernels::prepared_bytes(args, target_);
}

void CudaBackend::prepare_weight(Stream&, const PrepareWeight& args) {
  base::check(args.out.bytes() == prepared_bytes(args), "prepare weight: the form has another size");
}

void CudaBackend::linear_fprop(Stream& stream, const LinearFprop& a) {
  const ArenaScope scope(stream.scratch());
  const FpropScratch plan(a, target_);
  std::byte* scratch = take_scratch(stream, a);
  const std::byte* bias = nullptr;
  if (a.bias_N.defined()) {
    base::check(a.bias_N.numel() == a.y_TN.size(1), "linear: one bias for each output feature");
    bias = a.bias_N.data;
    if (a.bias_N.dtype != a.y_TN.dtype) {
      // The library only adds a bias in the output's dtype, so round it first.
      const Tensor rounded{scratch + plan.bias, a.y_TN.dtype, a.bias_N.shape};
      cuda::cast({.stream = stream_of(stream), .target = target_}, {.in = a.bias_N, .out = rounded});
      bias = rounded.data;
    }
  }
  run_linear(*gemms_, {.stream = stream_of(stream), .target = target_, .scratch = scratch},
             {.in = a.x_TC,
              .weight = a.weight,
              .transposed = true,
              .out = a.y_TN,
              .addend = a.addend_TN,
              .bias = bias,
              .fp8 = scratch + plan.fp8});
}

void CudaBackend::linear_dgrad(Stream& stream, const LinearDgrad& a) {
  const ArenaScope scope(stream.scratch());
  std::byte* scratch = take_scratch(stream, a);
  run_linear(*gemms_, {.stream = stream_of(stream), .target = target_, .scratch = scratch},
             {.in = a.dy_TN,
              .weight = a.weight,
              .out = a.dx_TC,
              .addend = a.mode == WriteMode::accumulate ? a.dx_TC : Tensor{},
              .fp8 = scratch + gemm_scratch(target_)});
}

void CudaBackend::linear_wgrad(Stream& stream, const LinearWgrad& a) {
  const Tensor &dy = a.dy_TN, &x = a.x_TC, &dw = a.dweight_NC;
  const std::int64_t T = dy.size(0), N = dw.size(0), C = dw.size(1);
  base::check(dy.shape == Shape{T, N} && x.shape == Shape{T, C} && dy.dtype == x.dtype,
              "linear_wgrad: shapes or dtypes disagree");
  if (T == 0) {
    if (a.mode == WriteMode::accumulate) return;
    fill_zero(stream, dw);
    if (a.dbias_N.defined()) fill_zero(stream, a.dbias_N);
    return;
  }
  const ArenaScope scope(stream.scratch());
  const WgradScratch plan(a, target_);
  std::byte* scratch = take_scratch(stream, a);
  const Launch launch{.stream = stream_of(stream), .target = target_, .scratch = scratch};
  // Separate from the GEMM: its epilogue can only overwrite a bias gradient, not add to it.
  if (a.dbias_N.defined()) column_sums(launch, {.x_TN = dy, .out_N = a.dbias_N, .mode = a.mode});
  const bool through_scratch = wgrad_through_scratch(a);
  const Tensor out = through_scratch ? Tensor{scratch + plan.dweight, DType::f32, dw.shape} : dw;
  const bool add = a.mode == WriteMode::accumulate && !through_scratch;
  GemmProblem problem{.m = C, .n = N, .k = T, .transpose_b = true, .in = x.dtype, .out = out.dtype};
  GemmArguments operands{
      .a = x.data, .b = dy.data, .c = add ? out.data : nullptr, .d = out.data, .scratch = scratch};
  if (a.format == GemmFormat::fp8)
    round_operands(launch, scratch + plan.fp8, problem, operands, x, RoundToFp8::Blocks::columns_transposed,
                   dy, RoundToFp8::Blocks::columns_transposed);
  gemms_->run(launch.stream, problem, operands);
  if (through_scratch) accumulate(launch, {.x = out, .out = dw, .mode = a.mode});
}

void CudaBackend::linear_swiglu(Stream& stream, const LinearSwiglu& a) {
  const ArenaScope scope(stream.scratch());
  std::byte* scratch = take_scratch(stream, a);
  const Launch launch{.stream = stream_of(stream), .target = target_, .scratch = scratch};
  run_linear(*gemms_, launch,
             {.in = a.x_TC,
              .weight = a.weight,
              .transposed = true,
              .out = a.gate_up_T2F,
              .fp8 = scratch + gemm_scratch(target_)});
  cuda::glu_forward(launch, {.gate = a.gate, .gate_up_T2F = a.gate_up_T2F, .act_TF = a.act_TF});
}

void CudaBackend::linear_dgrad_swiglu(Stream& stream, const LinearDgradSwiglu& a) {
  const ArenaScope scope(stream.scratch());
  const DgradSwigluScratch plan(a, target_);
  std::byte* scratch = take_scratch(stream, a);
  const Tensor dact{scratch + plan.dact, a.dy_TD.dtype, {a.dy_TD.size(0), a.weight.plain_NC.size(1)}};
  const Launch launch{.stream = stream_of(stream), .target = target_, .scratch = scratch};
  run_linear(*gemms_, launch, {.in = a.dy_TD, .weight = a.weight, .out = dact, .fp8 = scratch + plan.fp8});
  cuda::glu_backward(launch, {.gate = a.gate,
                              .dact_TF = dact,
                              .gate_up_T2F = a.gate_up_T2F,
                              .dgate_up_T2F = a.dgate_up_T2F,
                              .act_TF = a.act_TF});
}

}  // namespace trainerd::kernels::cuda
