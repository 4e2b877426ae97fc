// Repeated lists of calls run as graphs, and exactly the called operators run.

#include "kernels/backend/graph_backend.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/kernels/capturing_backend.h"

using namespace trainerd;
using namespace trainerd::kernels;
using GraphNames = std::vector<std::string>;

namespace {

constexpr ListPlace kGraphPlace{.part = "forward"};

/// Vectors of 64 numbers in host-accessible memory, a stream, and a GraphBackend over a backend with capture.
struct GraphMachine {
  explicit GraphMachine(GraphChoice choice = GraphChoice::always)
      : cpu(detect_cpu(1), pool), device(cpu), graphs(device, choice) {
    memory = cpu.allocate(MemoryKind::device, std::int64_t{1} << 20);
    scratch = Arena("scratch", memory.data() + (1 << 16), (1 << 20) - (1 << 16));
    stream = graphs.make_stream("compute", &scratch);
    reset();
  }
  Tensor vector(std::int64_t number) const { return {memory.data() + 4096 * number, DType::f32, {64}}; }
  float& first(std::int64_t number) const { return *vector(number).as<float>(); }
  void reset() {
    for (std::int64_t i = 0; i < 8; ++i) std::fill_n(vector(i).as<float>(), 64, static_cast<float>(i + 1));
    device.ran.clear();
  }
  /// Four calls: y = factor x (x is vector 0), y = y + y, y = y + x, and a copy of y.
  void four(float factor = 2, std::int64_t y = 1) {
    graphs.scale(*stream, {.x = vector(0), .factor = factor, .out = vector(y)});
    graphs.add(*stream, {.a = vector(y), .b = vector(y), .out = vector(y)});
    graphs.add(*stream, {.a = vector(y), .b = vector(0), .out = vector(y)});
    graphs.copy(*stream, vector(y), vector(5));
  }
  template <class Calls>
  void list(const Calls& calls, ListPlace place = kGraphPlace) {
    graphs.open_list(*stream, place);
    calls();
    graphs.close_list(*stream);
  }

  base::ThreadPool pool{1};
  CpuBackend cpu;
  test::CapturingBackend device;
  GraphBackend graphs;
  Buffer memory;
  Arena scratch;
  std::unique_ptr<Stream> stream;
};

const GraphNames kFourCalls{"scale", "add", "add", "copy"};
const GraphNames kFourAsGraph{"graph", "scale", "add", "add", "copy", "end"};

}  // namespace

TEST_CASE("a repeated list is one graph of the same calls in the same order", "[graphs]") {
  GraphMachine m;
  m.list([&] { m.four(); });
  CHECK(m.device.ran == kFourCalls);
  CHECK(m.first(5) == 5);
  for (int time = 2; time < 6; ++time) {
    m.reset();
    // Memory is read when the graph runs, not at capture.
    std::fill_n(m.vector(0).as<float>(), 64, static_cast<float>(time));
    m.list([&] {
      m.four();
      // Nothing runs before the list is complete.
      CHECK(m.device.ran.empty());
      CHECK(m.first(5) == 6);
    });
    CHECK(m.device.ran == kFourAsGraph);
    CHECK(m.first(5) == 5.0f * static_cast<float>(time));
  }
  CHECK(m.device.captured == 1);
  const GraphUse use = m.graphs.graph_use();
  CHECK(use.state == GraphUse::State::used);
  CHECK(use.lists == 1);
  CHECK(use.graphs == 1);
  CHECK(use.graph_calls == 4);
  CHECK(use.launches == 4);
  CHECK(use.without.empty());
  // Outside of a list each call is made at once.
  m.reset();
  m.four();
  CHECK(m.device.ran == kFourCalls);
}

