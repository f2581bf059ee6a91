package infer

import "strings"

// DefaultPool is the pool of models and workers that name none.
const DefaultPool = "default"

// PoolLabel is the label by which a worker names its pool.
const PoolLabel = "pool"

// ValidPool reports whether a name is valid for a pool: it is part of keys, and of lists on
// command lines.
func ValidPool(name string) bool { return name != "" && !strings.ContainsAny(name, "/=, \t\r\n") }
