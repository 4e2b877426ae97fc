#pragma once

#include "kernels/base/ledger.h"

namespace trainerd::io {

/// False for parts of the time ledger that logs of older versions do not have: they were 0.
constexpr bool in_older_logs(base::LedgerPart part) {
  return part != base::LedgerPart::exposed_cp && part != base::LedgerPart::exposed_ep &&
         part != base::LedgerPart::exposed_host;
}

}  // namespace trainerd::io
