module github.com/nereid-serving/nereid/services/worker

go 1.26.0

require (
	github.com/nereid-serving/nereid/libs v0.0.0
	github.com/nereid-serving/nereid/proto v0.0.0 // indirect
)

require (
	github.com/google/go-cmp v0.7.0
	github.com/yalue/onnxruntime_go v1.27.0
	go.uber.org/goleak v1.3.0
	golang.org/x/sys v0.49.0
)

require (
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	google.golang.org/grpc v1.85.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace github.com/nereid-serving/nereid/libs => ../../libs

replace github.com/nereid-serving/nereid/proto => ../../proto
