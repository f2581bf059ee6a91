module github.com/nereid-serving/nereid/services/worker

go 1.26

require (
	github.com/nereid-serving/nereid/libs v0.0.0
	github.com/nereid-serving/nereid/proto v0.0.0
)

replace github.com/nereid-serving/nereid/libs => ../../libs

replace github.com/nereid-serving/nereid/proto => ../../proto
