// Ends the program from C that is linked with it, before anything is queued: the same line and exit status as src/stop.rs.
#pragma once
#include <stdio.h>
#include <unistd.h>

static inline __attribute__((noreturn, unused)) void fault(const char *function, const char *what) {
  fprintf(stderr, "rehearsal: fault: %s: %s\n", function, what);
  fflush(NULL);
  _exit(86);
}
