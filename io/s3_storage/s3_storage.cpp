#include "io/s3_storage/s3_storage.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <list>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "io/s3_storage/upload.h"
#include "io/storage/file_errors.h"
#include "io/storage/memory_file.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

constexpr std::int64_t kReadBlock = std::int64_t{2} << 20, kLongRead = std::int64_t{8} << 20;
constexpr std::size_t kBlocksKept = 16;
constexpr std::size_t kReaders = 4;

int errno_of(S3Error::Kind kind) {
  switch (kind) {
    case S3Error::Kind::absent: return ENOENT;
    case S3Error::Kind::denied: return EACCES;
    case S3Error::Kind::changed: return ESTALE;
    case S3Error::Kind::unavailable: return EHOSTUNREACH;
    case S3Error::Kind::stopped: return ECANCELED;
    case S3Error::Kind::refused: return EIO;
  }
  return EIO;
}

template <class Call>
auto as_storage_error(const Call& call) {
  try {
    return call();
  } catch (const S3Error& error) {
    throw StorageError(error.what(), errno_of(error.kind));
  }
}

/// One cached block of an object.
struct CachedBlock {
  std::string object;  ///< key and ETag
  std::int64_t number = 0;
  std::vector<std::byte> bytes;
};

}  // namespace

struct S3Storage::State {
  State(const std::string& uri, S3Settings settings) : root(parse_s3(uri)), client(std::move(settings)) {
    while (root.key.ends_with('/')) root.key.pop_back();
  }
  S3Path at(const std::string& name) const {
    return {root.bucket, root.key + (root.key.empty() || name.empty() ? "" : "/") + name};
  }
  // Returns the key prefix of everything in a folder.
  std::string inside(const std::string& name) const {
    const std::string key = at(name).key;
    return key.empty() ? "" : key + "/";
  }

  S3Path root;
  S3Client client;
  std::mutex mutex;
  std::list<CachedBlock> blocks;  ///< most recently used first
};

namespace {

class S3File final : public StoredFile {
 public:
  S3File(std::shared_ptr<S3Storage::State> store, S3Path path, S3Object object)
      : store_(std::move(store)), path_(std::move(path)), object_(std::move(object)) {}
  std::int64_t bytes() const override { return object_.bytes; }

  void read(std::int64_t offset, std::span<std::byte> out) const override {
    const auto size = static_cast<std::int64_t>(out.size());
    if (offset < 0 || offset + size > bytes())
      throw base::checkpoint_error(path_.text() + ": ends " + std::to_string(offset + size - bytes()) +
                                   " bytes too early, at " + std::to_string(bytes()));
    as_storage_error([&] {
      if (size >= kReadBlock) return read_long(offset, out);
      for (std::int64_t at = offset; at < offset + size;) {
        const std::int64_t count = std::min(offset + size, (at / kReadBlock + 1) * kReadBlock) - at;
        read_in_block(at,
                      out.subspan(static_cast<std::size_t>(at - offset), static_cast<std::size_t>(count)));
        at += count;
      }
    });
  }

 private:
  // Several connections are faster than one.
  void read_long(std::int64_t offset, std::span<std::byte> out) const {
    std::mutex mutex;
    std::size_t next = 0;
    std::exception_ptr failure;
    const auto serve = [&] {
      for (;;) {
        std::size_t begin = 0;
        {
          const std::lock_guard lock(mutex);
          if (failure || next >= out.size()) return;
          begin = std::exchange(next, std::min(out.size(), next + static_cast<std::size_t>(kLongRead)));
        }
        try {
          store_->client.get(
              path_, object_.etag, offset + static_cast<std::int64_t>(begin),
              out.subspan(begin, std::min(out.size() - begin, static_cast<std::size_t>(kLongRead))));
        } catch (...) {
          const std::lock_guard lock(mutex);
          failure = std::current_exception();
        }
      }
    };
    std::vector<std::jthread> others;
    const std::size_t pieces =
        (out.size() + static_cast<std::size_t>(kLongRead) - 1) / static_cast<std::size_t>(kLongRead);
    for (std::size_t i = 1; i < std::min(kReaders, pieces); ++i) others.emplace_back(serve);
    serve();
    others.clear();
    if (failure) std::rethrow_exception(failure);
  }

