module github.com/nereid-serving/nereid/cmd

go 1.26.0

require (
	github.com/nereid-serving/nereid/libs v0.0.0
	github.com/nereid-serving/nereid/proto v0.0.0
	github.com/nereid-serving/nereid/services/gateway v0.0.0
	github.com/nereid-serving/nereid/services/registry v0.0.0
	github.com/nereid-serving/nereid/services/scheduler v0.0.0
	github.com/nereid-serving/nereid/services/worker v0.0.0
)

require github.com/alecthomas/kong v1.17.0 // indirect

replace github.com/nereid-serving/nereid/libs => ../libs

replace github.com/nereid-serving/nereid/proto => ../proto

replace github.com/nereid-serving/nereid/services/gateway => ../services/gateway

replace github.com/nereid-serving/nereid/services/scheduler => ../services/scheduler

replace github.com/nereid-serving/nereid/services/worker => ../services/worker

replace github.com/nereid-serving/nereid/services/registry => ../services/registry
