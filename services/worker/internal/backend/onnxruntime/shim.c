#include "shim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set_error(char *error, const char *text) { snprintf(error, NRT_ERROR_BYTES, "%s", text); }

int nrt_take_status(const nrt_runtime *rt, OrtStatus *status, char *error) {
  if (status == NULL) return 0;
  int code = ORT(rt->api, GetErrorCode)(status);
  set_error(error, ORT(rt->api, GetErrorMessage)(status));
  ORT(rt->api, ReleaseStatus)(status);
  return code == 0 ? ORT_FAIL : code;
}

// ignore frees the status of a call whose failure changes nothing.
static void ignore(const nrt_runtime *rt, OrtStatus *status) {
  if (status != NULL) ORT(rt->api, ReleaseStatus)(status);
}

int nrt_open(const char *path, nrt_runtime *rt, char *error) {
  nrt_heap_tune();
  // The Go binding holds the same library open: this returns its handle. It
  // is never closed, since buffers that the runtime allocated may outlive
  // every session.
  void *library = dlopen(path, RTLD_LAZY);
  if (library == NULL) {
    set_error(error, dlerror());
    return ORT_FAIL;
  }
  const OrtApiBase *(*base)(void) = (const OrtApiBase *(*)(void))dlsym(library, "OrtGetApiBase");
  if (base == NULL) {
    set_error(error, "it has no symbol OrtGetApiBase");
    return ORT_FAIL;
  }
  nrt_guard_division((const void *)base);
  rt->version = base()->GetVersionString();
  rt->api = base()->GetApi(ORT_API_VERSION_USED);
  if (rt->api == NULL) {
    snprintf(error, NRT_ERROR_BYTES, "version %s is too old: 1.%d or later is needed", rt->version, ORT_API_VERSION_USED);
    return ORT_FAIL;
  }
  int code = nrt_take_status(rt, ORT(rt->api, GetAllocatorWithDefaultOptions)(&rt->allocator), error);
  if (code != 0) return code;
  return nrt_take_status(rt, ORT(rt->api, CreateCpuMemoryInfo)(ORT_DEVICE_ALLOCATOR, ORT_MEMTYPE_DEFAULT, &rt->cpu), error);
}

void nrt_close(nrt_runtime *rt) {
  if (rt->cpu != NULL) ORT(rt->api, ReleaseMemoryInfo)(rt->cpu);
  rt->cpu = NULL;
}

int nrt_io_count(const nrt_runtime *rt, OrtSession *s, int kind, size_t *n, char *error) {
  switch (kind) {
    case NRT_INPUT: return nrt_take_status(rt, ORT(rt->api, SessionGetInputCount)(s, n), error);
    case NRT_OUTPUT: return nrt_take_status(rt, ORT(rt->api, SessionGetOutputCount)(s, n), error);
  }
  return nrt_take_status(rt, ORT(rt->api, SessionGetOverridableInitializerCount)(s, n), error);
}

static OrtStatus *io_name(const nrt_runtime *rt, OrtSession *s, int kind, size_t i, char **name) {
  switch (kind) {
    case NRT_INPUT: return ORT(rt->api, SessionGetInputName)(s, i, rt->allocator, name);
    case NRT_OUTPUT: return ORT(rt->api, SessionGetOutputName)(s, i, rt->allocator, name);
  }
  return ORT(rt->api, SessionGetOverridableInitializerName)(s, i, rt->allocator, name);
}

static OrtStatus *io_type(const nrt_runtime *rt, OrtSession *s, int kind, size_t i, OrtTypeInfo **info) {
  switch (kind) {
    case NRT_INPUT: return ORT(rt->api, SessionGetInputTypeInfo)(s, i, info);
    case NRT_OUTPUT: return ORT(rt->api, SessionGetOutputTypeInfo)(s, i, info);
  }
  return ORT(rt->api, SessionGetOverridableInitializerTypeInfo)(s, i, info);
}

