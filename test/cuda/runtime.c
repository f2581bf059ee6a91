// libcudart.so.13: the CUDA runtime over the host's memory. See README.md.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "emulated.h"

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NO_DEVICE = 100, BAD_DEVICE = 101, ILLEGAL_ADDRESS = 700, NOT_SUPPORTED = 801 };
enum { ALIGNMENT = 512, PAGE = 4096, HOST = 1, DEVICE = 2, REGISTERED = 3, IMPORTED = 4 };
// The addresses of the device: its own memory, and then that of other processes.
static const size_t reserved = (size_t)64 << 30, own = (size_t)32 << 30;

typedef struct block {
  char *at;
  size_t bytes;
  int kind;  // HOST is pinned, and so is REGISTERED, which is somebody's; IMPORTED is another process's
  int device, uses;         // of an imported one, how often it was opened
  uint64_t unique;          // tells a device's blocks apart, also of other processes
  struct block *next;
} block;

// Before each block of the device, for processes that have a handle: unique is 0 once it is freed.
typedef struct {
  uint64_t unique, bytes;
} mark;

typedef struct work {
  void (*run)(void *);
  struct work *next;
  char argument[];
} work;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *device, *alias;  // the device's addresses, and the same memory for the processor
static int store;             // the file that holds it, which other processes map
static block *blocks, *freed;
static size_t used, top, limit, pinned, peak, copies, copied, imported, import_top;
static uint64_t uniques;
static work *first, **last = &first;
static int fault;
static __thread int current, latest;

static size_t number(const char *name, size_t standard) {
  const char *text = getenv(name);
  return text != NULL ? strtoull(text, NULL, 10) : standard;
}

static void passed_on(int signal, siginfo_t *info, void *context);
static struct sigaction before[NSIG];

// CUDA's runtime takes signals over, on the stack of the thread that gets them.
static void take_signals(void) {
  int signals[] = {SIGTERM, SIGINT, SIGSEGV, SIGBUS, SIGFPE};
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
    struct sigaction mine = {.sa_sigaction = passed_on, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(signals[i], &mine, &before[signals[i]]);
  }
}

static void passed_on(int signal, siginfo_t *info, void *context) {
  if (before[signal].sa_flags & SA_SIGINFO) before[signal].sa_sigaction(signal, info, context);
}

static pthread_once_t begun = PTHREAD_ONCE_INIT;
static void begin(void) {
  limit = number("EMULATED_CUDA_MEMORY", (size_t)1 << 30);
  store = memfd_create("emulated-cuda", MFD_CLOEXEC);
  if (store < 0 || ftruncate(store, (off_t)reserved) != 0) abort();
  device = mmap(NULL, reserved, PROT_NONE, MAP_SHARED | MAP_NORESERVE, store, 0);
  alias = mmap(NULL, reserved, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, store, 0);
  if (device == MAP_FAILED || alias == MAP_FAILED) abort();
  take_signals();
}

static int failed(int code) {
  if (code != OK) latest = code;
  return code;
}

void *emulated_alias(const void *address) {
  char *p = (char *)address;
  return device != NULL && p >= device && p < device + reserved ? alias + (p - device) : p;
}

void emulated_later(void (*run)(void *), const void *argument, size_t bytes) {
  work *w = malloc(sizeof *w + bytes);
  w->run = run;
  w->next = NULL;
  memcpy(w->argument, argument, bytes);
  pthread_mutex_lock(&lock);
  *last = w;
  last = &w->next;
  pthread_mutex_unlock(&lock);
}

static void tell(void) {
  const char *path = getenv("EMULATED_CUDA_STATISTICS");
  if (path == NULL) return;
  FILE *out = fopen(path, "w");
  if (out == NULL) return;
  fprintf(out, "device_bytes %zu\ndevice_peak_bytes %zu\npinned_bytes %zu\ncopies %zu\ncopied_bytes %zu\nimported_bytes %zu\n", used, peak, pinned, copies, copied,
          imported);
  fclose(out);
}

