#pragma once

#include <string>
#include <string_view>

namespace trainerd::parallel {

/// The secret that the processes of one job share, and by which they know each other: each proves to the
/// other that it has it, without saying it (a challenge and an HMAC-SHA256 of it, RFC 2104), before a word is
/// believed. It keeps strangers out of the job; it does not hide what the job's processes say.
class JobToken {
 public:
  static constexpr std::size_t kShortest = 16;    ///< characters
  static constexpr std::size_t kNonceBytes = 32;  ///< of a challenge
  static constexpr std::size_t kProofBytes = 32;
  /// Whose proof it is: one side's is of no use to the other.
  enum class Side { client, server };

  /// 64 hexadecimal digits by the operating system's random numbers. Throws DeviceError where it has none.
  static JobToken random();
  /// Throws SpecError when `text` is shorter than kShortest. `from` says in that error where it comes from.
  JobToken(std::string text, const std::string& from);

  const std::string& text() const { return text_; }
  /// That `side` has the token, by the challenges of both.
  std::string proof(Side side, std::string_view client_nonce, std::string_view server_nonce) const;

 private:
  explicit JobToken(std::string text) : text_(std::move(text)) {}
  std::string text_;
};

/// Unpredictable bytes. Throws DeviceError.
std::string random_bytes(std::size_t count);

/// In a time that does not tell where they differ.
bool same_bytes(std::string_view a, std::string_view b);

}  // namespace trainerd::parallel
