#include "parallel/comm/local/local_world.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <thread>

#include "kernels/base/error.h"
#include "parallel/comm/local_communicator.h"
#include "parallel/comm/shm/shared_communicator.h"

namespace trainerd::parallel {

/// Zeroed memory that is only allocated when touched: most rings of a group are never used.
class LocalWorld::Pages {
 public:
  explicit Pages(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    void* p =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
      throw base::capacity_error("cannot map " + std::to_string(bytes) +
                                 " bytes for a communicator: " + base::errno_text(errno));
    data_ = static_cast<std::byte*>(p);
  }
  ~Pages() { ::munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

LocalWorld::LocalWorld(std::int64_t ranks, const LocalOptions& options)
    : ranks_(ranks), options_(options), world_(std::make_unique<Pages>(WorldRegion::bytes(ranks))) {}

LocalWorld::~LocalWorld() = default;

std::unique_ptr<Communicator> LocalWorld::communicator(std::int64_t rank, kernels::Backend& backend,
                                                       const std::vector<std::int64_t>& group_ranks,
                                                       const std::string& name, FlightRecorder* recorder) {
  const auto place = std::find(group_ranks.begin(), group_ranks.end(), rank);
  base::check(place != group_ranks.end(), "a rank makes communicators of its own groups");
  base::check(std::all_of(group_ranks.begin(), group_ranks.end(),
                          [&](std::int64_t r) { return r >= 0 && r < ranks_; }),
              "the ranks of a group are ranks of its world");
  if (group_ranks.size() == 1) return make_single_rank(backend);
  const GroupShape shape = GroupRegion::rounded(
      {static_cast<std::int64_t>(group_ranks.size()), options_.chunk_bytes, options_.ring_bytes});
  std::byte* base = nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Pages>& pages = groups_[{name, group_ranks}];
    if (!pages) pages = std::make_unique<Pages>(GroupRegion::bytes(shape));
    base = pages->data();
  }
  const GroupContext context{.world = WorldRegion(world_->data(), ranks_),
                             .group = GroupRegion(base, shape),
                             .name = name,
                             .ranks = group_ranks,
                             .rank = place - group_ranks.begin(),
                             .deadline_seconds = options_.deadline_seconds,
                             .spin_seconds = 0};
  return make_shared_communicator(context, backend, recorder);
}

void LocalWorld::run(const std::function<void(std::int64_t)>& body) {
  std::exception_ptr first;
  std::mutex first_mutex;
  const auto one = [&](std::int64_t rank) {
    std::string why = "rank " + std::to_string(rank) + " failed";
    try {
      return body(rank);
    } catch (const std::exception& error) {
      const std::lock_guard lock(first_mutex);
      if (!first) first = std::current_exception();
      why += std::string(": ") + error.what();
    }
    abort(why);
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks_));
  for (std::int64_t rank = 0; rank < ranks_; ++rank) threads.emplace_back(one, rank);
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

void LocalWorld::abort(std::string_view why) { WorldRegion(world_->data(), ranks_).abort(why); }

}  // namespace trainerd::parallel
