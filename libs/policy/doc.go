// Package policy reads and applies the policy of a server: who may call what, how
// requests are classified, and who goes first under overload.
//
// [Read] parses a policy from YAML. It is strict: unknown keys, contradictions
// and failures of the file's own tests are findings with lines, and then there is
// no policy. Conditions are written in CEL, the Common Expression Language.
//
// A [Policy] is immutable and does no I/O. Its user counts quotas and verifies
// tokens.
package policy
