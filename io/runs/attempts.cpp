#include "io/runs/attempts.h"

#include <algorithm>

namespace trainerd::io {

std::vector<Attempt> attempts_of(const std::vector<NoticeRecord>& notices) {
  std::vector<Attempt> attempts;
  for (const NoticeRecord& notice : notices) {
    switch (notice.kind) {
      case NoticeKind::start:
      case NoticeKind::resume: {
        if (!attempts.empty() && notice.earlier) {
          Attempt& before = attempts.back();
          before.lost_steps = std::max<std::int64_t>(0, notice.earlier->last_step - notice.step);
          before.lost_seconds = notice.earlier->lost_seconds;
          // An attempt that was asked to stop may have been killed meanwhile.
          if (!before.ended || notice.earlier->last_step > before.last_step) {
            before.last_step = notice.earlier->last_step;
            before.end = notice.earlier->wall_time;
          }
        }
        if (!attempts.empty() && !attempts.back().ended) {
          attempts.back().ended = true;
          attempts.back().how = NoticeKind::failure;
          attempts.back().outcome = "killed, or its host was lost";
        }
        attempts.push_back({.begin = notice.wall_time,
                            .start_step = notice.step,
                            .last_step = notice.step,
                            .outcome = "runs"});
        break;
      }
      case NoticeKind::restart: {
        if (attempts.empty()) break;
        Attempt& before = attempts.back();
        before.ended = true;
        before.how = NoticeKind::failure;
        before.end = notice.wall_time;
        before.outcome = notice.message;
        before.last_step = notice.earlier ? notice.earlier->last_step : notice.step;
        before.lost_steps = std::max<std::int64_t>(0, before.last_step - notice.step);
        before.lost_seconds = notice.earlier ? notice.earlier->lost_seconds : 0;
        attempts.push_back({.begin = notice.wall_time,
                            .start_step = notice.step,
                            .last_step = notice.step,
                            .outcome = "runs"});
        break;
      }
      case NoticeKind::stop:
      case NoticeKind::failure:
      case NoticeKind::finish: {
        // A finish notice may follow the request to stop.
        if (attempts.empty() || (attempts.back().ended && attempts.back().how != NoticeKind::stop)) break;
        Attempt& last = attempts.back();
        last.ended = true;
        last.how = notice.kind;
        last.end = notice.wall_time;
        last.last_step = notice.step;
        last.outcome = notice.message;
        break;
      }
      case NoticeKind::change:
      case NoticeKind::durable:
      case NoticeKind::node:
      case NoticeKind::hang:
      case NoticeKind::straggler:
      case NoticeKind::injected:
      case NoticeKind::corruption:
      case NoticeKind::withdrawn:
      case NoticeKind::spike:
      case NoticeKind::recovered:
      case NoticeKind::graphs:
      case NoticeKind::device:
      case NoticeKind::overflow:
      case NoticeKind::warning: break;
    }
  }
  return attempts;
}

double total_seconds(const std::vector<Attempt>& attempts, double now) {
  double total = 0;
  for (const Attempt& attempt : attempts) {
    const double end = attempt.ended ? attempt.end : now;
    if (attempt.begin > 0 && end > attempt.begin) total += end - attempt.begin;
  }
  return total;
}

}  // namespace trainerd::io
