module github.com/nereid-serving/nereid/libs

go 1.26

require github.com/nereid-serving/nereid/proto v0.0.0

replace github.com/nereid-serving/nereid/proto => ../proto
