// The only file that includes cuDNN's front end, which takes half a minute to compile.

#include "kernels/cuda/cudnn/attention_graph.h"

#include <cudnn_frontend.h>

#include <unordered_map>

#include "kernels/base/error.h"

namespace trainerd::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
using Attributes = std::shared_ptr<fe::graph::Tensor_attributes>;

enum Uid : std::int64_t { kQ = 1, kK, kV, kOut, kStats, kDout, kDq, kDk, kDv };

/// [sequences, heads, tokens, head_size], with rows `stride` elements apart.
fe::graph::Tensor_attributes described(const AttentionProblem& p, const char* name, Uid uid,
                                       std::int64_t heads, std::int64_t head_size, std::int64_t stride) {
  return fe::graph::Tensor_attributes()
      .set_name(name)
      .set_uid(uid)
      .set_dim({p.sequences, heads, p.tokens, head_size})
      .set_stride({p.tokens * stride, head_size, stride, 1});
}

/// As above, for a tensor that the graph writes.
void place(const AttentionProblem& p, const Attributes& x, const char* name, Uid uid, std::int64_t heads,
           std::int64_t head_size, std::int64_t stride) {
  x->set_output(true)
      .set_name(name)
      .set_uid(uid)
      .set_dim({p.sequences, heads, p.tokens, head_size})
      .set_stride({p.tokens * stride, head_size, stride, 1});
}

std::vector<std::int64_t> stats_dim(const AttentionProblem& p) { return {p.sequences, p.heads, p.tokens, 1}; }
std::vector<std::int64_t> stats_stride(const AttentionProblem& p) {
  return {p.heads * p.tokens, p.tokens, 1, 1};
}

void add_forward(fe::graph::Graph& graph, const AttentionProblem& p) {
  const Attributes q = graph.tensor(described(p, "q", kQ, p.heads, p.head_size, p.strides.q));
  const Attributes k = graph.tensor(described(p, "k", kK, p.kv_heads, p.head_size, p.strides.k));
  const Attributes v = graph.tensor(described(p, "v", kV, p.kv_heads, p.value_size, p.strides.v));
  auto [out, stats] = graph.sdpa(q, k, v,
                                 fe::graph::SDPA_attributes()
                                     .set_name("forward")
                                     .set_generate_stats(true)
                                     .set_causal_mask(p.causal)
                                     .set_attn_scale(p.scale));
  place(p, out, "out", kOut, p.heads, p.value_size, p.strides.out);
  stats->set_output(true)
      .set_uid(kStats)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim(stats_dim(p))
      .set_stride(stats_stride(p));
}

void add_backward(fe::graph::Graph& graph, const AttentionProblem& p) {
  const Attributes q = graph.tensor(described(p, "q", kQ, p.heads, p.head_size, p.strides.q));
  const Attributes k = graph.tensor(described(p, "k", kK, p.kv_heads, p.head_size, p.strides.k));
  const Attributes v = graph.tensor(described(p, "v", kV, p.kv_heads, p.value_size, p.strides.v));
  const Attributes out = graph.tensor(described(p, "out", kOut, p.heads, p.value_size, p.strides.out));
  const Attributes dout = graph.tensor(described(p, "dout", kDout, p.heads, p.value_size, p.strides.dout));
  const Attributes stats = graph.tensor(fe::graph::Tensor_attributes()
                                            .set_name("stats")
                                            .set_uid(kStats)
                                            .set_data_type(fe::DataType_t::FLOAT)
                                            .set_dim(stats_dim(p))
                                            .set_stride(stats_stride(p)));
  auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, out, dout, stats,
                                          fe::graph::SDPA_backward_attributes()
                                              .set_name("backward")
                                              .set_causal_mask(p.causal)
                                              .set_attn_scale(p.scale)
                                              .set_deterministic_algorithm(p.deterministic));
  place(p, dq, "dq", kDq, p.heads, p.head_size, p.strides.dq);
  place(p, dk, "dk", kDk, p.kv_heads, p.head_size, p.strides.dk);
  place(p, dv, "dv", kDv, p.kv_heads, p.value_size, p.strides.dv);
}

class FrontEndGraph final : public AttentionGraph {
 public:
  FrontEndGraph(const AttentionProblem& problem)
      : backward_(problem.backward), uneven_(problem.tokens % 128 != 0) {
    graph_.set_io_data_type(problem.fp16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (problem.backward) add_backward(graph_, problem);
    else add_forward(graph_, problem);
  }

  /// Builds the plan. Empty on success, else cuDNN's error message.
  std::string build(const AttentionDevice& device) {
    // Up to 9.15 the front end pads such sequences from host memory that it frees after the call. A captured
    // call would read it at each replay.
    if (backward_ && uneven_ && cudnnGetVersion() <= 91500) return "backwards of this length need cuDNN 9.16";
    if (device.handle == nullptr) {
      auto properties = std::make_shared<fe::DeviceProperties>();
      if (auto e = properties->deserialize(device.description); e.is_bad()) return e.get_message();
      graph_.set_device_properties(properties);
      graph_.set_sm_version(device.sm_version);
    }
    if (auto e = graph_.validate(); e.is_bad()) return e.get_message();
    if (auto e = graph_.build_operation_graph(device.handle); e.is_bad()) return e.get_message();
    if (auto e = graph_.create_execution_plans({fe::HeurMode_t::A}); e.is_bad()) return e.get_message();
    if (auto e = graph_.check_support(); e.is_bad()) return e.get_message();
    if (auto e = graph_.build_plans(); e.is_bad()) return e.get_message();
    if (auto e = graph_.get_workspace_size(workspace_); e.is_bad()) return e.get_message();
    return "";
  }

  std::int64_t workspace_bytes() const override { return workspace_; }

  void run(cudnnContext* handle, const AttentionPointers& p, std::byte* workspace) override {
    const auto address = [](const std::byte* at) { return static_cast<void*>(const_cast<std::byte*>(at)); };
    std::unordered_map<std::int64_t, void*> tensors{
        {kQ, address(p.q)}, {kK, address(p.k)}, {kV, address(p.v)}, {kOut, p.out}, {kStats, p.stats}};
    if (backward_) tensors.insert({{kDout, address(p.dout)}, {kDq, p.dq}, {kDk, p.dk}, {kDv, p.dv}});
    if (auto e = graph_.execute(handle, tensors, workspace); e.is_bad())
      throw base::device_error("running attention: cuDNN says " + e.get_message());
  }

 private:
  fe::graph::Graph graph_;
  bool backward_, uneven_;
  std::int64_t workspace_ = 0;
};

}  // namespace

AttentionDevice describe_attention_device(int device, std::int32_t sm_version) {
  fe::DeviceProperties properties;
  AttentionDevice described{.handle = nullptr, .description = {}, .sm_version = sm_version};
  if (properties.set_device_id(device).build().is_bad() ||
      properties.serialize(described.description).is_bad())
    described.description.clear();
  return described;
}

std::unique_ptr<AttentionGraph> make_attention_graph(const AttentionProblem& problem,
                                                     const AttentionDevice& device, std::string* why) {
  auto graph = std::make_unique<FrontEndGraph>(problem);
  const std::string error = graph->build(device);
  if (error.empty()) return graph;
  if (why != nullptr) *why = error;
  return nullptr;
}

}  // namespace trainerd::kernels::cuda