// wait does what streams have been given, in its order.
static int wait_all(void) {
  pthread_mutex_lock(&lock);
  while (first != NULL) {
    work *w = first;
    if ((first = w->next) == NULL) last = &first;
    if (!fault) w->run(w->argument);
    free(w);
  }
  const char *path = getenv("EMULATED_CUDA_FAULT");
  if (path != NULL && access(path, F_OK) == 0) fault = ILLEGAL_ADDRESS;
  tell();
  int code = fault;
  pthread_mutex_unlock(&lock);
  return failed(code);
}

// Devices.

int cudaGetDeviceCount(int *count) {
  *count = (int)number("EMULATED_CUDA_DEVICES", 1);
  return *count > 0 ? OK : failed(NO_DEVICE);
}

int cudaSetDevice(int number) {
  int count;
  if (cudaGetDeviceCount(&count) != OK) return NO_DEVICE;
  if (number < 0 || number >= count) return failed(BAD_DEVICE);
  pthread_once(&begun, begin);
  current = number;
  return failed(fault);
}

int cudaGetDevice(int *number) { *number = current; return failed(fault); }
int cudaDeviceSynchronize(void) { return wait_all(); }
int cudaDriverGetVersion(int *version) { *version = 13000; return OK; }
int cudaRuntimeGetVersion(int *version) { *version = 13000; return OK; }

// An H200's, where the provider looks.
int cudaDeviceGetAttribute(int *value, int attribute, int number) {
  (void)number;
  switch (attribute) {
    case 10: *value = 32; break;      // threads of a warp
    case 16: *value = 132; break;     // multiprocessors
    case 75: *value = 9; break;       // compute capability
    case 76: *value = 0; break;
    case 97: *value = 232448; break;  // shared memory of a block
    default: *value = 0;
  }
  return OK;
}

int cudaGetDeviceProperties(char *p, int number) {
  (void)number;
  pthread_once(&begun, begin);
  memset(p, 0, 1008);
  strcpy(p, "Emulated CUDA device");
  *(size_t *)(p + 288) = limit;
  *(size_t *)(p + 296) = 49152;
  *(int *)(p + 304) = 65536;
  *(int *)(p + 308) = 32;
  *(int *)(p + 320) = 1024;
  int *threads = (int *)(p + 324), *grid = (int *)(p + 336);
  threads[0] = threads[1] = 1024, threads[2] = 64;
  grid[0] = 2147483647, grid[1] = grid[2] = 65535;
  *(int *)(p + 360) = 9;
  *(int *)(p + 384) = 132;
  *(int *)(p + 596) = 50 << 20;
  *(int *)(p + 604) = 2048;
  *(size_t *)(p + 624) = 233472;
  *(int *)(p + 632) = 65536;
  *(size_t *)(p + 672) = 232448;
  return OK;
}

// Memory. A block that is freed serves the next of its size.

static mark *mark_of(const block *b) { return (mark *)(alias + (b->at - device) - ALIGNMENT); }

static int take(void **p, size_t bytes, int kind) {
  pthread_once(&begun, begin);
  if (fault) return failed(fault);
  if (bytes == 0) return *p = NULL, OK;
  size_t size = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  pthread_mutex_lock(&lock);
  block **at = &freed;
  while (*at != NULL && ((*at)->kind != kind || (*at)->bytes != size)) at = &(*at)->next;
  block *b = *at;
  if (kind == DEVICE && (used + size > limit || b == NULL && top + ALIGNMENT + size > own)) {
    pthread_mutex_unlock(&lock);
    return failed(NO_MEMORY);
  }
  if (b != NULL) {
    *at = b->next;
  } else {
    b = malloc(sizeof *b);
    *b = (block){.bytes = size, .kind = kind};
    b->at = kind == DEVICE ? device + top + ALIGNMENT : aligned_alloc(PAGE, (size + PAGE - 1) / PAGE * PAGE);
    if (kind == DEVICE) top += ALIGNMENT + size;
  }
  b->device = current;
  b->unique = ((uint64_t)getpid() << 32) + ++uniques;
  if (kind == DEVICE) *mark_of(b) = (mark){b->unique, size};
  b->next = blocks;
  blocks = b;
  *(kind == DEVICE ? &used : &pinned) += size;
  if (used > peak) peak = used;
  pthread_mutex_unlock(&lock);
  *p = b->at;
  return OK;
}

