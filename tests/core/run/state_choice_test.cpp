// From which snapshots in the memory of agents ranks can begin (state_choice.h), and how their bytes cross
// (state_exchange.h).

#include "core/run/nodes/state_choice.h"

#include <catch2/catch.hpp>

#include "core/run/nodes/state_exchange.h"
#include "kernels/base/error.h"
#include "parallel/comm/rendezvous/tcp_store.h"
#include "tests/core/run/log_lines.h"

using namespace trainerd;
using namespace trainerd::core;

namespace {

constexpr std::int64_t kAnyStep = 1'000'000;

/// Rows [begin, end) of the tensor "w", 6 x 2.
io::TensorSlice rows_of_w(std::int64_t begin, std::int64_t end) {
  return {"w", kernels::DType::f32, {6, 2}, {begin, 0}, {end - begin, 2}, {}};
}

run::StateCut cut_at(std::int64_t step, std::int64_t attempt = 1, const std::string& name = "run") {
  return {name, attempt, step, 4 * step, 256 * step};
}

enum class Kind { own, overwritten_perhaps, copy };

run::ShownOffer shown(std::int64_t from, std::int64_t of, const run::StateCut& cut, io::TensorSlice slice,
                      Kind kind = Kind::own) {
  return {from,
          {.cut = cut,
           .node = of,
           .taken = kind != Kind::overwritten_perhaps,
           .own = kind != Kind::copy,
           .head = "head",
           .slices = {std::move(slice)}}};
}

using Shown = std::vector<run::ShownOffer>;
using Sources = std::vector<run::StateSource>;
const std::vector<io::TensorSlice> kWhole{rows_of_w(0, 6)};

}  // namespace

TEST_CASE("the newest step whose snapshots together are whole is chosen", "[states]") {
  // Node 2 is lost; its partner, node 0, keeps a copy of step 10.
  const Shown offers{shown(0, 0, cut_at(10), rows_of_w(0, 2)), shown(0, 0, cut_at(12), rows_of_w(0, 2)),
                     shown(1, 1, cut_at(10), rows_of_w(2, 4)), shown(1, 1, cut_at(12), rows_of_w(2, 4)),
                     shown(0, 2, cut_at(10), rows_of_w(4, 6), Kind::copy)};
  const auto choice = run::choose_state(offers, kWhole, kAnyStep);
  REQUIRE(choice);
  CHECK(choice->cut == cut_at(10));
  CHECK(choice->sources == Sources{{0, 0, false}, {1, 1, false}, {2, 0, true}});
  CHECK(choice->from_copies());
  // Without it a part is missing at each step.
  CHECK_FALSE(run::choose_state(std::span(offers).first(4), kWhole, kAnyStep));
}

TEST_CASE("what the records do not reach is not chosen", "[states]") {
  const Shown offers{shown(0, 0, cut_at(10), rows_of_w(0, 6)), shown(0, 0, cut_at(12), rows_of_w(0, 6))};
  CHECK(run::choose_state(offers, kWhole, 12)->cut.step == 12);
  CHECK(run::choose_state(offers, kWhole, 11)->cut.step == 10);
  CHECK_FALSE(run::choose_state(offers, kWhole, 9));
}

TEST_CASE("a replica that has all of the state is enough", "[states]") {
  const Shown offers{shown(0, 0, cut_at(8), rows_of_w(0, 6))};
  const auto choice = run::choose_state(offers, kWhole, kAnyStep);
  REQUIRE(choice);
  CHECK(choice->sources == Sources{{0, 0, false}});
  CHECK_FALSE(choice->from_copies());
}

TEST_CASE("snapshots of different attempts or leads are not put together", "[states]") {
  CHECK_FALSE(run::choose_state(
      Shown{shown(0, 0, cut_at(8, 1), rows_of_w(0, 3)), shown(1, 1, cut_at(8, 2), rows_of_w(3, 6))}, kWhole,
      kAnyStep));
  CHECK_FALSE(run::choose_state(
      Shown{shown(0, 0, cut_at(8, 1, "a"), rows_of_w(0, 3)), shown(1, 1, cut_at(8, 1, "b"), rows_of_w(3, 6))},
      kWhole, kAnyStep));
}

