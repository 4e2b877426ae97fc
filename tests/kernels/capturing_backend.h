#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend/observed_backend.h"
#include "kernels/base/error.h"

namespace trainerd::test {

/// A backend with capture whose work is done by another backend: calls on a capturing stream are stored and
/// run with their graph.
class CapturingBackend final : public kernels::ObservedBackend {
 public:
  explicit CapturingBackend(kernels::Backend& inner)
      : ObservedBackend(inner, [](const kernels::ObservedCall&) {}),
        inner_(inner),
        captures_(inner.make_stream("captures", nullptr)) {}

  /// Names of the operators that ran, in order. A graph adds "graph", its operators, "end".
  std::vector<std::string> ran;
  /// The same without "graph" and "end".
  std::vector<std::string> operators() const {
    std::vector<std::string> names;
    for (const std::string& name : ran)
      if (name != "graph" && name != "end") names.push_back(name);
    return names;
  }
  std::set<kernels::Operator> refused;  ///< operators that captures refuse
  int captured = 0;                     ///< number of captured graphs

  kernels::BackendCounters counters() const override { return counters_; }
  void copy(kernels::Stream& s, const kernels::Tensor& from, const kernels::Tensor& to) override {
    run(s, kernels::Operator::copy, [this, from, to](kernels::Stream& on) { inner_.copy(on, from, to); });
  }
  void fill_zero(kernels::Stream& s, const kernels::Tensor& x) override {
    run(s, kernels::Operator::fill_zero, [this, x](kernels::Stream& on) { inner_.fill_zero(on, x); });
  }
#define TRAINERD_OPERATOR(name, Args, cuda)                                                  \
  void name(kernels::Stream& s, const kernels::Args& a) override {                           \
    run(s, kernels::Operator::name, [this, a](kernels::Stream& on) { inner_.name(on, a); }); \
  }
#include "kernels/ops/operators.def"

  std::unique_ptr<kernels::DeviceGraph> capture(const std::function<void(kernels::Stream&)>& issue) override {
    auto graph = std::make_unique<Graph>();
    capturing_ = graph.get();
    const std::shared_ptr<void> over(nullptr, [this](void*) { capturing_ = nullptr; });
    issue(*captures_);
    ++captured;
    return graph;
  }
  void replay(kernels::Stream&, const kernels::DeviceGraph& graph) override {
    ran.push_back("graph");
    for (const Node& node : static_cast<const Graph&>(graph).nodes) {
      kernels::Arena scratch("graph", node.scratch, node.scratch_bytes, target().alignment);
      kernels::Arena* before = captures_->exchange_scratch(&scratch);
      ran.push_back(name_of(node.op));
      node.work(*captures_);
      captures_->exchange_scratch(before);
    }
    ran.push_back("end");
  }

 private:
  using Work = std::function<void(kernels::Stream&)>;
  struct Node {
    kernels::Operator op;
    Work work;
    std::byte* scratch;
    std::int64_t scratch_bytes;
  };
  struct Graph final : kernels::DeviceGraph {
    std::vector<Node> nodes;
  };

  void run(kernels::Stream& s, kernels::Operator op, Work work) {
    // Counts calls of one operator, as counters of a device's kernels do.
    if (op == kernels::Operator::scale) ++counters_.own_attention;
    if (&s != captures_.get()) {
      ran.push_back(name_of(op));
      return work(s);
    }
    base::check(capturing_ != nullptr, "the stream of captures is for captures");
    if (refused.contains(op)) throw base::device_error(std::string(name_of(op)) + " cannot be captured");
    capturing_->nodes.push_back({op, std::move(work), s.scratch().base(), s.scratch().capacity()});
  }

  kernels::Backend& inner_;
  std::unique_ptr<kernels::Stream> captures_;
  Graph* capturing_ = nullptr;
  kernels::BackendCounters counters_;
};

}  // namespace trainerd::test