  // A box of a tensor consists of many short runs, so the whole block with the gaps between them is read.
  void read_in_block(std::int64_t at, std::span<std::byte> out) const {
    const std::string object = path_.key + "\n" + object_.etag;
    const std::int64_t number = at / kReadBlock;
    const auto take = [&](const CachedBlock& block) {
      std::memcpy(out.data(), block.bytes.data() + (at - number * kReadBlock), out.size());
    };
    {
      const std::lock_guard lock(store_->mutex);
      auto& blocks = store_->blocks;
      const auto known = std::find_if(blocks.begin(), blocks.end(), [&](const CachedBlock& block) {
        return block.number == number && block.object == object;
      });
      if (known != blocks.end()) {
        blocks.splice(blocks.begin(), blocks, known);
        return take(*known);
      }
    }
    CachedBlock block{object, number,
                      std::vector<std::byte>(static_cast<std::size_t>(
                          std::min(kReadBlock, object_.bytes - number * kReadBlock)))};
    store_->client.get(path_, object_.etag, number * kReadBlock, block.bytes);
    take(block);
    const std::lock_guard lock(store_->mutex);
    store_->blocks.push_front(std::move(block));
    if (store_->blocks.size() > kBlocksKept) store_->blocks.pop_back();
  }

  std::shared_ptr<S3Storage::State> store_;
  S3Path path_;
  S3Object object_;
};

}  // namespace

S3Storage::S3Storage(const std::string& uri, S3Settings settings)
    : state_(std::make_shared<State>(uri, std::move(settings))) {}

std::string S3Storage::path_of(const std::string& name) const {
  const S3Path path = state_->at(name);
  return path.key.empty() ? "s3://" + path.bucket : path.text();
}

std::vector<std::string> S3Storage::list(const std::string& name) const {
  return as_storage_error(
      [&] { return state_->client.list_names(state_->root.bucket, state_->inside(name)); });
}

bool S3Storage::exists(const std::string& name) const {
  return as_storage_error([&] {
    const S3Path path = state_->at(name);
    if (!path.key.empty() && state_->client.head(path)) return true;
    return !state_->client.list_names(path.bucket, state_->inside(name)).empty();
  });
}

void S3Storage::write(const std::string& name, std::span<const std::byte> bytes, const Wanted& wanted) {
  copy(name, MemoryFile(bytes), [&](std::int64_t) {
    if (wanted && !wanted())
      throw StorageError(path_of(name) + ": the upload is not wanted any more", ECANCELED);
  });
}

std::int64_t S3Storage::copy(const std::string& name, const StoredFile& from, const Pace& pace) {
  return as_storage_error([&] { return upload_file(state_->client, state_->at(name), from, pace); });
}

std::unique_ptr<StoredFile> S3Storage::open(const std::string& name) const {
  return as_storage_error([&]() -> std::unique_ptr<StoredFile> {
    S3Path path = state_->at(name);
    auto object = state_->client.head(path);
    if (!object) throw S3Error(S3Error::Kind::absent, path.text() + ": cannot open: there is no such object");
    return std::make_unique<S3File>(state_, std::move(path), *std::move(object));
  });
}

void S3Storage::remove(const std::string& name) {
  base::check(!name.empty(), "the root of a storage is not removed");
  as_storage_error([&] {
    S3Client& client = state_->client;
    const S3Path path = state_->at(name);
    client.remove(path);
    for (const S3Object& object : client.list(path.bucket, path.key + "/"))
      client.remove({path.bucket, object.key});
    for (const S3Upload& upload : client.uploads(path.bucket, path.key))
      if (upload.key == path.key || upload.key.starts_with(path.key + "/"))
        client.abort_upload({path.bucket, upload.key}, upload.id);
  });
}

void S3Storage::stop() { state_->client.stop(); }

S3Counters S3Storage::counters() const { return state_->client.counters(); }

OpenRemote remote_storages(FindS3 find) {
  return [find = std::move(find)](const std::string& uri) -> std::unique_ptr<Storage> {
    return std::make_unique<S3Storage>(uri, find());
  };
}

}  // namespace trainerd::io
