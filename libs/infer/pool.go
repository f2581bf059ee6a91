package infer

import "strings"

// DefaultPool is the pool of models and workers that name none.
const DefaultPool = "default"

// PoolLabel is the label by which a worker names its pool.
const PoolLabel = "pool"

// ValidPool reports whether a pool may have a name: it is a part of keys, and
// stands in lists of command lines.
func ValidPool(name string) bool { return name != "" && !strings.ContainsAny(name, "/=, \t\r\n") }
