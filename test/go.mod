module github.com/nereid-serving/nereid/test

go 1.26.0

require golang.org/x/mod v0.42.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/nereid-serving/nereid/libs v0.0.0-00010101000000-000000000000
	github.com/nereid-serving/nereid/proto v0.0.0
	golang.org/x/sys v0.49.0
	google.golang.org/grpc v1.85.0
)

require (
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace github.com/nereid-serving/nereid/libs => ../libs

replace github.com/nereid-serving/nereid/proto => ../proto

replace github.com/nereid-serving/nereid/services/gateway => ../services/gateway

replace github.com/nereid-serving/nereid/services/scheduler => ../services/scheduler

replace github.com/nereid-serving/nereid/services/worker => ../services/worker

replace github.com/nereid-serving/nereid/services/registry => ../services/registry

replace github.com/nereid-serving/nereid/cmd => ../cmd
