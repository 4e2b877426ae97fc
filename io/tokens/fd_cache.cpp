#include "io/tokens/fd_cache.h"

#include <algorithm>
#include <cerrno>

#include "kernels/base/error.h"

namespace trainerd::io {

FdCache::FdCache(std::size_t files, std::size_t limit)
    : slots_(std::min(files, limit)), slot_of_file_(files, -1) {}

FdCache::Slot* FdCache::oldest_open() {
  Slot* oldest = nullptr;
  for (Slot& slot : slots_)
    if (slot.fd && (oldest == nullptr || slot.last_use < oldest->last_use)) oldest = &slot;
  return oldest;
}

void FdCache::close(Slot& slot) {
  slot_of_file_[slot.file] = -1;
  slot.fd.reset();
}

FdCache::Slot& FdCache::free_slot() {
  for (Slot& slot : slots_)
    if (!slot.fd) return slot;
  Slot* oldest = oldest_open();
  close(*oldest);
  return *oldest;
}

int FdCache::get(std::size_t file, const std::string& path, std::int64_t bytes) {
  ++uses_;
  if (slot_of_file_[file] >= 0) {
    Slot& slot = slots_[static_cast<std::size_t>(slot_of_file_[file])];
    slot.last_use = uses_;
    return slot.fd.get();
  }
  Slot& slot = free_slot();
  slot.fd = base::open_read(path);
  while (!slot.fd && (errno == EMFILE || errno == ENFILE)) {
    Slot* victim = oldest_open();
    if (victim == nullptr) break;
    close(*victim);
    slot.fd = base::open_read(path);
  }
  if (!slot.fd)
    throw base::data_error(path + ": cannot be opened again in mid-run: " + base::errno_text(errno));
  const std::int64_t now = base::file_bytes(slot.fd.get());
  if (now != bytes) {
    slot.fd.reset();
    throw base::data_error(path + ": changed in mid-run: it had " + std::to_string(bytes) +
                           " bytes and now has " + std::to_string(now) + "; restore the file and resume");
  }
  slot.file = file;
  slot.last_use = uses_;
  slot_of_file_[file] = static_cast<std::int32_t>(&slot - slots_.data());
  return slot.fd.get();
}

}  // namespace trainerd::io
