#include "shim.h"

#ifdef __GLIBC__
#include <malloc.h>

// Blocks from this size on are mapped and unmapped one by one. By default
// glibc raises the bound to 32 MiB as such blocks are freed, after which the
// weights of models lie on its heaps and leave holes there. What a run
// allocates is not concerned: it comes out of the session's arena.
enum { MAPPED_BYTES = 256 << 10 };

void nrt_heap_tune(void) { mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES); }

int nrt_heap_trim(void) { return malloc_trim(0); }

#else

void nrt_heap_tune(void) {}

int nrt_heap_trim(void) { return 0; }

#endif
