#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "io/tokens/file_list.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

using trainerd::base::DataError;
using trainerd::io::list_files;
using namespace trainerd::test;

namespace {

// Paths relative to the directory.
std::vector<std::string> listed(const TempDir& dir, std::vector<std::string> paths) {
  for (std::string& path : paths) path = dir / path;
  std::vector<std::string> names;
  for (const auto& file : list_files(paths))
    names.push_back(std::filesystem::relative(file.path, dir.path()).string());
  return names;
}

using Names = std::vector<std::string>;

struct Tree {
  TempDir dir;
  Tree() {
    for (const char* name : {"a.txt", "b.txt", "c.h", ".hidden.txt", "sub/d.txt", "sub/deep/e.txt",
                             "sub/deep/f.h", "other/g.txt"})
      write_file(dir / name, "x");
  }
};

}  // namespace

TEST_CASE("a directory stands for every regular file below it, sorted") {
  const Tree t;
  CHECK(listed(t.dir, {"sub"}) == Names{"sub/d.txt", "sub/deep/e.txt", "sub/deep/f.h"});
  CHECK(listed(t.dir, {"."}).size() == 8);
}

TEST_CASE("patterns match as a shell's do") {
  const Tree t;
  CHECK(listed(t.dir, {"*.txt"}) == Names{"a.txt", "b.txt"});
  CHECK(listed(t.dir, {"[ac].*"}) == Names{"a.txt", "c.h"});
  CHECK(listed(t.dir, {"?.h"}) == Names{"c.h"});
  CHECK(listed(t.dir, {"*/*.txt"}) == Names{"other/g.txt", "sub/d.txt"});
  CHECK(listed(t.dir, {".h*"}) == Names{".hidden.txt"});
}

TEST_CASE("** matches any number of directories, none included") {
  const Tree t;
  CHECK(listed(t.dir, {"**/*.txt"}) == Names{"a.txt", "b.txt", "other/g.txt", "sub/d.txt", "sub/deep/e.txt"});
  CHECK(listed(t.dir, {"sub/**/*.h"}) == Names{"sub/deep/f.h"});
  CHECK(listed(t.dir, {"**/deep/e.txt"}) == Names{"sub/deep/e.txt"});
}

TEST_CASE("a directory that a pattern matches stands for its files") {
  const Tree t;
  CHECK(listed(t.dir, {"*/deep"}) == Names{"sub/deep/e.txt", "sub/deep/f.h"});
}

TEST_CASE("a file is listed once, by whatever names it is given") {
  const Tree t;
  std::filesystem::create_symlink(t.dir / "a.txt", t.dir / "z.txt");
  CHECK(listed(t.dir, {"b.txt", "*.txt", "sub/../a.txt", "z.txt"}) == Names{"b.txt", "a.txt"});
}

TEST_CASE("a file whose name looks like a pattern is that file") {
  const Tree t;
  write_file(t.dir / "odd[1].txt", "x");
  CHECK(listed(t.dir, {"odd[1].txt"}) == Names{"odd[1].txt"});
}

TEST_CASE("links to directories make no loops") {
  const Tree t;
  std::filesystem::create_directory_symlink(t.dir.path(), t.dir / "sub/up");
  CHECK(listed(t.dir, {"sub"}).size() == 3);
  CHECK(listed(t.dir, {"**/*.h"}) == Names{"c.h", "sub/deep/f.h"});
}

TEST_CASE("a link to nothing is an error, in a directory or a pattern") {
  const Tree t;
  std::filesystem::create_symlink("/nowhere/shard.txt", t.dir / "sub/shard.txt");
  for (const char* name : {"sub", "sub/*.txt", "**/*.txt", "*/shard.txt", ""}) {
    INFO(name);
    CHECK(message_of<DataError>([&] {
            list_files({t.dir / name});
          }).find("sub/shard.txt: a link to /nowhere/shard.txt, which is not there") != std::string::npos);
  }
  CHECK(listed(t.dir, {"*.txt"}) == Names{"a.txt", "b.txt"});
}

TEST_CASE("only explicitly given files count as named") {
  const Tree t;
  CHECK(list_files({t.dir / "a.txt"})[0].named);
  CHECK_FALSE(list_files({t.dir / "?.txt"})[0].named);
  CHECK_FALSE(list_files({t.dir / "sub"})[0].named);
}

TEST_CASE("what names no file is a data error that repeats the name") {
  const Tree t;
  std::filesystem::create_directory(t.dir / "empty");
  REQUIRE(::mkfifo((t.dir / "pipe").c_str(), 0600) == 0);
  for (const char* name : {"absent.txt", "*.zip", "**/none", "empty", "pipe", "a.txt/b"}) {
    INFO(name);
    CHECK(message_of<DataError>([&] { list_files({t.dir / name}); }).find(t.dir / name) != std::string::npos);
  }
}
