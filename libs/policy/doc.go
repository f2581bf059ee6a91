// Package policy reads and applies the policy of a server: who may ask for what,
// what it counts as, and who goes first when not all can be served.
//
// [Read] reads a policy from YAML. It is strict: what it does not know, what does not
// fit together and each of the file's own tests that fails are findings, with their
// lines, and then there is no policy. Conditions are written in CEL, the Common Expression Language.
//
// A [Policy] is immutable and does no I/O. Quotas are counted, and tokens are
// verified, by those who hold it.
package policy
