module github.com/nereid-serving/nereid/libs

go 1.26.0

require golang.org/x/sys v0.49.0

replace github.com/nereid-serving/nereid/proto => ../proto
