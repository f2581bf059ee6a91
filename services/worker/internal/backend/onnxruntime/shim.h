// What the Go side of this package asks of ONNX Runtime beyond the Go
// binding: a session's inputs and outputs without a second session, and one
// call that runs a whole batch over memory that the caller owns.
#ifndef NEREID_ORT_SHIM_H
#define NEREID_ORT_SHIM_H

#include <signal.h>

#include "ort_api.h"

enum { NRT_MAX_RANK = 32, NRT_ERROR_BYTES = 1024 };

// nrt_runtime is an opened library: its table of functions and the few
// objects that every call needs. It is read-only after nrt_open.
typedef struct {
  const OrtSlot *api;
  const char *version;
  OrtMemoryInfo *cpu;
  OrtAllocator *allocator;  // the runtime's own default, never freed
} nrt_runtime;

// nrt_tensor is one input or output of a call.
typedef struct {
  const char *name;
  int32_t type;  // ONNX element type
  int32_t rank;
  int64_t dims[NRT_MAX_RANK];
  // Inputs: the bytes, BYTES elements with their length prefixes. Outputs
  // whose shape is known: where they go. Other outputs have NULL before the
  // call, and after it memory that lives until nrt_release.
  void *data;
  int64_t bytes;
  OrtValue *value;  // holds data after the call, or NULL
  int32_t packed;   // data is a packed copy of strings
} nrt_tensor;

// nrt_call is an instance's one run, reused from batch to batch.
typedef struct {
  OrtSession *session;
  OrtRunOptions *options;
  nrt_tensor *input, *output;
  int32_t inputs, outputs;  // in use this time
  const char **names;       // scratch for Run
  OrtValue **values;        // scratch for Run
  char error[NRT_ERROR_BYTES];
} nrt_call;

// nrt_io describes one input or output of a session.
typedef struct {
  char *name;  // malloc
  int32_t onnx_type, type;
  int32_t has_shape, rank;
  int64_t dims[NRT_MAX_RANK];
} nrt_io;

enum nrt_kind { NRT_INPUT, NRT_OUTPUT, NRT_INITIALIZER };

// All functions with an error return 0 or an OrtErrorCode, with the text in
// error.

// nrt_take_status turns a status into its code and text and frees it.
int nrt_take_status(const nrt_runtime *rt, OrtStatus *status, char *error);

int nrt_open(const char *path, nrt_runtime *rt, char *error);
void nrt_close(nrt_runtime *rt);

// nrt_guard_division keeps divisions that have no quotient from ending the
// process. code is an address in ONNX Runtime's code.
void nrt_guard_division(const void *code);

// nrt_heap_tune sets how the process's C heap treats large blocks; nrt_open
// calls it. nrt_heap_trim gives free pages of the heap back to the system and
// returns 1 if there were any.
void nrt_heap_tune(void);
int nrt_heap_trim(void);

// nrt_pools_open makes the process's environment with threads that all
// sessions share; the environment that the Go binding makes after it is the
// same. 0 threads leave their number to the runtime. nrt_pools_close gives up
// its share of the environment.
int nrt_pools_open(const nrt_runtime *rt, int intra, int inter, OrtEnv **env, char *error);
void nrt_pools_close(const nrt_runtime *rt, OrtEnv *env);
// nrt_pools_use makes a session use those threads.
int nrt_pools_use(const nrt_runtime *rt, OrtSessionOptions *options, char *error);

// nrt_signal_stack tells where the calling thread takes signals, and
// nrt_signal_stack_back has it take them there again.
void nrt_signal_stack(stack_t *stack);
void nrt_signal_stack_back(const stack_t *stack);

// nrt_provider_open makes the execution providers of a library known under a name, and
// nrt_provider_close forgets them; no session uses them by then.
int nrt_provider_open(const nrt_runtime *rt, OrtEnv *env, const char *name, const char *path, char *error);
void nrt_provider_close(const nrt_runtime *rt, OrtEnv *env, const char *name);
// nrt_provider_use has a session run what it can on a provider for CPUs, by its name and
// with this configuration, which is the provider's option load_config.
int nrt_provider_use(const nrt_runtime *rt, OrtEnv *env, OrtSessionOptions *options, const char *provider, const char *config, char *error);

// nrt_library_keep loads a library until the process ends, so that those that need it find it
// by its name.
int nrt_library_keep(const char *path, char *error);
// nrt_tensorrt_version asks a loaded library of TensorRT for its version; 0 if it does not say.
int nrt_tensorrt_version(const char *library);

// nrt_load_stop ends a load under way with these options, or to come. Any
// thread may call it.
void nrt_load_stop(const nrt_runtime *rt, OrtSessionOptions *options);

int nrt_io_count(const nrt_runtime *rt, OrtSession *s, int kind, size_t *n, char *error);
int nrt_io_at(const nrt_runtime *rt, OrtSession *s, int kind, size_t i, nrt_io *io, char *error);

nrt_call *nrt_call_new(const nrt_runtime *rt, OrtSession *s, int32_t inputs, int32_t outputs, char *error);
void nrt_call_free(const nrt_runtime *rt, nrt_call *c);
int nrt_call_config(const nrt_runtime *rt, nrt_call *c, const char *key, const char *value);

// nrt_run makes values of the call's inputs and known outputs, runs the
// session and fills in the other outputs.
int nrt_run(const nrt_runtime *rt, nrt_call *c);
// nrt_stop ends a run under way, or the next one. Any thread may call it.
void nrt_stop(const nrt_runtime *rt, nrt_call *c);
// nrt_reset lets the next run go ahead after an nrt_stop.
void nrt_reset(const nrt_runtime *rt, nrt_call *c);
// nrt_release frees what an output of a run holds: its value, or its packed
// data.
void nrt_release(const nrt_runtime *rt, OrtValue *value, void *packed);

#endif
