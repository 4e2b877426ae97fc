#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/cpu/gemm_cache.h"

// Debian's oneDNN uses OpenMP. Our pool must be the only source of threads, so each thread that creates or
// runs a primitive limits its own OpenMP teams to one thread (a thread-local setting; no team ever starts).
extern "C" void omp_set_num_threads(int threads);

namespace trainerd::kernels {
namespace {

dnnl::memory::data_type type_of(DType dtype) {
  base::check(dtype == DType::f32 || dtype == DType::bf16, "a GEMM operand is fp32 or bf16");
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

std::string text_of(const GemmKey& k) {
  return std::string(name_of(k.in)) + " GEMM of " + std::to_string(k.m) + " x " + std::to_string(k.n) +
         " x " + std::to_string(k.k);
}

struct Descs {
  dnnl::memory::desc a, b, bias, c;
};

Descs descs_of(const GemmKey& key) {
  using Tag = dnnl::memory::format_tag;
  const auto in = type_of(key.in);
  Descs d;
  d.a = {{key.m, key.k},
         in,
         key.left == GemmKey::Left::transposed ? dnnl::memory::dims{1, key.lda}
                                               : dnnl::memory::dims{key.lda, 1}};
  if (key.right == GemmKey::Right::prepared)
    d.b = {{key.k, key.n}, in, key.in == DType::bf16 ? Tag::BA16a64b2a : Tag::BA16a64b};
  else
    d.b = {{key.k, key.n},
           in,
           key.right == GemmKey::Right::transposed ? dnnl::memory::dims{1, key.ldb}
                                                   : dnnl::memory::dims{key.ldb, 1}};
  if (key.has_bias) d.bias = {{1, key.n}, type_of(key.bias), Tag::ab};
  d.c = {{key.m, key.n}, type_of(key.out), Tag::ab};
  return d;
}

std::int64_t scratch_of(const dnnl::matmul::primitive_desc& made) {
  return static_cast<std::int64_t>(made.scratchpad_desc().get_size());
}

class LibraryGemm final : public Gemm {
 public:
  LibraryGemm(const GemmKey& key, int threads, std::int64_t scratch_bytes) {
    ::omp_set_num_threads(1);
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    const Descs d = descs_of(key);
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    dnnl::post_ops ends;
    if (key.addend == GemmKey::Addend::in_place) ends.append_sum(1.0f);
    if (key.addend == GemmKey::Addend::tensor) ends.append_binary(dnnl::algorithm::binary_add, d.c);
    attr.set_post_ops(ends);
    const auto desc =
        key.has_bias ? dnnl::matmul::desc(d.a, d.b, d.bias, d.c) : dnnl::matmul::desc(d.a, d.b, d.c);
    dnnl::matmul::primitive_desc made(desc, attr, engine);
    // Implementations are sorted by speed, fastest first.
    while (scratch_of(made) > scratch_bytes)
      if (!made.next_impl())
        throw base::device_error("oneDNN's " + text_of(key) + " wants more than the fixed " +
                                 std::to_string(scratch_bytes) +
                                 " bytes of workspace for each thread in every implementation: use oneDNN "
                                 "2.6, or fewer tokens at a time");
    primitive_ = dnnl::matmul(made);
    is_reference_ = std::string_view(made.impl_info_str()).substr(0, 3) == "ref";
    for (int t = 0; t < threads; ++t) {
      auto object = [&](const dnnl::memory::desc& md) { return dnnl::memory(md, engine, nullptr); };
      PerThread mine{dnnl::stream(engine),          object(d.a), object(d.b), {}, {}, object(d.c),
                     object(made.scratchpad_desc())};
      if (key.has_bias) mine.bias = object(d.bias);
      if (key.addend == GemmKey::Addend::tensor) mine.addend = object(d.c);
      threads_.push_back(std::move(mine));
    }
  }

  bool is_reference() const override { return is_reference_; }

  void run(int thread, const GemmData& data) const override {
    ::omp_set_num_threads(1);
    const PerThread& mine = threads_[static_cast<std::size_t>(thread)];
    dnnl_exec_arg_t args[6];
    int count = 0;
    const auto bind = [&](int arg, const dnnl::memory& memory, const std::byte* p) {
      memory.set_data_handle(const_cast<std::byte*>(p));
      args[count++] = {arg, memory.get()};
    };
    bind(DNNL_ARG_SRC, mine.a, data.a);
    bind(DNNL_ARG_WEIGHTS, mine.b, data.b);
    bind(DNNL_ARG_DST, mine.c, data.c);
    bind(DNNL_ARG_SCRATCHPAD, mine.scratch, data.scratch);
    if (mine.bias) bind(DNNL_ARG_BIAS, mine.bias, data.bias);
    if (mine.addend) bind(DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, mine.addend, data.addend);
    dnnl::error::wrap_c_api(dnnl_primitive_execute(primitive_.get(), mine.stream.get(), count, args),
                            "oneDNN could not run a matmul");
  }

 private:
  struct PerThread {
    dnnl::stream stream;
    dnnl::memory a, b, bias, addend, c, scratch;
  };
  dnnl::matmul primitive_;
  bool is_reference_ = false;
  std::vector<PerThread> threads_;
};

}  // namespace

const Gemm& GemmCache::get(const GemmKey& key) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Gemm>& made = made_[key];
  if (!made) try {
      made = std::make_unique<LibraryGemm>(key, threads_, scratch_bytes_);
    } catch (const dnnl::error& error) {
      throw base::device_error("oneDNN has no " + text_of(key) + " on this CPU (" + error.what() +
                               "): train in fp32");
    }
  return *made;
}

}  // namespace trainerd::kernels
