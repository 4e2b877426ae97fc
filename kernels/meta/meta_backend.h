#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend/backend.h"
#include "kernels/cost/cost.h"
#include "kernels/ops/op_class.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::kernels {

/// One operator call of the meta backend.
struct MetaCall {
  Operator op = Operator::copy;
  std::string stream;
  Cost cost;
  std::int64_t scratch_bytes = 0;
  OpClass what;
};

/// A backend that computes nothing. For each call it computes the cost on the target, takes and releases the
/// scratch that the target would, and calls `observe`. Memory it allocates has addresses but no storage.
class MetaBackend final : public Backend {
 public:
  explicit MetaBackend(const Target& target, std::function<void(const MetaCall&)> observe = {});

  const Target& target() const override { return target_; }

  Buffer allocate(MemoryKind kind, std::int64_t bytes) override;
  void copy(Stream&, const Tensor& from, const Tensor& to) override;
  void fill_zero(Stream&, const Tensor& x) override;
  void transfer(Stream& s, const Tensor& from, const Tensor& to) override { copy(s, from, to); }
  void write(Stream&, std::span<const std::byte> from, const Tensor& to) override;
  void write_made(Stream&, std::span<const Tensor> to, std::vector<std::byte>& staging,
                  const std::function<void(std::span<std::byte>)>& make) override;
  void read_back(Stream&, const Tensor& from, std::span<std::byte> to) override;
  std::unique_ptr<Stream> make_stream(std::string name, Arena* scratch) override;
  std::unique_ptr<Event> make_event() override;
  void record(Stream&, Event&) override {}
  void wait(Stream&, const Event&) override {}
  void wait_host(const Event&) override {}
  double elapsed_seconds(const Event&, const Event&) override { return 0; }
  void enter_thread() override {}

  std::int64_t prepared_bytes(const PrepareWeight& a) const override {
    return kernels::prepared_bytes(a, target_);
  }
#define TRAINERD_OPERATOR(name, Args, cuda) \
  void name(Stream& s, const Args& a) override { call(s, Operator::name, a); }
#include "kernels/ops/operators.def"

 private:
  template <class Args>
  void call(Stream& stream, Operator op, const Args& args) {
    check_args(args);
    const std::int64_t scratch = scratch_bytes(args, target_);
    const ArenaScope scope(stream.scratch());
    if (scratch > 0) stream.scratch().take_bytes(scratch, MemoryTerm::workspace);
    note(stream, op, cost(args, target_), scratch, op_class_on(args, target_));
  }
  void note(const Stream& stream, Operator op, const Cost& cost, std::int64_t scratch,
            const OpClass& what = {});

  Target target_;
  std::function<void(const MetaCall&)> observe_;
};

}  // namespace trainerd::kernels
