#include "io/files/object_reader.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "io/files/block_cache.h"
#include "io/hash/hash.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

constexpr std::int64_t kBlock = ObjectReader::kBlockBytes;
constexpr int kFetchers = 8;
constexpr std::int64_t kMaxRun = 16;  // blocks per request: 4 MiB

/// A block and its state.
struct Block {
  enum class State : unsigned char { queued, fetching, ready, failed };
  State state = State::queued;
  std::vector<std::byte> bytes = {};
  std::exception_ptr error = {};
  std::uint64_t last_use = 0;
};
using BlockKey = std::pair<const RemoteObject*, std::int64_t>;

std::int64_t size_of_block(const RemoteObject& object, std::int64_t number) {
  return std::min(kBlock, object.bytes - number * kBlock);
}

template <class Call>
auto as_data_error(const Call& call) {
  try {
    return call();
  } catch (const S3Error& error) {
    throw base::data_error(error.what());
  }
}

// In the middle of a run, missing credentials are not an error of the job description.
template <class Call>
void read_or_data_error(const Call& call) {
  try {
    as_data_error(call);
  } catch (const base::SpecError& error) {
    throw base::data_error(error.what());
  }
}

}  // namespace

struct ObjectReader::State {
  explicit State(Options of) : options(std::move(of)), client(options.store) {}

  Options options;
  S3Client client;
  std::optional<BlockCache> cache;
  std::atomic<std::int64_t> cached_bytes = 0;

  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::optional<RemoteObject>> objects;  ///< by URI; pointers to objects stay valid
  std::vector<std::string> listed;                             ///< prefixes whose objects are all known
  std::map<BlockKey, Block> blocks;
  std::deque<BlockKey> queue;
  std::int64_t in_memory = 0;  ///< total size of the ready blocks
  std::uint64_t uses = 0;
  bool stop = false;
  std::vector<std::thread> fetchers;

  const RemoteObject& remember(const std::string& bucket, const S3Object& found);
  std::int64_t take_run(const BlockKey& first, std::int64_t last);
  void fetch(const RemoteObject& object, std::int64_t first, std::int64_t count, std::span<std::byte> out);
  void fill(const BlockKey& first, std::int64_t count);
  void forget_oldest(const BlockKey& first, std::int64_t count);
  void serve();
};

const RemoteObject& ObjectReader::State::remember(const std::string& bucket, const S3Object& found) {
  const S3Path path{bucket, found.key};
  std::optional<RemoteObject>& known = objects[path.text()];
  if (!known) {
    const std::string name =
        options.store.endpoint + "\n" + path.text() + "\n" + found.etag + "\n" + std::to_string(found.bytes);
    known = RemoteObject{path, found.bytes, found.etag, xxh3_hex(std::as_bytes(std::span(name)))};
  }
  return *known;
}

// Marks `first` and the following queued blocks, up to `last`, as fetching. Returns their number.
std::int64_t ObjectReader::State::take_run(const BlockKey& first, std::int64_t last) {
  std::int64_t count = 0;
  for (; count < kMaxRun && first.second + count <= last; ++count) {
    Block& block = blocks[{first.first, first.second + count}];
    if (block.state != Block::State::queued) break;
    block.state = Block::State::fetching;
  }
  return count;
}

// Reads blocks of an object into `out`, from the cache or the store.
void ObjectReader::State::fetch(const RemoteObject& object, std::int64_t first, std::int64_t count,
                                std::span<std::byte> out) {
  std::vector<bool> there(static_cast<std::size_t>(count), false);
  const auto part = [&](std::int64_t from, std::int64_t to) {
    const std::int64_t begin = from * kBlock, end = std::min(to * kBlock, object.bytes - first * kBlock);
    return out.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  };
  for (std::int64_t i = 0; cache && i < count; ++i) {
    there[static_cast<std::size_t>(i)] = cache->load(object.id, first + i, part(i, i + 1));
    if (there[static_cast<std::size_t>(i)]) cached_bytes += size_of_block(object, first + i);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    if (there[static_cast<std::size_t>(i)]) continue;
    std::int64_t end = i + 1;
    while (end < count && !there[static_cast<std::size_t>(end)]) ++end;
    client.get(object.path, object.etag, (first + i) * kBlock, part(i, end));
    for (; i < end; ++i)
      if (cache) cache->store(object.id, first + i, part(i, i + 1));
    --i;
  }
}

// Called without the lock. Fetches blocks that were taken and wakes the threads that wait for them.
void ObjectReader::State::fill(const BlockKey& first, std::int64_t count) {
  const RemoteObject& object = *first.first;
  std::vector<std::byte> bytes(static_cast<std::size_t>(
      std::min((first.second + count) * kBlock, object.bytes) - first.second * kBlock));
  std::exception_ptr error;
  try {
    read_or_data_error([&] { fetch(object, first.second, count, bytes); });
  } catch (...) {
    error = std::current_exception();
  }
  const std::lock_guard lock(mutex);
  for (std::int64_t i = 0; i < count; ++i) {
    Block& block = blocks[{first.first, first.second + i}];
    block.error = error;
    block.state = error ? Block::State::failed : Block::State::ready;
    block.last_use = ++uses;
    if (error) continue;
    const auto begin = bytes.begin() + i * kBlock;
    block.bytes.assign(begin, begin + size_of_block(object, first.second + i));
    in_memory += static_cast<std::int64_t>(block.bytes.size());
  }
  forget_oldest(first, count);
  changed.notify_all();
}

