// Package proto holds the protobuf definitions that Nereid speaks and the code generated from them.
package proto
