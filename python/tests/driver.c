// A driver of CUDA for tests, whose device memory is the process's: what device_memory gives out, and nothing else, can be copied.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static struct { char *at; size_t bytes; } given[16];
static int count, pushed, retained, copies;

void *device_memory(const void *content, size_t bytes) {
  char *memory = malloc(bytes + 1);
  memcpy(memory, content, bytes);
  given[count].at = memory, given[count].bytes = bytes, count++;
  return memory;
}
int device_copies(void) { return copies; }
int device_busy(void) { return pushed + retained; }

int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGet(int *device, int number) { return *device = number, number == 0 ? 0 : 101; }
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = &pushed; retained++; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; retained--; return 0; }
int cuCtxPushCurrent_v2(void *context) { (void)context; pushed++; return 0; }
int cuCtxPopCurrent_v2(void **context) { *context = &pushed; pushed--; return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
  if (pushed != 1) return 201;
  for (int i = 0; i < count; i++) {
    char *at = (char *)(uintptr_t)from;
    if (at < given[i].at || at + bytes > given[i].at + given[i].bytes) continue;
    memcpy(to, at, bytes);
    copies++;
    return 0;
  }
  return 700;
}
int cuGetErrorString(int code, const char **text) {
  *text = code == 101 ? "invalid device ordinal" : code == 700 ? "an illegal memory access was encountered" : "unknown";
  return 0;
}
