#include "kernels/cpu/gemm_cache.h"

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/fp8.h"
#include "kernels/cpu/kernel_tables.h"
#include "kernels/cpu/tiling/gemm_tiling.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::kernels {

namespace {

/// The kernel and form of the weight for a product that is not widened.
enum class Form : std::uint8_t { library_plain, library_prepared, own_prepared };

/// out[T, n] = in[T, k] B (+ bias) (+ addend), where B is the weight as its role reads it.
struct LinearCall {
  LinearShape shape;
  GemmKey::Right right = GemmKey::Right::plain;  ///< how to read the plain weight
  Tensor in, out;
  Weight weight;
  Tensor bias, addend;
  Form form = Form::library_plain;
};

Form form_of(const LinearShape& s, const Target& target) {
  if (!s.prepared) return Form::library_plain;
  return own_linear(s.in, target) ? Form::own_prepared : Form::library_prepared;
}

LinearCall call_of(const LinearFprop& a, const Target& target) {
  const LinearShape shape = shape_of(a);
  return {shape,       GemmKey::Right::transposed, a.x_TC, a.y_TN, a.weight, a.bias_N,
          a.addend_TN, form_of(shape, target)};
}
LinearCall call_of(const LinearDgrad& a, const Target& target) {
  const LinearShape shape = shape_of(a);
  return {shape,
          GemmKey::Right::plain,
          a.dy_TN,
          a.dx_TC,
          a.weight,
          {},
          a.mode == WriteMode::accumulate ? a.dx_TC : Tensor{},
          form_of(shape, target)};
}

void check_call(const LinearCall& c) {
  const LinearShape& s = c.shape;
  base::check(c.in.shape == Shape{s.tokens, s.k} && c.out.shape == Shape{s.tokens, s.n},
              "linear: shapes disagree");
  base::check(c.weight.plain_NC.dtype == s.in, "linear: activation and weight are of one dtype");
  base::check(!c.bias.defined() || c.bias.numel() == s.n, "linear: one bias for each output feature");
  base::check(!c.addend.defined() || (c.addend.shape == c.out.shape && c.addend.dtype == c.out.dtype),
              "linear: the addend is like the output");
}

GemmKey key_of(const LinearCall& c, std::int64_t rows) {
  GemmKey key;
  key.m = rows;
  key.n = c.shape.n;
  key.k = c.shape.k;
  key.lda = c.shape.k;
  key.ldb = c.right == GemmKey::Right::transposed ? c.shape.k : c.shape.n;
  key.in = c.shape.in;
  key.out = c.out.dtype;
  key.right = c.form == Form::library_prepared ? GemmKey::Right::prepared : c.right;
  if (c.addend.defined())
    key.addend = c.addend.data == c.out.data ? GemmKey::Addend::in_place : GemmKey::Addend::tensor;
  key.has_bias = c.bias.defined();
  key.bias = c.bias.dtype;
  return key;
}

std::byte* at(const Tensor& x, std::int64_t row) {
  return x.defined() ? x.data + row * x.size(1) * size_of(x.dtype) : nullptr;
}

/// Same as `run_blocks`, with our own kernel.
template <class Place, class After>
void run_own_blocks(const GemmKernels& kernels, base::ThreadPool& pool, const LinearCall& c,
                    const Blocks& blocks, const Place& place, const After& after) {
  base::check(c.out.dtype == DType::f32, "linear: the result of fp32 operands is fp32");
  const bool in_place = c.addend.defined() && c.addend.data == c.out.data;
  pool.run(blocks.count, [&](std::int64_t block, int thread) {
    const std::int64_t begin = block * blocks.size, rows = std::min(blocks.size, c.shape.tokens - begin);
    LinearBlock l{.in = reinterpret_cast<const float*>(at(c.in, begin)),
                  .rows = rows,
                  .depth = c.shape.k,
                  .columns = c.shape.n,
                  .prepared = c.weight.prepared.data,
                  .mode = in_place ? WriteMode::accumulate : WriteMode::assign,
                  .bias_dtype = c.bias.dtype,
                  .bias = c.bias.data,
                  .out = reinterpret_cast<float*>(place(begin, thread))};
    if (c.addend.defined() && !in_place) l.addend = reinterpret_cast<const float*>(at(c.addend, begin));
    kernels.linear_block(l);
    after(begin, rows, thread);
  });
}

/// Runs the GEMM in blocks of token rows. The result of rows [begin, begin + rows) is written to
/// `place(begin, thread)`. Then `after(begin, rows, thread)` runs while the result is in cache. Returns true
/// if oneDNN used its reference implementation.
template <class Place, class After>
bool run_blocks(GemmCache& cache, base::ThreadPool& pool, const Target& target, const LinearCall& c,
                const Blocks& blocks, std::byte* scratch, const Place& place, const After& after) {
  if (blocks.count == 0) return false;
  if (c.form == Form::own_prepared) {
    run_own_blocks(gemm_kernels_of(target.isa), pool, c, blocks, place, after);
    return false;
  }
  const Gemm& whole = cache.get(key_of(c, std::min(blocks.size, c.shape.tokens)));
  const std::int64_t last_rows = c.shape.tokens - (blocks.count - 1) * blocks.size;
  const Gemm& last = cache.get(key_of(c, last_rows));
  const std::byte* weight =
      c.form == Form::library_prepared ? c.weight.prepared.data : c.weight.plain_NC.data;
  pool.run(blocks.count, [&](std::int64_t block, int thread) {
    const std::int64_t begin = block * blocks.size;
    const bool is_last = block + 1 == blocks.count;
    (is_last ? last : whole)
        .run(thread, {.a = at(c.in, begin),
                      .b = weight,
                      .bias = c.bias.data,
                      .addend = at(c.addend, begin),
                      .c = place(begin, thread),
                      .scratch = scratch + thread * library_scratch(target)});
    after(begin, is_last ? last_rows : blocks.size, thread);
  });
  return whole.is_reference() || last.is_reference();
}

/// fp16 operands, or bf16 on a machine without bf16 instructions. Converts the input to fp32 once, and the
/// weight in blocks of output features. Results are rounded once. Returns the same as `run_blocks`.
bool run_widened(GemmCache& cache, base::ThreadPool& pool, const Target& target, const VectorKernels& vector,
                 const LinearCall& c, std::byte* scratch) {
  const GemmKernels& kernels = gemm_kernels_of(target.isa);
  const LinearScratch plan(c.shape, target);
  const LinearShape& s = c.shape;
  if (s.tokens == 0) return false;
  auto* const input = reinterpret_cast<float*>(scratch + plan.input);
  pool.run(s.tokens, [&](std::int64_t t, int) {
    vector.cast(s.in, at(c.in, t), DType::f32, reinterpret_cast<std::byte*>(input + t * s.k), s.k);
  });
  const std::int64_t token_rows = std::min(s.tokens, kTokenBlock);
  const auto gemm_of = [&](std::int64_t rows, std::int64_t features) -> const Gemm& {
    GemmKey key;
    key.m = rows;
    key.n = features;
    key.k = s.k;
    key.lda = s.k;
    key.right = c.right;
    key.ldb = c.right == GemmKey::Right::transposed ? s.k : features;
    return cache.get(key);
  };
  // Create all primitives of the loop here, not in its threads.
  bool reference = false;
  for (const std::int64_t features : {std::min(plan.features.size, s.n), (s.n - 1) % plan.features.size + 1})
    for (const std::int64_t rows : {token_rows, (s.tokens - 1) % token_rows + 1})
      reference |= gemm_of(rows, features).is_reference();
  pool.run(plan.features.count, [&](std::int64_t block, int thread) {
    const std::int64_t first = block * plan.features.size,
                       features = std::min(plan.features.size, s.n - first);
    std::byte* const weight = scratch + plan.weight + thread * plan.weight_bytes;
    std::byte* const sums = scratch + plan.sums + thread * plan.sums_bytes;
    if (c.right == GemmKey::Right::transposed)
      vector.cast(s.in, at(c.weight.plain_NC, first), DType::f32, weight, features * s.k);
    else
      for (std::int64_t k = 0; k < s.k; ++k)
        vector.cast(s.in, at(c.weight.plain_NC, k) + first * size_of(s.in), DType::f32,
                    weight + k * features * 4, features);
    for (std::int64_t t = 0; t < s.tokens; t += token_rows) {
      const std::int64_t rows = std::min(token_rows, s.tokens - t);
      gemm_of(rows, features)
          .run(thread, {.a = reinterpret_cast<const std::byte*>(input + t * s.k),
                        .b = weight,
                        .c = sums,
                        .scratch = scratch + plan.library + thread * library_scratch(target)});
      FinishRows f{.sums = reinterpret_cast<const float*>(sums),
                   .sums_stride = features,
                   .rows = rows,
                   .columns = features,
                   .bias_dtype = c.bias.dtype,
                   .dtype = c.out.dtype,
                   .out = at(c.out, t) + first * size_of(c.out.dtype),
                   .out_stride = s.n};
      if (c.bias.defined()) f.bias = c.bias.data + first * size_of(c.bias.dtype);
      if (c.addend.defined()) f.addend = at(c.addend, t) + first * size_of(c.out.dtype);
      kernels.finish_rows(f);
    }
  });
  return reference;
}

bool run_linear(GemmCache& cache, base::ThreadPool& pool, const Target& target, const VectorKernels& vector,
                const LinearCall& c, std::byte* scratch) {
  check_call(c);
  if (widened(c.shape.in, target)) return run_widened(cache, pool, target, vector, c, scratch);
  const Blocks blocks =
      c.form == Form::own_prepared
          ? own_blocks(c.shape.tokens, c.shape.n, c.shape.k, target.threads)
          : library_blocks(c.shape.tokens, kTokenBlock, c.shape.in, c.shape.prepared, target);
  return run_blocks(
      cache, pool, target, c, blocks, scratch, [&](std::int64_t begin, int) { return at(c.out, begin); },
      [](std::int64_t, std::int64_t, int) {});
}

/// The plain product with rounded copies of the operands; `in` is the activation or gradient.
template <class Args>
Args rounded(const Fp8Operands& operands, Args args, Tensor Args::*in) {
  args.*in = operands.by_rows(args.*in);
  args.weight = operands.rounded(args.weight);
  return args;
}

}  // namespace

