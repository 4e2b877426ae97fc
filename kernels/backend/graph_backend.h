#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/backend/backend.h"
#include "kernels/backend/call_tree.h"
#include "kernels/base/clock.h"

namespace trainerd::kernels {

/// Whether lists become graphs where that pays, by what the first steps take, or all at once.
enum class GraphChoice : std::uint8_t { measured, always };

/// A backend whose lists of calls (`open_list`) run as graphs of another's device.
///
/// The caller's code runs as without graphs and calls every operator. What it calls is compared with the
/// lists that came at the same place before: operators and all their arguments (pointers, shapes, numbers),
/// and where their scratch lies. While it agrees with one it is held back. A list that comes for the second
/// time is captured, from the calls that were kept, and from then on put on the device as one graph. At a
/// call that no list has, what was held back is called on the device and all from there on at once: so a
/// graph never runs anything but what was called, whatever has changed.
///
/// A list ends, and the next one begins, at everything else on its stream: events, writes and reads of the
/// host, communication (`Stream::flush`), and operators whose arguments have memory of the host (those of the
/// optimizer: ranges). A place is given up, and its calls are made at once, when
/// - its list has fewer than kMinGraphCalls calls;
/// - kMaxFreshLists lists came that never came again: arguments that change from step to step (dropout);
/// - the device refuses a capture.
/// `graph_use` says so.
class GraphBackend final : public Backend, private HeldCalls {
 public:
  static constexpr std::int64_t kMaxFreshLists = 256;

  explicit GraphBackend(Backend& inner, GraphChoice choice = GraphChoice::measured);

  const Target& target() const override { return inner_.target(); }
  BackendCounters counters() const override;
  Buffer allocate(MemoryKind kind, std::int64_t bytes) override { return inner_.allocate(kind, bytes); }
  void copy(Stream& s, const Tensor& from, const Tensor& to) override {
    call(s, Operator::copy, CopyCall{from, to},
         [](Backend& b, Stream& on, const CopyCall& a) { b.copy(on, a.from, a.to); });
  }
  void fill_zero(Stream& s, const Tensor& x) override {
    call(s, Operator::fill_zero, FillCall{x},
         [](Backend& b, Stream& on, const FillCall& a) { b.fill_zero(on, a.x); });
  }

  // What ends a list.
  void transfer(Stream& s, const Tensor& from, const Tensor& to) override {
    s.flush(), inner_.transfer(s, from, to);
  }
  void write(Stream& s, std::span<const std::byte> from, const Tensor& to) override {
    s.flush(), inner_.write(s, from, to);
  }
  void write_made(Stream& s, std::span<const Tensor> to, std::vector<std::byte>& staging,
                  const std::function<void(std::span<std::byte>)>& make) override {
    s.flush(), inner_.write_made(s, to, staging, make);
  }
  void read_back(Stream& s, const Tensor& from, std::span<std::byte> to) override {
    s.flush(), inner_.read_back(s, from, to);
  }
  void record(Stream& s, Event& e) override { s.flush(), inner_.record(s, e); }
  void wait(Stream& s, const Event& e) override { s.flush(), inner_.wait(s, e); }

  std::unique_ptr<Stream> make_stream(std::string name, Arena* scratch) override {
    return inner_.make_stream(std::move(name), scratch);
  }
  std::unique_ptr<Event> make_event() override { return inner_.make_event(); }
  void wait_host(const Event& e) override { inner_.wait_host(e); }
  double elapsed_seconds(const Event& from, const Event& to) override {
    return inner_.elapsed_seconds(from, to);
  }
  void enter_thread() override { inner_.enter_thread(); }
  std::int64_t prepared_bytes(const PrepareWeight& a) const override { return inner_.prepared_bytes(a); }
  std::string time_gemms(std::span<const OpClass> gemms) override { return inner_.time_gemms(gemms); }

