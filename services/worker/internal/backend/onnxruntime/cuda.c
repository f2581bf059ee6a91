#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "shim.h"

int nrt_library_keep(const char *path, char *error) {
  if (dlopen(path, RTLD_LAZY | RTLD_NODELETE) != NULL) return 0;
  snprintf(error, NRT_ERROR_BYTES, "%s", dlerror());
  return ORT_FAIL;
}

int nrt_cuda_open(nrt_cuda *cuda, const char *library, char *error) {
  void *runtime = dlopen(library, RTLD_LAZY);
  if (runtime == NULL) {
    snprintf(error, NRT_ERROR_BYTES, "%s", dlerror());
    return ORT_FAIL;
  }
  struct {
    const char *name;
    void **function;
  } functions[] = {
      {"cudaGetDeviceCount", (void **)&cuda->count},        {"cudaSetDevice", (void **)&cuda->select},
      {"cudaMemGetInfo", (void **)&cuda->memory},           {"cudaDeviceSynchronize", (void **)&cuda->synchronize},
      {"cudaGetErrorString", (void **)&cuda->error},        {"cudaHostRegister", (void **)&cuda->pin},
      {"cudaHostUnregister", (void **)&cuda->unpin},        {"cudaGetLastError", (void **)&cuda->forget},
      {"cudaDeviceGetAttribute", (void **)&cuda->attribute},
  };
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    if ((*functions[i].function = dlsym(runtime, functions[i].name)) == NULL) {
      snprintf(error, NRT_ERROR_BYTES, "%s has no %s", library, functions[i].name);
      return ORT_FAIL;
    }
  }
  return 0;
}

static int failed(const nrt_cuda *cuda, int code, char *error) {
  if (code != 0) {
    cuda->forget();
    snprintf(error, NRT_ERROR_BYTES, "%s", cuda->error(code));
  }
  return code;
}

int nrt_cuda_devices(const nrt_cuda *cuda, int *count, char *error) { return failed(cuda, cuda->count(count), error); }

int nrt_cuda_memory(const nrt_cuda *cuda, int device, size_t *free, size_t *total, char *error) {
  int code = cuda->select(device);
  if (code == 0) code = cuda->memory(free, total);
  return failed(cuda, code, error);
}

int nrt_cuda_synchronize(const nrt_cuda *cuda, int device, char *error) {
  int code = cuda->select(device);
  if (code == 0) code = cuda->synchronize();
  return failed(cuda, code, error);
}

int nrt_cuda_capability(const nrt_cuda *cuda, int device, int *major, int *minor, char *error) {
  enum { MAJOR = 75, MINOR = 76 };
  int code = cuda->attribute(major, MAJOR, device);
  if (code == 0) code = cuda->attribute(minor, MINOR, device);
  return failed(cuda, code, error);
}

int nrt_tensorrt_version(const char *library) {
  void *handle = dlopen(library, RTLD_LAZY);
  int (*version)(void) = handle != NULL ? (int (*)(void))dlsym(handle, "getInferLibVersion") : NULL;
  return version != NULL ? version() : 0;
}

int nrt_cuda_pin(const nrt_cuda *cuda, int device, void *memory, size_t bytes, char *error) {
  enum { PORTABLE = 1 };
  int code = cuda->select(device);
  if (code == 0) code = cuda->pin(memory, bytes, PORTABLE);
  return failed(cuda, code, error);
}

void nrt_cuda_unpin(const nrt_cuda *cuda, void *memory) {
  if (cuda->unpin(memory) != 0) cuda->forget();
}

void nrt_signals_keep(nrt_signals *s) {
  for (int i = 1; i < NSIG; i++) sigaction(i, NULL, &s->action[i]);
}

void nrt_signals_mend(const nrt_signals *s) {
  for (int i = 1; i < NSIG; i++) {
    struct sigaction now;
    if (!(s->action[i].sa_flags & SA_ONSTACK) || sigaction(i, NULL, &now) != 0) continue;
    if (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN) continue;
    if (!(now.sa_flags & SA_ONSTACK)) sigaction(i, &s->action[i], NULL);
  }
}
