// The runtime's functions, which it hands over when it loads the kernel, and the end of the program.
#pragma once
#include "bits.h"
#include "abi.h"

static Runtime runtime;
__attribute__((visibility("default"))) void kernel_init(const Runtime *given) { runtime = *given; }

APART __attribute__((cold, noreturn)) void stop(const char *what, const char *at) {
  runtime.stop(what, at);
  __builtin_trap();
}
