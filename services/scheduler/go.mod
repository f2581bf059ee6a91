module github.com/nereid-serving/nereid/services/scheduler

go 1.26.0

require (
	github.com/cockroachdb/datadriven v1.0.3
	github.com/nereid-serving/nereid/libs v0.0.0
)

require (
	github.com/pmezard/go-difflib v1.0.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	pgregory.net/rapid v1.3.0 // indirect
)

replace github.com/nereid-serving/nereid/libs => ../../libs

replace github.com/nereid-serving/nereid/proto => ../../proto
