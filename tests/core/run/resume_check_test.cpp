// Changes since the checkpoint that a resumed run detects.

#include "core/run/worker/resume_check.h"

#include <catch2/catch.hpp>

#include "core/spec/changes.h"
#include "kernels/base/error.h"
#include "tests/core/train_support.h"
#include "tests/io/temp_dir.h"

using namespace trainerd;
using Catch::Contains;
using Lines = std::vector<std::string>;

namespace {

core::job::JobSpec text_job(const std::string& path, std::int64_t evaluate_every = 0) {
  core::job::JobSpec job = test::small_job();
  job.data = {};
  job.data.train = job.data.valid = {path};
  job.model.vocab = 256;
  job.evaluate.every = evaluate_every;
  return job;
}

/// State that a run on `seen` saves after 40 samples, in an order that starts at sample 12.
io::TrainingState saved_with(const core::run::DataSeen& seen) {
  io::TrainingState state{
      .step = 10, .cursor = 40, .tokens = 960, .seed = 0, .identity = {}, .environment = {}};
  core::run::record_data(seen, {{.start = 12, .sources = {{2, 0}}}, {}}, state);
  return state;
}

core::run::DataSeen seen_in(const test::TempDir& dir, const std::string& content) {
  test::write_file(dir / "a", content);
  return core::run::look_at_data(text_job(dir / "a"));
}

}  // namespace

TEST_CASE("a run continues with the same data in the same order", "[resume]") {
  const test::TempDir dir;
  const core::run::DataSeen seen = seen_in(dir, std::string(1000, 'a'));
  const auto resumed = core::run::resumed_data("p", saved_with(seen), seen, io::DataChange::refuse);
  CHECK(resumed.course.order == io::DataOrder{12, {{2, 0}}});
  CHECK(resumed.course.gone.empty());
  CHECK(resumed.notices.empty());
}

TEST_CASE("data with the same names and sizes but other content is refused, with a way to continue",
          "[resume]") {
  const test::TempDir dir;
  const core::run::DataSeen before = seen_in(dir, std::string(1000, 'a')),
                            now = seen_in(dir, std::string(999, 'a') + "b");
  CHECK(before.files() == now.files());
  const io::TrainingState saved = saved_with(before);
  CHECK_THROWS_AS(core::run::resumed_data("p", saved, now, io::DataChange::refuse), base::CheckpointError);
  CHECK_THROWS_WITH(core::run::resumed_data("p", saved, now, io::DataChange::refuse),
                    Contains(before.content()) && Contains(now.content()) &&
                        Contains("data.on_change: continue") && Contains("output"));
}

TEST_CASE("changed or added data continues in a new order from the checkpoint's cursor if the job allows it",
          "[resume]") {
  const test::TempDir dir;
  const core::run::DataSeen before = seen_in(dir, std::string(1000, 'a'));
  const core::run::DataSeen now = seen_in(dir, std::string(GENERATE(1000, 2000), 'b'));
  const auto resumed = core::run::resumed_data("p", saved_with(before), now, io::DataChange::go_on);
  CHECK(resumed.course.order == io::DataOrder{40, {{3, 0}}});
  REQUIRE(resumed.notices.size() == 1);
  CHECK(resumed.notices[0].kind == io::NoticeKind::change);
  REQUIRE(resumed.notices[0].details.size() == 1);
  CHECK_THAT(resumed.notices[0].details[0], Contains("data: the checkpoint has"));
}

TEST_CASE("a checkpoint without recorded content is compared by names and sizes, with a notice", "[resume]") {
  const test::TempDir dir;
  const core::run::DataSeen before = seen_in(dir, std::string(1000, 'a'));
  io::TrainingState saved = saved_with(before);
  saved.identity.erase("data.content");
  saved.sources.clear();
  const auto resumed =
      core::run::resumed_data("p", saved, seen_in(dir, std::string(1000, 'b')), io::DataChange::refuse);
  REQUIRE(resumed.notices.size() == 1);
  CHECK(resumed.notices[0].kind == io::NoticeKind::warning);
  CHECK_THAT(resumed.notices[0].message, Contains("content"));
  const core::run::DataSeen longer = seen_in(dir, std::string(1001, 'b'));
  CHECK_THROWS_AS(core::run::resumed_data("p", saved, longer, io::DataChange::refuse), base::CheckpointError);
}

TEST_CASE("other validation data is a notice", "[resume]") {
  const test::TempDir dir;
  const auto look = [&](const std::string& content) {
    test::write_file(dir / "valid", content);
    core::job::JobSpec job = text_job(dir / "a", 10);
    job.data.valid = {dir / "valid"};
    return core::run::look_at_data(job);
  };
  test::write_file(dir / "a", std::string(1000, 'a'));
  const core::run::DataSeen before = look(std::string(500, 'v')), now = look(std::string(500, 'w'));
  const auto resumed = core::run::resumed_data("p", saved_with(before), now, io::DataChange::refuse);
  CHECK(resumed.course.order == io::DataOrder{12, {{2, 0}}});
  REQUIRE(resumed.notices.size() == 1);
  CHECK_THAT(resumed.notices[0].message, Contains("validation"));
}

