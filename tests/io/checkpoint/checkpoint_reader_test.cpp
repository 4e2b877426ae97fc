#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "io/checkpoint/compare.h"
#include "kernels/base/error.h"
#include "tests/io/checkpoint_support.h"
#include "tests/io/temp_dir.h"

using trainerd::base::CheckpointError;
using namespace trainerd::io;
using namespace trainerd::test;

namespace {

float value_of(const std::string& name, std::int64_t n) {
  return static_cast<float>(n) + (name == "w" ? 0.0f : 0.5f);
}

std::string save(const TempDir& dir, const std::vector<Shard>& shards) {
  std::vector<ShardContent> contents;
  for (const Shard& shard : shards) contents.push_back(shard.content());
  return CheckpointStore(dir.path(), 1).write(state_at(1), contents).path;
}

std::vector<float> read(CheckpointReader& reader, const TensorSlice& box) {
  std::int64_t elements = 1;
  for (const std::int64_t size : box.shape) elements *= size;
  std::vector<float> out(static_cast<std::size_t>(elements), -1);
  reader.read(box, std::as_writable_bytes(std::span(out)));
  return out;
}

// The content of the box, by the definition of row-major order.
std::vector<float> expected(const TensorSlice& box) {
  std::vector<float> out;
  std::vector<std::int64_t> at = box.begin;
  for (;;) {
    std::int64_t n = 0;
    for (std::size_t d = 0; d < at.size(); ++d) n = n * box.logical_shape[d] + at[d];
    out.push_back(value_of(box.name, n));
    std::size_t d = at.size();
    while (d > 0 && ++at[d - 1] == box.begin[d - 1] + box.shape[d - 1]) {
      at[d - 1] = box.begin[d - 1];
      --d;
    }
    if (d == 0) return out;
  }
}

}  // namespace

TEST_CASE("any box is read from shards cut along any dimension") {
  const TempDir dir;
  // w [5, 6, 7] in four boxes that tile it along two dimensions; one of them is stored twice.
  const auto w = [](std::vector<std::int64_t> begin, std::vector<std::int64_t> shape) {
    return slice("w", {5, 6, 7}, std::move(begin), std::move(shape));
  };
  const std::string path =
      save(dir, {make_shard({w({0, 0, 0}, {2, 6, 3}), slice("s", {}, {}, {})}, value_of),
                 make_shard({w({2, 0, 0}, {3, 6, 3}), slice("v", {9}, {0}, {4})}, value_of),
                 make_shard({w({0, 0, 3}, {5, 2, 4}), slice("v", {9}, {4}, {5})}, value_of),
                 make_shard({w({0, 2, 3}, {5, 4, 4})}, value_of),
                 make_shard({w({0, 2, 3}, {5, 4, 4})}, value_of)});
  CheckpointReader reader(path);
  CHECK(reader.manifest().shards.size() == 5);
  CHECK(read(reader, w({0, 0, 0}, {5, 6, 7})) == expected(w({0, 0, 0}, {5, 6, 7})));
  CHECK(read(reader, slice("v", {9}, {2}, {6})) == expected(slice("v", {9}, {2}, {6})));
  CHECK(read(reader, slice("s", {}, {}, {})) == std::vector<float>{0.5f});
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    TensorSlice box = w({0, 0, 0}, {0, 0, 0});
    for (std::size_t d = 0; d < 3; ++d) {
      box.begin[d] = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(box.logical_shape[d]));
      box.shape[d] = 1 + static_cast<std::int64_t>(
                             random() % static_cast<std::uint64_t>(box.logical_shape[d] - box.begin[d]));
    }
    REQUIRE(read(reader, box) == expected(box));
  }
}

TEST_CASE("an empty box reads nothing") {
  const TempDir dir;
  CheckpointReader reader(save(dir, {make_shard({slice("w", {4}, {0}, {4})}, value_of)}));
  CHECK(read(reader, slice("w", {4}, {2}, {0})).empty());
}

