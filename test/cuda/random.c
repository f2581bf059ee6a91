// libcurand.so.10: the provider links it and calls nothing of it.

int emulated_random(void) { return 0; }
