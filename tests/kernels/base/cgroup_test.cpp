#include "kernels/base/cgroup.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <limits>

#include "kernels/target/target.h"
#include "tests/io/temp_dir.h"

using namespace trainerd;
using namespace trainerd::test;

namespace {

constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

base::CgroupLimits limits(const TempDir& dir) { return base::read_cgroup_limits(dir / "self", dir / "fs"); }

}  // namespace

TEST_CASE("the tightest limit of a version 2 group and those above it holds") {
  const TempDir dir;
  write_file(dir / "self", "0::/jobs/one\n");
  write_file(dir / "fs/memory.max", "max\n");
  write_file(dir / "fs/jobs/memory.max", "1000000\n");
  write_file(dir / "fs/jobs/one/memory.max", "2000000\n");
  write_file(dir / "fs/jobs/cpu.max", "max 100000\n");
  write_file(dir / "fs/jobs/one/cpu.max", "150000 100000\n");
  CHECK(limits(dir).memory_bytes == 1000000);
  CHECK(limits(dir).cores == 1.5);
}

TEST_CASE("a container that sees only its own group has the limits mounted at the root") {
  const TempDir dir;
  write_file(dir / "self", "0::/docker/0123abcd\n");
  write_file(dir / "fs/memory.max", "4096\n");
  write_file(dir / "fs/cpu.max", "50000 100000\n");
  CHECK(limits(dir).memory_bytes == 4096);
  CHECK(limits(dir).cores == 0.5);
}

TEST_CASE("version 1 limits are read, and its special values for no limit are no limit") {
  const TempDir dir;
  write_file(dir / "self", "4:memory:/a\n3:cpuset:/\n2:cpu,cpuacct:/b\n0::/\n");
  write_file(dir / "fs/memory/a/memory.limit_in_bytes", "123456\n");
  write_file(dir / "fs/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write_file(dir / "fs/cpu/b/cpu.cfs_quota_us", "-1\n");
  write_file(dir / "fs/cpu/b/cpu.cfs_period_us", "100000\n");
  write_file(dir / "fs/cpu/cpu.cfs_quota_us", "300000\n");
  write_file(dir / "fs/cpu/cpu.cfs_period_us", "100000\n");
  CHECK(limits(dir).memory_bytes == 123456);
  CHECK(limits(dir).cores == 3);
}

TEST_CASE("a file that cannot be read or parsed is no limit") {
  const TempDir dir;
  CHECK(limits(dir).memory_bytes == kNone);
  write_file(dir / "self", "0::/a\nnonsense\n7:\n");
  write_file(dir / "fs/a/memory.max", "many\n");
  write_file(dir / "fs/a/cpu.max", "100000\n");
  write_file(dir / "fs/cpu.max", "100000 0\n");
  CHECK(limits(dir).memory_bytes == kNone);
  CHECK(limits(dir).cores == 0);
}

TEST_CASE("the node's memory and cores are positive and at most the machine's") {
  CHECK(base::node_memory_bytes() > 0);
  CHECK(base::node_memory_bytes() <=
        static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE));
  CHECK(kernels::detect_cpu().threads >= 1);
  CHECK(kernels::detect_cpu().threads <= ::sysconf(_SC_NPROCESSORS_CONF));
}