std::int64_t CpuBackend::prepared_bytes(const PrepareWeight& args) const {
  return kernels::prepared_bytes(args, target_);
}

void CpuBackend::prepare_weight(Stream& stream, const PrepareWeight& args) {
  base::check(args.out.bytes() == prepared_bytes(args), "prepare weight: the form has another size");
  if (args.out.bytes() == 0) return;
  const ArenaScope scope(stream.scratch());
  if (args.format == GemmFormat::fp8) {
    PrepareWeight rounded = args;
    rounded.plain_NC = Fp8Operands(stream.scratch(), pool_, vector_).by_squares(args.plain_NC);
    rounded.format = GemmFormat::plain;
    return prepare_weight(stream, rounded);
  }
  const GemmKernels& kernels = gemm_kernels_of(target_.isa);
  const Tensor& w = args.plain_NC;
  const std::int64_t N = w.size(0), C = w.size(1);
  pool_.run((N + 63) / 64, [&](std::int64_t block, int) {
    if (args.role == GemmRole::fprop) kernels.prepare_fprop(w.dtype, w.data, C, block, args.out.data);
    else
      kernels.prepare_dgrad(w.dtype, w.data, N, C, block * 64, std::min<std::int64_t>(64, N - block * 64),
                            args.out.data);
  });
}