// read_shape fills in element type and dimensions.
static int read_shape(const nrt_runtime *rt, const OrtTensorInfo *info, int32_t *type, int32_t *rank, int64_t *dims, char *error) {
  int element = 0;
  size_t n = 0;
  int code = nrt_take_status(rt, ORT(rt->api, GetTensorElementType)(info, &element), error);
  if (code == 0) code = nrt_take_status(rt, ORT(rt->api, GetDimensionsCount)(info, &n), error);
  if (code != 0) return code;
  if (n > NRT_MAX_RANK) {
    snprintf(error, NRT_ERROR_BYTES, "tensor of rank %zu: at most %d is supported", n, NRT_MAX_RANK);
    return ORT_INVALID_ARGUMENT;
  }
  *type = element;
  *rank = (int32_t)n;
  return nrt_take_status(rt, ORT(rt->api, GetDimensions)(info, dims, n), error);
}

static int describe_io(const nrt_runtime *rt, const OrtTypeInfo *info, nrt_io *io, char *error) {
  int onnx_type = 0;
  int code = nrt_take_status(rt, ORT(rt->api, GetOnnxTypeFromTypeInfo)(info, &onnx_type), error);
  io->onnx_type = onnx_type;
  if (code != 0 || onnx_type != ORT_ONNX_TENSOR) return code;
  const OrtTensorInfo *tensor = NULL;
  code = nrt_take_status(rt, ORT(rt->api, CastTypeInfoToTensorInfo)(info, &tensor), error);
  if (code != 0) return code;
  io->has_shape = ORT(rt->api, TensorTypeAndShape_HasShape)(tensor);
  return read_shape(rt, tensor, &io->type, &io->rank, io->dims, error);
}

int nrt_io_at(const nrt_runtime *rt, OrtSession *s, int kind, size_t i, nrt_io *io, char *error) {
  char *name = NULL;
  int code = nrt_take_status(rt, io_name(rt, s, kind, i, &name), error);
  if (code != 0) return code;
  io->name = strdup(name);
  ignore(rt, ORT(rt->api, AllocatorFree)(rt->allocator, name));
  OrtTypeInfo *info = NULL;
  code = nrt_take_status(rt, io_type(rt, s, kind, i, &info), error);
  if (code != 0) return code;
  code = describe_io(rt, info, io, error);
  ORT(rt->api, ReleaseTypeInfo)(info);
  return code;
}

nrt_call *nrt_call_new(const nrt_runtime *rt, OrtSession *s, int32_t inputs, int32_t outputs, char *error) {
  nrt_call *c = calloc(1, sizeof *c);
  size_t all = (size_t)inputs + (size_t)outputs + 1;  // never 0, so that NULL is a failure
  if (c != NULL) {
    c->session = s;
    c->input = calloc(all, sizeof *c->input);
    c->names = calloc(all, sizeof *c->names);
    c->values = calloc(all, sizeof *c->values);
  }
  if (c == NULL || c->input == NULL || c->names == NULL || c->values == NULL) {
    set_error(error, "out of memory");
    nrt_call_free(rt, c);
    return NULL;
  }
  c->output = c->input + inputs;
  if (nrt_take_status(rt, ORT(rt->api, CreateRunOptions)(&c->options), error) != 0) {
    nrt_call_free(rt, c);
    return NULL;
  }
  return c;
}

void nrt_call_free(const nrt_runtime *rt, nrt_call *c) {
  if (c == NULL) return;
  if (c->options != NULL) ORT(rt->api, ReleaseRunOptions)(c->options);
  free(c->input);
  free(c->names);
  free(c->values);
  free(c);
}

int nrt_call_config(const nrt_runtime *rt, nrt_call *c, const char *key, const char *value) {
  return nrt_take_status(rt, ORT(rt->api, AddRunConfigEntry)(c->options, key, value), c->error);
}

void nrt_load_stop(const nrt_runtime *rt, OrtSessionOptions *options) {
  ignore(rt, ORT(rt->api, SessionOptionsSetLoadCancellationFlag)(options, true));
}

void nrt_stop(const nrt_runtime *rt, nrt_call *c) { ignore(rt, ORT(rt->api, RunOptionsSetTerminate)(c->options)); }

void nrt_reset(const nrt_runtime *rt, nrt_call *c) { ignore(rt, ORT(rt->api, RunOptionsUnsetTerminate)(c->options)); }

void nrt_release(const nrt_runtime *rt, OrtValue *value, void *packed) {
  if (value != NULL) ORT(rt->api, ReleaseValue)(value);
  free(packed);
}