  // What changes how operators run: graphs of before are forgotten.
  void tune(const Tuning& tuning) override { forget(), inner_.tune(tuning); }
  void limit_attention(std::int64_t bytes) override { forget(), inner_.limit_attention(bytes); }
  void use_gemms(const std::string& choices) override { forget(), inner_.use_gemms(choices); }

  void open_list(Stream&, ListPlace) override;
  void close_list(Stream&) override;
  void end_step(double device_seconds) override;
  GraphUse graph_use() const override;

#define TRAINERD_OPERATOR(name, Args, cuda)                                                         \
  void name(Stream& s, const Args& a) override {                                                    \
    call(s, Operator::name, a, [](Backend& b, Stream& on, const Args& args) { b.name(on, args); }); \
  }
#include "kernels/ops/operators.def"

 private:
  /// Lists that came in one place as the `number`th since it was opened.
  struct Spot {
    ListPlace place;
    std::int64_t number = 0;
    auto operator<=>(const Spot&) const = default;
  };
  struct Lists {
    CallNode root;
    std::int64_t fresh = 0;  ///< that came once
    std::string given_up;    ///< why; empty: they are not
  };

  template <class Args, class Run>
  void call(Stream& s, Operator op, const Args& args, Run run) {
    if (s.held_by() != this) return run(inner_, s, args);
    if constexpr (Comparable<Args>) {
      if (use_.state == GraphUse::State::used && lists().given_up.empty()) {
        if (find<Args>(op, s.scratch().mark(), args)) return;
        put_held();
        append(std::make_unique<CallOf<Args>>(op, s.scratch().mark(), args, run));
      }
    } else {
      put_on_device();
    }
    const Issuing guard(*this);
    if (!Comparable<Args> || use_.state != GraphUse::State::deciding) return run(inner_, s, args);
    const double begin = base::monotonic_seconds();
    run(inner_, s, args);
    timed(op, base::monotonic_seconds() - begin);
  }
  /// Goes on in a list that has this call next, if there is one.
  template <class Args>
  bool find(Operator op, Arena::Mark scratch, const Args& args) {
    for (const std::unique_ptr<CallNode>& node : at_->next)
      if (CallOf<Args>::same(*node->call, op, scratch, args)) {
        at_ = node.get(), path_.push_back(at_);
        return true;
      }
    return false;
  }

  /// While calls of ours reach the stream: they are no others', which would end the list.
  class Issuing {
   public:
    explicit Issuing(GraphBackend& backend) : backend_(backend), before_(backend.issuing_) {
      backend_.issuing_ = true;
    }
    ~Issuing() { backend_.issuing_ = before_; }
    Issuing(const Issuing&) = delete;
    Issuing& operator=(const Issuing&) = delete;

   private:
    GraphBackend& backend_;
    bool before_;
  };

  void put_on_device() override;
  Lists& lists() { return *lists_; }
  void begin_list();
  void append(std::unique_ptr<const Call> call);
  void put_held();
  void make(const Call& call, Stream& stream) const;
  void came_again(CallList& list);
  void capture_held(CallList& list);
  void give_up(const std::string& why);
  void forget();
  void timed(Operator op, double seconds);

  Backend& inner_;
  GraphUse use_;
  // While the state is `deciding`: the least seconds of a call of each operator, and calls since the last
  // step.
  std::array<double, kOperatorNames.size()> least_;
  std::array<std::int64_t, kOperatorNames.size()> calls_{};
  int decided_steps_ = 0;

  std::map<Spot, Lists> spots_;
  BackendCounters counted_;  ///< by graphs, less what their captures counted
  // Of the open list.
  Stream* stream_ = nullptr;
  Spot spot_;
  Lists* lists_ = nullptr;
  CallNode* at_ = nullptr;
  std::vector<CallNode*> path_;
  std::size_t put_ = 0;  ///< of the path's calls: on the device
  bool issuing_ = false;
};

}  // namespace trainerd::kernels