TEST_CASE("a snapshot that ranks may have begun to overwrite counts as the newest common one alone",
          "[states]") {
  const auto of = [](Kind older) {
    return Shown{shown(0, 0, cut_at(8), rows_of_w(0, 3), older), shown(0, 0, cut_at(10), rows_of_w(0, 3)),
                 shown(1, 1, cut_at(8), rows_of_w(3, 6), older), shown(1, 1, cut_at(10), rows_of_w(3, 6))};
  };
  // A part of step 10 is missing on node 1: step 8 is the newest that both hold, so no rank has begun.
  Shown offers = of(Kind::overwritten_perhaps);
  offers.pop_back();
  CHECK(run::choose_state(offers, kWhole, kAnyStep)->cut.step == 8);
  // Both hold step 10, so that step 8 may be half of a later one.
  CHECK(run::choose_state(of(Kind::overwritten_perhaps), kWhole, kAnyStep)->cut.step == 10);
  CHECK_FALSE(run::choose_state(of(Kind::overwritten_perhaps), kWhole, 9));
  CHECK(run::choose_state(of(Kind::own), kWhole, 9)->cut.step == 8);
}

TEST_CASE("a node's own snapshots are preferred to its partner's copy", "[states]") {
  const Shown offers{shown(1, 0, cut_at(8), rows_of_w(0, 6), Kind::copy),
                     shown(0, 0, cut_at(8), rows_of_w(0, 6))};
  CHECK(run::choose_state(offers, kWhole, kAnyStep)->sources == Sources{{0, 0, false}});
}

namespace {

std::shared_ptr<const base::Segment> filled(std::int64_t bytes, int seed) {
  auto segment = std::make_shared<base::Segment>(base::Segment::create("state-test", bytes));
  for (std::size_t i = 0; i < segment->bytes().size(); ++i)
    segment->bytes()[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(seed));
  return segment;
}

run::HeldState held_of(std::int64_t node, const run::StateCut& cut) {
  run::HeldState state{.cut = cut, .head = "head", .copy = {node, cut.step, cut.cursor, cut.tokens, {}}};
  state.copy.ranks.push_back({{rows_of_w(0, 2)}, {}, 100'000, "", filled(100'000, 1)});
  state.copy.ranks.push_back({{rows_of_w(2, 4), rows_of_w(4, 6)}, {}, 5, "", filled(8, 2)});
  return state;
}

}  // namespace

TEST_CASE("an answer of many boxes comes in parts, and the head in the first alone", "[states]") {
  const std::vector<run::HeldState> states{held_of(3, cut_at(8)), held_of(4, cut_at(8))};
  const std::vector<run::StateShown> parts = run::shown_states(7, states, 2);
  REQUIRE(parts.size() == 5);
  std::vector<io::TensorSlice> of_3;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    CHECK(parts[i].number == 7);
    CHECK(parts[i].last == (i + 1 == parts.size()));
    for (const run::StateOffer& offer : parts[i].offers) {
      CHECK((offer.cut == cut_at(8) && offer.head.empty() == (i % 2 == 1)));
      if (offer.node == 3) of_3.insert(of_3.end(), offer.slices.begin(), offer.slices.end());
    }
  }
  REQUIRE(of_3.size() == 3);
  CHECK((of_3[0].begin[0] == 0 && of_3[1].begin[0] == 2 && of_3[2].begin[0] == 4));
  CHECK(run::shown_states(7, {}).size() == 1);
}

TEST_CASE("an agent gives those ranks of a state that another needs, as they were", "[states]") {
  const auto token = parallel::JobToken::random();
  parallel::StoreServer store(base::listen_at({"127.0.0.1", 0}), token, [](const std::string&) {});
  run::StateExchange here({0, store.local_endpoint(), "127.0.0.1", token}),
      there({1, store.local_endpoint(), "127.0.0.1", token});
  here.begin(2), there.begin(2);
  const run::HeldState state = held_of(5, cut_at(8, 1, "before"));
  there.offer({state});
  const auto upper = [](const std::vector<io::TensorSlice>& slices) { return slices.front().begin[0] == 0; };
  const run::NodeCopy copy = here.fetch(state.cut, {.of = 5, .from = 1}, upper);
  REQUIRE(copy.ranks.size() == 1);
  CHECK((copy.node == 5 && copy.step == 8 && copy.cursor == 32));
  const auto bytes = copy.ranks[0].memory->bytes().first(100'000);
  CHECK(std::equal(bytes.begin(), bytes.end(), state.copy.ranks[0].memory->bytes().begin()));
  CHECK(here.fetch(state.cut, {.of = 5, .from = 1}, [](const auto&) { return true; }).ranks.size() == 2);
  CHECK_THROWS_WITH(here.fetch(cut_at(9, 1, "before"), {.of = 5, .from = 1}, upper),
                    Catch::Contains("node 1 has no snapshot of step 9 of node 5"));
  CHECK_THROWS_AS(here.fetch(cut_at(8), {.of = 5, .from = 1}, upper), base::CommError);
}