TEST_CASE("what a checkpoint does not hold is named") {
  const TempDir dir;
  CheckpointReader reader(save(dir, {make_shard({slice("w", {4, 4}, {0, 0}, {4, 2})}, value_of)}));
  CHECK(message_of<CheckpointError>([&] {
          read(reader, slice("q", {4, 4}, {0, 0}, {1, 1}));
        }).find("q") != std::string::npos);
  CHECK(message_of<CheckpointError>([&] {
          read(reader, slice("w", {4, 5}, {0, 0}, {1, 1}));
        }).find("[4, 5]") != std::string::npos);
  TensorSlice other = slice("w", {4, 4}, {0, 0}, {2, 1});
  other.dtype = trainerd::kernels::DType::bf16;
  CHECK(message_of<CheckpointError>([&] { read(reader, other); }).find("bf16") != std::string::npos);
  CHECK(message_of<CheckpointError>([&] {
          read(reader, slice("w", {4, 4}, {1, 1}, {2, 2}));
        }).find("[1, 2]") != std::string::npos);
}

TEST_CASE("a reader refuses a checkpoint that was never completed") {
  const TempDir dir;
  const std::string path = save(dir, {make_shard({slice("w", {4}, {0}, {4})}, value_of)});
  std::filesystem::remove(path + "/COMPLETE");
  CHECK_THROWS_AS(CheckpointReader(path), CheckpointError);
}

TEST_CASE("boxes are read from shards in memory as from those on a disk") {
  const auto w = [](std::vector<std::int64_t> begin, std::vector<std::int64_t> shape) {
    return slice("w", {5, 6}, std::move(begin), std::move(shape));
  };
  const std::vector<Shard> shards{make_shard({w({0, 0}, {2, 6})}, value_of),
                                  make_shard({w({2, 0}, {3, 6}), slice("v", {9}, {0}, {9})}, value_of)};
  std::vector<ShardContent> contents;
  for (const Shard& shard : shards) contents.push_back(shard.content());
  CheckpointReader reader("the snapshots of step 5", contents);
  for (const TensorSlice& box : {w({0, 0}, {5, 6}), w({1, 2}, {3, 3}), slice("v", {9}, {2}, {6})})
    CHECK(read(reader, box) == expected(box));
  CHECK_THROWS_WITH(read(reader, slice("x", {2}, {0}, {2})),
                    Catch::Contains("the snapshots of step 5: holds no tensor x"));
  // A truncated shard is rejected.
  contents[0].bytes = contents[0].bytes.first(contents[0].bytes.size() - 1);
  CheckpointReader cut("the snapshots of step 5", contents);
  CHECK_THROWS_AS(read(cut, w({0, 0}, {1, 6})), CheckpointError);
}

TEST_CASE("a box is covered by boxes of its tensor that hold every element of it") {
  const auto w = [](std::vector<std::int64_t> begin, std::vector<std::int64_t> shape) {
    return slice("w", {5, 6}, std::move(begin), std::move(shape));
  };
  const std::vector<TensorSlice> held{w({0, 0}, {3, 4}), w({2, 0}, {3, 4}),
                                      slice("v", {5, 6}, {0, 0}, {5, 6})};
  CHECK(covers(held, w({1, 1}, {4, 3})));
  CHECK_FALSE(covers(held, w({1, 1}, {4, 4})));
  CHECK_FALSE(covers(held, slice("w", {5, 7}, {0, 0}, {1, 1})));  // another tensor with that name
  CHECK_FALSE(covers({}, w({0, 0}, {1, 1})));
  CHECK(covers({}, w({0, 0}, {0, 4})));
}

TEST_CASE("a box is taken in pieces that make it up in order and are no larger than asked for",
          "[checkpoint]") {
  const TensorSlice box = slice("w", {6, 5, 7}, {1, 0, 2}, {4, 5, 3});
  for (const std::int64_t most : {1, 4, 11, 12, 36, 60, 100, 239, 240, 1000}) {
    INFO(most << " bytes");
    std::vector<float> all;
    for_each_piece(box, most, [&](const TensorSlice& piece) {
      CHECK((tensor_bytes(piece.dtype, piece.shape) <= most || tensor_bytes(piece.dtype, piece.shape) == 4));
      const std::vector<float> part = expected(piece);
      all.insert(all.end(), part.begin(), part.end());
    });
    CHECK(all == expected(box));
  }
  for_each_piece(slice("w", {6, 5}, {0, 0}, {0, 5}), 100,
                 [](const TensorSlice&) { FAIL("of nothing no piece"); });
  std::int64_t pieces = 0;
  for_each_piece(slice("w", {}, {}, {}), 1, [&](const TensorSlice&) { ++pieces; });
  CHECK(pieces == 1);
}

