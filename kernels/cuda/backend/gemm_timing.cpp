#include <algorithm>
#include <set>

#include "kernels/base/clock.h"
#include "kernels/cuda/backend/cuda_backend.h"
#include "kernels/cuda/gemm/gemm_library.h"
#include "kernels/cuda/launch/gemm_problem.h"

namespace trainerd::kernels::cuda {
namespace {

/// Calls per measurement: enough that their time is well above the resolution of events.
constexpr int kCalls = 4;
/// For all problems together. The other ranks wait meanwhile.
constexpr double kTimingSeconds = 90;

/// Identifies what choices depend on, besides the problem.
std::string made_with(const Target& target) { return target.gemm_library + " on " + target.name; }

/// Fills operands with normal numbers, as in training. Power, and so the clock rate, depends on the values
/// multiplied.
void fill_normal(Backend& backend, Stream& stream, std::byte* place, std::int64_t bytes, DType dtype) {
  constexpr std::int64_t kBlock = std::int64_t{1} << 20;
  const Buffer memory =
      backend.allocate(MemoryKind::device, kBlock * (size_of(DType::f32) + size_of(DType::bf16)));
  const Tensor normal{memory.data(), DType::f32, {kBlock}},
      rounded{memory.data() + normal.bytes(), dtype == DType::f16 ? DType::f16 : DType::bf16, {kBlock}};
  backend.init_normal(stream, {.x = normal,
                               .key = 1,
                               .stddev = 1,
                               .rows = 1,
                               .columns = kBlock,
                               .logical_rows = 1,
                               .logical_columns = kBlock});
  if (dtype != DType::f32) backend.cast(stream, {.in = normal, .out = rounded});
  const Tensor& block = dtype != DType::f32 ? rounded : normal;
  const std::int64_t count = bytes / size_of(dtype);
  for (std::int64_t done = 0; done < count; done += kBlock) {
    const Shape shape{std::min(kBlock, count - done)};
    backend.copy(stream, {block.data, dtype, shape}, {place + done * size_of(dtype), dtype, shape});
  }
  const std::unique_ptr<Event> filled = backend.make_event();
  backend.record(stream, *filled);
  backend.wait_host(*filled);
}

}  // namespace

BackendCounters CudaBackend::counters() const {
  BackendCounters counters = counters_;
  counters.missed_gemm_choices = gemms_->missed_choices();
  return counters;
}

std::string CudaBackend::time_gemms(std::span<const OpClass> gemms) {
  std::set<GemmProblem> problems;
  for (const OpClass& gemm : gemms) problems.insert(problem_of(gemm));
  std::int64_t a = 0, b = 0, c = 0, bias = 0;
  for (const GemmProblem& p : problems) {
    a = std::max(a, align_up(p.m * p.k * size_of(p.in), kCudaAlignment));
    b = std::max(b, align_up(p.n * p.k * size_of(p.in), kCudaAlignment));
    c = std::max(c, align_up(p.m * p.n * size_of(p.out), kCudaAlignment));
    bias = std::max(bias, align_up(p.m * size_of(p.out), kCudaAlignment));
  }
  const Buffer memory = allocate(MemoryKind::device, a + b + c + bias + gemm_scratch(target_));
  Arena none;
  const std::unique_ptr<Stream> stream = make_stream("gemm_timing", &none);
  std::byte* at = memory.data();
  const GemmArguments all{.a = at,
                          .b = at + a,
                          .c = at + a + b,
                          .d = at + a + b,
                          .bias = at + a + b + c,
                          .scratch = at + a + b + c + bias};
  const std::unique_ptr<Event> from = make_event(), to = make_event();
  const auto measure = [&](const std::function<void()>& call) {
    call();  // the first call loads what it needs
    record(*stream, *from);
    for (int i = 0; i < kCalls; ++i) call();
    record(*stream, *to);
    wait_host(*to);
    return elapsed_seconds(*from, *to) / kCalls;
  };
  std::vector<GemmChoice> choices;
  DType filled = DType::u8;
  const double end = base::monotonic_seconds() + kTimingSeconds;
  for (const GemmProblem& p : problems) {
    if (filled != p.in) fill_normal(*this, *stream, memory.data(), a + b, p.in);
    filled = p.in;
    GemmArguments args = all;
    if (!p.has_c) args.c = nullptr;
    if (!p.has_bias) args.bias = nullptr;
    // What a problem leaves of its time goes to those after it.
    const double now = base::monotonic_seconds(),
                 until = now + (end - now) / static_cast<double>(problems.size() - choices.size());
    choices.push_back(gemms_->time(stream_of(*stream), p, args, measure,
                                   [until] { return base::monotonic_seconds() > until; }));
  }
  return to_text(made_with(target_), choices);
}

void CudaBackend::use_gemms(const std::string& choices) {
  gemms_->use(parse_choices(choices, made_with(target_)));
}

}  // namespace trainerd::kernels::cuda
