// A storage that fails on purpose, for a while.

#include "io/storage/failing_storage.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "io/storage/file_errors.h"

using namespace trainerd;
using io::FailingStorage;

namespace {

std::span<const std::byte> text_bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string error_of(const std::function<void()>& call, int error) {
  try {
    call();
  } catch (const io::StorageError& e) {
    CHECK(e.error_number == error);
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a storage that is full reads and removes, and writes again later", "[storage][faults]") {
  const auto root = std::filesystem::temp_directory_path() / ("failing-" + std::to_string(::getpid()));
  std::filesystem::create_directories(root);
  const std::shared_ptr<io::Storage> disk = io::open_storage(root.string());
  const auto full = std::make_shared<io::StorageFault>(), gone = std::make_shared<io::StorageFault>();
  FailingStorage filled(disk, full, FailingStorage::Fails::writes, ENOSPC);
  FailingStorage lost(disk, gone, FailingStorage::Fails::all, EIO);
  const std::string text = "abc";
  filled.write("a", text_bytes(text));
  CHECK(io::read_text(lost, "a") == text);

  full->fail_for(3600);
  CHECK_THAT(error_of([&] { filled.write("b", text_bytes(text)); }, ENOSPC),
             Catch::Contains(
                 "/b: cannot write: No space left on device; the disk is full: free some space (injected)"));
  CHECK_THAT(error_of([&] { filled.make_folder("f"); }, ENOSPC), Catch::Contains("cannot make the folder"));
  CHECK(!error_of([&] { filled.copy("b", *disk->open("a"), {}); }, ENOSPC).empty());
  CHECK(filled.exists("a"));
  CHECK(filled.list("") == std::vector<std::string>{"a"});
  CHECK(io::read_text(filled, "a") == text);
  CHECK(io::read_text(lost, "a") == text);  // has its own fault

  gone->fail_for(3600);
  for (const std::function<void()>& call : std::vector<std::function<void()>>{
           [&] { lost.write("b", text_bytes(text)); }, [&] { lost.exists("a"); }, [&] { lost.list(""); },
           [&] { lost.open("a"); }, [&] { lost.remove("a"); }, [&] { lost.make_folder("f"); }})
    CHECK_THAT(error_of(call, EIO), Catch::Contains("Input/output error"));
  CHECK(disk->exists("a"));

  full->fail_for(0.01);
  while (full->fails()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  filled.write("b", text_bytes(text));
  CHECK(io::read_text(filled, "b") == text);
  std::filesystem::remove_all(root);
}
