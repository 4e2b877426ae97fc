// What a resumed run finds changed since its checkpoint.

#include "core/run/worker/resume_check.h"

#include <catch2/catch.hpp>

#include "core/spec/changes.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"
#include "train_support.h"

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

/// As a run of `seen` saves it after 40 samples of an order that is not the first.
io::TrainingState saved_with(const core::run::DataSeen& seen) {
  io::TrainingState state{
      .step = 10, .cursor = 40, .tokens = 960, .seed = 0, .identity = {}, .environment = {}};
  state.order_start = 12;
  state.order_stream = 2;
  core::run::record_data(seen, state);
  return state;
}

core::run::DataSeen seen_in(const test::TempDir& dir, const std::string& content) {
  test::write_file(dir / "a", content);
  return core::run::look_at_data(text_job(dir / "a"));
}

}  // namespace

TEST_CASE("a run goes on with the same data in the same order", "[resume]") {
  const test::TempDir dir;
  const core::run::DataSeen seen = seen_in(dir, std::string(1000, 'a'));
  const auto resumed = core::run::resumed_data("p", saved_with(seen), seen, io::DataChange::refuse);
  CHECK(resumed.order_start == 12);
  CHECK(resumed.order_stream == 2);
  CHECK(resumed.notices.empty());
}

TEST_CASE("data of the same names and sizes with other content is refused with a way on", "[resume]") {
  const test::TempDir dir;
  const core::run::DataSeen before = seen_in(dir, std::string(1000, 'a')),
                            now = seen_in(dir, std::string(999, 'a') + "b");
  CHECK(before.files == now.files);
  const io::TrainingState saved = saved_with(before);
  CHECK_THROWS_AS(core::run::resumed_data("p", saved, now, io::DataChange::refuse), base::CheckpointError);
  CHECK_THROWS_WITH(core::run::resumed_data("p", saved, now, io::DataChange::refuse),
                    Contains(before.content) && Contains(now.content) &&
                        Contains("data.on_change: continue") && Contains("output"));
}

TEST_CASE("changed or added data goes on in a new order from the checkpoint's cursor when the job says so",
          "[resume]") {
  const test::TempDir dir;
  const core::run::DataSeen before = seen_in(dir, std::string(1000, 'a'));
  const core::run::DataSeen now = seen_in(dir, std::string(GENERATE(1000, 2000), 'b'));
  const auto resumed = core::run::resumed_data("p", saved_with(before), now, io::DataChange::go_on);
  CHECK(resumed.order_start == 40);
  CHECK(resumed.order_stream == 3);
  REQUIRE(resumed.notices.size() == 1);
  CHECK(resumed.notices[0].kind == io::NoticeKind::change);
  REQUIRE(resumed.notices[0].details.size() == 1);
  CHECK_THAT(resumed.notices[0].details[0], Contains("data: the checkpoint has"));
}

TEST_CASE("a checkpoint without content on record is compared by names and sizes, and says so", "[resume]") {
  const test::TempDir dir;
  const core::run::DataSeen before = seen_in(dir, std::string(1000, 'a'));
  io::TrainingState saved = saved_with(before);
  saved.identity.erase("data.content");
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
  CHECK(resumed.order_stream == 2);
  REQUIRE(resumed.notices.size() == 1);
  CHECK_THAT(resumed.notices[0].message, Contains("validation"));
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
  // Back again, a key that is gone is listed too.
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