TEST_CASE("other arguments or another address of the scratch make another list", "[graphs]") {
  GraphMachine m;
  const auto comes = [&](const auto& calls, const GraphNames& as) {
    m.reset();
    m.list(calls);
    CHECK(m.device.ran == as);
  };
  comes([&] { m.four(); }, kFourCalls);
  comes([&] { m.four(); }, kFourAsGraph);
  // Another number, then another pointer.
  comes([&] { m.four(3); }, kFourCalls);
  CHECK(m.first(5) == 7);
  comes([&] { m.four(2, 3); }, kFourCalls);
  CHECK(m.first(5) == 5);
  CHECK(m.first(3) == 5);
  // Each list has its own graph, and none replaces another.
  comes([&] { m.four(3); }, kFourAsGraph);
  CHECK(m.first(5) == 7);
  comes([&] { m.four(2, 3); }, kFourAsGraph);
  comes([&] { m.four(); }, kFourAsGraph);
  CHECK(m.first(5) == 5);
  CHECK(m.device.captured == 3);
  // The operators' scratch has another address.
  const auto above = [&] {
    const ArenaScope scope(m.scratch);
    m.scratch.take_bytes(64, MemoryTerm::workspace);
    m.four();
  };
  comes(above, kFourCalls);
  comes(above, kFourAsGraph);
  // Another part of a step has its own lists.
  m.reset();
  m.list([&] { m.four(); }, {.part = "forward", .chunk = 1});
  CHECK(m.device.ran == kFourCalls);
}

TEST_CASE("calls that match a graph at first are executed when they deviate from it", "[graphs]") {
  GraphMachine m;
  m.list([&] { m.four(); });
  m.list([&] { m.four(); });
  for (const bool longer : {true, false}) {
    const auto calls = [&] {
      if (longer) m.four();
      else m.graphs.scale(*m.stream, {.x = m.vector(0), .factor = 2, .out = m.vector(1)});
      if (longer) return m.graphs.fill_zero(*m.stream, m.vector(5));
      m.graphs.add(*m.stream, {.a = m.vector(1), .b = m.vector(1), .out = m.vector(1)});
      m.graphs.add(*m.stream, {.a = m.vector(1), .b = m.vector(1), .out = m.vector(5)});
      m.graphs.fill_zero(*m.stream, m.vector(1));
    };
    const GraphNames names = longer ? GraphNames{"scale", "add", "add", "copy", "fill_zero"}
                                    : GraphNames{"scale", "add", "add", "fill_zero"};
    m.reset();
    m.list(calls);
    CHECK(m.device.ran == names);
    const float result = m.first(5);
    CHECK(result == (longer ? 0.0f : 8.0f));
    m.reset();
    m.list(calls);
    CHECK(m.device.ran.front() == "graph");
    CHECK(m.device.operators() == names);
    CHECK(m.first(5) == result);
  }
  // Only the beginning of the list.
  const auto beginning = [&] {
    m.graphs.scale(*m.stream, {.x = m.vector(0), .factor = 2, .out = m.vector(1)});
    m.graphs.add(*m.stream, {.a = m.vector(1), .b = m.vector(1), .out = m.vector(1)});
  };
  m.reset();
  m.list(beginning);
  CHECK(m.device.ran == GraphNames{"scale", "add"});
  CHECK(m.first(1) == 4);
}

