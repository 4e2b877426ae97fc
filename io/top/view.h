#pragma once

#include "io/top/line.h"
#include "io/top/source.h"

namespace trainerd::io {

/// Shows a source's status on a terminal, redrawn every second and when the terminal's size changes. Returns
/// when q is pressed (0), on a terminating signal (its number) or when the terminal is closed. Ctrl-Z
/// suspends as usual. Signals are blocked for the calling thread and restored at the end.
int show_live(StatusSource& source, int terminal_fd, Line::Colors colors);

}  // namespace trainerd::io
