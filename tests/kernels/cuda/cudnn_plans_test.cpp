// cuDNN makes plans for devices that are not here (stand_in_driver.cpp): that it supports the problems
// training has, and that its workspace is within what the memory plan foresees, for each architecture.

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/cuda/plan/attention_problem.h"
#include "tests/full.h"
#include "tests/kernels/cuda/stand_in_runtime.h"

namespace trainerd::test {
namespace {

using kernels::Determinism;
using kernels::Tensor;
using kernels::cuda::AttentionProblem;

struct Device {
  const char* file;
  int sm_version;
};
constexpr Device kDevices[] = {{"a100", 80}, {"h200", 90}, {"b200", 100}, {"rtx5090", 120}};

struct Shape {
  const char* name;
  std::int64_t sequences, heads, kv_heads, tokens, head_size;
};
constexpr Shape kShapes[] = {{"qwen2.5-1.5b", 32, 12, 2, 1024, 128},
                             {"odd length", 4, 32, 8, 1000, 128},
                             {"llama-3-8b", 1, 32, 8, 8192, 128},
                             {"gpt2", 8, 12, 12, 1024, 64},
                             {"short", 2, 4, 2, 17, 32}};

/// The first of them on the device that is measured most, and on the others one, in full runs two: a plan
/// takes a second or two to make.
std::span<const Shape> shapes_for(const Device& d, std::size_t most) {
  return std::span(kShapes).first(d.sm_version == 90 ? most : runs_full() ? 2 : 1);
}

kernels::cuda::AttentionDevice device_of(const Device& d) {
  std::ifstream in(std::string(TRAINERD_DEVICES) + "/" + d.file + ".json", std::ios::binary);
  kernels::cuda::AttentionDevice device;
  device.description.assign(std::istreambuf_iterator<char>(in), {});
  device.sm_version = d.sm_version;
  REQUIRE(!device.description.empty());
  set_stand_in_device(d.sm_version);
  return device;
}

AttentionProblem problem(const Shape& s) {
  AttentionProblem p;
  p.sequences = s.sequences;
  p.heads = s.heads;
  p.kv_heads = s.kv_heads;
  p.tokens = s.tokens;
  p.head_size = s.head_size;
  const std::int64_t qkv = (s.heads + 2 * s.kv_heads) * s.head_size, out = s.heads * s.head_size;
  p.strides = {.q = qkv, .k = qkv, .v = qkv, .out = out, .dout = out, .dq = qkv, .dk = qkv, .dv = qkv};
  p.scale = 0.1f;
  return p;
}

}  // namespace

TEST_CASE("cuDNN has forward plans for every architecture within the workspace foreseen", "[cudnn]") {
  for (const Device& d : kDevices)
    for (const Shape& s : shapes_for(d, 2)) {
      std::string why;
      const auto graph = make_attention_graph(problem(s), device_of(d), &why);
      INFO(d.file << ", " << s.name << ": " << why);
      REQUIRE(graph != nullptr);
      CHECK(graph->workspace_bytes() <= kernels::cuda::kForwardWorkspace);
    }
}

TEST_CASE(
    "cuDNN has backward plans for every architecture, deterministic and fast, within the workspace foreseen",
    "[cudnn]") {
  for (const Device& d : kDevices) {
    kernels::Target target;
    target.kind = kernels::DeviceKind::cuda;
    target.sm_version = d.sm_version;
    for (const Shape& s : shapes_for(d, std::size(kShapes)))
      for (const Determinism determinism : {Determinism::deterministic, Determinism::fast}) {
        AttentionProblem p = problem(s);
        p.backward = true;
        p.deterministic = determinism == Determinism::deterministic;
        std::string why;
        const auto graph = make_attention_graph(p, device_of(d), &why);
        INFO(d.file << ", " << s.name << (p.deterministic ? ", deterministic: " : ", fast: ") << why);
        REQUIRE(graph != nullptr);
        const std::int64_t foreseen = kernels::cuda::backward_workspace(
            s.sequences, s.heads, s.kv_heads, s.tokens, s.head_size, determinism, target);
        CHECK(graph->workspace_bytes() <= foreseen);
        // Foreseen, not guessed: unused memory is lost to the batch.
        if (s.tokens >= 1024 && d.sm_version == 90) CHECK(foreseen <= graph->workspace_bytes() + 8192);
      }
  }
}

TEST_CASE("the pieces of a long backward cover every head and stay within a gibibyte", "[cudnn]") {
  kernels::Target target;
  target.kind = kernels::DeviceKind::cuda;
  target.sm_version = 90;
  target.attention_library = "cuDNN";
  for (const Shape& s : kShapes) {
    INFO(s.name);
    kernels::AttentionBackward a;
    const kernels::HeadGeometry heads{s.heads, s.kv_heads, s.head_size};
    const std::int64_t tokens = s.sequences * s.tokens;
    a.block =
        kernels::whole_sequences(heads, 0.1f, {nullptr, kernels::DType::i32, {s.sequences + 1}}, s.tokens);
    const Tensor qkv{nullptr, kernels::DType::bf16, {tokens, heads.columns()}},
        out{nullptr, kernels::DType::bf16, {tokens, s.heads * s.head_size}};
    a.q_THE = a.dq_THE = heads.queries_of(qkv);
    a.k_TKE = a.dk_TKE = heads.keys_of(qkv);
    a.v_TKE = a.dv_TKE = heads.values_of(qkv);
    a.out_THE = a.dout_THE = heads.outputs_of(out);
    REQUIRE(kernels::cuda::library_serves(a, target));
    const kernels::cuda::AttentionPieces pieces = kernels::cuda::backward_pieces(a, target);
    CHECK(pieces.sequences >= 1);
    CHECK(pieces.sequences <= s.sequences);
    CHECK(pieces.kv_heads >= 1);
    CHECK((pieces.kv_heads == s.kv_heads || pieces.sequences == 1));
    CHECK(pieces.workspace <= (std::int64_t{1} << 30));
    CHECK(kernels::cuda::AttentionScratch(a, target).total >= pieces.workspace);
  }
}

}  // namespace trainerd::test
