#pragma once

#include "io/top/line.h"
#include "io/top/source.h"

namespace trainerd::io {

/// Shows a source's status on a terminal, again every second and at every change of the terminal's size,
/// until q is pressed, a signal comes that ends a process, or the terminal is gone. Returns the signal's
/// number; 0 for q. Ctrl-Z stops it as any program. Signals are blocked for the calling thread, and put back
/// at the end.
int show_live(StatusSource& source, int terminal_fd, Line::Colors colors);

}  // namespace trainerd::io
