#include "core/run/agent/sound_checkpoints.h"

#include <catch2/catch.hpp>

namespace trainerd {
namespace {

using core::run::SoundCheckpoints;

std::string name(std::int64_t step) { return "step-" + std::to_string(step); }

/// The steps of 1 to 9 whose checkpoint is pinned.
std::string pinned(const io::PinnedFolders& folders) {
  std::string steps;
  for (std::int64_t step = 1; step <= 9; ++step)
    if (folders.has(name(step))) steps += std::to_string(step);
  return steps;
}

}  // namespace

TEST_CASE("checkpoints stay until two later ones are sound", "[copies]") {
  io::PinnedFolders folders;
  folders.completed(name(9));  // nothing asks for it yet
  CHECK(pinned(folders).empty());
  SoundCheckpoints sound(folders);
  const auto complete = [&](std::int64_t step) {
    folders.completed(name(step));  // by the store
    sound.completed(step, name(step));
  };
  sound.begin(1, name(1));
  complete(2);
  complete(3);
  sound.settle(1);
  CHECK(pinned(folders) == "123");
  sound.settle(2);
  CHECK(pinned(folders) == "123");
  sound.settle(4);
  CHECK(pinned(folders) == "23");
  complete(5);
  complete(6);
  sound.settle(5);
  CHECK(pinned(folders) == "356");
  sound.settle(5);
  CHECK(pinned(folders) == "356");
  sound.settle_all();
  CHECK(pinned(folders) == "56");
}

TEST_CASE("a checkpoint that is saved again takes the place of its earlier attempt", "[copies]") {
  io::PinnedFolders folders;
  SoundCheckpoints sound(folders);
  folders.completed("step-3");
  sound.completed(3, "step-3");
  folders.completed("step-3.2");
  sound.completed(3, "step-3.2");
  CHECK_FALSE(folders.has("step-3"));
  CHECK(folders.has("step-3.2"));
}

}  // namespace trainerd