static block *find(const void *address) {
  for (block *b = blocks; b != NULL; b = b->next) {
    if ((const char *)address >= b->at && (const char *)address < b->at + b->bytes) return b;
  }
  return NULL;
}

static int give_back(void *p) {
  if (p == NULL) return OK;
  wait_all();
  pthread_mutex_lock(&lock);
  block **at = &blocks;
  while (*at != NULL && ((*at)->at != p || (*at)->kind == IMPORTED)) at = &(*at)->next;
  block *b = *at;
  if (b != NULL) {
    *at = b->next;
    b->next = freed;
    freed = b;
    *(b->kind == DEVICE ? &used : &pinned) -= b->bytes;
    if (b->kind == DEVICE) {
      memset(emulated_alias(b->at), 0xdd, b->bytes);
      mark_of(b)->unique = 0;
    }
  }
  tell();
  pthread_mutex_unlock(&lock);
  return b != NULL ? failed(fault) : failed(INVALID);
}

// Memory of the host that exists already can be pinned, too.

int cudaHostRegister(void *p, size_t bytes, unsigned flags) {
  (void)flags;
  if (fault) return failed(fault);
  block *b = malloc(sizeof *b);
  pthread_mutex_lock(&lock);
  *b = (block){.at = p, .bytes = bytes, .kind = REGISTERED, .next = blocks};
  blocks = b;
  pinned += bytes;
  pthread_mutex_unlock(&lock);
  return OK;
}

int cudaHostUnregister(void *p) {
  wait_all();
  pthread_mutex_lock(&lock);
  block **at = &blocks;
  while (*at != NULL && ((*at)->at != p || (*at)->kind != REGISTERED)) at = &(*at)->next;
  block *b = *at;
  if (b != NULL) {
    *at = b->next;
    pinned -= b->bytes;
    free(b);
  }
  tell();
  pthread_mutex_unlock(&lock);
  return b != NULL ? OK : failed(INVALID);
}

int cudaMalloc(void **p, size_t bytes) { return take(p, bytes, DEVICE); }
int cudaFree(void *p) { return give_back(p); }
int cudaMallocHost(void **p, size_t bytes) { return take(p, bytes, HOST); }
int cudaHostAlloc(void **p, size_t bytes, unsigned flags) { (void)flags; return take(p, bytes, HOST); }
int cudaFreeHost(void *p) { return give_back(p); }
int cudaMallocFromPoolAsync(void **p, size_t bytes, void *pool, void *stream) { (void)pool, (void)stream; return take(p, bytes, DEVICE); }
int cudaFreeAsync(void *p, void *stream) { (void)stream; return give_back(p); }
int cudaMemPoolCreate(void **pool, const void *properties) { (void)properties; *pool = &used; return OK; }
int cudaMemPoolDestroy(void *pool) { (void)pool; return OK; }
int cudaMemPoolSetAttribute(void *pool, int attribute, void *value) { (void)pool, (void)attribute, (void)value; return OK; }
int cudaMemPoolGetAttribute(void *pool, int attribute, void *value) { (void)pool, (void)attribute; *(uint64_t *)value = used; return OK; }
int cudaMemPoolTrimTo(void *pool, size_t bytes) { (void)pool, (void)bytes; return OK; }