void CpuBackend::linear_fprop(Stream& stream, const LinearFprop& args) {
  const ArenaScope scope(stream.scratch());
  if (args.weight.format == GemmFormat::fp8)
    return linear_fprop(stream, rounded({stream.scratch(), pool_, vector_}, args, &LinearFprop::x_TC));
  std::byte* scratch = stream.scratch().take_bytes(scratch_bytes(args, target_), MemoryTerm::workspace);
  const LinearCall call = call_of(args, target_);
  widened_gemms_ += widened(call.shape.in, target_);
  reference_gemms_ += run_linear(*gemms_, pool_, target_, vector_, call, scratch);
}

void CpuBackend::linear_dgrad(Stream& stream, const LinearDgrad& args) {
  const ArenaScope scope(stream.scratch());
  if (args.weight.format == GemmFormat::fp8)
    return linear_dgrad(stream, rounded({stream.scratch(), pool_, vector_}, args, &LinearDgrad::dy_TN));
  std::byte* scratch = stream.scratch().take_bytes(scratch_bytes(args, target_), MemoryTerm::workspace);
  const LinearCall call = call_of(args, target_);
  widened_gemms_ += widened(call.shape.in, target_);
  reference_gemms_ += run_linear(*gemms_, pool_, target_, vector_, call, scratch);
}