namespace {

/// Blends of files of 1000, 2000 and 3000 letters: 47, 95 and 142 samples of 21 tokens.
class BlendResume {
 public:
  BlendResume() {
    for (const char letter : {'a', 'b', 'c'})
      test::write_file(dir_ / std::string(1, letter),
                       std::string(1000 * static_cast<std::size_t>(letter - 'a' + 1), letter));
  }
  std::string path(char letter) const { return dir_ / std::string(1, letter); }
  /// The blend of the files with these letters, "ab", and weights.
  core::run::DataSeen look(const std::string& letters, const std::vector<double>& weights,
                           double epochs = 0) const {
    core::job::JobSpec job = text_job("");
    job.data.train.clear();
    for (std::size_t i = 0; i < letters.size(); ++i)
      job.data.sources.push_back({.path = {path(letters[i])}, .weight = weights.at(i), .epochs = epochs});
    return core::run::look_at_data(job);
  }
  core::run::DataSeen look_at_one(char letter) const {
    return core::run::look_at_data(text_job(path(letter)));
  }

  const test::TempDir dir_;
};

io::TrainingState saved_at(std::int64_t cursor, const core::run::DataSeen& seen,
                           const core::run::DataCourse& course) {
  io::TrainingState state;
  state.cursor = cursor;
  core::run::record_data(seen, course, state);
  return state;
}

}  // namespace

TEST_CASE("an unchanged blend continues in its order, with counts per source", "[resume]") {
  const BlendResume data;
  const core::run::DataSeen seen = data.look("ab", {3, 1});
  const io::TrainingState saved = saved_at(100, seen, {});
  REQUIRE(saved.sources.size() == 2);
  CHECK(saved.sources[0].taken == 75);
  CHECK(saved.sources[1].taken == 25);
  const auto resumed = core::run::resumed_data("p", saved, seen, io::DataChange::refuse);
  CHECK(resumed.course.order == io::DataOrder{0, {{0, 0}, {1, 0}}});
  CHECK(resumed.notices.empty());
  // Sources in another order are no change.
  const auto turned = core::run::resumed_data("p", saved, data.look("ba", {1, 3}), io::DataChange::refuse);
  CHECK(turned.course.order == io::DataOrder{0, {{1, 0}, {0, 0}}});
  CHECK(turned.notices.empty());
}

TEST_CASE("added, reweighted and removed sources continue after the samples taken from each", "[resume]") {
  const BlendResume data;
  const io::TrainingState saved = saved_at(100, data.look("ab", {3, 1}), {});
  const core::run::DataSeen more = data.look("bca", {1, 1, 2});
  const auto added = core::run::resumed_data("p", saved, more, io::DataChange::refuse);
  CHECK(added.course.order == io::DataOrder{100, {{1, 25}, {2, 0}, {0, 75}}});
  REQUIRE(added.notices.size() == 1);
  CHECK(added.notices[0].kind == io::NoticeKind::change);
  CHECK(added.notices[0].details == Lines{data.path('c') + ": added, weight 1",
                                          data.path('a') + ": weight 3 -> weight 2 after 75 samples"});
  // 40 samples later b is removed; 50 samples after that it comes back.
  const io::TrainingState later = saved_at(140, more, added.course);
  CHECK(later.sources[0].taken == 35);
  const core::run::DataSeen fewer = data.look("ac", {2, 1});
  const auto without = core::run::resumed_data("p", later, fewer, io::DataChange::refuse);
  CHECK(without.course.order == io::DataOrder{140, {{0, 95}, {2, 10}}});
  REQUIRE(without.notices.size() == 1);
  CHECK(without.notices[0].details == Lines{data.path('b') + ": taken away after 35 samples"});
  const io::TrainingState last = saved_at(200, fewer, without.course);
  REQUIRE(last.sources.size() == 3);
  const auto again = core::run::resumed_data("p", last, more, io::DataChange::refuse);
  CHECK(again.course.order == io::DataOrder{200, {{1, 35}, {2, 30}, {0, 135}}});
  CHECK(again.course.gone.empty());
}

TEST_CASE("data of one source becomes the first of a blend without a sample twice", "[resume]") {
  const BlendResume data;
  io::TrainingState saved = saved_with(data.look_at_one('a'));
  if (GENERATE(false, true)) saved.sources.clear();  // saved by a version that did not count per source
  const auto resumed = core::run::resumed_data("p", saved, data.look("ab", {1, 1}), io::DataChange::refuse);
  CHECK(resumed.course.order == io::DataOrder{40, {{2, 28}, {3, 0}}});
  CHECK(resumed.notices.size() == 1);
}

