#include "io/storage/failing_storage.h"

#include "io/storage/file_errors.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::io {

void StorageFault::fail_for(double seconds) { until_ = base::monotonic_seconds() + seconds; }
bool StorageFault::fails() const { return base::monotonic_seconds() < until_; }

void FailingStorage::require_whole(const std::string& name, const char* what, Doing doing) const {
  if (!fault_->fails() || (fails_ == Fails::writes && doing != Doing::write)) return;
  throw StorageError(path_of(name) + ": cannot " + what + ": " + base::errno_text(error_) +
                         remedy_of(error_, doing == Doing::write) + " (injected)",
                     error_);
}

void FailingStorage::make_folder(const std::string& name) {
  require_whole(name, "make the folder", Doing::write);
  inner_->make_folder(name);
}

std::vector<std::string> FailingStorage::list(const std::string& name) const {
  require_whole(name, "list", Doing::other);
  return inner_->list(name);
}

bool FailingStorage::exists(const std::string& name) const {
  require_whole(name, "look at it", Doing::other);
  return inner_->exists(name);
}

void FailingStorage::write(const std::string& name, std::span<const std::byte> bytes, const Wanted& wanted) {
  require_whole(name, "write", Doing::write);
  inner_->write(name, bytes, wanted);
}

std::int64_t FailingStorage::copy(const std::string& name, const StoredFile& from, const Pace& pace) {
  require_whole(name, "write", Doing::write);
  return inner_->copy(name, from, pace);
}

std::unique_ptr<StoredFile> FailingStorage::open(const std::string& name) const {
  require_whole(name, "open", Doing::other);
  return inner_->open(name);
}

void FailingStorage::remove(const std::string& name) {
  require_whole(name, "remove", Doing::other);
  inner_->remove(name);
}

}  // namespace trainerd::io