// Removes the oldest blocks above the memory limit, but not those that were just fetched.
void ObjectReader::State::forget_oldest(const BlockKey& first, std::int64_t count) {
  while (in_memory > options.memory_bytes) {
    auto oldest = blocks.end();
    for (auto it = blocks.begin(); it != blocks.end(); ++it) {
      const bool is_new = it->first.first == first.first && it->first.second >= first.second &&
                          it->first.second < first.second + count;
      if (it->second.state != Block::State::ready || is_new) continue;
      if (oldest == blocks.end() || it->second.last_use < oldest->second.last_use) oldest = it;
    }
    if (oldest == blocks.end()) return;
    in_memory -= static_cast<std::int64_t>(oldest->second.bytes.size());
    blocks.erase(oldest);
  }
}

void ObjectReader::State::serve() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return stop || !queue.empty(); });
    if (stop) return;
    const BlockKey first = queue.front();
    queue.pop_front();
    const auto known = blocks.find(first);
    if (known == blocks.end() || known->second.state != Block::State::queued) continue;
    // Neighbouring queued blocks are fetched by the same request.
    std::int64_t last = first.second;
    for (auto next = blocks.find({first.first, last + 1});
         next != blocks.end() && next->second.state == Block::State::queued;
         next = blocks.find({first.first, last + 1}))
      ++last;
    const std::int64_t count = take_run(first, last);
    lock.unlock();
    fill(first, count);
    lock.lock();
  }
}

ObjectReader::ObjectReader(Options options) : state_(std::make_unique<State>(std::move(options))) {
  const Options& o = state_->options;
  if (o.cache_bytes > 0)
    state_->cache.emplace(o.cache_directory.empty() ? default_cache_directory() : o.cache_directory,
                          o.cache_bytes);
}

ObjectReader::~ObjectReader() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  state_->client.stop();
  for (std::thread& fetcher : state_->fetchers) fetcher.join();
}

const RemoteObject* ObjectReader::find(const std::string& uri) {
  State& s = *state_;
  {
    const std::lock_guard lock(s.mutex);
    if (const auto known = s.objects.find(uri); known != s.objects.end())
      return known->second ? &*known->second : nullptr;
    for (const std::string& prefix : s.listed)
      if (uri.starts_with(prefix)) return nullptr;
  }
  const S3Path path = parse_s3(uri);
  if (path.key.empty()) return nullptr;
  const auto found = as_data_error([&] { return s.client.head(path); });
  const std::lock_guard lock(s.mutex);
  if (found) return &s.remember(path.bucket, *found);
  s.objects.try_emplace(uri);
  return nullptr;
}

std::vector<std::string> ObjectReader::list(const std::string& uri) {
  State& s = *state_;
  const S3Path path = parse_s3(uri);
  const std::vector<S3Object> found = as_data_error([&] { return s.client.list(path.bucket, path.key); });
  const std::lock_guard lock(s.mutex);
  std::vector<std::string> uris;
  for (const S3Object& object : found) {
    if (object.key.ends_with('/')) continue;
    uris.push_back(s.remember(path.bucket, object).path.text());
  }
  s.listed.push_back(uri);
  return uris;
}

void ObjectReader::read(const RemoteObject& object, std::int64_t offset, std::span<std::byte> out) {
  State& s = *state_;
  base::check(offset >= 0 && offset + static_cast<std::int64_t>(out.size()) <= object.bytes,
              "an object has the bytes that are read of it");
  const std::int64_t end = offset + static_cast<std::int64_t>(out.size()), last = (end - 1) / kBlock;
  std::unique_lock lock(s.mutex);
  for (std::int64_t at = offset; at < end;) {
    const std::int64_t number = at / kBlock;
    const BlockKey key{&object, number};
    if (const std::int64_t count = s.take_run(key, last); count > 0) {
      lock.unlock();
      s.fill(key, count);
      lock.lock();
    }
    s.changed.wait(lock, [&] {
      const auto it = s.blocks.find(key);
      return it == s.blocks.end() || it->second.state != Block::State::fetching;
    });
    const auto it = s.blocks.find(key);
    if (it == s.blocks.end() || it->second.state == Block::State::queued) continue;  // it was evicted again
    Block& block = it->second;
    if (block.state == Block::State::failed) {
      const std::exception_ptr error = block.error;
      s.blocks.erase(it);  // a later read retries
      std::rethrow_exception(error);
    }
    block.last_use = ++s.uses;
    const std::int64_t skipped = at - number * kBlock;
    const std::int64_t count = std::min(end - at, static_cast<std::int64_t>(block.bytes.size()) - skipped);
    std::memcpy(out.data() + (at - offset), block.bytes.data() + skipped, static_cast<std::size_t>(count));
    at += count;
  }
}

void ObjectReader::read_once(const RemoteObject& object, std::int64_t offset, std::span<std::byte> out) {
  read_or_data_error([&] { state_->client.get(object.path, object.etag, offset, out); });
}

void ObjectReader::announce(const RemoteObject& object, std::int64_t offset, std::int64_t bytes) {
  State& s = *state_;
  if (bytes <= 0 || offset < 0 || offset + bytes > object.bytes) return;
  const std::lock_guard lock(s.mutex);
  for (std::int64_t number = offset / kBlock; number <= (offset + bytes - 1) / kBlock; ++number) {
    const auto [it, is_new] = s.blocks.try_emplace({&object, number});
    it->second.last_use = ++s.uses;
    if (is_new) s.queue.emplace_back(&object, number);
  }
  if (s.fetchers.empty())
    for (int i = 0; i < kFetchers; ++i) s.fetchers.emplace_back([&s] { s.serve(); });
  s.changed.notify_all();
}

void ObjectReader::stop() { state_->client.stop(); }

ReaderCounters ObjectReader::counters() const {
  return {.store = state_->client.counters(),
          .cached_bytes = state_->cached_bytes,
          .cache_failures = state_->cache ? state_->cache->failures() : 0};
}

}  // namespace trainerd::io
