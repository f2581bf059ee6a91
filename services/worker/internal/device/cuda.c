#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cuda.h"

int ncu_keep(const char *path, char *error) {
  if (dlopen(path, RTLD_LAZY | RTLD_NODELETE) != NULL) return 0;
  snprintf(error, NCU_ERROR_BYTES, "%s", dlerror());
  return 1;
}

int ncu_open(ncu_cuda *cuda, const char *runtime, const char *driver, char *error) {
  struct {
    const char *library, *name;
    void **function;
  } functions[] = {
      {runtime, "cudaGetDeviceCount", (void **)&cuda->count},
      {runtime, "cudaSetDevice", (void **)&cuda->select},
      {runtime, "cudaMemGetInfo", (void **)&cuda->memory},
      {runtime, "cudaDeviceSynchronize", (void **)&cuda->synchronize},
      {runtime, "cudaGetErrorString", (void **)&cuda->error},
      {runtime, "cudaHostRegister", (void **)&cuda->pin},
      {runtime, "cudaHostUnregister", (void **)&cuda->unpin},
      {runtime, "cudaGetLastError", (void **)&cuda->forget},
      {runtime, "cudaDeviceGetAttribute", (void **)&cuda->attribute},
      {runtime, "cudaIpcOpenMemHandle", (void **)&cuda->open},
      {runtime, "cudaIpcCloseMemHandle", (void **)&cuda->close},
      {runtime, "cudaMemcpyAsync", (void **)&cuda->copy},
      {runtime, "cudaStreamCreateWithFlags", (void **)&cuda->stream_create},
      {runtime, "cudaStreamSynchronize", (void **)&cuda->stream_wait},
      {runtime, "cudaStreamDestroy", (void **)&cuda->stream_destroy},
      {driver, "cuMemGetAddressRange_v2", (void **)&cuda->range},
  };
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    void *library = dlopen(functions[i].library, RTLD_LAZY);
    if (library == NULL) {
      snprintf(error, NCU_ERROR_BYTES, "%s", dlerror());
      return 1;
    }
    if ((*functions[i].function = dlsym(library, functions[i].name)) == NULL) {
      snprintf(error, NCU_ERROR_BYTES, "%s has no %s", functions[i].library, functions[i].name);
      return 1;
    }
  }
  return 0;
}

static int failed(const ncu_cuda *cuda, int code, char *error) {
  if (code != 0) {
    cuda->forget();
    snprintf(error, NCU_ERROR_BYTES, "%s", cuda->error(code));
  }
  return code;
}

int ncu_devices(const ncu_cuda *cuda, int *count, char *error) { return failed(cuda, cuda->count(count), error); }

int ncu_memory(const ncu_cuda *cuda, int device, size_t *free, size_t *total, char *error) {
  int code = cuda->select(device);
  if (code == 0) code = cuda->memory(free, total);
  return failed(cuda, code, error);
}

int ncu_synchronize(const ncu_cuda *cuda, int device, char *error) {
  int code = cuda->select(device);
  if (code == 0) code = cuda->synchronize();
  return failed(cuda, code, error);
}

int ncu_capability(const ncu_cuda *cuda, int device, int *major, int *minor, char *error) {
  enum { MAJOR = 75, MINOR = 76 };
  int code = cuda->attribute(major, MAJOR, device);
  if (code == 0) code = cuda->attribute(minor, MINOR, device);
  return failed(cuda, code, error);
}

int ncu_pin(const ncu_cuda *cuda, int device, void *memory, size_t bytes, char *error) {
  enum { PORTABLE = 1 };
  int code = cuda->select(device);
  if (code == 0) code = cuda->pin(memory, bytes, PORTABLE);
  return failed(cuda, code, error);
}

void ncu_unpin(const ncu_cuda *cuda, void *memory) {
  if (cuda->unpin(memory) != 0) cuda->forget();
}

int ncu_map(const ncu_cuda *cuda, int device, const void *handle, ncu_region *region, char *error) {
  enum { LAZY_ENABLE_PEER_ACCESS = 1, NON_BLOCKING = 1 };
  ncu_handle h;
  memcpy(h.bytes, handle, sizeof h.bytes);
  void *at = NULL, *base = NULL;
  int code = cuda->select(device);
  if (code == 0) code = cuda->open(&at, h, LAZY_ENABLE_PEER_ACCESS);
  if (code != 0) return failed(cuda, code, error);
  *region = (ncu_region){.device = device, .at = at};
  size_t bytes = 0;
  if ((code = cuda->range(&base, &bytes, at)) != 0) {
    snprintf(error, NCU_ERROR_BYTES, "the driver does not tell how large the memory is (%d)", code);
  } else {
    region->bytes = bytes - (size_t)((char *)at - (char *)base);
    code = failed(cuda, cuda->stream_create(&region->stream, NON_BLOCKING), error);
  }
  if (code != 0) ncu_unmap(cuda, region);
  return code;
}

void ncu_unmap(const ncu_cuda *cuda, const ncu_region *region) {
  if (cuda->select(region->device) != 0) cuda->forget();
  if (region->stream != NULL && cuda->stream_destroy(region->stream) != 0) cuda->forget();
  if (cuda->close(region->at) != 0) cuda->forget();
}

static int copied(const ncu_cuda *cuda, const ncu_region *region, void *to, const void *from, size_t bytes, char *error) {
  enum { BY_ADDRESSES = 4 };
  int code = cuda->select(region->device);
  if (code == 0) code = cuda->copy(to, from, bytes, BY_ADDRESSES, region->stream);
  if (code == 0) code = cuda->stream_wait(region->stream);
  return failed(cuda, code, error);
}

int ncu_read(const ncu_cuda *cuda, const ncu_region *region, size_t offset, void *to, size_t bytes, char *error) {
  return copied(cuda, region, to, region->at + offset, bytes, error);
}

int ncu_write(const ncu_cuda *cuda, const ncu_region *region, size_t offset, const void *from, size_t bytes, char *error) {
  return copied(cuda, region, region->at + offset, from, bytes, error);
}

void ncu_signals_keep(ncu_signals *s) {
  for (int i = 1; i < NSIG; i++) sigaction(i, NULL, &s->action[i]);
}

void ncu_signals_mend(const ncu_signals *s) {
  for (int i = 1; i < NSIG; i++) {
    struct sigaction now;
    if (!(s->action[i].sa_flags & SA_ONSTACK) || sigaction(i, NULL, &now) != 0) continue;
    if (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN) continue;
    if (!(now.sa_flags & SA_ONSTACK)) sigaction(i, &s->action[i], NULL);
  }
}
