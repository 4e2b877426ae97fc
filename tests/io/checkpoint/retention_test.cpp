#include <catch2/catch.hpp>

#include "io/checkpoint/retention.h"

using trainerd::io::Retained;
using trainerd::io::retained;
using trainerd::io::Retention;

namespace {

std::vector<std::int64_t> kept(const std::vector<Retained>& newest_first, const Retention& retention) {
  const std::vector<bool> stays = retained(newest_first, retention);
  std::vector<std::int64_t> steps;
  for (std::size_t i = 0; i < stays.size(); ++i)
    if (stays[i]) steps.push_back(newest_first[i].step);
  return steps;
}

using Steps = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("the newest checkpoints stay, and the newest that is good", "[retention]") {
  CHECK(kept({}, {.keep = 2}) == Steps{});
  CHECK(kept({{9}, {8}, {7}, {6}}, {.keep = 2}) == Steps{9, 8});
  CHECK(kept({{9}, {8}, {7, true}, {6, true}, {5}}, {.keep = 2}) == Steps{9, 8, 7});
  CHECK(kept({{9, true}, {8}, {7, true}}, {.keep = 1}) == Steps{9});
}

TEST_CASE("the first checkpoint of every so many steps stays for good", "[retention]") {
  CHECK(kept({{40}, {30}, {20}, {10}, {5}}, {.keep = 1, .keep_every = 20}) == Steps{40, 20});
  // With saves by time the steps are no multiples of keep_every.
  CHECK(kept({{47}, {38}, {31}, {22}, {13}}, {.keep = 1, .keep_every = 20}) == Steps{47, 22});
  // Removing after each save, as in a run, gives the same result as applying the rules once at the end.
  std::vector<Retained> there;
  Steps all;
  std::vector<Retained> all_of_them;
  for (std::int64_t step = 7; step <= 700; step += 7) {
    there.insert(there.begin(), {step});
    all_of_them.insert(all_of_them.begin(), {step});
    std::vector<Retained> stay;
    for (const std::int64_t s : kept(there, {.keep = 2, .keep_every = 50})) stay.push_back({s});
    there = stay;
  }
  for (const Retained& r : there) all.push_back(r.step);
  CHECK(all == kept(all_of_them, {.keep = 2, .keep_every = 50}));
  CHECK(all.size() == 2 + 13);  // 56, 105, 154, ..., 651; 700 is one of the newest two
}
