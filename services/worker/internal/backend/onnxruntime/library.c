#include <dlfcn.h>
#include <stdio.h>

#include "shim.h"

int nrt_library_keep(const char *path, char *error) {
  if (dlopen(path, RTLD_LAZY | RTLD_NODELETE) != NULL) return 0;
  snprintf(error, NRT_ERROR_BYTES, "%s", dlerror());
  return ORT_FAIL;
}

int nrt_tensorrt_version(const char *library) {
  void *handle = dlopen(library, RTLD_LAZY);
  int (*version)(void) = handle != NULL ? (int (*)(void))dlsym(handle, "getInferLibVersion") : NULL;
  return version != NULL ? version() : 0;
}
