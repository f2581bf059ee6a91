package region

import (
	"os"
	"strings"
)

// Host identifies the machine that the process runs on, its containers included, by its
// kernel's boot; empty where the kernel does not tell. Memory of a GPU can be shared within
// one machine alone.
func Host() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
