// libcuda.so.1: what is called of the driver beside the runtime.
#include <dlfcn.h>
#include <stddef.h>

int cuTensorMapEncodeTiled(void) { return 801; /* not supported */ }

// The runtime, which is loaded after the driver, knows the memory.
int cuMemGetAddressRange_v2(void **base, size_t *bytes, void *p) {
  enum { NOT_INITIALIZED = 3 };
  void *runtime = dlopen("libcudart.so.13", RTLD_LAZY | RTLD_NOLOAD);
  int (*range)(void **, size_t *, void *) = runtime != NULL ? (int (*)(void **, size_t *, void *))dlsym(runtime, "emulated_range") : NULL;
  if (runtime != NULL) dlclose(runtime);
  return range != NULL ? range(base, bytes, p) : NOT_INITIALIZED;
}
