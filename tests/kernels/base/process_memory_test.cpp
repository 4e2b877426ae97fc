#include "kernels/base/process_memory.h"

#include <catch2/catch.hpp>

#include "tests/io/temp_dir.h"

namespace trainerd::test {

TEST_CASE("the kernel's count of processes killed for memory is read", "[process-memory]") {
  const TempDir dir;
  write_file(dir / "vmstat", "nr_free_pages 17\noom_kill 3\noom_kill_other 9\n");
  CHECK(base::out_of_memory_kills(dir / "vmstat") == 3);
  write_file(dir / "vmstat", "nr_free_pages 17\n");
  CHECK(base::out_of_memory_kills(dir / "vmstat") == 0);
  CHECK(base::out_of_memory_kills(dir / "none") == 0);
}

}  // namespace trainerd::test
