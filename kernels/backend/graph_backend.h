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

/// `measured`: lists become graphs if the times of the first steps show a gain. `always`: from the start.
enum class GraphChoice : std::uint8_t { measured, always };

/// A backend that runs lists of calls (`open_list`) as graphs on the device of another backend.
///
/// The caller runs the same code as without graphs and calls every operator. Each call is compared with
/// earlier lists of the same place: operator, all arguments (pointers, shapes, numbers), and position of its
/// scratch. While the calls match a list they are held back. A list that comes a second time is captured from
/// the stored calls, and from then on launched as one graph. At a call that matches no list, the held calls
/// are made on the device, and all further ones directly. So a graph never runs anything but the calls that
/// were made.
///
/// A list ends, and the next one begins, at every other use of the stream: events, host writes and reads,
/// communication (`Stream::flush`), and operators whose arguments refer to host memory (the optimizer's
/// ranges). A list of fewer than kMinGraphCalls calls never becomes a graph. The nth lists of a place are
/// given up, and their calls are made at once, if
/// - kMaxFreshLists of them came that never came again, because arguments change every step (dropout), or
/// - the device refuses a capture.
/// `graph_use` reports it.
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

  // Calls that end a list.
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

  // These change how operators run, so existing graphs are discarded.
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
  /// The lists that were the `number`th in their place since it was opened.
  struct Spot {
    ListPlace place;
    std::int64_t number = 0;
    auto operator<=>(const Spot&) const = default;
  };
  struct Lists {
    CallNode root;
    std::int64_t fresh = 0;        ///< lists that came once
    std::int64_t short_lists = 0;  ///< lists that came again and have too few calls for a graph
    std::string given_up;          ///< reason, if they were given up; else empty
  };

  template <class Args, class Run>
  void call(Stream& s, Operator op, const Args& args, Run run) {
    if (s.held_by() != this) return run(inner_, s, args);
    if constexpr (Comparable<Args>) {
      ++made_;
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
  /// Advances to a node for this call, if there is one after the current node.
  template <class Args>
  bool find(Operator op, Arena::Mark scratch, const Args& args) {
    for (const std::unique_ptr<CallNode>& node : at_->next)
      if (CallOf<Args>::same(*node->call, op, scratch, args)) {
        at_ = node.get(), path_.push_back(at_);
        return true;
      }
    return false;
  }

  /// Set while this backend itself issues calls to the stream, so that they do not end the list.
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
  void end_list();
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
  // Used while the state is `deciding`: minimum seconds per call of each operator, and calls since the last
  // step.
  std::array<double, kOperatorNames.size()> least_;
  std::array<std::int64_t, kOperatorNames.size()> calls_{};
  int decided_steps_ = 0;

  std::map<Spot, Lists> spots_;
  BackendCounters counted_;  ///< counters of graph launches, minus what their captures counted
  // The open list:
  Stream* stream_ = nullptr;
  Spot spot_;
  Lists* lists_ = nullptr;
  CallNode* at_ = nullptr;
  std::vector<CallNode*> path_;
  std::size_t put_ = 0;    ///< number of the path's calls that are on the device
  std::int64_t made_ = 0;  ///< number of calls of the list, also where its lists are given up
  bool issuing_ = false;
};

}  // namespace trainerd::kernels
