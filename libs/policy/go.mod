module github.com/nereid-serving/nereid/libs/policy

go 1.26.0

replace (
	github.com/nereid-serving/nereid/libs => ../
	github.com/nereid-serving/nereid/proto => ../../proto
)

require (
	cel.dev/cel-go v0.33.2
	github.com/google/go-cmp v0.7.0
	github.com/nereid-serving/nereid/libs v0.0.0
	go.yaml.in/yaml/v3 v3.0.6
	pgregory.net/rapid v1.3.0
)

require (
	cel.dev/expr v0.25.1 // indirect
	github.com/antlr4-go/antlr/v4 v4.13.1 // indirect
	golang.org/x/exp v0.0.0-20240823005443-9b4947da3948 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20240826202546-f6391c0de4c7 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)
