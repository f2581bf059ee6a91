module github.com/nereid-serving/nereid/test

go 1.26.0

require golang.org/x/mod v0.42.0

require github.com/google/go-cmp v0.7.0

replace github.com/nereid-serving/nereid/libs => ../libs

replace github.com/nereid-serving/nereid/proto => ../proto

replace github.com/nereid-serving/nereid/services/gateway => ../services/gateway

replace github.com/nereid-serving/nereid/services/scheduler => ../services/scheduler

replace github.com/nereid-serving/nereid/services/worker => ../services/worker

replace github.com/nereid-serving/nereid/services/registry => ../services/registry

replace github.com/nereid-serving/nereid/cmd => ../cmd
