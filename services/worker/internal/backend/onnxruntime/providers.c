#include <stdio.h>
#include <string.h>

#include "shim.h"

void nrt_signal_stack(stack_t *stack) { sigaltstack(NULL, stack); }

void nrt_signal_stack_back(const stack_t *stack) { sigaltstack(stack, NULL); }

int nrt_provider_open(const nrt_runtime *rt, OrtEnv *env, const char *name, const char *path, char *error) {
  // The library stays where it is until the process ends: threads that it has started may
  // still be in its code, and in that of the libraries that it needs, when it is forgotten.
  int code = nrt_library_keep(path, error);
  if (code != 0) return code;
  return nrt_take_status(rt, ORT(rt->api, RegisterExecutionProviderLibrary)(env, name, path), error);
}

void nrt_provider_close(const nrt_runtime *rt, OrtEnv *env, const char *name) {
  char ignored[NRT_ERROR_BYTES];
  nrt_take_status(rt, ORT(rt->api, UnregisterExecutionProviderLibrary)(env, name), ignored);
}

int nrt_provider_use(const nrt_runtime *rt, OrtEnv *env, OrtSessionOptions *options, const char *provider, const char *config, char *error) {
  const char *key = "load_config";
  const OrtEpDevice *const *devices = NULL;
  size_t count = 0;
  int code = nrt_take_status(rt, ORT(rt->api, GetEpDevices)(env, &devices, &count), error);
  if (code != 0) return code;
  for (size_t i = 0; i < count; i++) {
    if (strcmp(ORT(rt->api, EpDevice_EpName)(devices[i]), provider) != 0) continue;
    if (ORT(rt->api, HardwareDevice_Type)(ORT(rt->api, EpDevice_Device)(devices[i])) != ORT_DEVICE_CPU) continue;
    return nrt_take_status(rt, ORT(rt->api, SessionOptionsAppendExecutionProvider_V2)(options, env, &devices[i], 1, &key, &config, 1), error);
  }
  snprintf(error, NRT_ERROR_BYTES, "%s supports none of the processors here, which are not Intel's: remove cpu_execution_accelerator", provider);
  return ORT_FAIL;
}
