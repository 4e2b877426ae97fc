#include "kernels/base/turns.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "kernels/base/error.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TRAINERD_ADDRESS_SANITIZER
#endif
#if __has_feature(thread_sanitizer)
#define TRAINERD_THREAD_SANITIZER
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define TRAINERD_ADDRESS_SANITIZER
#endif
#ifdef __SANITIZE_THREAD__
#define TRAINERD_THREAD_SANITIZER
#endif
#ifdef TRAINERD_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef TRAINERD_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace trainerd::base {
namespace {

/// As large as a thread's usual one. Memory that is not touched is not used.
constexpr std::size_t kStackBytes = std::size_t{8} << 20;

/// The last frames of a stack never return, so the sanitizer still guards their memory.
void forget_frames([[maybe_unused]] const std::byte* stack) {
#ifdef TRAINERD_ADDRESS_SANITIZER
  __asan_unpoison_memory_region(stack, kStackBytes);
#endif
}

}  // namespace

Turns::~Turns() {
#ifdef TRAINERD_THREAD_SANITIZER
  if (second_.fiber != nullptr) __tsan_destroy_fiber(second_.fiber);
#endif
  if (memory_ == nullptr) return;
  forget_frames(memory_);
  ::munmap(memory_, kStackBytes);
}

void Turns::make_stack() {
  void* memory = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw capacity_error("there is no memory for a stack: " + errno_text(errno));
  memory_ = static_cast<std::byte*>(memory);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  // An overflow faults in the first page.
  check(::mprotect(memory_, page, PROT_NONE) == 0, "a page of a new stack can be protected");
  second_.bottom = memory_ + page, second_.size = kStackBytes - page;
#ifdef TRAINERD_THREAD_SANITIZER
  second_.fiber = __tsan_create_fiber(0);
#endif
}

void Turns::run(const std::function<void()>& first, const std::function<void()>& second) {
  check(!running_, "two functions take turns at a time");
  if (memory_ == nullptr) make_stack();
  forget_frames(memory_);
  check(::getcontext(&second_.context) == 0, "a context can be read");
  second_.context.uc_stack.ss_sp = memory_ + (kStackBytes - second_.size);
  second_.context.uc_stack.ss_size = second_.size;
  second_.context.uc_link = nullptr;
  second_.fake_stack = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  ::makecontext(&second_.context, reinterpret_cast<void (*)()>(&Turns::enter), 2,
                static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
  function_ = &second, error_ = nullptr;
  running_ = true, ended_ = false, stop_ = false;
  std::exception_ptr error;
  try {
    first();
    while (!ended_) change_to(second_, first_);
  } catch (const Stop&) {  // the second has failed
  } catch (...) {
    error = std::current_exception();
  }
  if (!ended_) {
    stop_ = true;
    change_to(second_, first_);
  }
  running_ = false;
  if (error) std::rethrow_exception(error);
  if (error_) std::rethrow_exception(error_);
}

void Turns::give_way() {
  check(running_, "a function that takes turns gives way");
  if (in_second_) {
    if (stop_) return;  // a destructor's last wait
    change_to(first_, second_);
    if (stop_) throw Stop{};
    return;
  }
  if (ended_) return;
  change_to(second_, first_);
  if (error_) throw Stop{};
}

void Turns::enter(unsigned high, unsigned low) {
  auto* self = reinterpret_cast<Turns*>((static_cast<std::uintptr_t>(high) << 32) | low);
  self->changed(self->second_);
  self->run_second();
}

void Turns::run_second() noexcept {
  try {
    if (!stop_) (*function_)();
  } catch (const Stop&) {
  } catch (...) {
    error_ = std::current_exception();
  }
  ended_ = true;
  change_to(first_, second_, true);
}

void Turns::change_to(Stack& to, Stack& from, [[maybe_unused]] bool for_good) {
  in_second_ = &to == &second_;
#ifdef TRAINERD_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(for_good ? nullptr : &from.fake_stack, to.bottom, to.size);
#endif
#ifdef TRAINERD_THREAD_SANITIZER
  if (!in_second_) __tsan_switch_to_fiber(first_.fiber, 0);
  else first_.fiber = __tsan_get_current_fiber(), __tsan_switch_to_fiber(second_.fiber, 0);
#endif
  check(::swapcontext(&from.context, &to.context) == 0, "a context can be changed");
  changed(from);
}

void Turns::changed([[maybe_unused]] Stack& here) {
#ifdef TRAINERD_ADDRESS_SANITIZER
  // The first stack is known when it has been left.
  if (&here == &second_) __sanitizer_finish_switch_fiber(here.fake_stack, &first_.bottom, &first_.size);
  else __sanitizer_finish_switch_fiber(here.fake_stack, nullptr, nullptr);
#endif
}

}  // namespace trainerd::base