TEST_CASE("any other use of the stream ends a list, after its calls", "[graphs]") {
  GraphMachine m;
  const auto event = m.graphs.make_event();
  std::vector<std::byte> bytes(256);
  std::vector<std::byte> staging;
  const std::vector<Tensor> to{m.vector(0)};
  const std::vector<std::int64_t> ends{0, 1};
  const Tensor sums{m.memory.data() + 4096 * 6, DType::f64, {1}},
      total{m.memory.data() + 4096 * 6 + 64, DType::f64, {1}},
      nonfinite{m.memory.data() + 4096 * 6 + 128, DType::i32, {1}};
  const std::vector<std::function<void()>> others{
      [&] { m.graphs.record(*m.stream, *event); }, [&] { m.graphs.wait(*m.stream, *event); },
      [&] { m.graphs.write(*m.stream, bytes, m.vector(7)); },
      [&] { m.graphs.write_made(*m.stream, to, staging, [](std::span<std::byte>) {}); },
      [&] { m.graphs.read_back(*m.stream, m.vector(5), bytes); },
      [&] { m.graphs.transfer(*m.stream, m.vector(5), m.vector(4)); }, [&] { m.stream->flush(); },
      // Its `first_block` is in host memory.
      [&] {
        m.graphs.total_square_sum(
            *m.stream,
            {.sums = sums, .first_block = ends, .total = total, .nonfinite = nonfinite, .flag = {}});
      }};
  for (std::size_t i = 0; i < others.size(); ++i) {
    CAPTURE(i);
    const ListPlace place{.part = "forward", .chunk = static_cast<int>(i)};
    for (int time = 0; time < 3; ++time) {
      m.reset();
      m.list(
          [&] {
            m.four();
            others[i]();
            CHECK(m.first(5) == 5);
            CHECK(m.device.operators().size() >= 4);
            m.four();
          },
          place);
      const auto graphs = std::count(m.device.ran.begin(), m.device.ran.end(), "graph");
      CHECK(graphs == (time == 0 ? 0 : 2));
    }
  }
  // Calls on another stream run at once and do not end the list.
  const auto beside = m.graphs.make_stream("beside", &m.scratch);
  for (int time = 0; time < 2; ++time) {
    m.reset();
    m.list(
        [&] {
          m.graphs.scale(*m.stream, {.x = m.vector(0), .factor = 2, .out = m.vector(1)});
          m.graphs.fill_zero(*beside, m.vector(4));
          m.graphs.record(*beside, *event);
          CHECK(m.first(4) == 0);
          for (int i = 0; i < 3; ++i)
            m.graphs.add(*m.stream, {.a = m.vector(1), .b = m.vector(1), .out = m.vector(1)});
        },
        {.part = "beside"});
  }
  CHECK(m.device.ran == GraphNames{"fill_zero", "graph", "scale", "add", "add", "add", "end"});
}

TEST_CASE("a list without a graph leaves those after it their graphs", "[graphs]") {
  const auto graphs_of = [](GraphMachine& m) {
    return std::count(m.device.ran.begin(), m.device.ran.end(), "graph");
  };
  SECTION("a short list first, alone in some openings") {
    GraphMachine m;
    for (int time = 0; time < 6; ++time)
      for (const bool alone : {false, true}) {
        m.reset();
        m.list([&] {
          m.graphs.fill_zero(*m.stream, m.vector(4));
          if (!alone) m.stream->flush();
          m.four();
          m.stream->flush();
          m.four(3);
        });
        CAPTURE(time, alone);
        CHECK(graphs_of(m) == (time == 0 ? 0 : 2));
        CHECK(m.first(5) == 7);
      }
    CHECK(m.graphs.graph_use().without == GraphNames{"forward: fewer than 4 calls"});
  }
  SECTION("a list that the device does not capture") {
    GraphMachine m;
    m.device.refused = {Operator::fill_zero};
    for (int time = 0; time < 6; ++time) {
      m.reset();
      m.list([&] {
        m.four();
        m.graphs.fill_zero(*m.stream, m.vector(4));
        m.stream->flush();
        m.four();
      });
      CAPTURE(time);
      CHECK(graphs_of(m) == (time == 0 ? 0 : 1));
      CHECK(m.first(5) == 5);
    }
  }
}

TEST_CASE("graphs of a part are abandoned and reported if they cannot be captured or do not repeat",
          "[graphs]") {
  SECTION("short lists") {
    GraphMachine m;
    for (int time = 0; time < 3; ++time) {
      m.reset();
      m.list([&] { m.graphs.fill_zero(*m.stream, m.vector(5)); });
      CHECK(m.device.ran == GraphNames{"fill_zero"});
    }
    CHECK(m.graphs.graph_use().without == GraphNames{"forward: fewer than 4 calls"});
    CHECK(m.graphs.graph_use().graphs == 0);
    CHECK_FALSE(m.graphs.graph_use().failed);
  }
  SECTION("arguments that change") {
    GraphMachine m;
    const auto time_of = [&](std::int64_t i) { return static_cast<float>(i) + 2; };
    for (std::int64_t i = 0; i <= GraphBackend::kMaxFreshLists; ++i) {
      m.reset();
      m.list([&] { m.four(time_of(i)); });
      REQUIRE(m.device.ran == kFourCalls);
      REQUIRE(m.first(5) == 2 * time_of(i) + 1);
      CHECK(m.graphs.graph_use().without.empty() == (i < GraphBackend::kMaxFreshLists));
    }
    CHECK(m.graphs.graph_use().without == GraphNames{"forward: arguments that change from step to step"});
    m.reset();
    m.list([&] { m.four(); });
    CHECK(m.device.ran == kFourCalls);
  }
  SECTION("an operator that the device does not capture") {
    GraphMachine m;
    m.device.refused = {Operator::copy};
    for (int time = 0; time < 3; ++time) {
      m.reset();
      m.list([&] { m.four(); });
      CHECK(m.device.ran == kFourCalls);
      CHECK(m.first(5) == 5);
    }
    const GraphUse use = m.graphs.graph_use();
    CHECK(use.failed);
    CHECK(use.graphs == 0);
    REQUIRE(use.without.size() == 1);
    CHECK_THAT(use.without[0], Catch::StartsWith("forward: copy cannot be captured"));
  }
}

