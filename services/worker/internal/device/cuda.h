// What the worker asks of CUDA beside ONNX Runtime: of its runtime, and of the driver where the
// runtime has no such function. Functions with an error return 0 or a code of CUDA, with the
// text in error.
#ifndef NEREID_CUDA_H
#define NEREID_CUDA_H

#include <signal.h>
#include <stddef.h>

enum { NCU_ERROR_BYTES = 1024, NCU_HANDLE_BYTES = 64 };

// ncu_handle is a cudaIpcMemHandle_t, which functions take by value.
typedef struct {
  char bytes[NCU_HANDLE_BYTES];
} ncu_handle;

typedef struct {
  int (*count)(int *);
  int (*select)(int);
  int (*memory)(size_t *, size_t *);
  int (*synchronize)(void);
  const char *(*error)(int);
  int (*pin)(void *, size_t, unsigned);
  int (*unpin)(void *);
  int (*forget)(void);
  int (*attribute)(int *, int, int);
  int (*open)(void **, ncu_handle, unsigned);
  int (*close)(void *);
  int (*copy)(void *, const void *, size_t, int, void *);
  int (*stream_create)(void **, unsigned);
  int (*stream_wait)(void *);
  int (*stream_destroy)(void *);
  int (*range)(void **, size_t *, void *);  // the driver's
} ncu_cuda;

// ncu_keep loads a library until the process ends, so that those that need it find it by its
// name.
int ncu_keep(const char *path, char *error);
// ncu_open finds the functions in CUDA's runtime and in the driver.
int ncu_open(ncu_cuda *cuda, const char *runtime, const char *driver, char *error);
int ncu_devices(const ncu_cuda *cuda, int *count, char *error);
int ncu_memory(const ncu_cuda *cuda, int device, size_t *free, size_t *total, char *error);
// ncu_synchronize waits for a device. A device that has faulted fails for good.
int ncu_synchronize(const ncu_cuda *cuda, int device, char *error);
// ncu_capability tells a device's compute capability.
int ncu_capability(const ncu_cuda *cuda, int device, int *major, int *minor, char *error);
// ncu_pin keeps memory where it is, so that a device copies from and to it by itself.
int ncu_pin(const ncu_cuda *cuda, int device, void *memory, size_t bytes, char *error);
void ncu_unpin(const ncu_cuda *cuda, void *memory);

// ncu_region is memory of another process, mapped by its handle.
typedef struct {
  int device;
  char *at;
  size_t bytes;  // of the whole allocation, from at on
  void *stream;  // for its copies, which wait for nothing else on the device
} ncu_region;

int ncu_map(const ncu_cuda *cuda, int device, const void *handle, ncu_region *region, char *error);
void ncu_unmap(const ncu_cuda *cuda, const ncu_region *region);
// ncu_read and ncu_write copy between the region and the host's memory, and return when that is done.
int ncu_read(const ncu_cuda *cuda, const ncu_region *region, size_t offset, void *to, size_t bytes, char *error);
int ncu_write(const ncu_cuda *cuda, const ncu_region *region, size_t offset, const void *from, size_t bytes, char *error);

// ncu_signals are the handlers of all signals. ncu_signals_mend puts those back that others
// have replaced, without SA_ONSTACK, since they were kept: a signal would end the process.
typedef struct {
  struct sigaction action[NSIG];
} ncu_signals;
void ncu_signals_keep(ncu_signals *s);
void ncu_signals_mend(const ncu_signals *s);

#endif
