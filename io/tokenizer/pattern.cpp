#include "io/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <stdexcept>

#include "io/tokenizer/encode_error.h"

namespace trainerd::io {
namespace {

// Only repeated groups use the stack. A run of a million spaces uses none of it.
constexpr std::size_t kStackStart = 32 << 10, kStackLimit = 8 << 20;

std::string error_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

template <class T, void (*free)(T*)>
struct Freed {
  void operator()(T* object) const { free(object); }
};
template <class T, void (*free)(T*)>
using Owned = std::unique_ptr<T, Freed<T, free>>;

}  // namespace

struct Pattern::Code {
  Owned<pcre2_code, pcre2_code_free> compiled;
};

Pattern::Pattern(const std::string& expression) : code_(std::make_unique<Code>()) {
  const std::string own = pcre2_expression(expression);
  int error = 0;
  PCRE2_SIZE place = 0;
  code_->compiled.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(own.data()), own.size(),
                                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &place,
                                      nullptr));
  if (!code_->compiled) throw std::invalid_argument(error_of(error));
  std::uint32_t matches_empty = 0;
  pcre2_pattern_info(code_->compiled.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) throw std::invalid_argument("it matches the empty text");
  if (const int failed = pcre2_jit_compile(code_->compiled.get(), PCRE2_JIT_COMPLETE); failed != 0)
    throw std::invalid_argument("PCRE2's compiler for this machine: " + error_of(failed));
}
Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

struct PatternMatcher::State {
  const pcre2_code* code;
  Owned<pcre2_match_data, pcre2_match_data_free> data;
  Owned<pcre2_match_context, pcre2_match_context_free> context;
  Owned<pcre2_jit_stack, pcre2_jit_stack_free> stack;
};

PatternMatcher::PatternMatcher(const Pattern& pattern) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.code = pattern.code_->compiled.get();
  s.data.reset(pcre2_match_data_create(1, nullptr));
  s.context.reset(pcre2_match_context_create(nullptr));
  s.stack.reset(pcre2_jit_stack_create(kStackStart, kStackLimit, nullptr));
  if (!s.data || !s.context || !s.stack) throw std::bad_alloc();
  pcre2_jit_stack_assign(s.context.get(), nullptr, s.stack.get());
}
PatternMatcher::~PatternMatcher() = default;
PatternMatcher::PatternMatcher(PatternMatcher&&) noexcept = default;

std::optional<PatternMatcher::Match> PatternMatcher::next(std::string_view text, std::size_t from) {
  const int found = pcre2_jit_match(state_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                    from, PCRE2_NO_UTF_CHECK, state_->data.get(), state_->context.get());
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0)
    throw EncodeError("the tokenizer's regular expression cannot be matched at its byte " +
                      std::to_string(from) + ": " + error_of(found));
  const PCRE2_SIZE* places = pcre2_get_ovector_pointer(state_->data.get());
  return Match{places[0], places[1]};
}

}  // namespace trainerd::io