TEST_CASE("two checkpoints are compared by tensors, whatever their shards", "[checkpoint]") {
  const auto plain = [](const std::string& name, std::int64_t n) { return value_of(name, n); };
  const TempDir one, two;
  const std::string whole =
      save(one, {make_shard({slice("w", {6, 8}, {0, 0}, {6, 8}), slice("b", {5}, {0}, {5})}, plain)});
  const auto other = [&](auto value, const std::string& last = "b") {
    return save(two, {make_shard({slice("w", {6, 8}, {0, 0}, {2, 8})}, value),
                      make_shard({slice("w", {6, 8}, {2, 0}, {4, 8}), slice(last, {5}, {0}, {5})}, value)});
  };
  const auto compare = [&](const std::string& path, double tolerance = 0) {
    CheckpointReader a(whole), b(path);
    return compare_checkpoints(a, b, tolerance);
  };
  const Comparison same = compare(other(plain));
  CHECK((same.tensors == 2 && same.different.empty()));
  // Element 19 of w differs by 0.25; max |w| is 47.
  const auto moved = [&](const std::string& name, std::int64_t n) {
    return value_of(name, n) + (name == "w" && n == 19 ? 0.25f : 0);
  };
  const Comparison one_off = compare(other(moved));
  REQUIRE(one_off.different.size() == 1);
  const TensorDifference& w = one_off.different[0];
  CHECK((w.name == "w" && w.unequal == 1 && w.elements == 48 && w.largest == 0.25));
  CHECK(w.relative == Approx(0.25 / 47));
  CHECK(w.at == std::vector<std::int64_t>{2, 3});
  CHECK(compare(other(moved), 0.0054).different.empty());
  CHECK(compare(other(moved), 0.0053).different.size() == 1);
  // NaN is infinitely far from a number, but not from another NaN.
  const auto broken = [&](const std::string& name, std::int64_t n) {
    return name == "b" && n == 4 ? std::numeric_limits<float>::quiet_NaN() : value_of(name, n);
  };
  const Comparison nan = compare(other(broken), 1e9);
  REQUIRE(nan.different.size() == 1);
  CHECK((nan.different[0].name == "b" && std::isinf(nan.different[0].relative)));
  // Zeros with different signs differ only in their bits.
  const auto zero = [](const std::string&, std::int64_t) { return -0.0f; };
  const TempDir three;
  const std::string zeros =
      save(three,
           {make_shard({slice("w", {4}, {0}, {4})}, [](const std::string&, std::int64_t) { return 0.0f; })});
  CheckpointReader plus(zeros), minus(save(two, {make_shard({slice("w", {4}, {0}, {4})}, zero)}));
  CHECK(compare_checkpoints(plus, minus, 0).different.size() == 1);
  CHECK(compare_checkpoints(plus, minus, 1e-30).different.empty());
  const Comparison renamed = compare(other(plain, "c"));
  REQUIRE(renamed.different.size() == 2);
  CHECK((renamed.tensors == 3 && renamed.different[0].name == "b" &&
         renamed.different[0].problem == "in the first alone"));
  CHECK(renamed.different[1].problem == "in the second alone");
}

TEST_CASE("the statistics of a tensor are of its finite values", "[checkpoint]") {
  const TempDir dir;
  CheckpointReader reader(
      save(dir, {make_shard({slice("w", {4}, {0}, {4})}, [](const std::string&, std::int64_t n) {
             return n == 3 ? std::numeric_limits<float>::infinity() : static_cast<float>(n) - 2;
           })}));
  const TensorStatistics found = statistics_of(reader, whole_tensors(reader.manifest()).at(0));
  CHECK((found.elements == 4 && found.not_finite == 1 && found.least == -2 && found.most == 0));
  CHECK(found.mean == -1);
  CHECK(found.root_mean_square == Approx(std::sqrt(5.0 / 3)));
}
