#pragma once

#include <ucontext.h>

#include <cstddef>
#include <exception>
#include <functional>

namespace trainerd::base {

/// Runs two functions alternately on one thread. A function runs until it calls `give_way`; then the other
/// continues from its own last `give_way`. The first uses the caller's stack, the second has its own.
class Turns {
 public:
  Turns() = default;
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;
  ~Turns();

  /// Runs both to their ends; `first` begins. An error of either ends the other too, by an exception in its
  /// `give_way`, and is thrown.
  void run(const std::function<void()>& first, const std::function<void()>& second);
  /// Lets the other function continue, unless it has ended. Call it only inside `run`, and not while an
  /// exception is handled.
  void give_way();
  bool running() const { return running_; }

 private:
  /// Ends a function whose turns are over.
  struct Stop {};
  /// One of the two stacks, with what sanitizers keep of it.
  struct Stack {
    ucontext_t context{};
    const void* bottom = nullptr;
    std::size_t size = 0;
    void* fake_stack = nullptr;
    void* fiber = nullptr;
  };

  static void enter(unsigned high, unsigned low);
  void run_second() noexcept;
  void make_stack();
  void change_to(Stack& to, Stack& from, bool for_good = false);
  void changed(Stack& here);

  Stack first_, second_;
  std::byte* memory_ = nullptr;
  const std::function<void()>* function_ = nullptr;  ///< the second
  std::exception_ptr error_;                         ///< of the second
  bool running_ = false, in_second_ = false, ended_ = true, stop_ = false;
};

}  // namespace trainerd::base
