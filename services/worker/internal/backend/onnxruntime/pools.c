#include "shim.h"

int nrt_pools_open(const nrt_runtime *rt, int intra, int inter, OrtEnv **env, char *error) {
  OrtThreadingOptions *pools = NULL;
  int code = nrt_take_status(rt, ORT(rt->api, CreateThreadingOptions)(&pools), error);
  if (code == 0) code = nrt_take_status(rt, ORT(rt->api, SetGlobalIntraOpNumThreads)(pools, intra), error);
  if (code == 0) code = nrt_take_status(rt, ORT(rt->api, SetGlobalInterOpNumThreads)(pools, inter), error);
  if (code == 0) code = nrt_take_status(rt, ORT(rt->api, SetGlobalSpinControl)(pools, 0), error);
  if (code == 0) code = nrt_take_status(rt, ORT(rt->api, CreateEnvWithGlobalThreadPools)(ORT_LOG_FATAL, "nereid", pools, env), error);
  if (pools != NULL) ORT(rt->api, ReleaseThreadingOptions)(pools);
  return code;
}

void nrt_pools_close(const nrt_runtime *rt, OrtEnv *env) { ORT(rt->api, ReleaseEnv)(env); }

int nrt_pools_use(const nrt_runtime *rt, OrtSessionOptions *options, char *error) {
  return nrt_take_status(rt, ORT(rt->api, DisablePerSessionThreads)(options), error);
}