void CpuBackend::linear_swiglu(Stream& stream, const LinearSwiglu& args) {
  const ArenaScope scope(stream.scratch());
  if (args.weight.format == GemmFormat::fp8)
    return linear_swiglu(stream, rounded({stream.scratch(), pool_, vector_}, args, &LinearSwiglu::x_TC));
  std::byte* scratch = stream.scratch().take_bytes(scratch_bytes(args, target_), MemoryTerm::workspace);
  const LinearCall call = call_of(fprop_of(args), target_);
  check_call(call);
  const DType dtype = call.out.dtype;
  const std::int64_t F = args.act_TF.size(1);
  base::check(call.shape.n == 2 * F && args.act_TF.dtype == dtype,
              "linear_swiglu: gate and up are twice as wide");
  const auto glu = [&](std::int64_t begin, std::int64_t rows, int) {
    vector_.glu_forward(dtype, args.gate, at(args.gate_up_T2F, begin), at(args.act_TF, begin), rows, F);
  };
  const Blocks blocks = fused_blocks(call.shape.tokens, dtype, call.shape.prepared, target_);
  if (widened(call.shape.in, target_)) {
    ++widened_gemms_;
    reference_gemms_ += run_linear(*gemms_, pool_, target_, vector_, call, scratch);
    pool_.run(blocks.count, [&](std::int64_t block, int thread) {
      const std::int64_t begin = block * blocks.size;
      glu(begin, std::min(blocks.size, call.shape.tokens - begin), thread);
    });
    return;
  }
  reference_gemms_ += run_blocks(
      *gemms_, pool_, target_, call, blocks, scratch,
      [&](std::int64_t begin, int) { return at(call.out, begin); }, glu);
}

void CpuBackend::linear_dgrad_swiglu(Stream& stream, const LinearDgradSwiglu& args) {
  const ArenaScope scope(stream.scratch());
  if (args.weight.format == GemmFormat::fp8)
    return linear_dgrad_swiglu(stream,
                               rounded({stream.scratch(), pool_, vector_}, args, &LinearDgradSwiglu::dy_TD));
  const DgradSwigluScratch plan(args, target_);
  std::byte* scratch = stream.scratch().take_bytes(scratch_bytes(args, target_), MemoryTerm::workspace);
  const std::int64_t T = args.dy_TD.size(0), F = args.weight.plain_NC.size(1);
  Tensor dact_TF{scratch + plan.dact, args.dy_TD.dtype, Shape{T, F}};
  const LinearCall call = call_of(dgrad_of(args, dact_TF), target_);
  check_call(call);
  const DType dtype = dact_TF.dtype;
  base::check(args.gate_up_T2F.shape == Shape{T, 2 * F} && args.dgate_up_T2F.shape == Shape{T, 2 * F},
              "linear_dgrad_swiglu: gate and up are twice as wide");
  const auto glu = [&](const std::byte* dact, std::int64_t begin, std::int64_t rows) {
    vector_.glu_backward(dtype, args.gate, dact, at(args.gate_up_T2F, begin), at(args.dgate_up_T2F, begin),
                         at(args.act_TF, begin), rows, F);
  };
  if (widened(dtype, target_)) {
    ++widened_gemms_;
    reference_gemms_ += run_linear(*gemms_, pool_, target_, vector_, call, scratch + plan.linear);
    pool_.run(plan.blocks.count, [&](std::int64_t block, int) {
      const std::int64_t begin = block * plan.blocks.size;
      glu(at(dact_TF, begin), begin, std::min(plan.blocks.size, T - begin));
    });
    return;
  }
  const auto place = [&](std::int64_t, int thread) { return scratch + plan.dact + thread * plan.dact_bytes; };
  reference_gemms_ += run_blocks(
      *gemms_, pool_, target_, call, plan.blocks, scratch + plan.linear, place,
      [&](std::int64_t begin, std::int64_t rows, int thread) { glu(place(begin, thread), begin, rows); });
}

}  // namespace trainerd::kernels
