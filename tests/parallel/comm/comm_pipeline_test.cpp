// Messages of pipeline schedules, posted and awaited in the order of the action lists, from two alternating
// send buffers into the slots of receives.

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <tuple>
#include <utility>

#include "parallel/schedule/slots.h"
#include "tests/parallel/comm_support.h"

using namespace trainerd;
using namespace trainerd::parallel;
using namespace trainerd::test;

namespace {

constexpr std::int64_t kNumel = 2000;  // longer than a ring

bool forwards(ActionKind kind) {
  return kind == ActionKind::send_forward || kind == ActionKind::recv_forward ||
         kind == ActionKind::forward || kind == ActionKind::forward_only;
}

/// Contents of the message to a chunk, different for every message.
Values contents(bool forward, int chunk, int microbatch) {
  return values_of(DType::f32, static_cast<std::uint64_t>(2 * microbatch + (forward ? 0 : 1)), chunk, kNumel);
}

/// One rank. Its computations store received messages and send `contents`.
class PipelineRank {
 public:
  PipelineRank(World& world, const ScheduleShape& shape, std::int64_t rank)
      : shape_(shape),
        list_(make_schedule(shape, static_cast<int>(rank))),
        comm_(world.communicator(rank, machine_, all_ranks(world.ranks()), "pp")) {
    for (const bool forward : {true, false}) {
      slots_[forward] =
          color_receives(list_, shape, forward ? ActionKind::recv_forward : ActionKind::recv_backward);
      for (int i = 0; i < slots_[forward].slots.at(0); ++i) places_[forward].emplace_back(DType::f32, kNumel);
    }
  }

  void run() {
    for (std::size_t i = 0; i < list_.size();) {
      const auto next =
          std::span<const Action>(list_).subspan(i, group_size(std::span<const Action>(list_).subspan(i)));
      if (next.front().peer >= 0) transfer(next);
      else compute(next.front());
      i += next.size();
    }
    while (!flights_.empty()) land(flights_.front().tensors.front());
    machine_.sync();
    for (const auto& [message, x] : kept_) {
      const auto& [forward, chunk, microbatch] = message;
      expect(x.values() == contents(forward, chunk, microbatch),
             std::string(forward ? "input" : "gradient") + " of chunk " + std::to_string(chunk) +
                 ", microbatch " + std::to_string(microbatch));
    }
  }

 private:
  struct Flight {
    std::unique_ptr<Work> work;
    std::vector<const std::byte*> tensors;
  };
  using Message = std::tuple<bool, int, int>;

  const Tensor& place(const Action& a) {
    const auto chunk = static_cast<std::size_t>(a.chunk / shape_.stages),
               microbatch = static_cast<std::size_t>(a.microbatch);
    const bool forward = forwards(a.kind);
    return *places_[forward].at(
        static_cast<std::size_t>(slots_[forward].slot_of_microbatch[chunk][microbatch]));
  }
  /// The buffer of a chunk's result in one direction; `turn` switches to the other buffer.
  const Tensor& result(bool forward, int chunk) {
    auto& [turn, two] = results_[{forward, chunk}];
    while (two.size() < 2) two.emplace_back(DType::f32, kNumel);
    return *two[turn % 2];
  }

  void transfer(std::span<const Action> group) {
    std::vector<Transfer> sends, receives;
    Flight flight;
    for (const Action& a : group) {
      const Tensor& x = is_send(a.kind) ? result(forwards(a.kind), a.chunk) : place(a);
      (is_send(a.kind) ? sends : receives).push_back({a.peer, x});
      flight.tensors.push_back(x.data);
    }
    flight.work = comm_->exchange(*machine_.stream, sends, receives, {.label = "pipeline"});
    flights_.push_back(std::move(flight));
  }
  void land(const std::byte* tensor) {
    const auto flight = std::find_if(flights_.begin(), flights_.end(), [&](const Flight& f) {
      return std::find(f.tensors.begin(), f.tensors.end(), tensor) != f.tensors.end();
    });
    if (flight == flights_.end()) return;
    flight->work->wait(*machine_.stream);
    flights_.erase(flight);
  }

  void compute(const Action& a) {
    if (a.kind == ActionKind::backward_weight || a.kind == ActionKind::reduce_grads) return;
    const bool forward = forwards(a.kind);
    const int next = a.chunk + (forward ? 1 : -1);
    const int before = a.chunk - (forward ? 1 : -1);
    const auto mine = [&](int chunk) { return shape_.rank_of(chunk) == shape_.rank_of(a.chunk); };
    if (before >= 0 && before < shape_.chunks() && !mine(before)) {
      const HostTensor& kept =
          kept_.try_emplace({forward, a.chunk, a.microbatch}, DType::f32, kNumel).first->second;
      land(place(a).data);
      machine_.backend.copy(*machine_.stream, place(a), *kept);
    }
    if (next < 0 || next == shape_.chunks() || mine(next)) return;
    ++results_[{forward, a.chunk}].first;
    const HostTensor& made = made_.emplace_back(DType::f32, contents(forward, next, a.microbatch));
    land(result(forward, a.chunk).data);
    machine_.backend.copy(*machine_.stream, *made, result(forward, a.chunk));
  }

  ScheduleShape shape_;
  std::vector<Action> list_;
  RankMachine machine_;
  std::unique_ptr<Communicator> comm_;
  std::map<bool, SlotTable> slots_;
  std::map<bool, std::vector<HostTensor>> places_;
  std::map<std::pair<bool, int>, std::pair<std::size_t, std::vector<HostTensor>>> results_;
  std::map<Message, HostTensor> kept_;
  std::vector<HostTensor> made_;
  std::vector<Flight> flights_;
};

}  // namespace

TEST_CASE("messages of every schedule arrive in the order and slots of their lists", "[pipeline]") {
  const std::vector<ScheduleShape> shapes{
      {ScheduleKind::gpipe, 3, 1, 5},        {ScheduleKind::one_f_one_b, 4, 1, 6},
      {ScheduleKind::zb_h1, 4, 1, 6},        {ScheduleKind::zb_h1, 2, 1, 3},
      {ScheduleKind::interleaved, 2, 2, 4},  {ScheduleKind::interleaved, 3, 3, 6},
      {ScheduleKind::interleaved, 4, 2, 12}, {ScheduleKind::interleaved, 3, 2, 7},
      {ScheduleKind::interleaved, 4, 3, 2},  {ScheduleKind::zb_v, 2, 2, 3},
      {ScheduleKind::zb_v, 4, 2, 10}};
  for (ScheduleShape shape : shapes)
    for (const Pass pass : {Pass::train, Pass::evaluate}) {
      shape.pass = pass;
      CAPTURE(static_cast<int>(shape.kind), shape.stages, static_cast<int>(pass));
      World world(shape.stages, {.deadline_seconds = 60, .chunk_bytes = 4096, .ring_bytes = 4096});
      CHECK_NOTHROW(world.run([&](std::int64_t rank) { PipelineRank(world, shape, rank).run(); }));
    }
}
