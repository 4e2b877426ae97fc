#include "kernels/cuda/backend/cuda_backend.h"
#include "kernels/cuda/gemm/gemm_library.h"
#include "kernels/cuda/launch/gemm_problem.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::kernels::cuda {
namespace {

void check_plain(const Operand& x) {
  base::check(x.scale_mode == ScaleMode::none, "no scaled GEMM operands on CUDA yet");
}

/// out[T, n] = in[T, k] w or w^T (+ addend) (+ bias).
void run_linear(GemmLibrary& library, cudaStream_t stream, const Tensor& in, const Weight& weight,
                bool transposed, const Tensor& out, const Tensor& addend, const std::byte* bias,
                std::byte* scratch) {
  const Tensor& w = weight.plain_NC;
  const std::int64_t T = in.size(0), k = w.size(transposed ? 1 : 0), n = w.size(transposed ? 0 : 1);
  base::check(in.shape == Shape{T, k} && out.shape == Shape{T, n}, "linear: shapes disagree");
  base::check(w.dtype == in.dtype, "linear: activation and weight are of one dtype");
  base::check(out.dtype == in.dtype || out.dtype == DType::f32,
              "linear: the output is in the operands' dtype or fp32");
  base::check(!addend.defined() || (addend.shape == out.shape && addend.dtype == out.dtype),
              "linear: the addend is like the output");
  if (T == 0) return;
  library.run(stream,
              {.m = n,
               .n = T,
               .k = k,
               .transpose_a = transposed,
               .transpose_b = false,
               .in = in.dtype,
               .out = out.dtype},
              {.a = w.data,
               .b = in.data,
               .c = addend.defined() ? addend.data : nullptr,
               .d = out.data,
               .bias = bias,
               .scratch = scratch});
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
  check_plain(a.x_TC);
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
  run_linear(*gemms_, stream_of(stream), a.x_TC.data, a.weight, true, a.y_TN, a.addend_TN, bias, scratch);
}

void CudaBackend::linear_dgrad(Stream& stream, const LinearDgrad& a) {
  check_plain(a.dy_TN);
  const ArenaScope scope(stream.scratch());
  run_linear(*gemms_, stream_of(stream), a.dy_TN.data, a.weight, false, a.dx_TC,
             a.mode == WriteMode::accumulate ? a.dx_TC : Tensor{}, nullptr, take_scratch(stream, a));
}

void CudaBackend::linear_wgrad(Stream& stream, const LinearWgrad& a) {
  check_plain(a.dy_TN);
  check_plain(a.x_TC);
  const Tensor &dy = a.dy_TN.data, &x = a.x_TC.data, &dw = a.dweight_NC;
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
  gemms_->run(
      launch.stream,
      {.m = C, .n = N, .k = T, .transpose_a = false, .transpose_b = true, .in = x.dtype, .out = out.dtype},
      {.a = x.data, .b = dy.data, .c = add ? out.data : nullptr, .d = out.data, .scratch = scratch});
  if (through_scratch) accumulate(launch, {.x = out, .out = dw, .mode = a.mode});
}

void CudaBackend::linear_swiglu(Stream& stream, const LinearSwiglu& a) {
  check_plain(a.x_TC);
  const ArenaScope scope(stream.scratch());
  run_linear(*gemms_, stream_of(stream), a.x_TC.data, a.weight, true, a.gate_up_T2F, {}, nullptr,
             take_scratch(stream, a));
  cuda::glu_forward({.stream = stream_of(stream), .target = target_},
                    {.gate = a.gate, .gate_up_T2F = a.gate_up_T2F, .act_TF = a.act_TF});
}

void CudaBackend::linear_dgrad_swiglu(Stream& stream, const LinearDgradSwiglu& a) {
  check_plain(a.dy_TD);
  const ArenaScope scope(stream.scratch());
  const DgradSwigluScratch plan(a, target_);
  std::byte* scratch = take_scratch(stream, a);
  const Tensor dact{
      scratch + plan.dact, a.dy_TD.data.dtype, {a.dy_TD.data.size(0), a.weight.plain_NC.size(1)}};
  run_linear(*gemms_, stream_of(stream), a.dy_TD.data, a.weight, false, dact, {}, nullptr, scratch);
  cuda::glu_backward({.stream = stream_of(stream), .target = target_}, {.gate = a.gate,
                                                                        .dact_TF = dact,
                                                                        .gate_up_T2F = a.gate_up_T2F,
                                                                        .dgate_up_T2F = a.dgate_up_T2F,
                                                                        .act_TF = a.act_TF});
}

}  // namespace trainerd::kernels::cuda