int cudaMemGetInfo(size_t *free, size_t *total) {
  pthread_once(&begun, begin);
  *free = limit - used;
  *total = limit;
  return failed(fault);
}

int cudaPointerGetAttributes(char *attributes, const void *p) {
  pthread_mutex_lock(&lock);
  block *b = find(p);
  pthread_mutex_unlock(&lock);
  memset(attributes, 0, 88);
  int of_device = b != NULL && (b->kind == DEVICE || b->kind == IMPORTED);
  *(int *)attributes = b == NULL ? 0 : of_device ? DEVICE : HOST;
  *(const void **)(attributes + 8) = p;
  *(const void **)(attributes + 16) = of_device ? NULL : p;
  return OK;
}

// Handles of memory for other processes. One says which file of which process holds the memory, and where.

typedef struct {
  char kind[16];
  int process, file, device, none;
  uint64_t at, bytes, unique;
  char rest[8];
} handle;
_Static_assert(sizeof(handle) == 64, "CUDA_IPC_HANDLE_SIZE");

static const char handle_kind[16] = "emulated-memory";

int cudaIpcGetMemHandle(handle *h, void *p) {
  pthread_mutex_lock(&lock);
  block *b = find(p);
  if (b != NULL && b->kind == DEVICE) {
    *h = (handle){.process = getpid(), .file = store, .device = b->device, .at = (uint64_t)(b->at - device), .bytes = b->bytes, .unique = b->unique};
    memcpy(h->kind, handle_kind, sizeof h->kind);
  }
  pthread_mutex_unlock(&lock);
  return b != NULL && b->kind == DEVICE ? failed(fault) : failed(INVALID);
}

// open_store opens the memory that a handle names; -1 if it is none, or has been freed.
static int open_store(const handle *h) {
  if (memcmp(h->kind, handle_kind, sizeof h->kind) != 0 || h->process == getpid() || h->device != current) return -1;
  if (h->unique == 0 || h->at < ALIGNMENT || h->at % ALIGNMENT != 0 || h->at > own || h->bytes == 0 || h->bytes > own - h->at) return -1;
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", h->process, h->file);
  int file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
  struct stat about;
  mark m;
  if (file >= 0 && (fstat(file, &about) != 0 || about.st_size != (off_t)reserved ||
                    pread(file, &m, sizeof m, (off_t)(h->at - ALIGNMENT)) != sizeof m || m.unique != h->unique || m.bytes != h->bytes)) {
    close(file);
    file = -1;
  }
  return file;
}

// A handle that is open already is counted, and gives the same address.
int cudaIpcOpenMemHandle(void **p, handle h, unsigned flags) {
  (void)flags;
  pthread_once(&begun, begin);
  if (fault) return failed(fault);
  int file = open_store(&h);
  if (file < 0) return failed(INVALID);
  pthread_mutex_lock(&lock);
  block *b = blocks;
  while (b != NULL && (b->kind != IMPORTED || b->unique != h.unique)) b = b->next;
  if (b == NULL) {
    size_t shift = h.at % PAGE, bytes = (shift + h.bytes + PAGE - 1) / PAGE * PAGE;
    char *at = device + own + import_top;
    if (import_top + bytes > reserved - own) abort();
    import_top += bytes;
    if (mmap(at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file, (off_t)(h.at - shift)) != at) abort();
    if (mmap(emulated_alias(at), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, (off_t)(h.at - shift)) == MAP_FAILED) abort();
    b = malloc(sizeof *b);
    *b = (block){.at = at + shift, .bytes = h.bytes, .kind = IMPORTED, .device = h.device, .unique = h.unique, .next = blocks};
    blocks = b;
    imported += b->bytes;
  }
  b->uses++;
  tell();
  pthread_mutex_unlock(&lock);
  close(file);
  *p = b->at;
  return OK;
}

