// Where a run continues: from its own directory or from its durable tier.

#include <catch2/catch.hpp>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/checkpoint/tiers.h"
#include "io/storage/file_errors.h"
#include "io/storage/subfolder.h"
#include "kernels/base/error.h"
#include "tests/io/checkpoint_support.h"
#include "tests/io/temp_dir.h"

using trainerd::base::CheckpointError;
using namespace trainerd::io;
using namespace trainerd::test;

namespace {

/// A storage that cannot be accessed, or that can be listed but whose shards cannot be opened.
class Away final : public Storage {
 public:
  enum class What { all, shards };
  Away(std::shared_ptr<Storage> whole, What what) : whole_(std::move(whole)), what_(what) {}
  std::string path_of(const std::string& name) const override { return whole_->path_of(name); }
  void make_folder(const std::string&) override { fail(); }
  std::vector<std::string> list(const std::string& name) const override { return seen().list(name); }
  bool exists(const std::string& name) const override { return seen().exists(name); }
  void write(const std::string&, std::span<const std::byte>, const Wanted&) override { fail(); }
  std::int64_t copy(const std::string&, const StoredFile&, const Pace&) override { fail(); }
  std::unique_ptr<StoredFile> open(const std::string& name) const override {
    if (name.find("shard") != std::string::npos) fail();
    return seen().open(name);
  }
  void remove(const std::string&) override { fail(); }
  void sync_folder(const std::string&) override { fail(); }

 private:
  const Storage& seen() const {
    if (what_ == What::all) fail();
    return *whole_;
  }
  [[noreturn]] static void fail() { throw StorageError("no route to the store", EHOSTUNREACH); }
  std::shared_ptr<Storage> whole_;
  What what_;
};

struct Places {
  TempDir dir;
  CheckpointStore own{open_storage(dir / "own"), {}}, durable{open_storage(dir / "durable"), {}};
  CheckpointStore away{std::make_shared<Away>(durable.storage(), Away::What::all), {}};
  CheckpointStore unread{std::make_shared<Away>(durable.storage(), Away::What::shards), {}};
  std::vector<std::string> rejected;

  void save(CheckpointStore& store, std::int64_t step) {
    store.storage()->make_folder("");
    const Shard shard = stamped_shard(step);
    const ShardContent content = shard.content();
    store.write(state_at(step), std::span(&content, 1));
  }
  std::optional<TierChoice> choose(const CheckpointStore& tier) {
    return newest_of_tiers(own, tier,
                           [this](const std::string& path, const std::string&) { rejected.push_back(path); });
  }
  std::string refusal(const CheckpointStore& tier) {
    return message_of<CheckpointError>([&] { choose(tier); });
  }
  void damage(const std::string& checkpoint) {
    write_file(dir / checkpoint + "/shard-00000.safetensors", "damaged");
  }
};

}  // namespace

TEST_CASE("the newest checkpoint of both places is taken, of one step that of the run's directory",
          "[tiers]") {
  Places p;
  CHECK_FALSE(p.choose(p.durable));
  p.save(p.durable, 10);
  const auto lost = p.choose(p.durable);
  REQUIRE(lost);
  CHECK(lost->durable);
  CHECK(lost->found.where.path == p.dir / "durable/step-00000010");
  CHECK(lost->why.find("holds none") != std::string::npos);
  CHECK(lost->next_attempts == std::map<std::int64_t, std::int64_t>{{10, 2}});
  p.save(p.own, 10);
  CHECK_FALSE(p.choose(p.durable)->durable);
  CHECK(p.choose(p.durable)->in_both);
  p.save(p.own, 20);
  const auto own = p.choose(p.durable);
  CHECK(own->found.where.step == 20);
  CHECK_FALSE(own->in_both);
  CHECK(own->why.find("step 10") != std::string::npos);
  p.save(p.durable, 30);
  CHECK(p.choose(p.durable)->found.where.path == p.dir / "durable/step-00000030");
  CHECK(p.rejected.empty());
}

TEST_CASE("a damaged checkpoint is passed over by name, whichever place has the next", "[tiers]") {
  Places p;
  p.save(p.own, 20);
  p.save(p.durable, 20);
  p.save(p.durable, 10);
  p.damage("own/step-00000020");
  CHECK(p.choose(p.durable)->durable);
  CHECK(p.rejected == std::vector<std::string>{p.dir / "own/step-00000020"});
  p.damage("durable/step-00000020");
  CHECK(p.choose(p.durable)->found.where.step == 10);
  p.damage("durable/step-00000010");
  CHECK(p.refusal(p.durable).find("none of their 3 checkpoints is whole") != std::string::npos);
}

TEST_CASE("a tier that cannot be looked at is passed over with a warning, and never for a start from nothing",
          "[tiers]") {
  Places p;
  CHECK(p.refusal(p.away).find("nothing begins at step 1") != std::string::npos);
  p.save(p.own, 20);
  const auto choice = p.choose(p.away);
  REQUIRE(choice);
  CHECK(choice->found.where.step == 20);
  CHECK(choice->warning.find("may hold a newer checkpoint") != std::string::npos);
  CHECK(choice->warning.find("no route to the store") != std::string::npos);
  p.damage("own/step-00000020");
  CHECK(p.refusal(p.away).find("nothing begins at step 1") != std::string::npos);
}

TEST_CASE("a checkpoint that is there and cannot be read is not replaced by an older one", "[tiers]") {
  Places p;
  p.save(p.own, 20);
  p.save(p.durable, 30);
  CHECK(p.refusal(p.unread).find("not replaced by an older one") != std::string::npos);
  p.save(p.own, 30);
  CHECK(p.choose(p.unread)->found.where.path == p.dir / "own/step-00000030");
  p.damage("own/step-00000030");
  CHECK(p.refusal(p.unread).find("not replaced by an older one") != std::string::npos);
}

TEST_CASE("a durable tier is of the run that copied to it first", "[tiers]") {
  Places p;
  Storage& tier = *p.durable.storage();
  const std::string mine = tier_owner("a", "/runs/a/"), other = tier_owner("a", "/runs/b");
  CHECK(mine == tier_owner("a", "/runs/x/../a"));
  CHECK_NOTHROW(require_tier_of(tier, mine));
  claim_tier(tier, mine);
  claim_tier(tier, mine);
  CHECK_NOTHROW(require_tier_of(tier, mine));
  for (const std::string& owner : {other, tier_owner("b", "/runs/a")}) {
    CHECK_THROWS_AS(require_tier_of(tier, owner), trainerd::base::SpecError);
    CHECK_THROWS_WITH(claim_tier(tier, owner),
                      Catch::Contains(p.dir / "durable/OWNER") && Catch::Contains("output \"/runs/a\""));
  }
  CHECK_THROWS_AS(require_tier_of(*p.away.storage(), mine), StorageError);
  // A kill has left an incomplete file.
  write_file(p.dir / "durable/OWNER", mine.substr(0, 9));
  CHECK_NOTHROW(require_tier_of(tier, other));
  claim_tier(tier, other);
  CHECK_THROWS_AS(claim_tier(tier, mine), trainerd::base::SpecError);
}
