// What the emulated libraries share.
#ifndef EMULATED_CUDA_H
#define EMULATED_CUDA_H

#include <stddef.h>

// emulated_alias returns where the processor may read and write what an address of the
// device, or of the host, means.
void *emulated_alias(const void *address);

// emulated_later has the device do something when it is waited for. The argument is copied.
void emulated_later(void (*work)(void *argument), const void *argument, size_t bytes);

#endif