int cudaIpcCloseMemHandle(void *p) {
  wait_all();
  pthread_mutex_lock(&lock);
  block **at = &blocks;
  while (*at != NULL && ((*at)->at != p || (*at)->kind != IMPORTED)) at = &(*at)->next;
  block *b = *at;
  if (b != NULL && --b->uses == 0) {
    *at = b->next;
    size_t shift = (size_t)b->at % PAGE;
    // The addresses stay the device's: nothing else may be there.
    mmap(b->at - shift, shift + b->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    mmap((char *)emulated_alias(b->at) - shift, shift + b->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    imported -= b->bytes;
    free(b);
  }
  tell();
  pthread_mutex_unlock(&lock);
  return b != NULL ? failed(fault) : failed(INVALID);
}

// emulated_range tells which block of the device an address lies in.
int emulated_range(void **base, size_t *bytes, void *p) {
  pthread_mutex_lock(&lock);
  block *b = find(p);
  int found = b != NULL && (b->kind == DEVICE || b->kind == IMPORTED);
  if (found && base != NULL) *base = b->at;
  if (found && bytes != NULL) *bytes = b->bytes;
  pthread_mutex_unlock(&lock);
  return found ? OK : INVALID;
}

// Copies. One from memory that is not pinned has read it when it returns.

typedef struct {
  void *to;
  const void *from;
  size_t bytes, rows, to_pitch, from_pitch;
  char *staged;
} copy;

static void run_copy(void *argument) {
  copy *c = argument;
  const char *from = c->staged != NULL ? c->staged : emulated_alias(c->from);
  char *to = emulated_alias(c->to);
  for (size_t i = 0; i < c->rows; i++) memcpy(to + i * c->to_pitch, from + i * c->from_pitch, c->bytes);
  free(c->staged);
  copies++;
  copied += c->bytes * c->rows;
}

static int later(copy c) {
  if (fault) return failed(fault);
  pthread_mutex_lock(&lock);
  block *b = find(c.from);
  pthread_mutex_unlock(&lock);
  if (b == NULL && c.rows == 1) {
    c.staged = malloc(c.bytes + 1);
    memcpy(c.staged, c.from, c.bytes);
  }
  emulated_later(run_copy, &c, sizeof c);
  return OK;
}

int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
  (void)kind, (void)stream;
  return later((copy){.to = to, .from = from, .bytes = bytes, .rows = 1});
}

int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
  int code = cudaMemcpyAsync(to, from, bytes, kind, NULL);
  return code != OK ? code : wait_all();
}

int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind, void *stream) {
  (void)kind, (void)stream;
  return later((copy){.to = to, .from = from, .bytes = width, .rows = height, .to_pitch = to_pitch, .from_pitch = from_pitch});
}

typedef struct {
  void *to;
  int value;
  size_t bytes;
} fill;

static void run_fill(void *argument) {
  fill *f = argument;
  memset(emulated_alias(f->to), f->value, f->bytes);
}

int cudaMemsetAsync(void *to, int value, size_t bytes, void *stream) {
  (void)stream;
  fill f = {to, value, bytes};
  emulated_later(run_fill, &f, sizeof f);
  return OK;
}

int cudaMemset(void *to, int value, size_t bytes) { return cudaMemsetAsync(to, value, bytes, NULL), wait_all(); }

// Streams and events: all are one.

static int made(void **handle) { *handle = malloc(1); return failed(fault); }
static int dropped(void *handle) { free(handle); return OK; }

int cudaStreamCreate(void **stream) { return made(stream); }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { (void)flags; return made(stream); }
int cudaStreamDestroy(void *stream) { return dropped(stream); }
int cudaStreamSynchronize(void *stream) { (void)stream; return wait_all(); }
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) { (void)stream, (void)event, (void)flags; return OK; }
int cudaStreamIsCapturing(void *stream, int *status) { (void)stream; *status = 0; return OK; }
int cudaEventCreate(void **event) { return made(event); }
int cudaEventCreateWithFlags(void **event, unsigned flags) { (void)flags; return made(event); }
int cudaEventDestroy(void *event) { return dropped(event); }
int cudaEventRecord(void *event, void *stream) { (void)event, (void)stream; return OK; }
int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) { (void)event, (void)stream, (void)flags; return OK; }
int cudaEventSynchronize(void *event) { (void)event; return wait_all(); }
int cudaEventElapsedTime(float *ms, void *a, void *b) { (void)a, (void)b; *ms = 0.001f; return OK; }

