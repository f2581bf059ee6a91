// The smallest integer divided by -1 has no quotient. Processors of the x86
// family raise an exception then, which ends the process, and ONNX Runtime's
// operators Div and Mod check for a divisor of 0 alone: one request to a model
// that divides integers would end the server. Here such a division goes on
// with what other processors and numpy give: the dividend itself, remainder 0.
#define _GNU_SOURCE
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <ucontext.h>

#include "shim.h"

#if defined(__x86_64__) && defined(__linux__)

// Written before the handler is installed, and read by it. A signal handler
// has no other way to its state.
static struct {
  uintptr_t low, high;  // ONNX Runtime's code
  struct sigaction next;
} guard;

// operand_bytes is the length of a ModRM byte with what belongs to it.
static int operand_bytes(const uint8_t *at) {
  int mod = at[0] >> 6, rm = at[0] & 7, n = 1;
  if (mod == 3) return n;
  if (rm == 4) {
    n++;
    if (mod == 0 && (at[1] & 7) == 5) n += 4;
  }
  if (mod == 0 && rm == 5) n += 4;
  if (mod == 1) n += 1;
  if (mod == 2) n += 4;
  return n;
}

// signed_division returns the length of an IDIV of 32 or 64 bits, else 0.
static int signed_division(const uint8_t *at, int *wide) {
  int n = 0;
  *wide = 0;
  if ((at[0] & 0xf0) == 0x40) {  // REX
    *wide = (at[0] & 8) != 0;
    n = 1;
  }
  if (at[n] != 0xf7 || ((at[n + 1] >> 3) & 7) != 7) return 0;
  return n + 1 + operand_bytes(at + n + 1);
}

// overflowed reports whether the dividend is the smallest number. A divisor of
// 0 is refused by the operators beforehand.
static int overflowed(const greg_t *reg, int wide) {
  if (wide) return reg[REG_RAX] == INT64_MIN && reg[REG_RDX] == -1;
  return (int32_t)reg[REG_RAX] == INT32_MIN && (int32_t)reg[REG_RDX] == -1;
}

static void on_exception(int signal, siginfo_t *info, void *context) {
  greg_t *reg = ((ucontext_t *)context)->uc_mcontext.gregs;
  uintptr_t at = (uintptr_t)reg[REG_RIP];
  int wide = 0, length = 0;
  if (info->si_code == FPE_INTDIV && at >= guard.low && at < guard.high) length = signed_division((const uint8_t *)at, &wide);
  if (length > 0 && overflowed(reg, wide)) {
    reg[REG_RDX] = 0;  // the dividend stays in RAX as the quotient
    reg[REG_RIP] += length;
    return;
  }
  guard.next.sa_sigaction(signal, info, context);  // the Go runtime's, with SA_SIGINFO
}

// note_code finds the segments of the object that holds the address *data.
static int note_code(struct dl_phdr_info *object, size_t size, void *data) {
  (void)size;
  uintptr_t inside = *(uintptr_t *)data, low = UINTPTR_MAX, high = 0;
  for (int i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
    if (segment->p_type != PT_LOAD || (segment->p_flags & PF_X) == 0) continue;
    uintptr_t start = object->dlpi_addr + segment->p_vaddr;
    if (start < low) low = start;
    if (start + segment->p_memsz > high) high = start + segment->p_memsz;
  }
  if (inside < low || inside >= high) return 0;
  guard.low = low;
  guard.high = high;
  return 1;
}

void nrt_guard_division(const void *code) {
  struct sigaction now;
  if (sigaction(SIGFPE, NULL, &now) != 0 || (now.sa_flags & SA_SIGINFO) == 0 || now.sa_sigaction == on_exception) return;
  uintptr_t inside = (uintptr_t)code;
  if (dl_iterate_phdr(note_code, &inside) == 0) return;
  guard.next = now;
  now.sa_sigaction = on_exception;
  now.sa_flags |= SA_ONSTACK;
  (void)sigaction(SIGFPE, &now, NULL);  // without it all works but this
}

#else

void nrt_guard_division(const void *code) { (void)code; }

#endif
