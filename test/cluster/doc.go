// Package cluster starts the services as processes of their own, kills them
// under load, and holds what clients and workers have written down against the
// promises of the design: exactly one response to each request, nothing run twice,
// goodput that comes back.
//
// The programs are those beside NEREID_BIN. NEREID_KILLS is how often each row
// of the table of failures is tried; without it the tests are skipped.
// NEREID_KILL_REPORT is a file for what was measured, NEREID_KEEP_LOGS a
// directory for all logs of tests that fail.
package cluster