typedef struct {
  void (*call)(void *);
  void *data;
} host_call;

static void run_host(void *argument) {
  host_call *h = argument;
  h->call(h->data);
}

int cudaLaunchHostFunc(void *stream, void (*call)(void *), void *data) {
  (void)stream;
  host_call h = {call, data};
  emulated_later(run_host, &h, sizeof h);
  return OK;
}

// Errors.

static const char *word(int code) {
  switch (code) {
    case OK: return "cudaSuccess";
    case NO_MEMORY: return "cudaErrorMemoryAllocation";
    case NO_DEVICE: return "cudaErrorNoDevice";
    case BAD_DEVICE: return "cudaErrorInvalidDevice";
    case ILLEGAL_ADDRESS: return "cudaErrorIllegalAddress";
  }
  return "cudaErrorUnknown";
}

const char *cudaGetErrorName(int code) { return word(code); }

const char *cudaGetErrorString(int code) {
  switch (code) {
    case OK: return "no error";
    case NO_MEMORY: return "out of memory";
    case NO_DEVICE: return "no CUDA-capable device is detected";
    case BAD_DEVICE: return "invalid device ordinal";
    case ILLEGAL_ADDRESS: return "an illegal memory access was encountered";
  }
  return "unknown error";
}

int cudaGetLastError(void) {
  int code = fault ? fault : latest;
  latest = OK;
  return code;
}

int cudaPeekAtLastError(void) { return fault ? fault : latest; }

// Kernels do nothing. Graphs are not supported.

int __cudaPushCallConfiguration(void) { return OK; }
int __cudaPopCallConfiguration(void) { return OK; }
void **__cudaRegisterFatBinary(void) { static void *handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void) {}
void __cudaRegisterFunction(void) {}
void __cudaRegisterVar(void) {}
void __cudaUnregisterFatBinary(void) {}
int __cudaGetKernel(void **kernel, const void *entry) { *kernel = (void *)entry; return OK; }
int __cudaLaunchKernel(void) { return failed(fault); }
int cudaLaunchKernel(void) { return failed(fault); }
int cudaLaunchKernelExC(void) { return failed(fault); }
int cudaLaunchCooperativeKernel(void) { return failed(fault); }
int cudaLibraryLoadData(void **library) { *library = &used; return OK; }
int cudaLibraryGetKernel(void **kernel) { *kernel = &used; return OK; }
int cudaLibraryUnload(void) { return OK; }
int cudaKernelSetAttributeForDevice(void) { return OK; }
int cudaFuncGetAttributes(void *attributes) { memset(attributes, 0, 144); return OK; }
int cudaFuncSetAttribute(void) { return OK; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks) { *blocks = 1; return OK; }
int cudaMemcpyFromSymbol(void) { return NOT_SUPPORTED; }

int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version, unsigned long long flags, int *status) {
  (void)symbol, (void)version, (void)flags;
  *function = NULL;
  if (status != NULL) *status = 1;
  return OK;
}

int cudaStreamBeginCapture(void) { return NOT_SUPPORTED; }
int cudaStreamEndCapture(void) { return NOT_SUPPORTED; }
int cudaGraphInstantiate(void) { return NOT_SUPPORTED; }
int cudaGraphLaunch(void) { return NOT_SUPPORTED; }
int cudaGraphDestroy(void) { return OK; }
int cudaGraphExecDestroy(void) { return OK; }