TEST_CASE("a source that replaces another is refused, as it may be a changed file", "[resume]") {
  const BlendResume data;
  const io::TrainingState saved = saved_at(100, data.look("ab", {3, 1}), {});
  const core::run::DataSeen other = data.look("ac", {3, 1});
  CHECK_THROWS_WITH(core::run::resumed_data("p", saved, other, io::DataChange::refuse),
                    Contains("data.on_change: continue") && Contains("data: the checkpoint has"));
  const auto resumed = core::run::resumed_data("p", saved, other, io::DataChange::go_on);
  CHECK(resumed.course.order == io::DataOrder{100, {{0, 75}, {2, 0}}});
  REQUIRE(resumed.notices.size() == 1);
  REQUIRE(resumed.course.gone.size() == 1);
  CHECK(resumed.course.gone[0].taken == 25);
}

TEST_CASE("sources with too few samples for the job's steps are refused before the first step", "[resume]") {
  const BlendResume data;
  const core::run::DataSeen seen = data.look("ab", {1, 1}, 2);
  const std::int64_t all = 2 * (seen.sources[0].samples + seen.sources[1].samples);
  CHECK_NOTHROW(core::run::require_enough(seen, {}, all));
  CHECK_THROWS_WITH(core::run::require_enough(seen, {}, all + 1),
                    Contains("data.sources") && Contains("samples more"));
  CHECK_NOTHROW(core::run::require_enough(data.look("ab", {1, 1}), {}, std::int64_t{1} << 50));
  // Samples taken before count, too.
  CHECK_THROWS_AS(core::run::require_enough(seen, {10, {{0, 5}, {1, 5}}}, all - 9), base::DataError);
  CHECK_NOTHROW(core::run::require_enough(seen, {10, {{0, 5}, {1, 5}}}, all - 10));
}

TEST_CASE("the same data named twice in a blend is refused", "[resume]") {
  const BlendResume data;
  CHECK_THROWS_WITH(data.look("aba", {1, 1, 1}),
                    Contains("is the same data as") && Contains("sum of the weights"));
}

TEST_CASE("data is looked at before a step is taken: an id outside the vocabulary is an error", "[resume]") {
  const test::TempDir dir;
  core::job::JobSpec job = text_job(dir / "a");
  job.data.format = io::DataFormat::tokens;
  job.data.dtype = io::TokenType::uint16;
  std::vector<std::uint16_t> ids(1000, 5);
  ids[600] = 256;
  test::write_file(dir / "a", test::raw(ids));
  CHECK_THROWS_WITH(core::run::look_at_data(job), Contains("token 256 at position 600"));
  job.model.vocab = 257;
  CHECK_NOTHROW(core::run::look_at_data(job));
}

TEST_CASE("changed keys are listed with their old and new values", "[resume]") {
  const core::job::JobSpec before = test::small_job();
  CHECK(core::spec::changed_keys(core::spec::to_yaml(before), before)->empty());
  core::job::JobSpec now = before;
  now.optimizer.lr = 3e-4;
  now.steps = before.steps + 7;
  now.trace.steps = {2, 3};
  Lines lines;
  const auto changes = core::spec::changed_keys(core::spec::to_yaml(before), now);
  REQUIRE(changes);
  for (const core::spec::KeyChange& change : *changes) lines.push_back(core::spec::to_text(change));
  CHECK(lines == Lines{"steps: " + std::to_string(before.steps) + " -> " + std::to_string(now.steps),
                       "optimizer.lr: 0.005 -> 3.0e-04", "trace.steps: none -> [2, 3]"});
  // In the other direction, a removed key is listed, too.
  CHECK(core::spec::changed_keys(core::spec::to_yaml(now), before)->back().key == "trace.steps");
  CHECK(core::spec::changed_keys(core::spec::to_yaml(now), before)->back().is.empty());
}

TEST_CASE("keys that one version of the program does not know are no changes at their defaults", "[resume]") {
  const core::job::JobSpec job = test::small_job();
  std::string older = core::spec::to_yaml(job);
  const std::size_t line = older.find("  keep: 3\n");
  REQUIRE(line != std::string::npos);
  older.erase(line, 10);
  CHECK(core::spec::changed_keys(older, job)->empty());
  CHECK_FALSE(core::spec::changed_keys("{", job));
  CHECK_FALSE(core::spec::changed_keys("", job));
}

TEST_CASE("the job that a checkpoint records goes before the output directory's", "[resume]") {
  core::job::JobSpec job = test::small_job();
  io::TrainingState saved;
  saved.step = 10;
  saved.job = core::spec::to_yaml(job);
  core::job::JobSpec later = job;
  later.optimizer.lr = 1e-4;
  const std::string later_yaml = core::spec::to_yaml(later);
  CHECK_FALSE(core::run::job_changes(saved, later_yaml, job));
  const auto notice = core::run::job_changes(saved, later_yaml, later);
  REQUIRE(notice);
  CHECK(notice->kind == io::NoticeKind::change);
  CHECK(notice->message == "1 key of the job changed since step 10");
  CHECK(notice->details == Lines{"optimizer.lr: 0.005 -> 1.0e-04"});
  saved.job.clear();
  CHECK(core::run::job_changes(saved, later_yaml, job)->details == Lines{"optimizer.lr: 1.0e-04 -> 0.005"});
  CHECK_FALSE(core::run::job_changes(saved, "", job));
}