TEST_CASE("calls inside graphs are counted as if each were executed", "[graphs]") {
  GraphMachine m;
  for (std::int64_t time = 1; time < 6; ++time) {
    m.list([&] { m.four(); });
    CHECK(m.graphs.counters().own_attention == time);
  }
}

TEST_CASE("graphs are captured again after a change in how operators run", "[graphs]") {
  GraphMachine m;
  for (int time = 0; time < 2; ++time) m.list([&] { m.four(); });
  m.graphs.limit_attention(1 << 20);
  m.reset();
  m.list([&] { m.four(); });
  CHECK(m.device.ran == kFourCalls);
  m.list([&] { m.four(); });
  CHECK(m.device.captured == 2);
}

TEST_CASE("the second step decides by host and device time whether graphs pay", "[graphs]") {
  for (const bool slow : {true, false}) {
    GraphMachine m(GraphChoice::measured);
    const auto steps = [&](int count, double device_seconds) {
      for (int i = 0; i < count; ++i) {
        m.list([&] { m.four(); });
        // Calls of an evaluation do not count for the step.
        m.list([&] { m.four(); }, {.part = "evaluation", .of_step = false});
        m.graphs.end_step(device_seconds);
      }
    };
    steps(1, 1);
    CHECK(m.graphs.graph_use().state == GraphUse::State::deciding);
    // The device takes an hour, or almost no time.
    steps(1, slow ? 3600.0 : 1e-12);
    const GraphUse use = m.graphs.graph_use();
    CHECK(use.state == (slow ? GraphUse::State::not_worth : GraphUse::State::used));
    CHECK(use.issue_seconds > 0);
    CHECK(use.device_seconds == (slow ? 3600.0 : 1e-12));
    steps(3, 1);
    CHECK(m.graphs.graph_use().steps_since == 3);
    CHECK(m.graphs.graph_use().issue_seconds == use.issue_seconds);
    CHECK(m.graphs.graph_use().graphs == (slow ? 0 : 2));
    CHECK(m.first(5) == 5);
  }
  CHECK(graphs_pay(1.0, 4.0));
  CHECK_FALSE(graphs_pay(1.0, 4.1));
  CHECK_FALSE(graphs_pay(0, 0));
}

TEST_CASE("worlds without graphs refuse to capture, and run lists call by call", "[graphs]") {
  base::ThreadPool pool(1);
  CpuBackend cpu(detect_cpu(1), pool);
  CHECK_THROWS_AS(cpu.capture([](Stream&) {}), base::DeviceError);
  const auto stream = cpu.make_stream("compute", nullptr);
  CHECK_NOTHROW(cpu.open_list(*stream, kGraphPlace));
  CHECK_NOTHROW(cpu.close_list(*stream));
  CHECK(cpu.graph_use().state == GraphUse::State::none);
}

TEST_CASE("an operator's arguments can be stored, except those in host memory", "[graphs]") {
  std::set<std::string> ending;  // operators that end a list
#define TRAINERD_OPERATOR(name, Args, cuda) \
  if (!Comparable<Args>) ending.insert(#Args);
#include "kernels/ops/operators.def"
  CHECK(ending == std::set<std::string>{"ParamUpdate", "CopyBoxes", "DirectionUpdate", "GroupSquareSums",
                                        "RopeTable", "TotalSquareSum"});
}
